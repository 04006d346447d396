"""Clicks of a newcomer in Dagster's UI, step by step; each ends where its subject can be seen.

Here: the clicks, for the test and the screenshots. Not here: what has to be there (test_dagster_ui.py).
"""

from datetime import timedelta

from playwright.sync_api import Locator, Page, expect

LONGEST_RUN = timedelta(minutes=8)
"""Until a run of few records has ended, on a machine that is busy with other tests."""


class DagsterUi:
    """Dagster's UI in a browser, looked at for one pipeline.

    Args:
        page: The browser's page.
        address: Where the UI is.
        pipeline: Name of the pipeline.
    """

    def __init__(self, page: Page, address: str, pipeline: str) -> None:
        self.page = page
        self._address = address
        self._pipeline = pipeline

    def open_timeline(self) -> None:
        """Open the runs over time, which is Dagster's first page."""
        self.page.goto(f"{self._address}/overview/timeline")

    def open_lineage(self) -> None:
        self.page.goto(f"{self._address}/locations/tidemark/asset-groups/{self._pipeline}")
        expect(self.in_graph("raw_events")).to_be_visible()
        expect(self.page.get_by_text("Loading")).to_have_count(0)

    def open_failed_check_of(self, pipeline: str, asset: str) -> None:
        """From the graph of another pipeline, the checks of an asset whose only one has failed."""
        self.page.goto(f"{self._address}/locations/tidemark/asset-groups/{pipeline}")
        expect(self.in_graph(asset)).to_be_visible()
        self.page.get_by_text("0 / 1 Passed").click()

    def in_graph(self, asset: str) -> Locator:
        """Return an asset in the graph, by its short name."""
        return self.page.get_by_text(asset, exact=True).first

    def hide_navigation(self) -> None:
        """Make the page larger."""
        self.page.get_by_text("Hide navigation", exact=True).click()

    def open_asset(self, asset: str) -> None:
        """Open the overview of an asset, by its place in the graph."""
        self.open_lineage()
        self.in_graph(asset).click()
        self.page.get_by_text("View in Asset Catalog").click()
        expect(self.page.get_by_text("Latest materialization", exact=True)).to_be_visible()

    def open_tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name, exact=True).click()

    def fold(self, section: str) -> None:
        self.page.get_by_text(section, exact=True).first.click()

    def open_plots(self) -> None:
        self.open_tab("Overview")
        self.page.get_by_role("button", name="Plots").click()
        expect(self.page.locator("canvas").first).to_be_visible()

    def open_picture(self, name: str) -> Locator:
        """Return a picture of the newest materialization, by the click that shows it."""
        self.open_tab("Events")
        self.page.get_by_role("row").filter(has_text=name).get_by_text("[Show Markdown]").last.click()
        picture = self.page.get_by_role("dialog").get_by_role("img", name=name)
        expect(picture).to_be_visible()
        return picture

    def close_picture(self) -> None:
        self.page.get_by_role("button", name="Close").click()

    def open_check(self, name: str) -> None:
        self.open_tab("Checks")
        self.page.get_by_text(name, exact=True).first.click()
        expect(self.page.get_by_text("Latest execution", exact=True)).to_be_visible()

    def open_automation(self, name: str) -> None:
        self.page.get_by_role("link", name="Automation").click()
        self.page.get_by_role("link", name=name).click()

    def switch_automation_off(self) -> None:
        switch = self.page.get_by_role("checkbox")
        expect(switch).to_be_checked()
        self.page.locator("label").filter(has=switch).click()
        expect(switch).not_to_be_checked()

    def materialize_all(self) -> None:
        """Launches a batch from the page of the live job, and goes to its run."""
        self.page.get_by_role("link", name="Jobs").click()
        self.page.get_by_role("link", name=f"{self._pipeline}_live").click()
        self.page.get_by_role("button", name="Materialize all").click()
        self.page.get_by_role("link", name="View", exact=True).click()
        expect(self.page.get_by_text("Run of")).to_be_visible()

    def recompute_days(self, asset: str) -> None:
        self.open_asset(asset)
        self.page.get_by_role("button", name="Materialize").first.click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_text("All", exact=True).click()
        dialog.get_by_role("button", name="Launch backfill").click()
        expect(dialog).to_have_count(0)

    def wait_for_success(self) -> None:
        ended = self.page.get_by_text("Success", exact=True).or_(self.page.get_by_text("Failure", exact=True)).first
        ended.wait_for(timeout=LONGEST_RUN.total_seconds() * 1_000)
        expect(ended).to_have_text("Success")
