"""One record does nothing to the others of its task, and the order of records does nothing to a result."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidemark.pipelines.cli import main
from tidemark.resources.delta.lake import Lake

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


def run(folder: Path, records: list[dict[str, object]]) -> Lake:
    (folder / "in").mkdir(parents=True)
    (folder / "maps.yaml").write_text(SPEC)
    (folder / "in" / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    words = ["run", str(folder / "maps.yaml"), "--warehouse", str(folder / "wh")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return Lake(folder / "wh" / "maps")


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_key_twice_makes_a_dead_letter_of_its_record_and_the_batch_goes_on(tmp_path: Path) -> None:
    good = {"at": "2026-01-01T10:00:00Z", "ks": ["a", "b"], "t": "a:1,b:2", "x": 1.0}
    lake = run(tmp_path, [good, {**good, "ks": ["a", "a"]}, good, {**good, "ks": ["a", None]}, good, good])
    letters = lake.rows("dead_letters").select(["reason", "window_name", "_arrival_seq"]).to_pylist()
    assert sorted(row["_arrival_seq"] for row in letters) == [1, 3]
    assert {(row["reason"], row["window_name"]) for row in letters} == {("bad_expression", "by_hour")}
    [row] = lake.rows("windows/by_hour").to_pylist()
    assert (row["n"], row["top"]) == (4, 1)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_the_largest_of_the_two_zeros_is_the_same_in_any_order(tmp_path: Path) -> None:
    record = {"at": "2026-01-01T10:00:00Z", "ks": ["a", "b"], "t": "a:1,b:2"}
    for name, values in (("one", [0.0, -0.0]), ("other", [-0.0, 0.0])):
        lake = run(tmp_path / name, [{**record, "x": value} for value in values])
        [row] = lake.rows("windows/by_hour").to_pylist()
        assert (str(row["x"]), str(row["xs"]["x"])) == ("0.0", "0.0")
