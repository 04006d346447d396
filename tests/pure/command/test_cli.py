"""The command line: exit codes, what is said where, and where the warehouse is. No Spark session is started."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from tests import ROOT
from tests.pure.batch.batches import planned
from tidemark.pipelines.cli import main
from tidemark.pipelines.command_line import in_words
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Kind
from tidemark.resources.delta.lake import Lake
from tidemark.resources.machine import FullDiskError
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA
from tidemark.timeops.errors import LakeError, SpecError
from tidemark.timeops.spec import spec_json_schema

GOOD = """
name: shop
sources:
  - {name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING, amount INT"}
time: {timestamp_by: at}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current directory, and an environment that a command may change."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def with_pending(warehouse: Path, kind: Kind = "process") -> None:
    """Make a pipeline `shop` whose batch 0 waits for its commit."""
    lake = Lake(warehouse / "shop")
    lake.create(BATCHES, BATCHES_SCHEMA)
    planned(BatchLog(lake), kind)


@pytest.mark.parametrize("command", sorted(main.commands))
def test_a_command_says_how_it_is_used(command: str, snapshot: SnapshotAssertion) -> None:
    assert CliRunner().invoke(main, [command, "--help"], terminal_width=80, prog_name="tidemark").stdout == snapshot


def test_help_names_every_command(snapshot: SnapshotAssertion) -> None:
    done = CliRunner().invoke(main, ["--help"], terminal_width=80, prog_name="tidemark")
    assert done.stdout == snapshot
    assert all(name in done.stdout for name in main.commands)
    lines = done.stdout.partition("Commands:\n")[2].splitlines()
    assert len(lines) == len(main.commands)
    assert not [line for line in lines if line.endswith("...")], "each sentence is shown to its end"


def test_help_and_schema_import_neither_dagster_nor_spark_and_status_no_dagster(folder: Path) -> None:
    code = (
        "import sys; from tidemark.pipelines.cli import main\n"
        "for words in ('--help', 'schema', 'run --help', 'test --help', 'backfill --help', 'report --help',\n"
        "              'status --help', 'show --help'):\n"
        "    main(words.split(), standalone_mode=False)\n"
        "slow = {'dagster', 'pyspark', 'deltalake', 'pandas', 'rich', 'matplotlib', 'jinja2'} & set(sys.modules)\n"
        "if slow: sys.exit(f'imported {slow}')\n"
        f"main(['status', {str(folder / 'good.yaml')!r}], standalone_mode=False)\n"
        "sys.exit('imported Dagster' if 'dagster' in sys.modules else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_schema_prints_the_json_schema() -> None:
    done = call("schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == spec_json_schema()


def test_the_version_is_the_distribution_s() -> None:
    done = call("--version")
    assert (done.exit_code, done.stdout.split()[-1]) == (0, version("tidemark"))


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_bad_spec_is_told_on_stderr_with_file_and_key(folder: Path, command: str) -> None:
    (folder / "bad.yaml").write_text(GOOD.replace("timestamp_by: at", "timestamp_by: at, out_of_order: maybe"))
    done = call(command, "bad.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "bad.yaml" in done.stderr
    assert "time.out_of_order" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_spec_is_a_bad_spec(folder: Path) -> None:
    done = call("run", "none.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "none.yaml: the spec cannot be read" in done.stderr
    assert "To do: check the path" in done.stderr


def test_all_specs_are_read_before_anything_runs(folder: Path) -> None:
    (folder / "bad.yaml").write_text("name: shop\n")
    done = call("run", "good.yaml", "bad.yaml", "none.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "bad.yaml, line 1, sources: the key is missing" in done.stderr
    assert "none.yaml: the spec cannot be read" in done.stderr
    assert "Nothing was done: all specs are read first, and 2 of 3 are wrong." in done.stderr
    assert not (folder / "home").exists()


def test_a_live_run_of_a_pipeline_that_is_flushed_is_refused(folder: Path) -> None:
    (folder / "flushed.yaml").write_text(GOOD.replace("timestamp_by: at", "timestamp_by: at, end_of_input: flush"))
    done = call("run", "flushed.yaml", "--live")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "flushed.yaml: --live has no effect" in done.stderr
    assert not (folder / "home").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "good.yaml", "--max-events-per-batch", "0"),
        ("run", "good.yaml", "--set"),
        ("run", "good.yaml", "--end-of-input", "later"),
        ("run", "good.yaml", "--live", "--end-of-input", "flush"),
        ("run", "good.yaml", "--warehouse", "good.yaml"),
        ("test", "good.yaml"),
        ("accept", "good.yaml", "0"),
        ("accept", "good.yaml", "0", "--reason", " "),
        ("accept", "good.yaml", "-1", "--reason", "r"),
        ("backfill", "good.yaml", "--from", "2026-01-01"),
        ("backfill", "good.yaml", "--from", "2026-01-01", "--to", "tomorrow"),
        ("report",),
        ("report", "good.yaml", "--out", "good.yaml"),
        ("report", "good.yaml", "good.yaml"),
        ("unknown",),
    ],
)
def test_wrong_usage_exits_with_2_and_changes_nothing(folder: Path, words: tuple[str, ...]) -> None:
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Error: " in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["good.yaml", "in"]


def test_a_key_that_is_set_by_hand_is_judged_like_one_of_the_file(folder: Path) -> None:
    done = call("run", "good.yaml", "--set", "time.out_of_order=dropp")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "good.yaml --set time.out_of_order=dropp" in done.stderr
    assert 'found "dropp"' in done.stderr
    assert call("run", "good.yaml", "--set", "time.out_of_order=adjust").stdout == "shop: nothing new.\n"


def test_a_run_with_nothing_to_do_says_so_and_is_done(folder: Path) -> None:
    done = call("run", "good.yaml")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "shop: nothing new.\n", "")
    assert not (folder / "warehouse").exists()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ((), "shop_report.html"),
        (("--out", "seen/by all"), "seen/by all/shop_report.html"),
        (("--out", "in"), "in/shop_report.html"),
        (("--out", "new/now.html"), "new/now.html"),
    ],
)
def test_a_report_says_where_it_is_and_changes_nothing_else(folder: Path, words: tuple[str, ...], page: str) -> None:
    done = call("report", "good.yaml", *words)
    assert (done.exit_code, done.stdout) == (0, f"shop: {page}\n")
    assert "has not run yet" in (folder / page).read_text()
    assert {path for path in folder.rglob("*") if path.is_file()} == {folder / "good.yaml", folder / page}


