"""Behaviour of a store of any kind: a local disk, S3, Google's, HDFS, each a real one, with input and tables in it.

Here: one test for all kinds. Not here: what one kind alone has (test_object_stores.py, test_keys_in_stores.py).
"""

import gzip
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from multiprocessing.synchronize import Barrier
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from dagster import DagsterInstance
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.amounts import all_rows_are_many
from tests.faults.killed import KILLED, Death, Gateway, run_and_die
from tests.gcs import BUCKET, GcsServer, gcs_server
from tests.processes import free_port, hdfs, process, wait_until
from tests.runs.landing import START, assert_tables_equal_the_oracle, land
from tests.runs.running import (
    Made,
    asked,
    assert_same_tables,
    assert_the_report_tells_what_the_tables_hold,
    changed,
    go,
    pipeline,
    rebuild,
    rows_by_table,
    workspace_of,
    written,
)
from tests.runs.store.conftest import forget, said_soon
from tests.s3 import READER, SECRET, S3Server, s3_server
from tidemark.assets.ingestion.pending_work import look
from tidemark.assets.rebuild.decisions.erasing import traces_in
from tidemark.assets.rebuild.decisions.forgetting import blanking
from tidemark.pipelines.cli import main
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.committed import consistent, read
from tidemark.resources.batches.plans import this_process
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.redaction import redact
from tidemark.resources.delta.upkeep import erase_old_files
from tidemark.resources.places.checks import ensure_put_if_absent
from tidemark.resources.places.place import Place, RemotePath, delta_place, place_of
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, WATERMARKS
from tidemark.resources.traces import Sought
from tidemark.timeops.errors import BusyError

REMOTE = ("s3", "gs", "hdfs")


@dataclass(frozen=True)
class Store:
    """A store of one kind.

    Attributes:
        folder: What a test has of it.
        secret: What no output may show.
        words: What the tests of failures put into variables and addresses.
    """

    folder: Place
    secret: str = SECRET
    words: Mapping[str, object] = field(default_factory=dict)

    def put(self, name: str, data: bytes) -> None:
        target = self.folder / name
        if isinstance(target, Path):
            target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def upload(self, landed: Path, files: str = "*") -> None:
        """Put what was landed for the oracle where pipelines read it."""
        for path in landed.glob(files):
            self.put(f"in/{path.name}", path.read_bytes())

    def over(self, made: Made) -> Made:
        """Return a pipeline with input and tables here."""
        file, settings = changed(made, f"path: in_{made[0].spec.name}", f"path: {self.folder}/in")
        return file, replace(settings, warehouse=self.folder / "warehouse")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def gs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        server.stranger()
        yield server


@pytest.fixture(scope="module")
def name_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotePath]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as root:
        yield root


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Yield a store, which this process and its Spark reach; what they know of others is forgotten."""
    nowhere, name = f"127.0.0.1:{free_port()}", uuid4().hex
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    forget()
    match request.param:
        case "s3":
            server: S3Server = request.getfixturevalue("s3")
            _set(monkeypatch, server.environment)
            yield Store(place_of(server.make_bucket(name)), words={"nowhere": nowhere})
        case "gs":
            google: GcsServer = request.getfixturevalue("gs")
            has_spark = "spark" in request.fixturenames  # it resolves Google's client, too, by Maven, before Java
            with google.reached_by(request.getfixturevalue("spark")) if has_spark else nullcontext():
                _set(monkeypatch, google.environment)
                key = json.loads((google.folder / "account.json").read_text())["private_key"].splitlines()[1]
                words = {"nowhere": nowhere, "folder": google.folder}
                yield Store(place_of(f"gs://{BUCKET}/{name}"), key, words)
        case "hdfs":
            yield Store(request.getfixturevalue("name_node") / name)
        case _:
            yield Store(tmp_path / "disk", words={"nowhere": nowhere})
    forget()


def _set(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


CUT = RunOptions(max_events_per_batch=50)
OF_PYTHON = (
    Death("raw_events", "python"),
    Death("raw_events", "python", is_large=True),
    Death("windows/per_minute", "python", is_large=True),
    Death("windows/per_minute", "python"),
    Death("commit of process", "python"),
)
"""Deaths of runs in the Java of this process, which lives on: one in each part of a run."""
OF_THE_NEXT = (Death("dead_letters", "python"),)
"""The death of a run that repeats what another one began: all is written, and not committed."""


@pytest.fixture(scope="module")
def local(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a pipeline that ran on a local disk, first over some files, and then over a late one."""
    base = tmp_path_factory.mktemp("local")
    made = pipeline(base, "faults", "drop", sparse=False)
    land(base / "in_faults", 120, seed=5)
    assert go(made).batches == 1
    land(base / "in_faults", 80, seed=6, files=1, prefix="late", start=START + timedelta(minutes=10))
    assert go(made).batches == 1
    return made


