"""The first day of partitions that a spec does not say, by tables that are made here without Spark."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidemark.assets.backfill.partitions import EARLIEST, UNTIL_KNOWN, first_day
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.batches.plans import this_process
from tidemark.resources.settings import FixedClock
from tidemark.resources.workspace import Workspace

NOW = datetime(2026, 1, 1, 20, tzinfo=UTC)
SPEC = """
name: days
sources: [{{name: s, kind: files, path: in/*, format: csv, schema: "at STRING"}}]
time: {{timestamp_by: at}}
windows: [{{name: w, kind: tumbling, size: 1 hour, aggregates: {{n: count(*)}}}}]
partitions: {{time_zone: {zone}}}
"""


def of_window(folder: Path, us: int | None, zone: str = "UTC") -> date:
    """The first day where the first window starts at an instant; with None no batch was committed."""
    (folder / "days.yaml").write_text(SPEC.format(zone=zone))
    workspace = Workspace(read_spec(folder / "days.yaml"), folder / "warehouse", clock=FixedClock(NOW))
    if us is not None:
        workspace.lake.create(tables.BATCHES, tables.BATCHES_SCHEMA)
        rows = pa.table({"window_start": pa.array([us, us + 86_400_000_000], pa.timestamp("us", "UTC"))})
        for _ in range(2):  # version 0 is the empty table
            write_deltalake(str(workspace.lake.path("windows/w")), rows, mode="append")
        plan = workspace.batches.begin(
            "process", this_process("run"), NOW, after=None, first_seq=0, end_seq=1, input={}, fingerprint=""
        )
        workspace.batches.commit(plan, {}, {"windows/w": 1}, NOW)
    return first_day(workspace)


@pytest.mark.parametrize(
    ("us", "zone", "first"),
    [
        (None, "UTC", UNTIL_KNOWN),
        (1_520_240_400_000_000, "UTC", date(2018, 3, 5)),
        (1_520_240_400_000_000, "America/Los_Angeles", date(2018, 3, 5)),
        (1_520_208_000_000_000, "America/Los_Angeles", date(2018, 3, 4)),
        (-62_135_600_400_000_000, "America/Los_Angeles", EARLIEST),  # an hour before the year 1
        (253_402_300_000_000_000, "Asia/Tokyo", date(2026, 1, 2)),  # in Tokyo it is the year 10000
    ],
)
def test_the_days_begin_with_the_first_window_within_what_a_calendar_holds(
    tmp_path: Path, us: int | None, zone: str, first: date
) -> None:
    assert of_window(tmp_path, us, zone) == first
