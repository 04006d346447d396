"""Audits of a warehouse that is whole, and with planted damages: each is named, and mended where that can be."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import tidemark as tm
from tests.runs.running import command, commit_dies, rows_of, run, without_batch, written
from tidemark.assets.audit import bookmark
from tidemark.assets.audit.whole import Audit, audit
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.delta.files import columns_with_bounds, statistics
from tidemark.resources.delta.lake import Lake
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Workspace

pytestmark = pytest.mark.long

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = """\
name: meter
sources:
  - name: lines
    kind: files
    path: in/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v DOUBLE"
    arrival_time: got
    settle: 0 s
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 10 s
  out_of_order: drop
  late: {tolerance: 5 minutes, policy: drop}
  deduplicate_by: [id]
  within: 1 day
windows:
  - {name: per_minute, kind: tumbling, size: 1 minute, emit: {early: 20 s}, history: true, group_by: [k],
     aggregates: {n: count(*), total: sum(v)}}
  - {name: visits, kind: session, gap: 20 s, group_by: [k], aggregates: {n: count(*)}}
"""
Damage = Callable[[Path], None]


def line(name: int | str, at: float | None, got: float, k: str = "a") -> str:
    """Return an event; times are seconds after START."""
    instants = {"at": at, "got": got}
    texts = {key: None if s is None else (START + timedelta(seconds=s)).isoformat() for key, s in instants.items()}
    return json.dumps({"id": f"e{name}", **texts, "k": k, "v": 0.1}) + "\n"


def lines(first: int, end: int) -> list[str]:
    """Return events every seven seconds, of two groups but for the first minutes."""
    return [line(n, 7 * n, 7 * n + 1, "b" if n > 30 and n % 3 == 0 else "a") for n in range(first, end)]


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pipeline after three runs, with dead letters of every kind, and held events."""
    base = tmp_path_factory.mktemp("audited")
    written(base, "meter", SPEC)
    (base / "in").mkdir()
    strange = [
        line(7, 49, 171),
        line("late", -200, 172),
        line("lost", None, 173),
        "no object\n",
        line("older", 30, 300),
    ]
    for number, text in enumerate((lines(0, 24), [*strange, *lines(24, 48)], lines(48, 60))):
        (base / "in" / f"{number}.jsonl").write_text("".join(text))
        run(base, "meter")
    return base


@pytest.fixture
def base(kept: Path, tmp_path: Path) -> Path:
    """Return a copy of the pipeline."""
    shutil.copytree(kept, tmp_path / "copy")
    return tmp_path / "copy"


def audited(base: Path) -> list[dict[str, Any]]:
    """Return the findings of an audit."""
    done = command(base, "meter", "audit", "--json")
    assert done.exit_code in (0, 1), (done.output, done.exc_info)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.exit_code == bool(found), done.output
    return found


# The damages.


def table_of(base: Path, name: str) -> Path:
    return base / "warehouse" / "meter" / name


def files_of(table: Path) -> list[Path]:
    """Return the files of its newest version, the ones with most rows first."""
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    return [table / action["path"] for action in sorted(actions, key=lambda action: -action["num_records"])]


def gone(name: str) -> Damage:
    return lambda base: files_of(table_of(base, name))[0].unlink()


def short(name: str) -> Damage:
    def cut(base: Path) -> None:
        file = files_of(table_of(base, name))[0]
        file.write_bytes(file.read_bytes()[:-9])

    return cut


