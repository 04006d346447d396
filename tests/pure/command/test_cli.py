"""The command line: exit codes, what is said where, and where the warehouse is. No Spark session is started."""

import json
import shlex
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
from tidemark.resources.batches.plans import BatchKind
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
SPECS = {
    "good": GOOD,
    "other": GOOD.replace("name: shop", "name: other"),
    "lost": GOOD.replace("name: shop", "name: lost").replace("in/*.csv", "nowhere/*.csv"),
    "flushed": GOOD.replace("timestamp_by: at", "timestamp_by: at, end_of_input: flush"),
    "bad": GOOD.replace("timestamp_by: at", "timestamp_by: at, out_of_order: maybe"),
    "short": "name: shop\n",
}


@pytest.fixture(autouse=True)
def folder(workplace: Path) -> Path:
    """Return a current directory of specs and an empty input, and an environment that a command may change."""
    (workplace / "a_file").touch()
    for name, text in SPECS.items():
        (workplace / f"{name}.yaml").write_text(text)
    return workplace


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


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
        "try:\n"
        f"    main(['status', {str(folder / 'good.yaml')!r}], standalone_mode=False)\n"
        "except SystemExit as ended:\n"
        "    if ended.code: raise\n"
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


WRONG_USAGE = [
    *["run", "run good.yaml --set", "run good.yaml --max-events-per-batch 0", "run good.yaml --end-of-input later"],
    *["run good.yaml --live --end-of-input flush", "run good.yaml --warehouse good.yaml", "test good.yaml"],
    *["accept good.yaml 0", "accept good.yaml 0 --reason ' '", "accept good.yaml -1 --reason r"],
    *["backfill good.yaml --from 2026-01-01", "backfill good.yaml --from 2026-01-01 --to tomorrow"],
    *["report", "report good.yaml --out good.yaml", "report good.yaml good.yaml", "unknown"],
]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run bad.yaml", "bad.yaml, line 5, time.out_of_order: "),
        ("validate short.yaml", "short.yaml, line 1, sources: the key is missing"),
        ("report bad.yaml", "bad.yaml, line 5, time.out_of_order: "),
        ("run none.yaml", "none.yaml: the spec cannot be read"),
        ("run none.yaml", "To do: check the path"),
        ("run good.yaml short.yaml none.yaml", "short.yaml, line 1, sources: the key is missing"),
        ("run good.yaml short.yaml none.yaml", "none.yaml: the spec cannot be read"),
        ("run good.yaml short.yaml none.yaml", "Nothing was done: all specs are read first, and 2 of 3 are wrong."),
        ("run flushed.yaml --live", "flushed.yaml: `live` has no effect"),
        ("run good.yaml --set time.out_of_order=dropp", "good.yaml --set time.out_of_order=dropp"),
        ("run good.yaml --set time.out_of_order=dropp", 'found "dropp"'),
        ("report good.yaml other.yaml --out page.html", "page.html is one page; a folder is expected"),
        ("report good.yaml --out a_file/page.html", "--out is a_file, which is a file"),
        ("maintain none.yaml --retain soon", "--retain"),
        ("changes none.yaml --accept a --take-back b", "Use either --accept or --take-back, not both"),
        ("changes none.yaml --accept ' '", "a sentence is expected"),
        *((words, "Error: ") for words in WRONG_USAGE),
    ],
)
def test_a_bad_spec_or_wrong_usage_exits_with_2_and_changes_nothing(folder: Path, words: str, said: str) -> None:
    before = sorted(folder.rglob("*"))
    done = call(*shlex.split(words))
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(folder.rglob("*")) == before


def test_a_key_that_is_set_by_hand_is_taken() -> None:
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
    before = files_in(folder)
    done = call("report", "good.yaml", *words)
    assert (done.exit_code, done.stdout) == (0, f"shop: {page}\n")
    assert "has not run yet" in (folder / page).read_text()
    assert files_in(folder) - before == {folder / page}


def test_two_pipelines_have_two_pages() -> None:
    assert call("report", "good.yaml", "other.yaml").stdout == "shop: shop_report.html\nother: other_report.html\n"


def test_a_file_that_is_held_back_is_named_and_fails_the_run(folder: Path) -> None:
    (folder / "good.yaml").write_text(GOOD.replace("in/*.csv", "in/*"))
    (folder / "in" / "tills.csv.zip").write_bytes(b"PK")
    done = call("run", "good.yaml")
    assert (done.exit_code, done.stdout) == (1, "shop: nothing new.\n")
    assert "1 file(s) held back; everything else was processed" in done.stderr
    assert "tills.csv.zip" in done.stderr


def test_a_pipeline_whose_source_leads_nowhere_fails_and_keeps_no_other_from_running() -> None:
    done = call("run", "lost.yaml", "good.yaml")
    assert (done.exit_code, done.stdout) == (1, "shop: nothing new.\n")
    assert "lost: " in done.stderr
    assert "nowhere" in done.stderr
    assert "there is no folder" in done.stderr
    assert "To do: correct `path`" in done.stderr


