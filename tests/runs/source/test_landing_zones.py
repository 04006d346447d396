"""Landing zones as they are, through the command: rotated logs, unfinished lines, files that are overwritten."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.runs.landing import table
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.sources.local_files import LONGEST_LINE

SPEC = """
name: access
sources:
  - {name: web, kind: files, path: "in/app.log*", format: json, order: position, schema: "id BIGINT, at STRING",
     settle: 0 s, on_rewrite: HOLD}
time: {timestamp_by: at, out_of_order: keep}
windows:
  - {name: by_hour, kind: tumbling, size: 1 hour, allowed_lateness: 1 day,
     aggregates: {n: "count(*)", ids: "count(DISTINCT id)"}}
"""


def lines(*ids: int) -> str:
    return "".join(f'{{"id": {number}, "at": "2026-05-04T10:0{number}:00Z"}}\n' for number in ids)


def run(folder: Path, *options: str, on_rewrite: str = "hold") -> Result:
    (folder / "access.yaml").write_text(SPEC.replace("HOLD", on_rewrite))
    return CliRunner().invoke(main, ["run", "access.yaml", *options], catch_exceptions=False)


def rows(folder: Path, name: str) -> list[dict[str, object]]:
    return table(folder / "warehouse", read_spec(folder / "access.yaml").spec, name)


@pytest.mark.long
def test_a_rotated_log_is_read_on_its_new_file_is_read_and_an_unfinished_line_waits(folder: Path) -> None:
    log = folder / "in" / "app.log"
    log.write_text(lines(1, 2) + lines(3)[:20])
    first = run(folder)
    assert first.exit_code == 0, first.stderr
    assert "app.log: the last line is not finished: its 20 bytes wait for the rest" in first.stderr
    log.write_text(lines(1, 2, 3, 4))
    log.rename(folder / "in" / "app.log.1")
    log.write_text(lines(5, 6))
    second = run(folder, "--end-of-input", "flush")
    assert second.exit_code == 0, second.stderr
    assert "app.log.1: its first 2 lines were read as app.log, and are not read again" in second.stderr
    log_rows = sorted((row["id"], row["_file"], row["_position"]) for row in rows(folder, "raw_events"))
    assert log_rows == [
        *((1, "app.log", 1), (2, "app.log", 2), (3, "app.log.1", 3), (4, "app.log.1", 4)),
        *((5, "app.log", 1), (6, "app.log", 2)),
    ]
    assert [(row["n"], row["ids"]) for row in rows(folder, "windows/by_hour")] == [(6, 6)]
    assert rows(folder, "dead_letters") == []


@pytest.mark.long
def test_a_file_that_is_overwritten_is_held_back_until_the_spec_says_to_read_it(folder: Path) -> None:
    log = folder / "in" / "app.log"
    log.write_text(lines(1, 2))
    assert run(folder).exit_code == 0
    log.write_text(lines(3))
    held = run(folder)
    assert held.exit_code == 1
    assert "app.log: a file that was already read shrank from" in held.stderr
    assert "`on_rewrite: read` in the source reads files that are overwritten" in held.stderr
    read = run(folder, on_rewrite="read")
    assert read.exit_code == 0, read.stderr
    assert "app.log: it was rewritten, and is read whole as new records" in read.stderr
    assert sorted(str(row["id"]) for row in rows(folder, "raw_events")) == ["1", "2", "3"]


LETTERS = """
name: letters
sources:
  - {name: j, kind: files, path: "in/*.json", format: json, schema: "at STRING, v INT", settle: 0 s}
  - {name: c, kind: files, path: "in/*.csv", format: csv, options: {header: true}, schema: "at STRING, k STRING",
     rename: {old_k: k, k: k}, missing: "null", settle: 0 s}
time: {timestamp_by: at, out_of_orderness: 1 day}
"""


@pytest.mark.long
def test_a_letter_says_what_is_wrong_with_a_line(folder: Path) -> None:
    good = '{"at": "2026-01-01T00:00:00Z", "v": 1}'
    nested = '{"at": {"x": [{"y": 1}, {"z": 2}]}, "v": "many"}'
    (folder / "in" / "a.json").write_text(
        "\n".join([good, good + good, f"{good}, {good}", f"[{good}, {good}]", "[", f"{good},", "]", nested, "7"])
        + "\n"
    )
    long_line = '{"at": "' + "x" * LONGEST_LINE + '"}\n'
    (folder / "in" / "b.json").write_text(long_line + good.replace("1}", "2}") + "\n")
    rows_ = "2026-01-01T00:00:00Z,x\n"
    (folder / "in" / "a.csv").write_text(f"at,k\n{rows_}at,k\n{rows_}one,two,three\n")
    (folder / "in" / "b.csv").write_text(f"at,old_k\n{rows_}at,old_k\n")
    (folder / "in" / "c.csv").write_text("at\n2026-01-01T00:00:00Z\n")
    (folder / "letters.yaml").write_text(LETTERS)
    done = CliRunner().invoke(main, ["run", "letters.yaml"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    spec = read_spec(folder / "letters.yaml").spec
    letters = table(folder / "warehouse", spec, "dead_letters")
    assert {row["reason"] for row in letters} == {"malformed"}
    said = {(row["detail"].partition(": ")[0]) for row in letters}
    several, array = (
        "holds several JSON objects, and a line is one record",
        "is a JSON array or a part of one, and a line is one JSON object",
    )
    plain = "does not fit the schema of the source"
    assert said == {
        *(f"record {position} of a.json {several}" for position in (2, 3)),
        *(f"record {position} of a.json {array}" for position in (4, 5, 6, 7)),
        *(f"record {position} of a.json {plain}" for position in (8, 9)),
        "record 1 of b.json is longer than a line may be",
        *(f"record 3 of {name}.csv repeats the header of its file" for name in "ab"),
        f"record 5 of a.csv {plain}",
    }
    assert max(len(row["payload"]) for row in letters) < 1_100
    log = table(folder / "warehouse", spec, "raw_events")
    assert len(log) == len(letters) + 6
    assert not (folder / "warehouse" / "letters" / "_state" / "reading").exists()