def turned(name: str) -> Damage:
    """Turn a bit in the middle of the first page that has some bytes; the footer stays as it was."""

    def turn(base: Path) -> None:
        file = files_of(table_of(base, name))[0]
        group = pq.read_metadata(file).row_group(0)
        column = max((group.column(n) for n in range(group.num_columns)), key=lambda one: one.total_compressed_size)
        data = bytearray(file.read_bytes())
        data[column.data_page_offset + column.total_compressed_size * 3 // 4] ^= 1
        file.write_bytes(data)

    return turn


def changed(name: str, change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Change rows of the first file in which that changes some; the log gets its new size, as no commit would do."""

    def rewrite(base: Path) -> None:
        table = table_of(base, name)
        for file in files_of(table):
            rows = pq.read_table(file)
            after = change(rows)
            if not after.equals(rows):
                pq.write_table(after, file, write_page_checksum=True)
                _in_log(table, file)
                return
        raise AssertionError("no row was changed")

    return rewrite


def _in_log(table: Path, file: Path) -> None:
    has_bounds = table.parent.name == "meter"
    columns = columns_with_bounds(Lake(table.parent).opened.version_at(table.name)) if has_bounds else []
    stats = statistics(pq.read_metadata(file), columns)
    for entry in (table / "_delta_log").glob("*.json"):
        actions = [json.loads(text) for text in entry.read_text().splitlines()]
        for action in actions:
            if "add" in action and (table / action["add"]["path"]) == file:
                action["add"] |= {"size": file.stat().st_size, "stats": stats}
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for checkpoint in (*(table / "_delta_log").glob("*.checkpoint*"), table / "_delta_log" / "_last_checkpoint"):
        checkpoint.unlink(missing_ok=True)


def without_row(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def with_a_row_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


def with_column(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def replaced(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index(name)
        values = pa.array(change(rows[name].to_pylist()), rows.schema.field(name).type)
        return rows.set_column(place, rows.schema.field(name), values)

    return replaced


def first_changed(change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [change(values[0]), *values[1:]]


def one_more(counts: Sequence[tuple[str, int]] | None) -> list[tuple[str, int]] | None:
    """Count one accepted event more, in the counts of a batch that has some."""
    return None if counts is None else [(name, n + (name == "accepted")) for name, n in counts]


def restored(name: str) -> Damage:
    def restore(base: Path) -> None:
        table = DeltaTable(table_of(base, name))
        table.restore(table.version() - 1)

    return restore


def deleted(name: str, where: str) -> Damage:
    def delete(base: Path) -> None:
        DeltaTable(table_of(base, name)).delete(where)

    return delete


def without_entry(name: str, version: int) -> Damage:
    def remove(base: Path) -> None:
        log = table_of(base, name) / "_delta_log"
        (log / f"{version:020}.json").unlink()
        for checkpoint in (*log.glob("*.checkpoint*"), log / "_last_checkpoint"):
            checkpoint.unlink(missing_ok=True)

    return remove


def newest_entry_cut(name: str) -> Damage:
    def cut(base: Path) -> None:
        entry = max((table_of(base, name) / "_delta_log").glob("*.json"))
        entry.write_text(entry.read_text()[:-20])

    return cut


def older(name: str) -> Damage:
    def remove(base: Path) -> None:
        for entry in sorted((table_of(base, name) / "_delta_log").glob("*.json"))[2:]:
            entry.unlink()

    return remove


def no_table(name: str) -> Damage:
    return lambda base: shutil.rmtree(table_of(base, name))


def later(instant: datetime) -> datetime:
    return instant + timedelta(seconds=1)


def numbers_from(gap: int) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [None if value is None else value + gap for value in values]


DAMAGES: Mapping[str, tuple[Damage, str, str]] = {
    "a file is gone": (gone("ordered_events"), "ordered_events", "is missing"),
    "a file of the log is gone": (gone("raw_events"), "raw_events", "is missing, with 29 rows: records 24 to 52"),
    "a byte is turned": (turned("ordered_events"), "ordered_events", "cannot be read"),
    "a byte of the log is turned": (turned("raw_events"), "raw_events", "cannot be read"),
    "a file is cut": (short("windows/per_minute"), "windows/per_minute", "bytes of"),
    "a file of state is gone": (gone("_state/session_events"), "_state/session_events", "is missing"),
    "a table is gone": (no_table("watermarks"), "watermarks", "the table is gone"),
    "an entry of a table's log is gone": (without_entry("dead_letters", 1), "dead_letters", ""),
    "an entry of a table's log is cut": (newest_entry_cut("held_events"), "held_events", "cannot be read"),
    "the log of batches is cut": (newest_entry_cut("batches"), "batches", "cannot be read"),
    "the log of batches is older": (older("batches"), "batches", "is older than"),
    "a row is doubled": (changed("ordered_events", with_a_row_twice), "ordered_events", "more than one place"),
    "a row is lost": (changed("ordered_events", without_row), "ordered_events", "ended nowhere"),
    "a dead letter is lost": (changed("dead_letters", without_row), "dead_letters", "batches counted"),
    "a held event is lost": (changed("held_events", without_row), "held_events", "more than they released"),
    "a reason is another": (
        changed("dead_letters", with_column("reason", lambda reasons: ["early"] * len(reasons))),
        "dead_letters",
        "by the recount out_of_order",
    ),
    "a time is another": (
        changed("ordered_events", with_column("_timestamp", first_changed(later))),
        "ordered_events",
        "`_timestamp` of 1 record is not as recounted",
    ),
    "a payload is another": (
        changed("held_events", with_column("id", first_changed(lambda name: name + "x"))),
        "held_events",
        "the payload of 1 event is not the one of the record in `raw_events`",
    ),
    "a dead letter has another payload": (
        changed("dead_letters", with_column("payload", first_changed(lambda text: text.replace('"e', '"f', 1)))),
        "dead_letters",
        "the payload of 1 dead letter is not the one of the record in `raw_events`",
    ),
    "release numbers have a gap": (
        changed("ordered_events", with_column("_release_seq", numbers_from(3))),
        "ordered_events",
        "`_release_seq`s are missing",
    ),
    "a value of a window is another": (
        changed("windows/per_minute", with_column("total", first_changed(lambda total: total + 1))),
        "windows/per_minute",
        "1 result is not as recomputed (1 with other values)",
    ),
    "a result is lost": (changed("windows/per_minute", without_row), "windows/per_minute", "1 lacking"),
    "a session is lost": (
        changed("windows/visits", without_row),
        "windows/visits",
        "in no final result, and no open window needs",
    ),
    "a result is doubled": (changed("windows/visits", with_a_row_twice), "windows/visits", "there more than once"),
    "a revision is lost": (
        changed("history/per_minute", with_column("_revision", numbers_from(1))),
        "history/per_minute",
        "gaps",
    ),
    "a count is another": (
        changed("batches", with_column("counts", lambda each: [one_more(counts) for counts in each])),
        "batches",
        "has other counts in `watermarks` and in `batches`: accepted",
    ),
    "a watermark is another": (
        changed("watermarks", with_column("watermark", lambda each: [*map(later, each)])),
        "watermarks",
        "is not the recounted one",
    ),
    "the log has a hole": (changed("raw_events", without_row), "raw_events", "1 record is missing: 24"),
    "a clock is another": (
        changed("raw_events", with_column("_clock", first_changed(later))),
        "raw_events",
        "the clock of record 24 is not the latest arrival",
    ),
    "a file that was read is forgotten": (changed("_state/files", without_row), "_state/files", "not remembered"),
    "a version was restored": (
        restored("windows/per_minute"),
        "windows/per_minute",
        "another program has changed it",
    ),
    "rows were deleted": (
        deleted("dead_letters", "reason = 'duplicate'"),
        "dead_letters",
        "another program has changed it: version",
    ),
}


def test_an_audit_of_a_whole_pipeline_finds_nothing_and_writes_nothing(base: Path) -> None:
    before = contents(base / "warehouse")
    assert audited(base) == []
    assert contents(base / "warehouse") == before
    done = command(base, "meter", "audit")
    assert (done.exit_code, done.stdout) == (0, "meter: all holds as of batch 5, 65 records\n")
    done = command(base, "meter", "repair")
    assert (done.exit_code, done.stdout) == (0, "meter: all holds, so nothing was repaired\n")


def test_an_audit_between_whose_steps_runs_commit_holds_as_of_the_commit_with_which_it_began(base: Path) -> None:
    first_numbers = iter(range(60, 1_000, 10))

    def run_meanwhile(_sentence: str) -> None:
        first = next(first_numbers)
        (base / "in" / f"{first}.jsonl").write_text("".join(lines(first, first + 10)))
        run(base, "meter")

    done = audit(workspace_of(base, run_meanwhile))
    assert (done.batch, done.records, done.findings) == (5, 65, ())
    assert next(first_numbers) > 100, "many batches were committed meanwhile"
    assert audited(base) == []


def test_the_job_in_dagster_ends_well_where_all_holds_and_else_fails_with_what_is_wrong(base: Path) -> None:
    file, settings = read_spec(base / "meter.yaml"), Settings(base / "warehouse", base, base / "home")
    job = build_definitions(settings, [file]).resolve_job_def("meter_audit")
    assert job.execute_in_process().success
    DAMAGES["a file is gone"][0](base)
    done = job.execute_in_process(raise_on_error=False)
    assert not done.success
    [failure] = done.get_step_failure_events()
    assert "ordered_events: " in failure.step_failure_data.error_display_string
    assert "is missing" in failure.step_failure_data.error_display_string


@pytest.mark.parametrize("name", DAMAGES)
def test_an_audit_names_a_damage_and_what_repairs_it(base: Path, name: str) -> None:
    damage, table, words = DAMAGES[name]
    damage(base)
    before = contents(base / "warehouse")
    found = audited(base)
    assert any(one["table"] == table and words in one["what"] for one in found), found
    assert all(one["repair"].startswith(("tidemark ", "restore ")) for one in found), found
    assert contents(base / "warehouse") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


RESULTS = ("raw_events", "ordered_events", "held_events", "dead_letters", "windows/per_minute", "windows/visits")


def test_results_of_other_windows_are_recomputed_where_a_file_of_one_is_lost(base: Path) -> None:
    gone("windows/visits")(base)
    DAMAGES["a value of a window is another"][0](base)
    done = command(base, "meter", "audit")
    assert "windows/visits: the file" in done.stdout
    assert "windows/per_minute: 1 result is not as recomputed" in done.stdout
    assert "results of visits were not recomputed: a table that this takes cannot be read" in done.stderr


def rows_by_table(base: Path) -> dict[str, list[str]]:
    """Return the rows that readers see, without the batches that wrote them."""
    return {name: sorted(map(str, without_batch(rows_of(base, "meter", name)))) for name in RESULTS}


def repaired(base: Path, kept: Path) -> str:
    """Repair a pipeline, which then holds what it held and continues; return what the command printed."""
    done = command(base, "meter", "repair")
    assert done.exit_code == 0, (done.output, done.exc_info)
    assert done.stdout.endswith("meter: all holds now\n")
    assert audited(base) == []
    assert rows_by_table(base) == rows_by_table(kept)
    (base / "in" / "next.jsonl").write_text("".join(lines(60, 70)))
    run(base, "meter")
    assert audited(base) == []
    return done.stdout


DERIVED = (
    "a byte is turned",
    "a file is cut",
    "a file of state is gone",
    "a table is gone",
    "an entry of a table's log is gone",
    "an entry of a table's log is cut",
    "a count is another",
    "a revision is lost",
)
ROWS = (
    "a row is doubled",
    "a dead letter is lost",
    "a held event is lost",
    "a result is lost",
    "a result is doubled",
)


@pytest.mark.parametrize("names", [DERIVED, ROWS])
def test_a_repair_computes_damaged_tables_again_from_the_log(base: Path, kept: Path, names: Sequence[str]) -> None:
    for name in names:
        DAMAGES[name][0](base)
    assert "meter: compute all tables again from the log\n" in repaired(base, kept)


def test_a_repair_of_a_window_computes_that_window_alone(base: Path, kept: Path) -> None:
    DAMAGES["a value of a window is another"][0](base)
    [found] = audited(base)
    assert found["repair"] == f"tidemark rebuild {base / 'meter.yaml'} --window per_minute"
    dry = command(base, "meter", "repair", "--dry-run")
    assert (dry.exit_code, dry.stdout) == (0, "meter: would be done: compute per_minute again from the log\n")
    assert audited(base) == [found]
    files = files_of(table_of(base, "ordered_events"))
    done = command(base, "meter", "repair")
    assert (done.exit_code, done.stdout) == (
        0,
        "meter: compute per_minute again from the log\nmeter: all holds now\n",
    )
    assert files_of(table_of(base, "ordered_events")) == files
    assert rows_by_table(base) == rows_by_table(kept)


class _StoppedError(Exception):
    """The end of an audit that is stopped."""


def workspace_of(base: Path, tell: Callable[[str], None]) -> Workspace:
    """Return the pipeline for an audit in this process; Spark is the one that is there."""
    return Workspace(read_spec(base / "meter.yaml"), base / "warehouse", SparkSession.builder.getOrCreate, tell=tell)


def stopped(base: Path, at: str) -> list[str]:
    """Stop an audit when it says something; return what it has said."""
    said: list[str] = []

    def tell(sentence: str) -> None:
        said.append(sentence)
        if sentence.startswith(at):
            raise _StoppedError

    with pytest.raises(_StoppedError):
        audit(workspace_of(base, tell))
    return said


def continued(base: Path) -> tuple[Audit, list[str]]:
    """Return an audit that comes to its end, and what it has said."""
    said: list[str] = []
    return audit(workspace_of(base, said.append)), said


def test_an_audit_that_was_stopped_continues_and_keeps_what_it_has_found(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookmark, "_LEAST_S", 0.0)
    DAMAGES["a value of a window is another"][0](base)
    DAMAGES["a row is lost"][0](base)
    whole = {(finding.table, finding.what) for finding in continued(base)[0].findings}
    stopped(base, "recomputing the results of per_minute")
    assert (base / "warehouse" / "meter" / "_state" / "audit.json").is_file()
    done, said = continued(base)
    assert {(finding.table, finding.what) for finding in done.findings} == whole
    assert any("continued where the last audit was stopped" in note for note in done.notes)
    assert not [sentence for sentence in said if "judged again" in sentence]
    assert not (base / "warehouse" / "meter" / "_state" / "audit.json").exists()


def test_what_batches_have_added_since_an_audit_was_stopped_is_audited_too(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookmark, "_LEAST_S", 0.0)
    stopped(base, "recomputing the results of visits")
    (base / "in" / "3.jsonl").write_text("".join(lines(60, 90)))
    run(base, "meter")
    done, said = continued(base)
    assert (done.findings, done.records) == ((), 95)
    assert [sentence for sentence in said if "judged again" in sentence] == ["95 of 95 records judged again"]
    assert any(sentence.startswith("recomputing the results of per_minute") for sentence in said)


def test_an_audit_begins_again_after_a_rebuild_and_where_it_is_asked_to(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookmark, "_LEAST_S", 0.0)
    stopped(base, "recomputing the results of visits")
    kept_note = (base / "warehouse" / "meter" / "_state" / "audit.json").read_text()
    done = command(base, "meter", "audit", "--from-start")
    assert (done.exit_code, "continued" in done.output) == (0, False)
    (base / "warehouse" / "meter" / "_state" / "audit.json").write_text(kept_note)
    run(base, "meter", "rebuild", "--reason", "a test")
    again, said = continued(base)
    assert (again.findings, again.notes) == ((), ())
    assert "65 of 65 records judged again" in said  # which a rebuild judges as one batch


def test_a_repair_takes_back_what_other_programs_have_changed(base: Path, kept: Path) -> None:
    for name in ("a version was restored", "rows were deleted"):
        DAMAGES[name][0](base)
    said = repaired(base, kept)
    assert "take back in dead_letters" in said
    assert "take back in windows/per_minute" in said
    assert "again from the log" not in said


def test_a_repair_reads_lost_records_of_the_log_again_from_input_that_is_as_it_was(base: Path, kept: Path) -> None:
    read = base / "in" / "1.jsonl"
    read.write_text(read.read_text() + line("grown", 300, 500))  # what follows is no part of what was lost
    files = files_of(table_of(base, "raw_events"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-9])
    said = command(base, "meter", "repair")
    assert said.exit_code == 0, (said.output, said.exc_info)
    assert (
        f"meter: raw_events: read {files[0].relative_to(table_of(base, 'raw_events'))} again from {read}"
        in said.stdout
    )
    assert rows_by_table(base) == rows_by_table(kept)
    assert audited(base) == []
    assert readers_see(base, "raw_events") == len(rows_of(kept, "meter"))
    assert "lost files read again: tidemark repair" in page_of(base)


def test_a_repair_that_was_killed_before_its_commit_is_found_and_finished(
    base: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DAMAGES["a file of the log is gone"][0](base)
    with monkeypatch.context() as patch:
        commit_dies(patch, lambda plan: plan.kind == "change")
        assert command(base, "meter", "repair").exit_code == 1
    with pytest.raises(FileNotFoundError):
        readers_see(base, "raw_events")
    [found] = audited(base)
    assert found["table"] == "raw_events"
    assert "readers of commits cannot open it" in found["what"]
    dry = command(base, "meter", "repair", "--dry-run")
    assert dry.stdout == "meter: would be done: commit what was read again of raw_events\n"
    assert command(base, "meter", found["repair"].split()[1]).exit_code == 0
    assert audited(base) == []
    assert readers_see(base, "raw_events") == len(rows_of(kept, "meter"))


def readers_see(base: Path, name: str) -> int:
    """Return how many rows a table has as of the last commit, for a reader who follows commits."""
    return int(tm.table(base / "warehouse", "meter", name).to_table().num_rows)


def page_of(base: Path) -> str:
    page = base / "page.html"
    run(base, "meter", "report", "--out", str(page))
    return page.read_text(encoding="utf-8")


def test_records_whose_input_has_changed_are_named_as_lost_and_nothing_is_written(base: Path) -> None:
    read = base / "in" / "1.jsonl"
    DAMAGES["a file of the log is gone"][0](base)
    read.write_text(read.read_text().replace("e24", "e25"))
    before = contents(base / "warehouse")
    done = command(base, "meter", "repair")
    assert done.exit_code == 1, done.output
    assert f"meter: records 24 to 52 are lost: {read} is not as it was read: its bytes have changed\n" in done.stdout
    assert contents(base / "warehouse") == before


def test_what_only_a_backup_has_is_named_and_stays_as_it_is(base: Path) -> None:
    for name in ("the log has a hole", "a row is lost"):
        DAMAGES[name][0](base)
    before = contents(base / "warehouse")
    done = command(base, "meter", "repair")
    assert done.exit_code == 1, done.output
    assert "all tables can only be computed again from a log that is whole" in done.stdout
    assert f"restore {base / 'warehouse' / 'meter'} from a backup" in done.stdout
    assert contents(base / "warehouse") == before