def test_one_page_is_not_enough_for_two_pipelines(folder: Path) -> None:
    (folder / "other.yaml").write_text(GOOD.replace("name: shop", "name: other"))
    done = call("report", "good.yaml", "other.yaml", "--out", "page.html")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "page.html is one page; a folder is expected" in done.stderr
    assert call("report", "good.yaml", "other.yaml").stdout == "shop: shop_report.html\nother: other_report.html\n"


def test_a_report_of_a_bad_spec_is_no_page(folder: Path) -> None:
    (folder / "bad.yaml").write_text("name: shop\n")
    assert call("report", "bad.yaml").exit_code == 2
    assert not list(folder.glob("*.html"))


def test_a_file_that_is_held_back_is_named_and_fails_the_run(folder: Path) -> None:
    (folder / "good.yaml").write_text(GOOD.replace("in/*.csv", "in/*"))
    (folder / "in" / "tills.csv.zip").write_bytes(b"PK")
    done = call("run", "good.yaml")
    assert (done.exit_code, done.stdout) == (1, "shop: nothing new.\n")
    assert "1 file(s) held back, everything else was processed" in done.stderr
    assert "tills.csv.zip" in done.stderr


def test_a_pipeline_that_fails_keeps_no_other_from_running(folder: Path) -> None:
    (folder / "lost.yaml").write_text(GOOD.replace("name: shop", "name: lost").replace("in/*.csv", "nowhere/*.csv"))
    done = call("run", "lost.yaml", "good.yaml")
    assert (done.exit_code, done.stdout) == (1, "shop: nothing new.\n")
    assert "lost: " in done.stderr
    assert "nowhere" in done.stderr


