"""`make ui` in a real browser: what a newcomer sees of a pipeline that has run, and a batch launched by clicks."""

import re
import shutil
import zipfile
from collections.abc import Iterator
from itertools import islice

import pytest
from playwright.sync_api import ConsoleMessage, Page, Request, expect

from tests.browser.served import Places, browser_page, dagster_ui
from tests.browser.steps import DagsterUi
from tests.chromium import chromium
from tests.processes import wait_until
from tidemark.pipelines.demos.flights import SPEC, packaged_flights
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.workspace import Workspace

pytestmark = pytest.mark.long

DAYS = {1: 842, 2: 943, 3: 914, 4: 915, 5: 720, 6: 832}
"""Flights of the first days of 2013."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Return the demo with the flights of five days, which have been run as two batches."""
    chromium()  # before the minute that a run takes
    root = tmp_path_factory.mktemp("ui")
    specs = root / "pipelines" / "specs"
    specs.mkdir(parents=True)
    shutil.copy(SPEC, specs)
    (specs / "shop.yaml").write_text("name: shop\nsauces: []\n")
    made = Places(root, specs)
    for day in range(1, 6):
        land(made, day)
    made.tidemark("run", str(specs / SPEC.name), "--max-events-per-batch", "3000")
    return made


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    return []


@pytest.fixture(scope="module")
def ui(places: Places, complaints: list[str]) -> Iterator[DagsterUi]:
    with dagster_ui(places) as address, browser_page() as page:
        listen(page, complaints)
        yield DagsterUi(page, address, "flights")


def land(places: Places, day: int) -> None:
    """Writes the flights of a day; the file appears whole."""
    folder = places.root / "data" / "flights"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(packaged_flights()) as archive, archive.open("flights.csv") as flights:
        header, *lines = [line.decode() for line in islice(flights, 1 + sum(DAYS.values()))]
    of_day = [line for line in lines if line.split(",")[2] == str(day)]
    assert len(of_day) == DAYS[day]
    unfinished = places.root / f"{day}.tmp"
    unfinished.write_text("".join([header, *of_day]))
    unfinished.rename(folder / f"day-{day}.csv")


def listen(page: Page, complaints: list[str]) -> None:
    """Collect errors of the page and requests that failed, except requests that a change of page cut short."""

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            complaints.append(f"{request.url}: {request.failure}")

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", failed)


def test_the_first_page_shows_the_runs_of_the_command(ui: DagsterUi) -> None:
    ui.open_timeline()
    expect(ui.page.get_by_text("flights_live", exact=True).first).to_be_visible()


def test_the_graph_shows_every_asset(ui: DagsterUi) -> None:
    ui.open_lineage()
    for asset in ("raw_events", "ordered_events", "window_results", "dead_letters", "batches", "departures_1h"):
        expect(ui.in_graph(asset)).to_be_visible()


def test_a_wrong_spec_beside_it_is_an_asset_whose_check_has_failed_and_says_what_is_wrong(ui: DagsterUi) -> None:
    ui.open_failed_check_of("shop", "shop_yaml")
    expect(ui.page.get_by_text("line 2, sauces: unknown key").first).to_be_visible()


def test_an_asset_says_what_it_is_and_how_many_rows_and_which_columns_it_has(ui: DagsterUi) -> None:
    ui.open_asset("ordered_events")
    expect(ui.page.get_by_text("Accepted events in event-time order")).to_be_visible()
    expect(ui.page.get_by_text("Row count", exact=True)).to_be_visible()
    for shown in ("demo", "domain: aviation", "flights_on_new_input"):
        expect(ui.page.get_by_text(shown, exact=True).first).to_be_visible()
    for shown in ("_release_seq", "sched_dep_time", "array<string>", "out_of_order_events", "no_arrival_time"):
        expect(ui.page.get_by_text(shown, exact=True).first).to_be_visible()


def test_numbers_are_plotted_over_runs_and_a_picture_is_behind_a_click(ui: DagsterUi) -> None:
    ui.open_asset("ordered_events")
    ui.open_plots()
    for number in ("accepted", "held_events", "watermark_delay_seconds", "lateness_p99_seconds"):
        expect(ui.page.get_by_text(number, exact=True).first).to_be_visible()
    picture = ui.open_picture("watermark_against_arrival")
    assert picture.evaluate("image => image.naturalWidth") == 720
    ui.close_picture()


def test_a_check_says_what_holds_and_what_was_counted(ui: DagsterUi) -> None:
    ui.open_asset("dead_letters")
    ui.open_check("conservation")
    holds = "records = ordered + held + dead letters"
    expect(ui.page.get_by_text(holds).first).to_be_visible()
    expect(ui.page.get_by_text("Passed", exact=True)).to_be_visible()
    expect(ui.page.get_by_text("records ordered, held or refused")).to_be_visible()


def test_five_days_that_are_computed_anew_by_clicks_equal_the_live_ones(
    ui: DagsterUi, places: Places, complaints: list[str]
) -> None:
    live, known = departures(places)
    ui.recompute_days("departures_1h")
    wait_until(lambda: departures(places)[1] != known, places.root / "ui.log")
    anew, batches = departures(places)
    assert anew == live
    assert len(live) > 200, "equal empty tables would show nothing"
    assert len(batches) == 1, "one commit, of all rows: the days are those of New York"
    assert batches.isdisjoint(known)
    assert complaints == []


def departures(places: Places) -> tuple[list[str], set[int]]:
    """Return the committed rows of the window as texts, but for the batches that wrote them; and these."""
    workspace = Workspace(read_spec(places.specs / SPEC.name), places.warehouse)
    table = "windows/departures_1h"
    rows = workspace.lake.rows(table, workspace.base()[table]).to_pylist()
    return sorted(str(row | {"_batch_id": None}) for row in rows), {row["_batch_id"] for row in rows}


def test_a_file_that_comes_is_processed_by_a_click_and_its_rows_are_shown(
    ui: DagsterUi, places: Places, complaints: list[str]
) -> None:
    ui.open_lineage()
    ui.open_automation("flights_on_new_input")
    expect(ui.page.get_by_text("Looks for input of flights every 30 seconds")).to_be_visible()
    ui.switch_automation_off()  # else it may be quicker than the click
    land(places, 6)
    ui.materialize_all()
    ui.wait_for_success()
    ui.open_asset("raw_events")
    expect(ui.page.get_by_text(re.compile("^5,?166$")).first).to_be_visible()
    assert sum(DAYS.values()) == 5_166
    assert complaints == []
