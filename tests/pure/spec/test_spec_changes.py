"""A spec that a pipeline's tables cannot go on with: told before there is anything to do, without Spark."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.pure.batch.batches import START, planned
from tidemark.assets.pending_work import look
from tidemark.assets.spec_changes import ensure_taken
from tidemark.pipelines import cli
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.delta.lake import Lake
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, FILES, FILES_SCHEMA, LOG_CONTROL, LOG_CONTROL_SCHEMA
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError

SPEC = """\
name: shop
sources:
  - name: tills
    kind: files
    path: "in/*.csv"
    format: csv
    schema: "at STRING, k STRING, n BIGINT"
time: {timestamp_by: at}
windows:
  - name: w
    kind: tumbling
    size: 1 hour
    group_by: [k]
    aggregates: {c: count(*)}
"""
ANEW = "anew from the log with `tidemark rebuild shop.yaml"
OTHER = "To do: take the change back, or choose another name or warehouse for the new spec"
SECOND = "  - {name: v, kind: snapshot, aggregates: {c: count(*)}}\n"


@pytest.fixture(autouse=True)
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the spec of a pipeline that has processed a batch, and an empty folder of input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    path = tmp_path / "shop.yaml"
    path.write_text(SPEC)
    made = read_spec(path).spec
    lake = Lake(tmp_path / "warehouse" / "shop")
    lake.create(BATCHES, BATCHES_SCHEMA)
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    lake.create(FILES, FILES_SCHEMA)
    log = BatchLog(lake)
    plan = planned(log, end_seq=0, fingerprint=made.fingerprint())
    item = {"_after_seq": -1, "_control_seq": 0, "kind": "spec", "argument": made.canonical_json(), "_batch_id": 0}
    rows = pa.Table.from_pylist([item], schema=LOG_CONTROL_SCHEMA)
    written = lake.append_rows(LOG_CONTROL, rows, attempt=plan.attempt, expect=0)
    log.commit(plan, {}, {LOG_CONTROL: written.version}, START)
    return path


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    ("old", "new", "said", "to_do"),
    [
        (
            "n BIGINT",
            "n DATE",
            "line 7, sources[0].schema: `n` was BIGINT, is DATE: values that are there may not fit",
            OTHER,
        ),
        (
            "n BIGINT",
            "n INT",
            "line 7, sources[0].schema: `n` was BIGINT, is INT: the values of the log are cast",
            f"{ANEW}`",
        ),
        ("n BIGINT", "N BIGINT", "line 7, sources[0].schema: `N` BIGINT new: the tables have it as `n`", OTHER),
        ("[k]", "[k, n]", 'line 13, windows[0].group_by: was ["k"], is ["k", "n"]', f"{ANEW} --window w`"),
        ("size: 1 hour", "size: 2 hours", "line 12, windows[0].size: was ", f"{ANEW} --window w`"),
        (
            "{timestamp_by: at}\nwindows:\n  - name: w\n    kind: tumbling\n    size: 1 hour",
            "{timestamp_by: at, out_of_orderness: 1 s}\nwindows:\n  - name: w\n    kind: tumbling\n    size: 2 hours",
            "line 12, windows[0].size: was ",
            f"{ANEW}`",  # the past of the windows was judged by other rules
        ),
        (
            "timestamp_by: at",
            "timestamp_by: at, over: [k]",
            'line 8, time.over: was the default, is ["k"]',
            f"{ANEW}`",
        ),
        (
            "    aggregates: {c: count(*)}\n",
            "    aggregates: {c: count(*)}\n" + SECOND,
            "line 15, windows[1]: `v` new",
            f"{ANEW} --window v`",
        ),
    ],
)
def test_a_change_that_is_refused_is_told_by_key_and_line(
    spec: Path, old: str, new: str, said: str, to_do: str
) -> None:
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new))
    done = call("validate", "shop.yaml")
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert "shop.yaml changed since the tables in " in done.stderr
    assert said in done.stderr
    assert to_do in done.stderr


def test_a_run_and_a_sensor_tell_it_when_there_is_nothing_to_do(spec: Path) -> None:
    spec.write_text(SPEC.replace("[k]", "[k, n]"))
    done = call("run", "shop.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == call("validate", "shop.yaml").stderr
    with pytest.raises(SpecError, match="changed since the tables"):  # the tick of a sensor fails with these words
        look(Workspace(read_spec(spec), spec.parent / "warehouse"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("timestamp_by: at", "timestamp_by: at, out_of_orderness: 1 minute"),
        ("format: csv", "format: csv\n    on_rewrite: read\n    missing: null\n    options: {header: true}"),
        ("format: csv", "format: csv\n    rename: {count: n, n: n, number: n}"),
        ("n BIGINT", "who STRING"),
    ],
)
def test_a_change_that_is_taken_stands_in_nobody_s_way(spec: Path, old: str, new: str) -> None:
    spec.write_text(SPEC.replace(old, new))
    ensure_taken(Workspace(read_spec(spec), spec.parent / "warehouse"))


@pytest.mark.parametrize(
    ("old", "new", "code", "meaning"),
    [
        ("n BIGINT", "n BIGINT", 0, "nothing"),
        ("n BIGINT", "n BIGINT, who STRING", 0, "from here on"),
        ("timestamp_by: at", "timestamp_by: at, out_of_orderness: 1 minute", 0, "from here on"),
        ("[k]", "[k, n]", 3, "needs the past"),
        ("n BIGINT", "N BIGINT", 3, "refused"),
        ("size: 1 hour", "size: 1 bit", 2, None),
    ],
)
def test_a_plan_says_what_changed_and_its_exit_status_whether_it_needs_a_decision(
    spec: Path, old: str, new: str, code: int, meaning: str | None
) -> None:
    spec.write_text(SPEC.replace(old, new))
    shown, told = call("plan", "shop.yaml"), call("plan", "shop.yaml", "--json")
    assert (shown.exit_code, told.exit_code) == (code, code), shown.output
    if meaning is None:
        return
    found = json.loads(told.stdout)
    assert (found["meaning"], found["needs_decision"], found["run"]["files"]) == (meaning, code == 3, 0)
    assert (found["past"], found["would_differ"]) == (None, None), "nothing was processed"
    if meaning == "nothing":
        assert "shop: nothing changed since batch 0, committed 2026-01-01 00:00:00 UTC" in shown.stdout
        assert found["changes"] == []
        return
    (change,) = found["changes"]
    assert (change["meaning"], change["place"].startswith("line ")) == (meaning, True)
    assert "1 change since batch 0" in shown.stdout
    assert change["sentence"] in shown.stdout
    assert ("To do: " in shown.stdout) == (code == 3)
    tables = sorted(path.name for path in (spec.parent / "warehouse" / "shop").iterdir())
    assert tables == ["_state", "batches", "log_control"]


def test_keys_that_are_set_beside_the_file_are_planned_too(spec: Path) -> None:
    found = json.loads(call("plan", "shop.yaml", "--json", "--set", "time.out_of_orderness=30s").stdout)
    assert [one["key"] for one in found["changes"]] == ["time.out_of_orderness"]


def test_a_pipeline_without_tables_has_nothing_that_could_change(spec: Path) -> None:
    shown = call("plan", "shop.yaml", "--warehouse", "elsewhere")
    assert (shown.exit_code, "no tables in" in shown.stdout) == (0, True), shown.output


def test_validate_says_what_each_change_means(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_check_expressions", lambda _file: None)  # needs Spark
    spec.write_text(SPEC.replace("n BIGINT", "who STRING"))
    done = call("validate", "shop.yaml")
    gone = "`n` gone: it stays in the tables, null in the records from here on"
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "shop: from here on: line 7, sources[0].schema: `who` STRING new: null in the records before",
            f"shop: from here on: line 7, sources[0].schema: {gone}",
            "shop: ok",
        ],
    )
