"""Text that commands print of tables that are written without Spark: state, rows, and the numbers of a run.

Here: what is printed, which rows, and that no text of others commands a terminal. Not here: the page of
`tidemark report` (report/), a failed check of a real run (tests/runs/letter/test_failed_checks.py).
"""

import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from syrupy.assertion import SnapshotAssertion

from tests.pure.report.shop import PER_MINUTE, SPEC, WINDOWS, Shop, at, letter, window_row
from tidemark.pipelines.cli import main
from tidemark.pipelines.running.runner import RunReport
from tidemark.pipelines.views.report.page import page_of
from tidemark.pipelines.views.terminal import in_a_line, lines_of, listed, show_report, write_rows
from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import BatchOwner, this_process
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import InputError, LakeError
from tidemark.timeops.errors.printable import json_line, printable

AGE = re.compile(r"\d+ days( \d+ hours?)?(?= behind)")
"""How far the clock is ahead, which grows."""
FRESH = "alerts: {freshness: {warn: 1 hour, error: 1 day}}\n"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Ten records: six ordered, two held, two refused; a window has two rows."""
    (tmp_path / "in").mkdir()
    made = Shop.with_log(tmp_path, 10, SPEC + WINDOWS + FRESH)
    made.add(PER_MINUTE, [{**window_row(n, events=n), "_batch_id": 1} for n in (1, 2)])
    made.process(ordered=6, held=2, refused=[{"reason": "early"}, {"payload": "\x1b[31mred\n"}])
    return made


def call(shop: Shop, command: str, *words: str) -> Result:
    given = [command, str(shop.folder / "shop.yaml"), *words, "--warehouse", str(shop.folder / "warehouse")]
    return CliRunner().invoke(main, given, catch_exceptions=False)


def state(shop: Shop) -> Any:
    """Return what `tidemark status --json` says."""
    return json.loads(call(shop, "status", "--json").stdout)


def rows(shop: Shop, table: str, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call(shop, "show", table, *words, "--format", "json").stdout.splitlines()]


def begin(shop: Shop, owner: BatchOwner) -> None:
    """Plan the next batch without committing it."""
    log = BatchLog(shop.lake)
    log.begin("process", owner, at(20), last_batch=1, first_seq=10, end_seq=12, input={}, fingerprint="f")


def dead_process() -> int:
    """Return the number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_status_tells_how_a_pipeline_stands(shop: Shop, snapshot: SnapshotAssertion) -> None:
    (shop.folder / "in" / "new.csv").write_text("at,amount\n2026-01-01T00:00:00Z,1\n")
    os.utime(shop.folder / "in" / "new.csv", (0, 0))
    done = call(shop, "status")
    assert done.exit_code == 0
    assert AGE.sub("… days", done.stdout).replace(str(shop.folder), "FOLDER") == snapshot
    found = state(shop)
    assert (found["records"], found["held"], found["dead_letters"]) == (10, 2, 2)
    assert (found["watermark"], found["flushed"]) == ("2026-01-01T00:00:06+00:00", False)
    assert found["watermark_delay_seconds"] > timedelta(days=1).total_seconds()
    assert (found["last_batch"]["batch"], found["at_work"], found["files"]["new"]) == (1, None, 1)
    assert len(found["wrong"]) == 1


def test_status_names_the_last_batch_of_any_kind_that_wrote_results(shop: Shop) -> None:
    shop.commit("ingest", 10, {"records": 0})
    assert "last batch    1, committed" in call(shop, "status").stdout
    shop.commit("backfill", 10, {})
    found = call(shop, "status").stdout
    assert re.search(r"last batch    3, committed .* UTC: backfill in ", found)
    assert "batch 3" in call(shop, "show", "raw_events").stderr


def test_rows_for_a_person_have_no_padding_no_noise_and_no_bare_ticks(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("watermarks", "batches", "dead_letters"):
        lines = call(shop, "show", table).stdout.splitlines()
        assert lines
        assert not [line for line in lines if line.endswith(" ")]
    assert "after its machine" in call(shop, "show", "batches", "--format", "rows").stdout
    assert all(isinstance(row["started"], int | None) for row in rows(shop, "batches"))
    long = pa.table({"sum": [126.92500000000001], "list": [[0.1 + 0.2]], "text": ["x" * 300]})
    write_rows(long, "rows")
    assert capsys.readouterr().out.splitlines()[:3] == ["row 1", "  sum   126.925", "  list  [0.3]"]
    write_rows(long, "csv")
    assert "126.92500000000001" in capsys.readouterr().out, "a program gets what the table has"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([1], "1"), ([1, 3], "1 and 3"), ([1, 3, 5], "1, 3 and 5"), ([*range(1, 26, 2)], "1, 3, 5, 7 … 25")],
)
def test_numbers_of_batches_are_listed(numbers: list[int], text: str) -> None:
    assert listed(numbers) == text


