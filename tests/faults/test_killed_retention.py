"""Removing old rows, killed between any two commits, with live runs between: all rows are there, or only new ones."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import KILLED, Death, Gateway, maintain_and_die
from tests.runs.batch.test_retention import TABLES as BUT_THE_LOG
from tests.runs.batch.test_retention import audited, land, maintained, pipeline, rows
from tests.runs.running import asked

DEATHS = (
    "plan to retention",
    "raw_events",
    "dead_letters",
    "ordered_events",
    "windows/hourly",
    "history/hourly",
    "log_control",
    "commit of retention",
)
LIVE_AFTER = ("dead_letters", "log_control")
"""The deaths after which a live run comes before the next try."""
TABLES = ("raw_events", *BUT_THE_LOG)
RETENTION = "retention: {raw_events: 2 days, dead_letters: 2 days, ordered_events: 2 days, windows: 1 day}\n"


@pytest.mark.long
def test_removing_old_rows_that_is_killed_again_and_again_loses_no_row_that_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    short, whole = pipeline(tmp_path, "short", RETENTION), pipeline(tmp_path, "whole")
    days = 4
    for day in range(days):
        land(tmp_path, day)
        for made in (short, whole):  # a batch a day: records of the log go in whole batches
            assert asked(made, "run").exit_code == 0
    for after in DEATHS:
        died = maintain_and_die(short[0].path, short[1].warehouse, Death(after, "python"), Gateway.of(spark))
        assert died == KILLED, after
        if after == DEATHS[-1]:
            break
        for table in TABLES:
            assert rows(short, table) == rows(whole, table), (after, table)
        if after in LIVE_AFTER:
            land(tmp_path, days)
            days += 1
            for made in (short, whole):
                assert asked(made, "run").exit_code == 0
    said = maintained(short)
    assert "old rows" not in said, "the commit had come"
    for table in TABLES:
        kept = rows(short, table)
        assert 0 < len(kept) < len(rows(whole, table)), table
        assert all(row in rows(whole, table) for row in kept), table
    assert audited(short) == []
