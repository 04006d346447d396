"""Pipelines that join a table which is not a stream: each batch has it as it was, also in a rebuild."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.runs.landing import table
from tests.runs.running import FLUSH, Made, asked, changed, command, go, rebuild, written

SPEC = """\
name: valued
sources:
  - {{name: trades, kind: files, path: in/*.jsonl, format: json, settle: 0 s, schema: "at STRING, k STRING, n INT"}}
time:
  timestamp_by: at
joins:
  - {{name: valued, kind: as_of, left: {{source: trades}}, on: [k], how: left,
     right: {{table: {path}, valid_from: since, schema: "k STRING, since TIMESTAMP, rate DECIMAL(9, 2)"}}}}
windows:
  - {{name: sums, kind: tumbling, size: 10 minutes, from: valued, aggregates: {{n: count(*), worth: sum(n * rate)}}}}
"""

ALL_COLUMNS = SPEC.replace(', schema: "k STRING, since TIMESTAMP, rate DECIMAL(9, 2)"', "")

FIRST = {("A", "09:00"): "1.00", ("A", "09:10"): "2.00", ("B", "09:00"): "5.00"}
SECOND = {**FIRST, ("A", "09:00"): "1.50", ("A", "09:15"): "3.00"}
ANSWERS = {"09:05": "1.00", "09:12": "2.00", "09:20": "3.00", "09:25": "3.00", "09:30": "5.00", "09:31": None}
"""The rates of trades: the first two in the batch that has the first table, the others where it is the second one."""


def of_day(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-01T{time}:00").replace(tzinfo=UTC)


def write(place: Path, rates: dict[tuple[str, str], str]) -> None:
    """Write the table in the format that its name says, with a column that the join does not read."""
    rows = pa.table(
        {
            "rate": pa.array([Decimal(rate) for rate in rates.values()], pa.decimal128(9, 2)),
            "k": [k for k, _ in rates],
            "since": pa.array([of_day(since) for _, since in rates], pa.timestamp("us", "UTC")),
            "note": ["" for _ in rates],
        }
    )
    if place.suffix == ".csv":
        pcsv.write_csv(rows, place)
    elif place.suffix == ".parquet":
        pq.write_table(rows, place)
    else:
        write_deltalake(str(place), rows, mode="overwrite")


def trade(folder: Path, name: str, *trades: tuple[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"at": of_day(time).isoformat(), "k": k, "n": 10}) for time, k in trades]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def answers(made: Made) -> dict[str, str | None]:
    rows = table(made[1].warehouse, made[0].spec, "joins/valued")
    assert all(row["_right_seq"] is None and row["_is_final"] for row in rows)
    return {row["_timestamp"].strftime("%H:%M"): None if row["rate"] is None else str(row["rate"]) for row in rows}


def assert_sound(made: Made) -> None:
    done = command(made[0].path.parent, "valued", "audit")
    assert done.exit_code == 0, done.output
    assert "not recomputed" not in done.output


def plans(made: Made) -> list[dict[str, Any]]:
    rows = sorted(table(made[1].warehouse, made[0].spec, "batches"), key=lambda row: int(row["_batch_id"]))
    return [json.loads(row["input"]) for row in rows if row["kind"] == "process" and row["state"] == "planned"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["rates.csv", "rates.parquet", "rates"])
def test_each_batch_has_the_table_as_it_was_and_a_rebuild_has_it_again(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    place, spec = tmp_path / name, SPEC.format(path=name)
    made = written(tmp_path, "valued", ALL_COLUMNS.format(path=name) if name == "rates" else spec)
    write(place, FIRST)
    trade(tmp_path / "in", "a", ("09:05", "A"), ("09:12", "A"), ("09:20", "A"))
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert answers(made) == {"09:05": "1.00", "09:12": "2.00"}
        write(place, SECOND)
        trade(tmp_path / "in", "b", ("09:25", "A"), ("09:30", "B"), ("09:31", "C"))
        go(made, instance)
        go(made, instance, FLUSH)
    assert answers(made) == ANSWERS
    assert_sound(made)
    versions = [plan["tables"]["valued"] for plan in plans(made)]
    assert versions[0] != versions[1] == versions[2]
    done = rebuild(made)
    assert done.exit_code == 0, done.output
    assert answers(made) == ANSWERS
    place.rename(tmp_path / "moved")
    done = rebuild(made)
    assert done.exit_code == 0, done.output
    assert answers(made) == ANSWERS
    assert_sound(made)  # by the rows that were kept: the table is gone
    sums = table(made[1].warehouse, made[0].spec, "windows/sums")
    assert {row["window_start"].strftime("%H:%M"): row["worth"] for row in sums} == {
        "09:00": Decimal("10.00"),
        "09:10": Decimal("20.00"),
        "09:20": Decimal("60.00"),
        "09:30": Decimal("50.00"),
    }


@pytest.mark.long
def test_a_join_that_was_gone_for_a_while_has_the_versions_of_its_batches_when_it_comes_back(tmp_path: Path) -> None:
    place, spec = tmp_path / "rates.csv", SPEC.format(path="rates.csv")
    made = written(tmp_path, "valued", spec)
    write(place, FIRST)
    trade(tmp_path / "in", "a", ("09:05", "A"), ("09:12", "A"), ("09:20", "A"))
    go(made)
    write(place, SECOND)
    trade(tmp_path / "in", "b", ("09:25", "A"), ("09:30", "B"), ("09:31", "C"))
    go(made)
    before = answers(made)
    assert before == {time: ANSWERS[time] for time in ("09:05", "09:12", "09:20", "09:25", "09:30")}
    place.unlink()
    of_join = spec[spec.index("joins:") :]
    gone = changed(made, of_join, "")
    trade(tmp_path / "in", "c", ("09:40", "A"))
    go(gone)
    again = changed(gone, "  timestamp_by: at\n", f"  timestamp_by: at\n{of_join}")
    done = rebuild(again)
    assert done.exit_code == 0, done.output
    assert answers(again) == ANSWERS


@pytest.mark.long
def test_the_columns_of_a_table_without_schema_are_the_ones_of_the_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "rates.parquet"
    made = written(tmp_path, "valued", ALL_COLUMNS.format(path=place.name))
    trade(tmp_path / "in", "a", ("09:05", "A"), ("09:06", "A"))
    gone = asked(made, "run")
    assert gone.exit_code == 1
    assert "Join valued: the table on its right side cannot be read" in gone.output
    write(place, FIRST)
    made = written(tmp_path, "valued", ALL_COLUMNS.format(path=place.name))
    assert asked(made, "run").exit_code == 0

    def columns() -> list[str]:
        of_join = table(made[1].warehouse, made[0].spec, "joins/valued")[0]
        return [name for name in of_join if not name.startswith("_")]

    assert columns() == ["at", "k", "n", "rate", "right_k", "since", "note"]
    more = pq.read_table(place)
    pq.write_table(more.append_column("more", pa.array(range(len(more)))), place)
    trade(tmp_path / "in", "b", ("09:12", "A"))
    assert asked(made, "run").exit_code == 0
    assert asked(made, "status", "--check").exit_code == 0
    done = rebuild(made)
    assert done.exit_code == 0, done.output
    assert columns() == ["at", "k", "n", "rate", "right_k", "since", "note"]
    assert answers(made) == {"09:05": "1.00", "09:06": "1.00"}
    pq.write_table(more.drop_columns(["note"]), place)
    trade(tmp_path / "in", "c", ("09:20", "A"))
    lost = asked(made, "run")
    assert lost.exit_code == 1
    assert "has no column `note`" in lost.output
    assert "the columns that the table had when the first batch had it" in lost.output


@pytest.mark.long
def test_a_table_that_is_gone_or_lacks_a_column_or_a_time_stops_the_run_with_a_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "valued", SPEC.format(path="rates.csv"))
    trade(tmp_path / "in", "a", ("09:05", "A"), ("09:12", "A"))
    gone = asked(made, "run")
    assert gone.exit_code == 1
    assert "Join valued: the table on its right side cannot be read" in gone.output
    (tmp_path / "rates.csv").write_text("k,rate\nA,1.00\n")
    lacking = asked(made, "run")
    assert lacking.exit_code == 1
    assert "has no column `since`" in lacking.output
    (tmp_path / "rates.csv").write_text("k,since,rate\nA,yesterday,1.00\n")
    timeless = asked(made, "run")
    assert timeless.exit_code == 1
    assert "1 rows of" in timeless.output
    write(tmp_path / "rates.csv", FIRST)
    assert asked(made, "run").exit_code == 0
    assert answers(made) == {"09:05": "1.00"}
    wrong = changed(changed(made, "k STRING, since", "k INT, since"), "name: valued\n", "name: other\n")
    refused = asked(wrong, "run")
    assert refused.exit_code == 2
    assert "one type for a column of `on`" in refused.output
