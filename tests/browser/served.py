"""`make ui` over a folder of specs, and a browser that looks at it.

Here: starting both, and ending all that was started. Not here: what is looked at (steps.py).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests import ROOT
from tests.chromium import chromium
from tests.processes import free_port, process, wait_until

WIDTH, HEIGHT = 1400, 900
PATIENCE_MS = 60_000
"""Until a page shows what was asked for, on a machine that is busy with other tests."""
_READY = "Serving dagster-webserver"


@dataclass(frozen=True)
class Places:
    """The folders of one Tidemark, as the environment names them; the port is a free one."""

    root: Path
    specs: Path
    ui: int = field(default_factory=free_port)

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the environment of a process has besides those of this one."""
        return {
            "DAGSTER_HOME": str(self.root / "home"),
            "TIDEMARK_SPECS": str(self.specs),
            "TIDEMARK_WAREHOUSE": str(self.warehouse),
        }

    def tidemark(self, *words: str) -> None:
        command = [sys.executable, "-m", "tidemark.pipelines.cli", *words]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **self.environment}, check=True, capture_output=True)


@contextmanager
def dagster_ui(places: Places) -> Iterator[str]:
    """Yield the UI's address, while `make ui` runs; every process of it is ended."""
    command = [sys.executable, "-m", "tidemark.pipelines.demos.ui", "--port", str(places.ui)]
    log = places.root / "ui.log"
    with process(command, places.environment, log) as ui:
        wait_until(lambda: _READY in log.read_text() or ui.poll() is not None, log)
        assert ui.poll() is None, f"Dagster ended before it served its UI:\n{log.read_text()}"
        yield f"http://localhost:{places.ui}"


@contextmanager
def browser_page() -> Iterator[Page]:
    """Yield a page of a headless Chromium that reaches this machine alone."""
    program = chromium()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.route(lambda url: "//localhost:" not in url, lambda route: route.abort())
            page.set_default_timeout(PATIENCE_MS)
            expect.set_options(timeout=PATIENCE_MS)
            yield page
        finally:
            browser.close()