@pytest.mark.parametrize(
    ("words", "place", "said"),
    [
        ("run good.yaml other.yaml", "tidemark.pipelines.running.runner.run_pipeline", "shop: "),
        ("validate good.yaml other.yaml", "tidemark.pipelines.cli._check_expressions", "good.yaml: "),
        ("status good.yaml other.yaml", "tidemark.pipelines.views.status.status_of", "good.yaml: "),
        ("report good.yaml other.yaml", "tidemark.pipelines.views.report.page.page_of", "shop: "),
        ("maintain good.yaml other.yaml", "tidemark.pipelines.code_location.upkeep.maintain", "shop: "),
    ],
)
def test_an_unexpected_error_of_one_spec_hides_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch, words: str, place: str, said: str
) -> None:
    asked = []

    def fails(file: object, *_: object, **__: object) -> None:
        asked.append(file)
        raise ValueError("a month has no length")

    monkeypatch.setattr(place, fails)
    done = call(*shlex.split(words))
    assert (done.exit_code, len(asked)) == (1, 2)
    assert f"{said}Unexpected ValueError: a month has no length" in done.stderr
    assert done.stderr.count("Unexpected") == 2


def test_a_spec_that_cannot_even_be_judged_hides_no_other_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.pipelines.spec_files.parse_spec", lambda *_, **__: dict[str, str]()["month"])
    for command, code in (("run", 1), ("validate", 1), ("status", 1)):
        done = call(command, "good.yaml", "none.yaml")
        assert done.exit_code == code
        assert "good.yaml: Unexpected KeyError" in done.stderr
        assert "none.yaml: the spec cannot be read" in done.stderr


def test_what_would_stop_every_pipeline_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise FullDiskError("The disk is full.")

    monkeypatch.setattr("tidemark.pipelines.running.runner.run_pipeline", full)
    done = call("run", "good.yaml", "other.yaml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Not done: other. What stops shop would stop them as well:\nThe disk is full.\n"


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


A_FILE = "is a file\nExpected: a folder, or nothing yet\nTo do: name another folder with "


@pytest.mark.parametrize(
    ("variable", "value", "command", "code", "said"),
    [
        ("DAGSTER_HOME", "a_file", "run", 2, f"/a_file, which {A_FILE}DAGSTER_HOME\n"),
        ("DAGSTER_HOME", "a_file/below", "run", 2, f"/a_file {A_FILE}DAGSTER_HOME\n"),
        ("DAGSTER_HOME", "/proc/home", "run", 1, "DAGSTER_HOME is /proc/home, and that folder cannot be created"),
        ("TIDEMARK_WAREHOUSE", "a_file", "run", 2, f"/a_file {A_FILE}--warehouse or TIDEMARK_WAREHOUSE\n"),
        ("TIDEMARK_WAREHOUSE", "a_file/below", "run", 2, f"/a_file {A_FILE}--warehouse or TIDEMARK_WAREHOUSE\n"),
        ("TIDEMARK_SPARK", "locl[2]", "validate", 2, "TIDEMARK_SPARK is 'locl[2]'"),
    ],
)
def test_a_setting_that_cannot_be_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, command: str, code: int, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = call(command, "good.yaml")
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.parametrize("text", ["a: [", "nonsense: 1", None])
def test_a_configuration_that_dagster_does_not_take_is_said_in_a_sentence(folder: Path, text: str | None) -> None:
    (folder / "home").mkdir()
    if text is None:
        (folder / "home" / "dagster.yaml").mkdir()
    else:
        (folder / "home" / "dagster.yaml").write_text(text)
    done = call("run", "good.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "home/dagster.yaml is not a valid configuration of Dagster: " in done.stderr
    assert "To do: correct it, or move it away" in done.stderr


def test_no_command_takes_a_file_for_the_folder_of_a_pipeline(folder: Path) -> None:
    (folder / "warehouse").mkdir()
    (folder / "warehouse" / "shop").touch()
    for command in ("run", "status", "show", "report", "validate", "changes", "maintain", "accept"):
        more = {"show": ["raw_events"], "accept": ["0", "--reason", "r"]}.get(command, [])
        done = call(command, "good.yaml", *more)
        assert (done.exit_code, done.stdout) == (2, ""), command
        assert "warehouse/shop, which is a file" in done.stderr


@pytest.mark.parametrize("command", ["run", "status", "validate", "report"])
def test_a_name_of_a_spec_reaches_a_terminal_written_out(folder: Path, command: str) -> None:
    name = "x\x1b]0;owned\x07\u202e.yaml"
    (folder / name).write_text("name: [")
    done = call(command, name)
    assert done.exit_code == 2
    assert "x\\x1b]0;owned\\x07\\u202e.yaml" in done.stderr
    assert not {"\x1b", "\x07", "\u202e"} & set(done.output)


@pytest.mark.parametrize(
    ("waits", "batch", "said"),
    [
        (None, "0", "no batch is waiting to be committed. Nothing was changed."),
        ("process", "7", "batch 0 is waiting to be committed, not batch 7"),
        ("ingest", "0", "batch 0 is waiting, but it only reads input"),
    ],
)
def test_accept_refuses_a_batch_that_no_check_stopped(
    folder: Path, waits: BatchKind | None, batch: str, said: str
) -> None:
    if waits:
        lake = Lake(folder / "warehouse" / "shop")
        lake.create(BATCHES, BATCHES_SCHEMA)
        planned(BatchLog(lake), waits)
    done = call("accept", "good.yaml", batch, "--reason", "counted by hand")
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SpecError("f", expected="e", remedy="r"), 2, "f\nExpected: e\nTo do: r\n"),
        (LakeError("f", remedy="r"), 1, "f\nTo do: r\n"),
        (KeyboardInterrupt(), 130, "Stopped. Nothing is lost"),
        (ZeroDivisionError("by 0\nmore"), 1, "Unexpected ZeroDivisionError: by 0\n"),
        (ConnectionRefusedError(111, "Connection refused"), 1, "Spark's Java process ended"),
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
