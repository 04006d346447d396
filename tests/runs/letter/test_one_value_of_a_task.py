"""One record does nothing to the others of its task, and the order of records does nothing to a result."""

import json
from pathlib import Path

import pytest

from tests.runs.running import rows_of, run, written

SPEC = """
name: maps
sources:
  - {name: s, kind: files, path: in/*.jsonl, format: json, settle: 0 s, order: position,
     schema: "at STRING, ks ARRAY<STRING>, t STRING, x DOUBLE"}
time: {timestamp_by: at, end_of_input: flush}
windows:
  - name: by_hour
    kind: tumbling
    size: 1 hour
    where: size(str_to_map(t)) > 0
    aggregates: {n: count(*), top: "max(map_from_arrays(ks, array(1, 2))['a'])", x: max(x), xs: "max(struct(x))"}
"""


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_key_twice_makes_a_dead_letter_of_its_record_and_the_largest_of_two_zeros_is_the_same_in_any_order(
    tmp_path: Path,
) -> None:
    good = {"at": "2026-01-01T10:00:00Z", "ks": ["a", "b"], "t": "a:1,b:2", "x": 1.0}
    records = [good, {**good, "ks": ["a", "a"]}, good, {**good, "ks": ["a", None]}, good, good]
    zeros = (("11:00", 0.0), ("11:10", -0.0), ("12:00", -0.0), ("12:10", 0.0))
    records += [{**good, "at": f"2026-01-01T{at}:00Z", "x": zero} for at, zero in zeros]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    written(tmp_path, "maps", SPEC)
    run(tmp_path, "maps")
    letters = rows_of(tmp_path, "maps", "dead_letters")
    assert sorted(row["_arrival_seq"] for row in letters) == [1, 3]
    assert {(row["reason"], row["window_name"]) for row in letters} == {("bad_expression", "by_hour")}
    results = {row["window_start"].hour: row for row in rows_of(tmp_path, "maps", "windows/by_hour")}
    assert results.keys() == {10, 11, 12}
    assert (results[10]["n"], results[10]["top"]) == (4, 1)
    for hour in (11, 12):
        assert (str(results[hour]["x"]), str(results[hour]["xs"]["x"])) == ("0.0", "0.0")