def test_status_lines_fit_on_a_page_and_names_of_files_are_written_out(shop: Shop) -> None:
    columns = ",".join(f"column_{n}" for n in range(80))
    (shop.folder / "in" / "long.csv").write_text(f"{columns}\n1\n")
    (shop.folder / "in" / "x\x9b31m\u202e.csv").write_text("at,amount\n2026-01-01T00:00:00Z\n")
    for name in ("a.csv", "b.csv"):
        (shop.folder / "in" / name).write_text("at,amount\n2026-01-01T00:00:00Z,1\n")
    for file in (shop.folder / "in").iterdir():
        os.utime(file, (0, 0))
    (shop.folder / "shop.yaml").write_text(shop.text.replace("format: csv", "format: csv, options: {header: true}"))
    printed = call(shop, "status").stdout
    assert max(map(len, printed.splitlines())) <= 120
    assert not {"\x9b", "\u202e"} & set(printed)
    assert "  copies        b.csv: the same bytes were read as a.csv\n" in printed
    assert "column`at`ismissingfromtheheader:column_0,column_1," in "".join(printed.split())
    found = state(shop)
    assert found["files"] == {"new": 2, "young": 0, "held_back": 1, "copies": 1}


def test_status_names_a_batch_at_work_and_one_whose_process_died(shop: Shop) -> None:
    begin(shop, this_process("run"))
    found = state(shop)
    assert (found["at_work"]["batch"], found["records"]) == (2, 10)
    assert not any("batch 2" in said for said in found["wrong"])
    BatchLog(shop.lake).release(BatchLog(shop.lake).pending() or pytest.fail("no plan"), at(30))
    begin(shop, replace(this_process("other"), pid=dead_process()))
    found = state(shop)
    assert found["at_work"] is None
    [wrong] = [said for said in found["wrong"] if "batch 2 (process) is not committed" in said]
    assert "ended without a message" in wrong


def test_status_of_a_pipeline_that_has_not_run_or_whose_input_is_nowhere(tmp_path: Path) -> None:
    made = Shop(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: bad\n")
    done = call(made, "status", str(bad))
    assert done.exit_code == 2, "of the bad spec; the good one is shown all the same"
    assert "none: no batch has been committed yet" in done.stdout
    assert "bad.yaml" in done.stderr
    assert "in" in state(made)["wrong"][0]


def test_show_gives_rows_of_the_last_commit_the_newest_first(shop: Shop) -> None:
    shop.add(tables.DEAD_LETTERS, [letter(99) | {"reason": "early"}])  # no commit names it
    letters = rows(shop, "dead_letters")
    assert [(row["_arrival_seq"], row["reason"]) for row in letters] == [(9, "out_of_order"), (8, "early")]
    assert letters[1]["_event_time"] == "2025-12-31T23:59:08Z"
    assert "2 of 2 rows of dead_letters as of batch 1" in call(shop, "show", "dead_letters").stderr
    limited = call(shop, "show", "per_minute", "--limit", "1", "--format", "csv")
    assert next(csv.DictReader(io.StringIO(limited.stdout)))["window_start"] == "2026-01-01T00:02:00Z"
    assert "1 of 2 rows of windows/per_minute as of batch 1, the newest first" in limited.stderr
    where = "window_start < '2026-01-01 00:02:00' and till = 'a' -- only the first"
    [row] = rows(shop, "windows/per_minute", "--where", where)
    assert row["events"] == 1
    assert '"batch' not in call(shop, "show", "batches", "--limit", "1", "--format", "json").stdout


def test_show_is_one_line_for_each_row_in_a_pipe_and_no_payload_reaches_the_terminal_s_ears(shop: Shop) -> None:
    printed = call(shop, "show", "dead_letters").stdout
    assert "\x1b" not in printed
    assert "\\x1b[31mred\\n" in printed
    lines = [line for line in printed.splitlines() if "2026-01-01" in line]
    assert len(lines) == 2
    assert len(lines[0]) > 200


@pytest.mark.parametrize(
    ("table", "where", "said"),
    [
        ("deadletters", None, "did you mean `dead_letters`?"),
        ("dead_letters", "reasn = 'early'", "No field named reasn"),
        ("dead_letters", "reasn = 'early'", "did you mean `reason`?"),
        ("dead_letters", "reason ==", "Expected: a condition in SQL over _arrival_seq,"),
        ("dead_letters", "_arrival_seq = 'x'", "Cannot cast string 'x'"),
        ("dead_letters", f"1 in (select c from read_csv('{__file__}'))", "Cannot access file"),
    ],
)
def test_show_says_what_there_is_and_reads_nothing_but_the_table(
    shop: Shop, table: str, where: str | None, said: str
) -> None:
    done = call(shop, "show", table, *(["--where", where] if where else []))
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("payload ->> 'till' = 'a'", [8]),
        ("(payload ->> 'amount')::int > 2 and payload ->> '$.who.name' = 'Ann'", [8]),
        ("get_json_object(payload, '$.who.name') = 'Ann'", [8]),
        ("payload ->> 'till' is null", [9]),  # raw text, which is no JSON
        ("_timeline = '[\"a\",null]'", [8]),
        ("_timeline ->> 0 = 'b'", [9]),
        ("payload like 'raw%'", [9]),
    ],
)
def test_dead_letters_are_asked_by_a_field_of_the_payload_and_by_timeline(
    tmp_path: Path, where: str, found: list[int]
) -> None:
    made = Shop.with_log(tmp_path, 10)
    payload = '{"till":"a","amount":3,"who":{"name":"Ann"}}'
    letters = [{"payload": payload, "_timeline": '["a",null]'}, {"payload": 'raw, "text', "_timeline": '["b"]'}]
    made.process(ordered=6, held=2, refused=letters)
    assert [row["_arrival_seq"] for row in rows(made, "dead_letters", "--where", where)] == found


