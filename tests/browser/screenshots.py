"""`make screenshots`: the demos in Dagster's UI, as the README and docs/ show them.

Here: what each picture shows, and its size. Not here: the clicks (steps.py).
"""

import io
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Locator, Page

from tests import ROOT
from tests.browser.served import WIDTH, Places, browser_page, dagster_ui
from tests.browser.steps import DagsterUi
from tidemark.pipelines.demos import weather
from tidemark.pipelines.demos.flights import LANDING, SPEC, land_flights

IMAGES = ROOT / "docs" / "images"
_BATCH = 60_000  # records: six batches, so that there is something to plot


def main() -> None:
    """Runs both demos in folders of their own, and writes the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    land_flights(LANDING)
    with TemporaryDirectory() as folder:
        places = Places(Path(folder), SPEC.parent)
        places.tidemark("run", str(SPEC), "--max-events-per-batch", str(_BATCH))
        with dagster_ui(places) as address, browser_page() as page:
            _take(DagsterUi(page, address, "flights"))
    weather.land_weather(weather.WEATHER)
    with TemporaryDirectory() as folder:
        places = Places(Path(folder), weather.SPEC.parent)
        places.tidemark("run", str(weather.SPEC))
        with dagster_ui(places) as address, browser_page() as page:
            _take_join(DagsterUi(page, address, "departures_weather"))


def _take(ui: DagsterUi) -> None:
    _set_height(ui.page, 620)
    ui.open_lineage()
    ui.hide_navigation()
    ui.open_lineage()  # drawn anew, in the room that is there now
    _keep("lineage", ui.page)
    _set_height(ui.page, 1_170)
    ui.open_asset("ordered_events")
    ui.fold("Columns")
    ui.open_plots()
    ui.page.get_by_text("Row count", exact=True).scroll_into_view_if_needed()
    _keep("asset", ui.page)
    for name, picture in (("watermark", "watermark_against_arrival"), ("lateness", "lateness")):
        _keep(name, ui.open_picture(picture))
        ui.close_picture()
    _set_height(ui.page, 800)
    ui.open_asset("dead_letters")
    ui.open_check("conservation")
    _keep("check", ui.page)


def _take_join(ui: DagsterUi) -> None:
    _set_height(ui.page, 620)
    ui.open_lineage()
    ui.hide_navigation()
    ui.open_lineage()
    _keep("joins", ui.page)


def _set_height(page: Page, height: int) -> None:
    page.set_viewport_size({"width": WIDTH, "height": height})


def _keep(name: str, shown: Page | Locator) -> None:
    """Writes a picture, as small as its format can be."""
    with Image.open(io.BytesIO(shown.screenshot(animations="disabled"))) as image:
        image.convert("RGB").save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
