"""Columns that are added where `_rescued` kept their values: a rebuild fills them in the records before."""

import csv
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.running import (
    Made,
    asked,
    assert_as_new,
    assert_same,
    at_the_end,
    changed,
    committed,
    go,
    rebuild,
    workspace_of,
    written,
)
from tidemark.assets.ingestion.raw_events import ingest
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.workspace import Workspace

SPEC = """\
name: shop
sources:
  - name: lines
    kind: files
    path: in/*.{form}
    format: {form}
    schema: "id STRING, at STRING{place}"
    keep_unknown: true
    settle: 0 s
    {more}
time: {{timestamp_by: at, out_of_orderness: 3 s, out_of_order: keep}}
windows:
  - {{name: minutes, kind: tumbling, size: 1 minute, aggregates: {{n: count(*)}}}}
"""
WINDOW = "  - {name: minutes, kind: tumbling, size: 1 minute, aggregates: {n: count(*)}}\n"
OVER = "  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [who], aggregates: {n: count(*), v: sum(v)}}\n"
JOINS = """\
joins:
  - {name: named, kind: as_of, left: {source: lines}, on: [id], how: left,
     right: {table: names.csv, valid_from: since, schema: "id STRING, since TIMESTAMP, full_name STRING"}}
"""
ADDED = "id STRING, at STRING{place}, who STRING, v INT, price DECIMAL(9,2), day DATE, wide BIGINT"
PLACE = ", place STRUCT<lat: FLOAT, tags: ARRAY<STRUCT<k: STRING>>>"
GROWN = ", place STRUCT<tags: ARRAY<STRUCT<k: STRING, v: BIGINT>>, lat: DOUBLE, far: INT>"
"""The same with a wider type, more fields (no record has `far`), and another order."""


def records(first: int, count: int, rng: random.Random) -> list[dict[str, Any]]:
    found = []
    for number in range(first, first + count):
        one: dict[str, Any] = {"id": f"e{number}", "at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"}
        some = {"who": rng.choice("ab"), "v": rng.randint(0, 9), "price": round(rng.random() * 100, 2)}
        some["place"] = {"lat": rng.randint(0, 9) + 0.5, "tags": [{"k": "x"} | ({"v": number} if number % 3 else {})]}
        some |= {"day": "2026-02-03", "wide": 2**60 + number, "other": 'a "word", one more', "far": None}
        found.append(one | {name: value for name, value in some.items() if rng.random() < 0.8})
    return found


