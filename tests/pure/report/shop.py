"""A small pipeline whose tables are written without Spark: what a run would leave, with hostile text in it.

Here: the tables. Not here: what the page makes of them.
"""

import atexit
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.pure.batch.batches import START, planned
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import BatchKind
from tidemark.resources.delta.lake import Lake
from tidemark.resources.workspace import SpecFile, Workspace

HOSTILE = '<script>alert("1")</script>'
SPEC = """
name: shop
sources:
  - {name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING, amount INT"}
time: {timestamp_by: at, out_of_orderness: 10 s}
"""
WINDOWS = """
windows:
  - {name: per_minute, kind: tumbling, size: 1 minute, group_by: [till], aggregates: {events: count(*)}}
"""
PER_MINUTE = tables.window_table("per_minute")
_INSTANT = pa.timestamp("us", "UTC")
_EVENT = [
    ("_timestamp", _INSTANT),
    ("_event_time", _INSTANT),
    ("_arrival_time", _INSTANT),
    ("_arrival_seq", pa.int64()),
    ("_adjusted_by", pa.list_(pa.string())),
    ("_watermark", _INSTANT),
    ("_timeline", pa.string()),
    ("till", pa.string()),
]
_SCHEMAS: Mapping[str, pa.Schema] = {
    tables.RAW_EVENTS: pa.schema(
        [
            *[("at", pa.string()), ("amount", pa.int32()), ("till", pa.string())],
            *[
                ("_arrival_seq", pa.int64()),
                ("_arrival_time", _INSTANT),
                ("_clock", _INSTANT),
                *[("_source", pa.string()), ("_split", pa.string())],
            ],
        ]
    ),
    tables.ORDERED_EVENTS: pa.schema(_EVENT),
    tables.HELD_EVENTS: pa.schema(_EVENT),
    tables.DEAD_LETTERS: pa.schema(
        [
            *[("_arrival_seq", pa.int64()), ("_arrival_time", _INSTANT), ("_source", pa.string())],
            *[("_position", pa.int64()), ("_timeline", pa.string())],
            *[(name, pa.string()) for name in ("stage", "reason", "detail", "window_name")],
            *[("_event_time", _INSTANT), ("_watermark", _INSTANT), ("lateness_us", pa.int64())],
            *[("watermark_set_by", pa.int64()), ("payload", pa.string()), ("replayed_at", _INSTANT)],
        ]
    ),
    PER_MINUTE: pa.schema(
        [
            *[("window_start", _INSTANT), ("window_end", _INSTANT), ("till", pa.string()), ("events", pa.int64())],
            *[("_is_final", pa.bool_()), ("_batch_id", pa.int64())],
        ]
    ),
    **tables.CONTROL_SCHEMAS,
}


