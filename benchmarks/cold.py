"""Commands from cold: their seconds, their memory, and the pipeline that they run over files of `logs.py`.

Here: starting and watching a command, the spec of the job. Not here: which commands are compared.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from benchmarks.logs import JITTER_MS, schema_of

TIDEMARK = Path(sys.executable).with_name("tidemark")
WINDOW = "w"
_WATCHED_EVERY_S = 0.5  # to ask what processes share takes milliseconds
_SPEC = """
name: {name}
sources:
  - {{name: s, kind: files, path: {files}/*, format: {format}, settle: 0 s, arrival_time: at, schema: "{schema}"}}
time: {{timestamp_by: t, out_of_orderness: {jitter} ms, out_of_order: {policy}}}
windows:
  - {{name: {window}, kind: tumbling, size: 1 minute, group_by: [k],
     aggregates: {{n: count(*), total: sum(v), lowest: min(v), highest: max(v), mean: avg(v)}}}}
outputs: {{ordered_events: {ordered}}}
"""


@dataclass(frozen=True)
class Cold:
    """Cost of a command: seconds, and the most memory that it and its children had at once."""

    seconds: float
    peak_gb: float


def run_cold(command: Sequence[str], cwd: Path) -> Cold:
    """Runs a command to its end, which must be a good one."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peaks = [0]
    watcher = threading.Thread(target=_watch, args=(psutil.Process(process.pid), peaks), daemon=True)
    watcher.start()
    said, _ = process.communicate()
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with exit code {process.returncode}:\n{said}")
    return Cold(time.perf_counter() - start, max(peaks) / 1e9)


def write_spec(
    folder: Path,
    files: Path,
    kind: str,
    *,
    name: str = "cold",
    policy: str = "drop",
    ordered: bool,
    keys: str = "text",
) -> str:
    """Writes the spec of the job, windows of a minute by key with 5 seconds of patience; returns its file name."""
    text = _SPEC.format(
        name=name,
        files=files,
        format=kind,
        schema=schema_of(keys),
        jitter=JITTER_MS,
        policy=policy,
        window=WINDOW,
        ordered=str(ordered).lower(),
    )
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return f"{name}.yaml"


def tidemark_run(tidemark: str | Path, *specs: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs specs of the folder it is started in."""
    return [str(tidemark), "run", *specs, "--warehouse", "warehouse", *options]


def _watch(process: psutil.Process, peaks: list[int]) -> None:
    while process.is_running():
        with suppress(psutil.NoSuchProcess):  # one of them ended while they were counted
            # What processes share counts once: a child just forked shares all that its parent has.
            peaks.append(sum(one.memory_full_info().pss for one in [process, *process.children(recursive=True)]))
        time.sleep(_WATCHED_EVERY_S)