def test_show_names_the_file_that_is_gone(shop: Shop) -> None:
    [file] = shop.lake.path(tables.DEAD_LETTERS).glob("*/*.parquet")
    file.unlink()
    for where in ((), ("--where", "_arrival_seq > 0")):
        done = call(shop, "show", "dead_letters", *where)
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"dead_letters/{file.parent.name}/{file.name} cannot be read" in done.stderr


def test_show_of_a_pipeline_that_has_committed_nothing_fails_in_words(tmp_path: Path) -> None:
    done = call(Shop(tmp_path), "show", "raw_events")
    assert done.exit_code == 1
    assert "shop has no committed batch" in done.stderr


def test_values_of_every_type_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = pa.schema([("m", pa.map_(pa.string(), pa.int64())), ("x", pa.float64()), ("b", pa.binary())])
    write_rows(pa.Table.from_pylist([{"m": [("a", 1)], "x": float("inf"), "b": b"\x01"}], schema=kinds), "json")
    assert json.loads(capsys.readouterr().out) == {"m": {"a": 1}, "x": "inf", "b": "01"}
    assert in_a_line("x" * 1_000) == "x" * 400 + "…"
    assert in_a_line({"at": at(0)}) == '{"at":"2026-01-01T00:00:00Z"}'
    assert (in_a_line(at(0)), in_a_line(None), in_a_line(True)) == ("2026-01-01 00:00:00", "null", "true")


