"""Columns that files have and `schema` does not name: found without Spark, with the words that take them."""

import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pure.source.landed import NOW, discover, land, source
from tidemark.resources.sources.columns import columns_of_json, line_to_add
from tidemark.resources.sources.known_files import state_of
from tidemark.timeops.spec import FilesSource, Source

SCHEMA = "id STRING, n INT"


def found_in(folder: Path, given: FilesSource) -> dict[str, str]:
    (file,) = discover(given, folder, (), NOW).ready
    return dict(file.unknown)


def given(form: str, **more: object) -> FilesSource:
    return source(
        f"in/*.{form}*", format=form, schema=SCHEMA, settle="0 s", rename={"ident": "id", "id": "id"}, **more
    )


@pytest.mark.parametrize("zipped", [False, True])
def test_json_keys_have_the_type_that_holds_the_values_of_the_first_lines(tmp_path: Path, zipped: bool) -> None:
    lines = [
        {"ident": "a", "n": 1, "who": "me", "size": 1, "ok": True, "nothing": None},
        {"id": "b", "n": 2, "who": 5, "size": 1.5, "tags": ["x"]},
    ]
    text = "\n".join([json.dumps(line) for line in lines] + ['{"broken', "5", ""])
    land(tmp_path / "in" / ("a.json.gz" if zipped else "a.json"), gzip.compress(text.encode()) if zipped else text)
    assert found_in(tmp_path, given("json")) == {"who": "STRING", "size": "DOUBLE", "ok": "BOOLEAN", "tags": "STRING"}


def test_of_a_file_that_grew_the_new_lines_are_looked_at(tmp_path: Path) -> None:
    spec = given("json")
    path = land(tmp_path / "in" / "a.json", '{"id": "a"}\n')
    (first,) = discover(spec, tmp_path, (), NOW).ready
    land(path, '{"id": "a"}\n{"id": "b", "late": 1}\n', NOW)
    (grown,) = discover(spec, tmp_path, (state_of(first, 1),), NOW).ready
    assert (grown.skip_lines, dict(grown.unknown)) == (1, {"late": "BIGINT"})


def test_csv_columns_are_texts_and_without_a_header_there_are_none(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "a.csv", "id,n,who,N\n")
    assert found_in(tmp_path, given("csv", options={"header": True})) == {"who": "STRING"}
    land(file, "a,1\n")
    assert found_in(tmp_path, given("csv")) == {}


def test_parquet_columns_have_the_type_of_the_footer(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": ["a"],
            "n": pa.array([1], pa.int32()),
            "day": [date(2026, 1, 1)],
            "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "cost": pa.array([Decimal("1.20")], pa.decimal128(9, 2)),
            "small": pa.array([1], pa.uint8()),
            "kind": pa.array(["x"]).dictionary_encode(),
            "tags": pa.array([[{"k": 1.5}]], pa.list_(pa.struct([("k", pa.float32())]))),
            "by": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(rows, land(tmp_path / "in" / "a.parquet"))
    assert found_in(tmp_path, given("parquet")) == {
        "day": "DATE",
        "at": "TIMESTAMP",
        "cost": "DECIMAL(9,2)",
        "small": "SMALLINT",
        "kind": "STRING",
        "tags": "ARRAY<STRUCT<k: FLOAT>>",
        "by": "MAP<STRING, BIGINT>",
    }


def test_a_name_that_no_table_can_have_comes_with_its_rename() -> None:
    of: Source = given("json")
    told = line_to_add(of, [("who", "STRING"), ("a.b", "INT"), ("_batch_id", "INT")])
    assert told == (
        'add `who STRING, a_b INT, batch_id INT` to `schema` and `"a.b": a_b, "_batch_id": batch_id` to `rename`'
    )


def test_lines_of_json_that_are_no_objects_have_no_keys() -> None:
    assert columns_of_json(b"[1]\n\xff\n" + b"[" * 100_000) == ()
