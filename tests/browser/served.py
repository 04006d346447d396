"""`make ui` over a folder of specs, and a browser that looks at it.

Here: starting both, and ending all that was started. Not here: what is looked at (steps.py).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO

from playwright.sync_api import Page, expect, sync_playwright

from tests.chromium import chromium
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 1400, 900
PATIENCE_MS = 60_000
"""Until a page shows what was asked for, on a machine that is busy with other tests."""
_READY = "Serving dagster-webserver"


@dataclass(frozen=True)
class Places:
    """The folders of one Tidemark, as the environment names them; the ports are free ones."""

    root: Path
    specs: Path
    ui: int = field(default_factory=free_port)
    docs: int = field(default_factory=free_port)

    @property
    def warehouse(self) -> Path:
        """Folder of the tables."""
        return self.root / "warehouse"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process."""
        return {
            **os.environ,
            "DAGSTER_HOME": str(self.root / "home"),
            "TIDEMARK_SPECS": str(self.specs),
            "TIDEMARK_WAREHOUSE": str(self.warehouse),
            "TIDEMARK_DATA_DOCS": f"http://localhost:{self.docs}",
        }

    def tidemark(self, *words: str) -> None:
        """Runs the command line."""
        command = [sys.executable, "-m", "pipelines.cli", *words]
        subprocess.run(command, cwd=ROOT, env=self.environment, check=True, capture_output=True)


@contextmanager
def dagster_ui(places: Places) -> Iterator[str]:
    """The UI's address, while `make ui` runs; every process of it is ended."""
    command = [sys.executable, "-m", "pipelines.ui", "--port", str(places.ui)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=places.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        reading = Thread(target=lambda said: [None for _ in said], args=(process.stdout,))
        try:
            _wait_until_served(process.stdout)
            reading.start()
            yield f"http://localhost:{places.ui}"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):  # a code server and a run may outlive it
                os.killpg(process.pid, signal.SIGKILL)
            if reading.is_alive():
                reading.join()


@contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a headless Chromium that reaches this machine alone."""
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


def _wait_until_served(said: IO[str]) -> None:
    """Reads what Dagster says until it serves."""
    lines = []
    for line in said:
        lines.append(line)
        if _READY in line:
            return
    raise AssertionError(f"Dagster ended before it served its UI:\n{''.join(lines)}")