@pytest.mark.parametrize("form", ["table", "rows", "json"])
def test_names_of_columns_and_values_are_written_out_in_every_form(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Also what JSON itself leaves as it is, such as the letter that begins a command of a terminal."""
    write_rows(pa.table({"a\x9b\u202e": ["b\x7f\u2066"], "夕": ["夕"]}), form)
    printed = capsys.readouterr().out
    assert not {"\x9b", "\u202e", "\x7f", "\u2066"} & set(printed)
    assert "夕" in printed
    assert ("\\u009b" if form == "json" else "\\x9b") in printed


def test_status_run_and_report_say_the_same_of_rows_that_were_erased_by_hand(shop: Shop) -> None:
    assert "by hand" not in call(shop, "status").stdout + page_of(Workspace(shop.file, shop.folder / "warehouse"))
    DeltaTable(str(shop.lake.path(tables.DEAD_LETTERS))).delete("reason = 'early'")
    assert call(shop, "changes", "--accept", "counted twice").exit_code == 0
    workspace = Workspace(shop.file, shop.folder / "warehouse")
    said = "1 row of dead_letters erased by hand"
    assert said in call(shop, "status").stdout
    assert state(shop)["by_hand"] == [said]
    assert f"The tables have other rows by now: {said}." in page_of(workspace)
    lines = {line.label: line.in_all for line in lines_of(workspace, 1)}
    assert (lines["refused, in dead_letters"], lines["rows of dead_letters, changed by hand"]) == (2, -1)
    assert not [label for label in lines if "by hand" in label and "dead_letters" not in label]


def test_maintenance_says_what_tables_take_and_when_the_rest_is_deleted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined files stay readable for a while, so that a first maintenance ends larger."""
    monkeypatch.setenv("DAGSTER_HOME", str(shop.folder / "home"))
    for number in range(10):
        shop.add(tables.DEAD_LETTERS, [letter(100 + number)])
    shop.leave_watermark(2)
    shop.commit("process", 10, {"records": 0})
    done = call(shop, "maintain", "--retain", "1h")
    assert done.exit_code == 0, done.output
    [sizes] = re.findall(r"tables: ([\d,]+) bytes, ([\d,]+) now", done.stdout)
    before, after = (int(size.replace(",", "")) for size in sizes)
    assert after > before
    assert re.search(
        r"[\d,]+ of these belong to old versions.*: the same command after 20.* UTC deletes", done.stdout
    )


def test_status_check_exits_with_1_where_something_is_wrong(shop: Shop) -> None:
    """Make the shop's watermark older than its alert allows; a change of alerts is none of meaning."""
    assert (call(shop, "status").exit_code, call(shop, "status", "--check").exit_code) == (0, 1)
    (shop.folder / "shop.yaml").write_text(SPEC + WINDOWS)
    assert "wrong         nothing" in call(shop, "status").stdout
    assert call(shop, "status", "--check").exit_code == 0
    (shop.folder / "shop.yaml").write_text("name: 1")
    assert call(shop, "status", "--check").exit_code == 2


def test_the_printed_counts_add_up_to_the_records_and_what_a_window_missed_stands_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    made = Shop.with_log(tmp_path, 429, SPEC + WINDOWS)
    made.counts |= {"per_minute.in_windows": 366, "per_minute.window_closed": 60}
    made.add(tables.DEAD_LETTERS, [letter(n) | {"stage": "window", "reason": "window_closed"} for n in range(60)])
    made.process(ordered=366, held=60, refused=[{"reason": "early"}, {}, {}])
    show_report(made.workspace, RunReport(batches=1))
    printed = capsys.readouterr().out
    assert printed.replace(str(tmp_path), "FOLDER") == snapshot
    found = re.findall(r"^ +(\S.*?) +(?:[0-9]+ +)?([0-9]+) *$", printed, flags=re.MULTILINE)
    shown = {label: int(in_all) for label, in_all in found}
    assert shown == {
        "records in": 429,
        "ordered": 366,
        "held, the watermark has not passed them": 60,
        "refused, in dead_letters": 3,
        "early": 1,
        "out_of_order": 2,
        "accepted, too late for per_minute": 60,
        "rows of windows/per_minute": 0,
    }


def test_without_ordered_events_the_accepted_ones_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Shop.with_log(tmp_path, 10, SPEC + WINDOWS + "outputs: {ordered_events: false}\n")
    made.process(ordered=6, held=3, refused=[{}])
    show_report(made.workspace, RunReport(batches=1))
    printed = " ".join(capsys.readouterr().out.split())
    assert "records in 10 10 accepted 9 9 refused, in dead_letters 1 1" in printed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),  # sets the title of a terminal
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),  # the same in one letter
        ("fdp.\u202excs", "fdp.\\u202excs"),  # shows a name from right to left
        ("a\u2066b\u200b\ufeff\U000e0001", "a\\u2066b\\u200b\\ufeff\\U000e0001"),
        ("a\r\n\tb\u2028c", "a\\r\\n\\tb\\u2028c"),
        ("caf\udce9", "caf\\udce9"),  # a byte that is no text
        ("朝　夕 é ß \xa0 🌊 שלום", "朝　夕 é ß \xa0 🌊 שלום"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_json_stays_the_same_value() -> None:
    value = {"a\x9b": ["\x7f\u202e\U000e0001", "夕\n"]}
    assert json_line(value) == '{"a\\u009b": ["\\u007f\\u202e\\udb40\\udc01", "夕\\n"]}'
    assert json.loads(json_line(value)) == value


def test_errors_keep_their_lines_and_a_name_of_a_file_makes_no_new_one() -> None:
    assert str(LakeError("two\nlines\x1b", remedy="r\u202e")) == "two\nlines\\x1b\nTo do: r\\u202e"
    error = InputError("in/x\nTo do: delete it.csv: bad", remedy="r")
    assert str(error) == "in/x\\nTo do: delete it.csv: bad\nTo do: r"