def as_json(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        names = ["id", "at", "who", "v", "price", "day", "wide", "other", "far"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def as_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    kinds = {"id": pa.string(), "at": pa.string(), "who": pa.string(), "v": pa.int32(), "wide": pa.int64()}
    kinds |= {"price": pa.decimal128(9, 2), "day": pa.date32(), "other": pa.string()}
    tags = pa.list_(pa.struct({"v": pa.int32(), "k": pa.string()}.items()))
    kinds |= {"place": pa.struct({"tags": tags, "lat": pa.float32()}.items())}
    from_text: dict[str, Callable[[Any], str]] = {"price": lambda x: f"{x:.2f}", "day": str}
    columns = {}
    for name, kind in kinds.items():
        values = [row.get(name) for row in rows]
        if name in from_text:
            texts = pa.array([None if one is None else from_text[name](one) for one in values], pa.string())
            columns[name] = texts.cast(kind)
        else:
            columns[name] = pa.array(values, kind)
    pq.write_table(pa.table(columns), path)


FORMATS: Mapping[str, tuple[Callable[[Path, Sequence[Mapping[str, Any]]], None], str]] = {
    "json": (as_json, ""),
    "csv": (as_csv, "options: {header: true}"),
    "parquet": (as_parquet, 'missing: "null"'),
}


def pipeline(base: Path, form: str) -> Made:
    (base / "in").mkdir()
    place = "" if form == "csv" else PLACE
    return written(base, "shop", SPEC.format(form=form, more=FORMATS[form][1], place=place))


def grown(made: Made, form: str = "json") -> Made:
    """Return the pipeline with more columns and fields."""
    before, now = ("", "") if form == "csv" else (PLACE, GROWN)
    return changed(made, f'"id STRING, at STRING{before}"', f'"{ADDED.format(place=now)}"')


@pytest.mark.long
@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_rebuild_gives_added_columns_the_past_that_a_fresh_pipeline_has(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    made, rng = pipeline(tmp_path, form), random.Random(5)
    write = FORMATS[form][0]
    write(tmp_path / "in" / f"a.{form}", records(0, 50, rng))
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=30))
        made = changed(grown(made, form), WINDOW, OVER)
        planned = asked(made, "plan", "--json").output.splitlines()[-1]
        effects = [one["effect"] for one in json.loads(planned)["changes"]]
        fills = "`tidemark rebuild SPEC` fills them from `_rescued`"
        assert f"null in the records before; {fills}" in effects
        wider = "existing rows get the wider type and keep their values"
        assert (f"{wider}; fields that they lack are null; {fills}" in effects) == (form != "csv")
        write(tmp_path / "in" / f"b.{form}", records(50, 30, rng))
        done = rebuild(made, "--to-spec")
        assert done.exit_code == 0, done.output
        go(made, instance)
        fresh = assert_as_new(made, instance)
        last = workspace_of(made).batches.last_commit("rebuild")
        assert last is not None
        assert rebuild(made).exit_code == 0
        again = [one.plan.input for one in workspace_of(made).batches.history("rebuild", after_batch=last.batch_id)]
        assert_same(made, fresh)
    assert sum("reserves" in one for one in again) == 1, "the log was not written once more"


@pytest.mark.long
def test_a_value_that_does_not_fit_stays_in_rescued_and_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    made = pipeline(tmp_path, "json")
    lines = [
        '{"id": "a", "at": "2026-01-01T00:00:01Z", "who": "me", "v": "many", "deep": {"b": 1.50}}',
        '{"id": "b", "at": "2026-01-01T00:00:02Z", "v": 3}',
        '{"id": "c", "at": "2026-01-01T00:00:03Z", "v": 99999999999}',
        '{"id": "d", "at": "2026-01-01T00:00:04Z"}',
    ]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines) + "\n")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(made, f'"id STRING, at STRING{PLACE}"', '"id STRING, at STRING, who STRING, v INT"')
        done = rebuild(made)
    assert done.exit_code == 0, done.output
    assert "v: 1 values of earlier records are taken from _rescued; 2 are not INT and stay there" in done.output
    rows = {row["id"]: (row["who"], row["v"], row["_rescued"]) for row in committed(made, "raw_events")}
    assert rows == {
        "a": ("me", None, '{"v":"many","deep":{"b":1.50}}'),
        "b": (None, 3, None),
        "c": (None, None, '{"v":99999999999}'),
        "d": (None, None, None),
    }
    assert {row["id"]: row["v"] for row in committed(made, "held_events")} == dict.fromkeys("acd") | {"b": 3}


@pytest.mark.long
@pytest.mark.parametrize("joins", ["", JOINS], ids=["held", "joined"])
def test_what_live_runs_read_under_the_old_spec_until_the_switch_is_filled_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joins: str
) -> None:
    """Also what they have read and not processed, and what comes while the rest is filled."""
    (tmp_path / "names.csv").write_text("id,since,full_name\ne7,2026-01-01T00:00:00Z,seventh\n")
    made, rng = changed(pipeline(tmp_path, "json"), "windows:\n", f"{joins}windows:\n"), random.Random(6)
    as_json(tmp_path / "in" / "a.json", records(0, 20, rng))
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        now = changed(grown(made), WINDOW, OVER)

        def lives() -> None:
            as_json(tmp_path / "in" / "b.json", records(20, 10, rng))
            go(made, instance)

        at_the_end(monkeypatch, lives)
        filled = Shadow.fill_rest

        def filling(shadow: Shadow) -> int | None:
            end = filled(shadow)
            if not (tmp_path / "in" / "c.json").exists():
                as_json(tmp_path / "in" / "c.json", records(30, 10, rng))
                ingest(Workspace(made[0], made[1].warehouse, lambda: spark), "live")
            return end

        monkeypatch.setattr(Shadow, "fill_rest", filling)
        done = rebuild(now)
        assert done.exit_code == 0, done.output
        go(now, instance)
        assert_as_new(now, instance)
