"""A spec that a pipeline's tables cannot go on with: told before there is anything to do, without Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tidemark.assets.pending_work import look
from tidemark.assets.spec_changes import ensure_taken
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import this_process
from tidemark.resources.lake.lake import Lake
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, LOG_CONTROL, LOG_CONTROL_SCHEMA
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
SECOND = "  - {name: v, kind: snapshot, aggregates: {c: count(*)}}\n"


@pytest.fixture(autouse=True)
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spec of a pipeline that has processed a batch, and an empty folder of input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    path = tmp_path / "shop.yaml"
    path.write_text(SPEC)
    made = read_spec(path).spec
    lake, now = Lake(tmp_path / "warehouse" / "shop"), datetime(2026, 1, 1, tzinfo=UTC)
    lake.create(BATCHES, BATCHES_SCHEMA)
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    log = BatchLog(lake)
    plan = log.begin(
        "process",
        this_process("run"),
        now,
        after=None,
        first_seq=0,
        end_seq=0,
        input={},
        fingerprint=made.fingerprint(),
    )
    item = {"_after_seq": -1, "_control_seq": 0, "kind": "spec", "argument": made.canonical_json(), "_batch_id": 0}
    rows = pa.Table.from_pylist([item], schema=LOG_CONTROL_SCHEMA)
    written = lake.append_rows(LOG_CONTROL, rows, attempt=plan.attempt, expect=0)
    log.commit(plan, {}, {LOG_CONTROL: written.version}, now)
    return path


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("n BIGINT", "n INT", "line 7, sources[0].schema: `n` was BIGINT, is INT: the values before are to be cast"),
        ("n BIGINT", "N BIGINT", "line 7, sources[0].schema: `N` BIGINT new: the tables have it as `n`"),
        ("[k]", "[k, n]", 'line 13, windows[0].group_by: was ["k"], is ["k", "n"]'),
        ("size: 1 hour", "size: 2 hours", "line 12, windows[0].size: was "),
        ("timestamp_by: at", "timestamp_by: at, over: [k]", 'line 8, time.over: was the default, is ["k"]'),
        (
            "    aggregates: {c: count(*)}\n",
            "    aggregates: {c: count(*)}\n" + SECOND,
            "line 15, windows[1]: `v` new",
        ),
    ],
)
def test_a_change_that_is_refused_is_told_by_key_and_line(spec: Path, old: str, new: str, said: str) -> None:
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new))
    done = call("validate", "shop.yaml")
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert "shop.yaml changed since the tables in " in done.stderr
    assert said in done.stderr
    assert "To do: take the change back, or give the new spec another name or warehouse" in done.stderr


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