@cache
def _empty_tables() -> Path:
    """Make a warehouse with all tables, empty. Each shop copies it, as that takes a tenth of the time."""
    made = Path(tempfile.mkdtemp(prefix="shop-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for table, schema in _SCHEMAS.items():
        Lake(made).create(table, schema)
    return made


@dataclass
class Shop:
    """The pipeline `shop` in a warehouse.

    Attributes:
        folder: Of the spec; the warehouse is in it.
        text: The spec.
    """

    folder: Path
    text: str = SPEC
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "shop.yaml").write_text(self.text)
        self.lake = Lake(self.folder / "warehouse" / "shop")

    @property
    def file(self) -> SpecFile:
        """The spec."""
        return read_spec(self.folder / "shop.yaml")

    @property
    def workspace(self) -> Workspace:
        """The pipeline as a program opens it."""
        return Workspace(self.file, self.folder / "warehouse")

    @classmethod
    def with_log(cls, folder: Path, records: int, text: str = SPEC) -> "Shop":
        """Return a shop that has read so many records, and processed none."""
        made = cls(folder, text).create()
        made.ingest(records)
        return made

    def create(self) -> "Shop":
        """Makes all tables, empty."""
        shutil.copytree(_empty_tables(), self.folder / "warehouse" / "shop", dirs_exist_ok=True)
        return self

    def add(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends rows."""
        new = pa.Table.from_pylist([dict(row) for row in rows], schema=_SCHEMAS[table])
        self.lake.append_rows(table, new, expect=self.lake.version(table))

    def commit(self, kind: BatchKind, end_seq: int, counts: Mapping[str, int], **given: Any) -> None:
        """Commits a batch with the tables as they are now."""
        log = BatchLog(self.lake)
        of_kind = log.last_commit(kind)
        first_seq = int(of_kind.plan.end_seq or 0) if of_kind else 0
        read, fingerprint = given.pop("input", {}), self.file.spec.fingerprint()
        plan = planned(log, kind, first_seq=first_seq, end_seq=end_seq, input=read, fingerprint=fingerprint)
        versions = {table: self.lake.version(table) for table in _SCHEMAS if table != tables.BATCHES}
        log.commit(plan, counts, versions, START + timedelta(seconds=3), **given)

    def ingest(self, records: int) -> None:
        """Make a batch that reads so many records; one arrives each second."""
        rows = [
            {"_arrival_seq": n, "_arrival_time": at(n), "_clock": at(n), "_source": "tills"} for n in range(records)
        ]
        self.add(tables.RAW_EVENTS, rows)
        self.add(tables.FILES, [{"source": "tills", "path": "in/a.csv", "records": records + 1, "_batch_id": 0}])
        clocks = {"first_clock_us": us(at(0)), "clock_us": us(at(records - 1))}
        self.commit("ingest", records, {"records": records, "files": 1, **clocks})

    def process(
        self, *, ordered: int, held: int, refused: Sequence[Mapping[str, Any]] = (), flush: bool = False
    ) -> None:
        """Make a batch that orders and holds so many events, and refuses others.

        Args:
            ordered: How many of the first records are ordered.
            held: How many of the records after them are held.
            refused: Dead letters, their columns where they are not those of `letter`.
            flush: The end of input is flushed after them.
        """
        events = [event(n) for n in range(ordered + held)]
        self.add(tables.ORDERED_EVENTS, events[:ordered])
        self.add(tables.HELD_EVENTS, events[ordered:])
        letters = [letter(ordered + held + n) | dict(one) for n, one in enumerate(refused)]
        self.add(tables.DEAD_LETTERS, letters)
        records = ordered + held + len(letters)
        by_reason = Counter(f"refused.{one['reason']}" for one in letters)
        counts = {"records": records, "accepted": ordered + held, "released": ordered, **by_reason}
        position = {"watermark": None if flush else at(ordered), "max_timestamp": at(ordered + held), "final": flush}
        row = {"_batch_id": 1, "clock": at(records - 1), "released": ordered, "counts": counts, **position}
        self.add(tables.WATERMARKS, [row])
        self.commit("process", records, counts | self.counts, input={"flush": flush})

    def leave_watermark(self, batch: int) -> None:
        """Write the pipeline's row of a batch without records into `watermarks`."""
        row = {"_batch_id": batch, "clock": at(9), "released": 0, "counts": {"records": 0}, "watermark": at(10)}
        self.add(tables.WATERMARKS, [row | {"max_timestamp": at(10), "final": False}])


def at(second: int) -> datetime:
    """Return an instant, so many seconds after the start."""
    return START + timedelta(seconds=second)


def us(instant: datetime) -> int:
    """Microseconds since the epoch."""
    return round(instant.timestamp() * 1e6)


def event(seq: int) -> dict[str, Any]:
    """Return an accepted event, a second late."""
    times = {"_timestamp": at(seq - 1), "_event_time": at(seq - 1), "_arrival_time": at(seq)}
    return {"_arrival_seq": seq, "_adjusted_by": [], "_watermark": None, "_timeline": "[]", **times}


def window_row(minute: int, till: str = "a", events: int = 1) -> dict[str, Any]:
    """Return a row of the window that begins so many minutes after the start."""
    return {"window_start": at(60 * minute), "window_end": at(60 * minute + 60), "till": till, "events": events}


def letter(seq: int) -> dict[str, Any]:
    """Return a dead letter of an event that is a minute late."""
    return {
        "_arrival_seq": seq,
        "_arrival_time": at(seq),
        "_source": "tills",
        "_position": seq + 1,
        "_timeline": "[]",
        "stage": "time",
        "reason": "out_of_order",
        "detail": f"the event is behind the watermark, record {seq}",
        "_event_time": at(seq - 60),
        "_watermark": at(seq - 10),
        "lateness_us": 50_000_000,
        "payload": HOSTILE,
    }