def test_what_would_stop_every_pipeline_stops_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other.yaml").write_text(GOOD.replace("name: shop", "name: other"))

    def full(*_: object, **__: object) -> None:
        raise FullDiskError("The disk is full.")

    monkeypatch.setattr("tidemark.pipelines.runner.run_pipeline", full)
    done = call("run", "good.yaml", "other.yaml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Not run: other. What stops shop would stop them as well:\nThe disk is full.\n"


def test_a_source_that_leads_nowhere_is_a_failure(folder: Path) -> None:
    (folder / "in").rmdir()
    done = call("run", "good.yaml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no folder" in done.stderr
    assert "To do: correct `path`" in done.stderr


def test_the_warehouse_is_the_option_else_the_variable_else_beside_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("accept", "good.yaml", "0", "--reason", "r")
    assert f"shop in {folder / 'warehouse'}: " in call(*words).stderr
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(folder / "by_variable"))
    assert f"shop in {folder / 'by_variable'}: " in call(*words).stderr
    assert f"shop in {folder / 'by_option'}: " in call(*words, "--warehouse", "by_option").stderr
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "")
    assert f"shop in {folder / 'warehouse'}: " in call(*words).stderr, "an empty variable is as none"


def test_dagster_s_home_is_made_where_the_variable_says_else_beside_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("run", "good.yaml")
    assert (folder / "home" / "dagster.yaml").is_file()
    monkeypatch.delenv("DAGSTER_HOME")
    call("run", "good.yaml")
    assert "enabled: false" in (folder / ".dagster" / "dagster.yaml").read_text()


