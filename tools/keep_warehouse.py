"""Keep a small warehouse of this version: later versions show in a test that they open it and go on with it.

    python -m tools.keep_warehouse tests/frozen/0.1.0.tar.gz

Run it when a version is released. The pipeline has been flushed and reopened, has events that are held and windows
that are open, and keeps every kind of state.
"""

import os
import sys
import tarfile
import tempfile
from datetime import timedelta
from pathlib import Path

from click.testing import CliRunner

from tests.runs.landing import LINES, START, land
from tidemark.pipelines.cli import main

SPEC = (
    f"name: shifts\n{LINES}"
    """\
  - name: gates
    kind: files
    path: gates/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v INT"
    arrival_time: got
    settle: 0 s
time:
  timestamp_by: at
  unit: millisecond
  over: [k]
  out_of_orderness: 10 s
  out_of_order: keep
  deduplicate_by: [id]
  within: 1 hour
windows:
  - {name: revised, kind: tumbling, size: 1 minute, allowed_lateness: 1 minute, emit: on_time, revise_every: 20 s,
     history: true, group_by: [k], aggregates: {n: count(*)}}
  - {name: overlapping, kind: hopping, size: 30 s, hop: 10 s, allowed_lateness: 3 s, empty: true, where: v > 2,
     group_by: [k, v], aggregates: {n: count(*)}}
  - {name: last_20_s, kind: sliding, size: 20 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, allowed_lateness: 5 s, group_by: [k], aggregates: {n: count(*)}}
"""
)
KEPT = ("shifts.yaml", "in", "gates", "warehouse")


def fill(root: Path) -> None:
    """Make the pipeline in a folder, and run it."""
    (root / "shifts.yaml").write_text(SPEC, encoding="utf-8")
    land(root / "in", 60, seed=1, files=2)
    land(root / "gates", 40, seed=2, files=1)
    _run(root, "--end-of-input", "flush")
    for number, words in enumerate([["--reopen", "the late shift"], []]):
        start = START + timedelta(minutes=2 + number)
        land(root / "in", 20, seed=3 + number, files=1, start=start, prefix=f"g{number}")
        land(root / "gates", 20, seed=5 + number, files=1, start=start, prefix=f"g{number}")
        _run(root, *words)


def _run(root: Path, *words: str) -> None:
    os.environ["DAGSTER_HOME"] = str(root / "home")
    given = ["run", str(root / "shifts.yaml"), "--warehouse", str(root / "warehouse"), *words]
    done = CliRunner().invoke(main, given, catch_exceptions=False)
    if done.exit_code:
        raise SystemExit(done.output)


def keep(archive: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(root)
        with tarfile.open(archive, "w:gz") as tar:
            for name in KEPT:
                tar.add(root / name, name, filter=_without_pages)


def _without_pages(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return None if "_quality" in Path(entry.name).parts else entry


if __name__ == "__main__":
    keep(Path(sys.argv[1]).absolute())