def rows(made: Made, *, of_one_batch: bool) -> dict[str, list[str]]:
    """Return the rows of each table but the tables of batches, without the path of the input and its times."""
    without = {"place", "modified_us"} | (set() if of_one_batch else {"_batch_id"})
    workspace = workspace_of(made)
    names = [name for name in workspace.tables if of_one_batch or name != WATERMARKS]
    found = rows_by_table(workspace, names, without=without, newest=True)
    [folder] = {path.removesuffix("/*.jsonl") for path in made[0].inputs}  # the spec is in one of the tables
    return {name: sorted(text.replace(folder, "folder") for text in of) for name, of in found.items()}


@pytest.mark.long
@pytest.mark.parametrize(("store", "has_own_java"), [("s3", False), ("gs", True), ("hdfs", True)], indirect=["store"])
def test_whole_or_cut_and_killed_runs_have_the_rows_of_a_local_disk_and_every_command_reads_them(
    spark: SparkSession,
    store: Store,
    local: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_own_java: bool,
) -> None:
    landed = local[0].folder / "in_faults"
    cut = file, settings = store.over(pipeline(tmp_path, "faults", "drop", sparse=False))
    whole = file, replace(settings, warehouse=store.folder / "whole")
    store.upload(landed, "f*")
    if has_own_java:
        stop_and_kill(cut, tmp_path / "run.log")
    for death in OF_THE_NEXT if has_own_java else OF_PYTHON:
        assert run_and_die(file.path, settings.warehouse, death, Gateway.of(spark), os.environ) == KILLED, death
    assert go(whole).batches == 1
    store.upload(landed, "late*")
    assert go(whole).batches == 1
    all_rows_are_many(monkeypatch)
    assert go(cut, options=CUT).batches >= 2
    assert_every_command_reads(spark, cut, store.secret)
    assert_same_tables(rows(whole, of_one_batch=True), rows(local, of_one_batch=True))
    assert_same_tables(rows(cut, of_one_batch=False), rows(local, of_one_batch=False))
    for _, settings in (whole, cut):
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)


def stop_and_kill(made: Made, log: Path) -> None:
    """Stop a run in the midst of its second batch; another one is refused; then kill it with its JVM."""
    file, settings = made
    workspace = workspace_of(made)
    words = ["run", str(file.path), "--warehouse", str(settings.warehouse)]
    command = [sys.executable, "-m", "tidemark.pipelines.cli", *words, "--max-events-per-batch", "50"]
    with process(command, {}, log) as running:
        wait_until(lambda: log.read_text().count("closing windows") == 2 or running.poll() is not None, log)
        os.killpg(running.pid, signal.SIGSTOP)
        refused = CliRunner().invoke(main, words)
        os.killpg(running.pid, signal.SIGKILL)
        assert running.wait() == KILLED, log.read_text()
    assert refused.exit_code == 1
    assert f"Another run is at work: process {running.pid}" in refused.output
    assert workspace.progress.processed_end() == 50
    pending = workspace.batches.pending()
    assert pending is not None, "a batch is left half done"
    assert pending.kind == "process"


