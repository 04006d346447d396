"""`python -m tidemark.pipelines.demos.ui`: Dagster's UI and daemon over the specs.

Here: what `make ui` starts and ends. Not here: what Dagster loads (pipelines/definitions.py).
"""

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import click

from tidemark.pipelines.command_line import in_words, settings_of
from tidemark.pipelines.demos.flights import LANDING, SPEC, land_flights
from tidemark.pipelines.warm.asking import warm_process

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--port", default=3000, show_default=True, help="Port of Dagster's UI.")
def main(port: int) -> None:
    """Opens Dagster's UI over the specs; Ctrl-C ends it."""
    with in_words():
        settings = settings_of()
        if settings.specs.resolve() == SPEC.parent.resolve():  # nothing else was asked for: the demo, with its data
            land_flights(LANDING)
        places = {"TIDEMARK_WAREHOUSE": str(settings.warehouse), "TIDEMARK_SPECS": str(settings.specs)}
        dg = Path(sysconfig.get_path("scripts"), "dg")
        command = [str(dg), "dev", "-w", str(ROOT / "workspace.yaml"), "-p", str(port)]
        # A process started in the background ignores Ctrl-C, and Dagster inherits that: it could not be ended.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with warm_process(settings.dagster_home):
            dagster = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **places})
            # The terminal sends Ctrl-C to Dagster as well, and Dagster ends its own processes.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: dagster.terminate())
            sys.exit(dagster.wait())


if __name__ == "__main__":
    main()
