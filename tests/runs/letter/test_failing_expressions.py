"""Expressions that fail on some records, in every place where a spec has one: no batch fails, and nothing is lost."""

import json
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.runs.landing import EPOCH, table
from tests.runs.running import go, written
from tidemark.pipelines.running.runner import RunOptions

TOO_LARGE = 2**63 - 1  # no `timestamp_millis`

SPEC = """
name: fails
sources:
  - name: lines
    kind: files
    path: in/*.jsonl
    format: json
    schema: "id STRING, at BIGINT, got BIGINT, n BIGINT, y BIGINT, w BIGINT, g BIGINT, v BIGINT, h BIGINT"
    arrival_time: timestamp_millis(got)
    split: string(timestamp_millis(n))
    settle: 0 s
time:
  timestamp_by: date_format(timestamp_millis(at), "yyyy-MM-dd'T'HH:mm:ss")
  over: [year(timestamp_millis(y))]
  deduplicate_by: [timestamp_millis(n)]
  within: 1 day
  out_of_orderness: 1 day
windows:
  - name: minutes
    kind: tumbling
    size: 1 minute
    where: year(timestamp_millis(w)) > 0
    group_by:
      - year(timestamp_millis(y)) AS y
      - array(timestamp_millis(g)) AS g
      - struct(timestamp_millis(g) AS t) AS s
    aggregates:
      c: count(*)
      newest: max(timestamp_millis(v))
      small: max(timestamp_millis(n)) FILTER (WHERE n < 1000000)
      top: max(h)
      made: timestamp_millis(max(h))
    having: timestamp_millis(top) > timestamp_millis(3)
  - name: visits
    kind: session
    gap: 10 s
    group_by: [year(timestamp_millis(y)) AS y]
    aggregates: {c: count(*), all: "size(collect_list(array(timestamp_millis(v))))"}
  - name: hours
    kind: tumbling
    size: 1 hour
    from: minutes
    group_by: [y]
    aggregates: {c: sum(c), t: max(timestamp_millis(top))}
"""


def landed(folder: Path, records: int) -> list[dict[str, Any]]:
    """Write records whose values are now and then too large for the expressions that take them."""
    rng = random.Random(5)
    rows = []
    for number in range(records):
        row = {"id": f"e{number}", "at": 1000 * number, "got": number, "n": number, "y": 0, "w": 1, "g": 2}
        row |= {"v": number, "h": rng.randint(0, 9)}
        for name in ("at", "got", "n", "y", "w", "g", "v", "h"):
            row[name] = TOO_LARGE if rng.random() < 0.06 else row[name]
        rows.append(row)
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return rows


@pytest.mark.long
def test_a_record_on_which_an_expression_fails_stops_no_batch_and_is_accounted_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = landed(tmp_path / "in", 150)
    file, settings = made = written(tmp_path, "fails", SPEC)
    assert go(made, options=RunOptions(max_events_per_batch=90, end_of_input="flush")).batches == 2

    def fails(row: dict[str, Any], *names: str) -> bool:
        return any(row[name] == TOO_LARGE for name in names)

    timed = [row for row in rows if not fails(row, "at", "got")]
    passing = [row for row in timed if not fails(row, "w")]
    letters = table(settings.warehouse, file.spec, "dead_letters")
    found = Counter((letter["reason"], letter["stage"], letter["window_name"]) for letter in letters)
    shown, results = _minutes([row for row in passing if not fails(row, "v")])
    assert found == {
        ("no_arrival_time", "ingest", None): sum(fails(row, "got") for row in rows),
        ("bad_expression", "time", None): sum(fails(row, "at") for row in rows if not fails(row, "got")),
        ("bad_expression", "window", "minutes"): sum(fails(row, "v") for row in passing),
        ("bad_expression", "window", "visits"): sum(fails(row, "v") for row in timed),
        ("bad_expression", "window", "hours"): sum(top == TOO_LARGE for _, _, top in results),
    }
    assert all(found.values())
    one = next(letter for letter in letters if letter["window_name"] == "minutes")
    said = f'a.jsonl: the aggregate `newest` of minutes, `max(timestamp_millis(v))`, fails on {{"v":{TOO_LARGE}}}'
    assert one["detail"].startswith(f"record {one['_position']} of ")
    assert one["detail"].endswith(said)
    minutes = table(settings.warehouse, file.spec, "windows/minutes")
    assert (
        Counter((_ms(r["window_start"]), r["y"], _of(r["g"]), _of(r["s"]), r["c"], r["top"]) for r in minutes)
        == shown
    )
    assert all((r["made"] is None) == (r["top"] == TOO_LARGE) for r in minutes)
    visits = table(settings.warehouse, file.spec, "windows/visits")
    assert sum(r["c"] for r in visits) == sum(not fails(row, "v") for row in timed)
    assert all(r["c"] == r["all"] for r in visits)
    hours = table(settings.warehouse, file.spec, "windows/hours")
    assert sum(r["c"] for r in hours) == sum(
        c for (*_, c, top), n in shown.items() for _ in range(n) if top != TOO_LARGE
    )


def _minutes(rows: list[dict[str, Any]]) -> tuple[Counter[tuple[Any, ...]], list[tuple[Any, int, int]]]:
    """Results that `having` shows, also those on which it fails; and all of these by key, count and `top`."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        year, g = (None if row[name] == TOO_LARGE else row[name] for name in ("y", "g"))
        key = (row["at"] // 60_000 * 60_000, None if year is None else 1970, g, g)
        groups.setdefault(key, []).append(row["h"])
    results = [(key, len(values), max(values)) for key, values in groups.items() if max(values) > 3]
    return Counter((*key, count, top) for key, count, top in results), results


def _ms(instant: Any) -> int:
    return int((instant - EPOCH) / timedelta(milliseconds=1))


def _of(value: Any) -> int | None:
    """Return the one instant in a group's array or struct, in milliseconds."""
    if value is None:
        return None
    return _ms(value["t"] if isinstance(value, dict) else value[0])