def assert_every_command_reads(spark: SparkSession, made: Made, secret: str) -> None:
    file, settings = made
    assert_the_report_tells_what_the_tables_hold(settings.warehouse, file)
    status = said_soon("status", file.path, settings.warehouse, secret=secret)
    assert f"{settings.warehouse}/faults" in status.output
    assert "200" in status.output
    assert "e63" in said_soon("show", file.path, settings.warehouse, "raw_events", secret=secret).output
    tables = consistent(str(settings.warehouse), "faults")
    assert str(tables["raw_events"][0]) == f"{settings.warehouse}/faults/raw_events"
    assert read(spark, str(settings.warehouse), "faults", "raw_events").count() == 200


@pytest.mark.long
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_tables_with_sessions_are_backfilled_maintained_made_anew_and_flushed_and_stay_the_oracles(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    file, settings = made = store.over(pipeline(tmp_path, "shop", "keep", sparse=False, sessions=True))
    land(tmp_path / "in_shop", 200, seed=7)
    store.upload(tmp_path / "in_shop")
    assert go(made, options=RunOptions(max_events_per_batch=70)).batches == 3
    assert asked(made, "backfill", "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    assert asked(made, "maintain").exit_code == 0
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    file, _ = made = changed(made, "size: 1 minute", "size: 20 s")
    done = rebuild(made)
    assert done.exit_code == 0, done.output
    assert not (settings.warehouse / "shop" / "_rebuild").is_dir()
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    land(tmp_path / "later", 50, seed=3, prefix="g", start=datetime(2026, 1, 2, tzinfo=UTC))
    store.upload(tmp_path / "later")
    assert go(made, options=RunOptions(max_events_per_batch=40, end_of_input="flush")).batches == 2
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)
    audit = asked(made, "audit")
    assert audit.exit_code == 0, audit.output


OF_EVERY_FORM = """
name: all
sources:
  - {{name: csv, kind: files, path: {folder}/in/*.csv, format: csv, options: {{header: true}}, {columns}}}
  - {{name: parquet, kind: files, path: {folder}/in/*.parquet, format: parquet, {columns}}}
  - {{name: lines, kind: files, path: {folder}/in/**/*.jsonl*, format: json, {columns}}}
  - {{name: bronze, kind: delta, path: {folder}/bronze, {of_table}}}
time: {{timestamp_by: at}}
windows: [{{name: w, kind: tumbling, size: 1 hour, aggregates: {{n: count(*)}}}}]
"""


@pytest.mark.long
@pytest.mark.parametrize("store", ["disk", *REMOTE], indirect=True)
def test_input_of_every_form_is_seen_and_read_once_if_moved_or_copied_too_and_a_bad_file_is_held_back(
    spark: SparkSession, store: Store, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    two = pa.table({"id": ["a", "b"], "at": ["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"]})
    write: Callable[..., object]
    for form, write in (("csv", pyarrow.csv.write_csv), ("parquet", pyarrow.parquet.write_table)):
        data = BytesIO()
        write(two, data)
        store.put(f"in/a b%20.{form}", data.getvalue())
    bronze = delta_place(store.folder / "bronze")
    write_deltalake(bronze["table_uri"], two, storage_options=bronze["storage_options"])
    land(tmp_path / "landed", 60, seed=4)
    store.upload(tmp_path / "landed")
    of_table = 'schema: "id STRING, at STRING"'
    text = OF_EVERY_FORM.format(folder=store.folder, of_table=of_table, columns=f"{of_table}, settle: 0 s")
    file, settings = written(tmp_path, "all", text)
    made = file, replace(settings, warehouse=store.folder / "warehouse")
    workspace = workspace_of(made)
    assert look(workspace).is_there
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance).counts["records"] == 66
        assert not look(workspace).is_there
        assert go(made, instance).batches == 0
        write_deltalake(bronze["table_uri"], two, mode="append", storage_options=bronze["storage_options"])
        first, other, grown = (store.folder / f"in/f{number}.jsonl" for number in range(3))
        store.put("in/day=1/moved.jsonl", first.read_bytes())
        first.unlink()
        if request.node.callspec.params["store"] in ("s3", "gs"):
            store.put("in/day=1", b"")  # some programs mark folders so
        store.put("in/copy.jsonl", other.read_bytes())
        store.put("in/broken.jsonl.gz", gzip.compress(b'{"id": "x"}\n' * 99)[:40])
        store.put("in/whole name.jsonl.gz", gzip.compress(b'{"id": "y"}\n'))
        grown.write_bytes(grown.read_bytes() + b'{"id": "z"}\n')
        assert look(workspace).is_there
        report = go(made, instance)
        assert report.counts["records"] == 4, "a version, the new file, and the line that was added"
        assert len(report.read_before) == 2
        [held] = report.held_back
        assert f"{store.folder}/in/broken.jsonl.gz: the archive is damaged or truncated" in held


@pytest.mark.parametrize("store", ["disk", "s3", "gs", pytest.param("hdfs", marks=pytest.mark.long)], indirect=True)
def test_rows_are_blanked_and_older_files_deleted_and_all_that_is_left_is_searched(store: Store) -> None:
    lake = Lake(store.folder / "warehouse" / "shop")
    lake.create("raw_events", pa.schema([("email", pa.string()), ("_arrival_seq", pa.int64())]))
    for first in (0, 3):
        seqs = [*range(first, first + 3)]
        rows = {"email": [f"person-{seq}@example.org" for seq in seqs], "_arrival_seq": seqs}
        lake.append_rows("raw_events", pa.table(rows), expect=lake.version("raw_events"), attempt=first + 1)
    sought = Sought(frozenset({"person-4@example.org"}))
    store.put("warehouse/shop/case.yaml", b"email: person-4@example.org")
    traces, count = traces_in(store.folder / "warehouse", sought, set())
    assert (len(traces), count) == (2, 6)
    newest = lake.opened.version_at("raw_events")
    made = lake.rewrite("raw_events", [*newest.sizes], blanking(np.array([4])), attempt=9, expect=newest.number)
    assert (
        lake.rewrite("raw_events", [*newest.sizes], blanking(np.array([4])), attempt=9, expect=newest.number) == made
    )
    blank = {seq: None if seq == 4 else f"person-{seq}@example.org" for seq in range(6)}
    assert {row["_arrival_seq"]: row["email"] for row in lake.rows("raw_events").to_pylist()} == blank
    assert len(traces_in(store.folder / "warehouse", sought, set())[0]) == 2
    assert erase_old_files(lake, "raw_events", made.version) == 2
    [left] = traces_in(store.folder / "warehouse", sought, set())[0]
    assert left.file == store.folder / "warehouse" / "shop" / "case.yaml"
    entry = store.folder / "warehouse" / "shop" / "raw_events" / "_delta_log" / f"{2:020}.json"
    entry.write_bytes(entry.read_bytes().replace(b'"commitInfo":{', b'"commitInfo":{"of":"person-4@example.org",'))
    assert len(traces_in(store.folder / "warehouse", sought, set())[0]) == 2
    assert redact(lake, "raw_events", sought) == 1
    assert len(traces_in(store.folder / "warehouse", sought, set())[0]) == 1
    assert Lake(lake.root).rows("raw_events").num_rows == 6


@pytest.mark.parametrize("store", ["s3", "gs", pytest.param("hdfs", marks=pytest.mark.long)], indirect=True)
def test_of_two_that_put_a_new_file_the_second_is_refused(store: Store) -> None:
    ensure_put_if_absent(store.folder)
    assert isinstance(store.folder, RemotePath)
    probe = store.folder / "_tidemark" / "put_if_absent"
    kept = probe.read_bytes()
    with pytest.raises(FileExistsError):
        probe.store.put(probe.key, b"", new=True)
    assert probe.read_bytes() == kept


TIMES = 15
WON, LOST = 0, 1


@pytest.mark.long
@pytest.mark.parametrize("store", ["disk", *REMOTE], indirect=True)
def test_of_two_processes_that_begin_a_batch_at_once_one_wins_each_time(store: Store) -> None:
    for number in range(TIMES):
        Lake(store.folder / f"p{number}").create(BATCHES, BATCHES_SCHEMA)
    processes = multiprocessing.get_context("spawn")
    together, outcomes = processes.Barrier(2), processes.Queue()
    both = [processes.Process(target=_begin, args=(store.folder, name, together, outcomes)) for name in "ab"]
    for one in both:
        one.start()
    found = Counter(outcomes.get(timeout=300) for _ in range(2 * TIMES))
    for one in both:
        one.join(60)
    assert found == Counter({(number, outcome): 1 for number in range(TIMES) for outcome in (WON, LOST)})
    for number in range(TIMES):
        assert BatchLog(Lake(store.folder / f"p{number}")).pending() is not None


def _begin(folder: Place, name: str, together: Barrier, outcomes: "multiprocessing.Queue[tuple[int, int]]") -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(TIMES):
        log = BatchLog(Lake(folder / f"p{number}"))
        log.last_commit()
        together.wait(60)
        try:
            log.begin(
                "process", this_process(name), now, last_batch=None, first_seq=0, end_seq=1, input={}, fingerprint="f"
            )
        except BusyError:
            outcomes.put((number, LOST))
        else:
            outcomes.put((number, WON))


@dataclass(frozen=True)
class Refusal:
    """A process that is kept out.

    Attributes:
        said: What it says.
        variables: Variables of the environment that keep it out.
        warehouse: The warehouse; by default one in the store.
        words: The commands to try.
        code: How they end.
    """

    said: str
    variables: Mapping[str, str] = field(default_factory=dict)
    warehouse: str = ""
    words: Sequence[str] = ("run", "status")
    code: int = 1


UNKNOWN, NO_BUCKET = "{root} does not accept the credentials", "There is no bucket "
SILENT = "{root} does not answer at http://{nowhere}"
REFUSALS = {
    ("s3", "unknown"): Refusal(f"{UNKNOWN} (InvalidAccessKeyId)", {"AWS_ACCESS_KEY_ID": "somebody-elses"}),
    ("s3", "reader"): Refusal("{root} denies access (AccessDenied)", {"AWS_ACCESS_KEY_ID": READER}, words=("run",)),
    ("s3", "silent"): Refusal(SILENT, {"AWS_ENDPOINT_URL": "http://{nowhere}"}, words=("run",)),
    ("s3", "no bucket"): Refusal(f"{NO_BUCKET}s3://no-such-bucket (NoSuchBucket)", warehouse="s3://no-such-bucket/w"),
    ("gs", "unknown"): Refusal(UNKNOWN, {"GOOGLE_SERVICE_ACCOUNT": "{folder}/stranger.json"}),
    ("gs", "no file"): Refusal(
        "file of the account for gs://bucket cannot be used", {"GOOGLE_SERVICE_ACCOUNT": "{folder}/none.json"}
    ),
    ("gs", "silent"): Refusal(SILENT, {"GOOGLE_BASE_URL": "http://{nowhere}"}, words=("run",)),
    ("gs", "no bucket"): Refusal(f"{NO_BUCKET}gs://none", warehouse="gs://none/w"),
    ("disk", "silent hdfs"): Refusal("hdfs://{nowhere} does not answer", warehouse="hdfs://{nowhere}/w"),
    ("disk", "no store"): Refusal("ftp://host/w is not a place", warehouse="ftp://host/w", words=("status",), code=2),
}


@pytest.mark.parametrize(
    ("store", "refusal"),
    [pytest.param(kind, one, id=f"{kind}: {what}") for (kind, what), one in REFUSALS.items()],
    indirect=["store"],
)
def test_what_keeps_a_process_out_of_a_store_is_a_sentence_within_seconds(
    store: Store, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, settings = store.over(pipeline(tmp_path, "shop", "drop", sparse=False))
    _set(monkeypatch, {name: value.format(**store.words) for name, value in refusal.variables.items()})
    warehouse = refusal.warehouse.format(**store.words) or settings.warehouse
    for word in refusal.words:
        forget()
        result = said_soon(word, file.path, warehouse, secret=store.secret)
        assert result.exit_code == refusal.code
        assert refusal.said.format(root=getattr(store.folder, "root", ""), **store.words) in result.output
        assert "Traceback" not in result.output