@pytest.mark.parametrize("place", ["a_file", "a_file/below"])
@pytest.mark.parametrize("variable", ["DAGSTER_HOME", "TIDEMARK_WAREHOUSE"])
def test_a_setting_that_names_a_file_is_said_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, place: str
) -> None:
    (folder / "a_file").touch()
    monkeypatch.setenv(variable, place)
    done = call("run", "good.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a_file is a file" in done.stderr.replace(", which", "")
    assert f"To do: name another folder with {'' if variable == 'DAGSTER_HOME' else '--warehouse or '}{variable}" in (
        done.stderr
    )


@pytest.mark.parametrize("text", ["a: [", "nonsense: 1", None])
def test_a_configuration_that_dagster_does_not_take_is_said_in_a_sentence(folder: Path, text: str | None) -> None:
    (folder / "home").mkdir()
    if text is None:
        (folder / "home" / "dagster.yaml").mkdir()
    else:
        (folder / "home" / "dagster.yaml").write_text(text)
    done = call("run", "good.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "home/dagster.yaml is no configuration of Dagster: " in done.stderr
    assert "To do: correct it, or move it away" in done.stderr


def test_no_command_takes_a_file_for_the_folder_of_a_pipeline(folder: Path) -> None:
    (folder / "warehouse").mkdir()
    (folder / "warehouse" / "shop").touch()
    for words in (
        *(["run"], ["status"], ["show", "raw_events"], ["report"], ["validate"], ["changes"], ["maintain"]),
        ["accept", "0", "--reason", "r"],
    ):
        done = call(words[0], "good.yaml", *words[1:])
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert "warehouse/shop, which is a file" in done.stderr


def test_a_home_that_cannot_be_made_and_a_page_below_a_file_are_said_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/proc/home")
    done = call("run", "good.yaml")
    assert done.exit_code == 1
    assert "DAGSTER_HOME is /proc/home, and that folder cannot be made" in done.stderr
    (folder / "a_file").touch()
    done = call("report", "good.yaml", "--out", "a_file/page.html")
    assert done.exit_code == 2
    assert "--out is a_file, which is a file" in done.stderr


def test_a_spark_that_has_no_such_name_is_a_bad_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_SPARK", "locl[2]")
    done = call("validate", "good.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "TIDEMARK_SPARK is 'locl[2]'" in done.stderr


@pytest.mark.parametrize("command", ["run", "status", "validate", "report"])
def test_a_name_of_a_spec_reaches_a_terminal_written_out(folder: Path, command: str) -> None:
    name = "x\x1b]0;owned\x07\u202e.yaml"
    (folder / name).write_text("name: [")
    done = call(command, name)
    assert done.exit_code == 2
    assert "x\\x1b]0;owned\\x07\\u202e.yaml" in done.stderr
    assert not {"\x1b", "\x07", "\u202e"} & set(done.output)


def test_accept_refuses_a_batch_that_is_not_waiting(folder: Path) -> None:
    done = call("accept", "good.yaml", "0", "--reason", "counted by hand")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no batch waits for its commit. Nothing was changed." in done.stderr

    with_pending(folder / "warehouse")
    done = call("accept", "good.yaml", "7", "--reason", "counted by hand")
    assert done.exit_code == 1
    assert "batch 0 waits for its commit, not batch 7" in done.stderr


def test_accept_refuses_an_ingestion_which_no_check_stops(folder: Path) -> None:
    with_pending(folder / "warehouse", "ingest")
    done = call("accept", "good.yaml", "0", "--reason", "counted by hand")
    assert done.exit_code == 1
    assert "batch 0 waits, but it only reads input" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SpecError("f", expected="e", remedy="r"), 2, "f\nExpected: e\nTo do: r\n"),
        (LakeError("f", remedy="r"), 1, "f\nTo do: r\n"),
        (KeyboardInterrupt(), 130, "Stopped. Nothing is lost"),
        (ZeroDivisionError("by 0\nmore"), 1, "Unexpected ZeroDivisionError: by 0\n"),
        (ConnectionRefusedError(111, "Connection refused"), 1, "The Java process of Spark ended"),
        (
            OSError(30, "Read-only file system: '/mnt/home'"),
            1,
            "The disk cannot be written: Read-only file system: /mnt/home",
        ),
    ],
)
def test_an_error_is_a_sentence_and_an_exit_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_, in_words():
        raise error
    shown = capsys.readouterr()
    assert (exit_.value.code, shown.out) == (code, "")
    assert shown.err.startswith(said)
    assert "Traceback" not in shown.err


def test_verbose_adds_the_traceback_of_an_unexpected_error_only(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(click.Command("run"))
    context.params["verbose"] = True
    with pytest.raises(SystemExit), context.scope(), in_words():
        raise ZeroDivisionError("by 0")
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "\nUnexpected ZeroDivisionError: by 0\n" in shown
    with pytest.raises(SystemExit), context.scope(), in_words():
        raise LakeError("f")
    assert capsys.readouterr().err == "f\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("maintain", "--retain", "soon"), "--retain"),
        (("changes", "--accept", "a", "--take-back", "b"), "found both, expected one of them"),
        (("changes", "--accept", " "), "a sentence is expected"),
    ],
)
def test_upkeep_and_changes_refuse_wrong_options(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    name, *options = words
    result = CliRunner().invoke(main, [name, str(tmp_path / "none.yaml"), *options])
    assert result.exit_code == 2
    assert says in result.output


def test_errors_that_libraries_log_are_printed_but_not_those_of_py4j_which_come_as_exceptions() -> None:
    program = """
import logging
from tidemark.pipelines.command_line import in_words
for _ in range(2):
    with in_words():
        logging.exception("Exception while sending command.")
        logging.getLogger("py4j.clientserver").exception("Exception occurred while shutting down connection")
        logging.getLogger("another").warning("slow")
        logging.getLogger("another").error("no room for its history")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["no room for its history"] * 2
