"""A reader beside the runs: it opens the versions that `batches` names with delta-rs alone, and never sees a mix.

Here: what must hold in each commit that it comes across. Not here: whether its rows are the right ones
(verdicts.py).
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

Row = Mapping[str, Any]
_MINUTE_US = 60_000_000
_PAUSE_S = 0.4
_COMMITTED = ("committed", "accepted")


class MixError(AssertionError):
    """Tables at the versions of one commit do not fit each other."""


class Reader:
    """A thread that looks at the last commit of pipelines, again and again.

    Attributes:
        looks: How many commits it has looked at.
    """

    def __init__(self, warehouse: Path, pipelines: Sequence[str], seed: str) -> None:
        self._warehouse, self._pipelines, self._rng = warehouse, pipelines, random.Random(seed)
        self._stopped, self._free = threading.Event(), threading.Lock()
        self._seen: dict[tuple[str, int], int] = {}
        self._fault: Exception | None = None
        self.looks: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)

    @contextmanager
    def at_work(self) -> Iterator["Reader"]:
        """Read during the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Read nothing during the block, in which files are damaged; what was read before counts no more."""
        with self._free:
            self._seen.clear()
            yield
            self._seen.clear()

    def check(self) -> None:
        """Raise what the thread has found."""
        if self._fault is not None:
            raise self._fault

    def _read(self) -> None:
        while not self._stopped.wait(self._rng.uniform(0, 2 * _PAUSE_S)):
            name = self._rng.choice(self._pipelines)
            with self._free:
                try:
                    self._look(name)
                except Exception as error:  # the round raises it
                    self._fault = self._fault or error
                    return

    def _look(self, name: str) -> None:
        folder = self._warehouse / name
        if not DeltaTable.is_deltatable(str(folder / "batches")):
            return
        commits = [row for row in _rows(folder, "batches", None) if row["state"] in _COMMITTED]
        named = [row for row in commits if row["table_versions"]]
        if not named:
            return
        last = max(named, key=lambda row: int(row["_batch_id"]))
        tables = {table: _rows(folder, table, version) for table, version in _versions(last).items()}
        check_commit(name, int(last["_batch_id"]), commits, tables)
        digest = hash(json.dumps({table: sorted(map(str, rows)) for table, rows in tables.items()}, sort_keys=True))
        if self._seen.setdefault((name, last["attempt"]), digest) != digest:
            raise MixError(f"{name}: two reads of batch {last['_batch_id']} have other rows")
        self.looks[name] += 1


def _rows(folder: Path, table: str, version: int | None) -> list[dict[str, Any]]:
    """Return the rows of a version; where files of the newest are gone, it was one that an upkeep has deleted."""
    try:
        found: list[dict[str, Any]] = DeltaTable(str(folder / table), version).to_pyarrow_table().to_pylist()
    except (DeltaError, OSError) as error:
        raise MixError(
            f"{folder.name}: version {version} of {table}, which the last commit names: {error}"
        ) from error
    return found


def _versions(commit: Row) -> dict[str, int]:
    return {
        table: version for table, version in dict(commit["table_versions"]).items() if not table.startswith("_state/")
    }


def check_commit(name: str, batch: int, commits: Sequence[Row], tables: Mapping[str, Sequence[Row]]) -> None:
    """Check that tables as of a commit fit each other.

    Raises:
        MixError: They do not.
    """
    ends = {kind: max((row["end_seq"] for row in commits if row["kind"] == kind), default=0) for kind in _KINDS}
    log = {row["_arrival_seq"] for row in tables["raw_events"]}
    if log != set(range(len(tables["raw_events"]))) or len(log) != ends["ingest"]:
        raise MixError(f"{name}: batch {batch} has {len(log)} records of the log, and batches read {ends['ingest']}")
    for table, rows in tables.items():
        if newer := sum(row["_batch_id"] > batch for row in rows):
            raise MixError(f"{name}: as of batch {batch}, {newer} rows of {table} are of later batches")
    letters = [row for row in tables.get("dead_letters", ()) if row["replayed_at"] is None]
    events = [*tables.get("ordered_events", ()), *tables.get("held_events", ())]
    places = [row["_arrival_seq"] for row in (*events, *(row for row in letters if row["stage"] in _OF_RECORDS))]
    wanted = set(range(ends["process"])) - _left_out(tables.get("log_control", ()))
    if sorted(places) != sorted(wanted):
        wrong = Counter(places)
        wrong.subtract(wanted)
        raise MixError(
            f"{name}: as of batch {batch}, records in no or several places: {sorted(+wrong | +(-wrong))[:9]}"
        )
    _check_minutes(name, batch, tables, letters, events)


_KINDS = ("ingest", "process")
_OF_RECORDS = ("ingest", "time")


def _left_out(items: Sequence[Row]) -> set[int]:
    """Return the records that are not part of the log, by the decisions since it was last judged as a whole."""
    begins = max((row["_control_seq"] for row in items if row["kind"] == "rebuild"), default=-1)
    out = set[int]()
    for row in sorted(items, key=lambda row: int(row["_control_seq"])):
        if row["_control_seq"] > begins and row["kind"] in ("exclude", "include", "forget"):
            own = {seq for first, last in json.loads(row["argument"])["records"] for seq in range(first, last + 1)}
            out = out - own if row["kind"] == "include" else out | own
    return out


def _check_minutes(
    name: str, batch: int, tables: Mapping[str, Sequence[Row]], letters: Sequence[Row], events: Sequence[Row]
) -> None:
    """Check that each final result of the window `minutes` counts the events that the same commit has in it."""
    missed = {row["_arrival_seq"] for row in letters if row["window_name"] == "minutes"}
    counts: Counter[tuple[int, Any]] = Counter()
    for row in events:
        if row["_arrival_seq"] not in missed:
            counts[_us(row["_timestamp"]) // _MINUTE_US, row["k"]] += 1
    for row in tables.get("windows/minutes", ()):
        found = counts[_us(row["window_start"]) // _MINUTE_US, row["k"]]
        if row["_is_final"] and row["n"] != found:
            at = f"{row['window_start']}, {row['k']}"
            raise MixError(f"{name}: as of batch {batch}, the minute of {at} counts {row['n']} events of {found}")


def _us(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)
