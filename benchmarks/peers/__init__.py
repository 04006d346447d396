"""Other systems that do the same job: events in files to one table of windows, or of joined events, from cold.

Here: which there are and how each is started. Each is a script of its own, which shares no code with the others.
Not here: how they are installed (setup.sh); what is measured on them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_ENVIRONMENTS = _HERE / ".environments"


@dataclass(frozen=True)
class Peer:
    """One other system.

    Attributes:
        title: What the tables call it.
        script: A module of this folder.
        environment: A folder that setup.sh makes; None where it runs in Tidemark's own.
    """

    title: str
    script: str
    environment: str | None = None

    @property
    def python(self) -> Path:
        """Path of the Python that runs its script."""
        if self.environment is None:
            return Path(sys.executable)
        return _ENVIRONMENTS / self.environment / "bin" / "python"

    @property
    def installed(self) -> bool:
        """True if it can run."""
        return self.python.exists()

    def command(self, files: Path, kind: str, out: Path, *options: str) -> list[str]:
        """Reads the files of a folder and writes windows to another: see its script for its options."""
        return [str(self.python), "-W", "ignore", str(_HERE / self.script), str(files), kind, str(out), *options]


SPARK = Peer("Structured Streaming", "in_spark.py")
FLINK = Peer("PyFlink SQL", "in_flink.py", "flink")
DUCKDB = Peer("DuckDB", "in_duckdb.py", "duckdb")
POLARS = Peer("Polars", "in_polars.py", "polars")
OTHERS = (FLINK, DUCKDB, POLARS)
"""Peers that have an environment of their own."""
AS_OF = (Peer("DuckDB", "as_of_in_duckdb.py", "duckdb"), Peer("Polars", "as_of_in_polars.py", "polars"))
"""Peers that join two folders of files, `left` and `right`, as of the time of the left one."""


def versions() -> dict[str, str]:
    """Return the pinned versions of the peers that are installed."""
    pins: dict[str, str] = {}
    for peer in OTHERS:
        if peer.installed:
            for line in (_HERE / f"{peer.environment}.txt").read_text(encoding="utf-8").splitlines():
                name, _, pinned = line.partition("==")
                pins[name] = pinned
    return pins
