"""The files that still hold forgotten payload: deleted, and the proof that none is left.

Here: older versions of tables, copies, entries of logs, reports of failed checks; who has to read the correction
before; the scan of a warehouse. Not here: blanking the log (assets/rebuild/decisions/forgetting.py), Dagster's
storage and what a person reads (pipelines/operators/forgetting.py).

The values themselves are written nowhere. They are read from the files of the log that the blanking commit has
replaced, so these are deleted last: a process that is killed at any place leaves either these files or the result of
the scan.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.assets.log.control import FORGET, recorded
from tidemark.assets.log.exclusions import Numbers
from tidemark.assets.planning import at_work
from tidemark.assets.rebuild.decisions.forgetting import STAYS, all_rows
from tidemark.assets.rebuild.shadow import begin_without_records, when_free
from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.committed import Published, pipeline_of
from tidemark.resources.batches.plans import Plan, RebuildInput
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.log import LOG_FOLDER, commit_of_attempt, place_of_file
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.redaction import redact
from tidemark.resources.delta.upkeep import data_files, erase_old_files
from tidemark.resources.machine import ensure_not_stopped
from tidemark.resources.places.place import (
    Place,
    RemotePath,
    files_below,
    place_of,
    relative,
    remove_tree,
    resolved,
    write_whole,
)
from tidemark.resources.quality.failures import FOLDER
from tidemark.resources.sources.records import FILE
from tidemark.resources.traces import Sought, Trace, trace_in, words_of
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import BusyError, LakeError

_FEW = 10
"""Records that hold a value are few if they are fewer."""
_OUTCOME = "_state/erasure.json"
"""The outcome of a scan, from when it is known until it is committed that nothing has to be deleted any more."""


@dataclass(frozen=True)
class Follower:
    """A table of this pipeline that another one follows and has not read as it is without the forgotten records.

    Attributes:
        pipeline: The other pipeline.
        table: The table.
        version: The version that it has to read.
    """

    pipeline: str
    table: str
    version: int


@dataclass(frozen=True)
class Left:
    """A place that still holds forgotten values.

    Attributes:
        place: The file.
        where: Where in it.
    """

    place: str
    where: str


@dataclass(frozen=True)
class Proof:
    """The outcome of a scan.

    Attributes:
        sought: How many values were sought; None where the files that held them were gone before.
        shared: How many others are also in records that stay, so that they were not sought.
        files: How many files were read.
        alike: Some records that stay and hold values which hardly any others have.
        left: The places that hold some of the values.
    """

    sought: int | None
    shared: int
    files: int
    alike: tuple[int, ...] = ()
    left: tuple[Left, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether nothing is left."""
        return self.sought is not None and not self.left


@dataclass(frozen=True)
class Values:
    """The values that are forgotten.

    Attributes:
        sought: The ones that are sought.
        shared: How many are not, as records that stay have them too.
        alike: Some of these records, if hardly any others have such a value: maybe they are of the same person.
    """

    sought: Sought
    shared: int
    alike: tuple[int, ...] = ()


def unfinished(workspace: Workspace) -> list[dict[str, Any]]:
    """Return the decisions to forget whose files were not all deleted yet."""
    if not workspace.exists or not workspace.lake.exists(tables.LOG_CONTROL):
        return []
    erased = {
        batch for commit in workspace.batches.history("rebuild") for batch in RebuildInput.of(commit.plan).erased
    }
    return [item for item in recorded(workspace, FORGET) if item["_batch_id"] not in erased]


def waited_for(workspace: Workspace, items: Sequence[Mapping[str, Any]]) -> list[Follower]:
    """Return the pipelines of the same warehouse that compare tables with older versions, and still need these."""
    followers = []
    versions: dict[str, int] = {}
    for item in items:
        commit = workspace.batches.commit_of(item["_batch_id"])
        versions |= commit.table_versions if commit else {}
    for root in _pipelines(workspace.warehouse):
        if resolved(root) != resolved(workspace.folder):
            for table, read in _followed(root, workspace.folder):
                if read < versions.get(table, 0):
                    followers.append(Follower(root.name, table, versions[table]))
    return followers


def _pipelines(warehouse: Place) -> list[Place]:
    """Return the folders of pipelines in a warehouse."""
    if isinstance(warehouse, RemotePath):
        names = [key.rstrip("/").rpartition("/")[2] for key in warehouse.store.directly_in(warehouse.key)[0]]
    else:
        names = [path.name for path in warehouse.iterdir() if path.is_dir()] if warehouse.is_dir() else []
    return [warehouse / name for name in sorted(names) if (warehouse / name / tables.BATCHES / LOG_FOLDER).is_dir()]


def _followed(root: Place, folder: Place) -> Iterator[tuple[str, int]]:
    """Yield the tables of a folder whose corrections a pipeline follows, and the last version that it has read."""
    lake, spec = Lake(root), Published(root, tables.RAW_EVENTS).spec
    last = BatchLog(lake).last_commit()
    if spec is None or last is None or tables.FILES not in last.table_versions:
        return
    sources = {source["name"]: source for source in json.loads(spec)["sources"]}
    reads = {name for name, source in sources.items() if source.get("changes") in ("follow", "rows")}
    newest: dict[str, int] = {}
    for row in lake.rows(tables.FILES, last.table_versions[tables.FILES]).to_pylist():
        place, comma, number = str(row["place"] or "").rpartition(", version ")
        if comma and row["source"] in reads and number.isdigit():
            newest[place] = max(newest.get(place, -1), int(number))
    for place, version in newest.items():
        of = pipeline_of(place_of(place))
        if of is not None and resolved(of.root) == resolved(folder):
            yield of.table, version


def blanked_values(workspace: Workspace, items: Sequence[Mapping[str, Any]]) -> Values | None:
    """Return the values that decisions have blanked; None where the files that held them are gone.

    Raises:
        LakeError: A row that was blanked has a value.
    """
    sought = Sought()
    for item in items:
        files = _blanked_files(workspace, item)
        if files is None:
            return None
        sought = sought.and_also(_sought_in(files, all_rows([item])))
    return _values(workspace, sought, all_rows(items), are_blank=True)


def values_to_forget(workspace: Workspace, rows: Numbers) -> Values:
    """Return the values of rows that are not blanked yet; nothing is written."""
    version = workspace.lake.opened.version_at(tables.RAW_EVENTS, workspace.base_of(tables.RAW_EVENTS))
    sought = _sought_in([version.folder / name for name in version.sizes], rows)
    return _values(workspace, sought, rows, are_blank=False)


def _blanked_files(workspace: Workspace, item: Mapping[str, Any]) -> list[Place] | None:
    """Return the files of the log that a blanking commit replaced; None if one of them is gone."""
    commit = workspace.batches.commit_of(item["_batch_id"])
    assert commit is not None  # the item is committed with it
    folder = workspace.lake.path(tables.RAW_EVENTS)
    blanking = commit_of_attempt(folder, commit.table_versions[tables.RAW_EVENTS], commit.plan.attempt)
    files = [place_of_file(file.path, folder) for file in blanking.removed] if blanking else []
    return files if all(file.is_file() for file in files) else None


def _sought_in(files: Iterable[Place], rows: Numbers) -> Sought:
    """Return the values of some rows of the log, as files have them; of a line that could not be read its words."""
    sought = Sought()
    for file in files:
        with file.open("rb") as stream, pq.ParquetFile(stream) as opened:
            for batch in opened.iter_batches():
                chosen = batch.filter(pa.array(np.isin(np.asarray(batch[c.SEQ]), rows)))
                payload = chosen.select([name for name in chosen.schema.names if name not in STAYS])
                lines = payload[c.MALFORMED].drop_null().to_pylist()
                words = pa.array([word for line in lines for word in words_of(line)], pa.string())
                sought = sought.and_also(Sought.of([payload, pa.record_batch({c.MALFORMED: words})]))
    return sought


def _values(workspace: Workspace, sought: Sought, rows: Numbers, *, are_blank: bool) -> Values:
    """Leave out the values that records which stay have too: they are in the warehouse rightly.

    Raises:
        LakeError: A row that should be blank has a value.
    """
    table, stays, records = tables.RAW_EVENTS, Sought(), dict[str, list[int]]()
    payload = [name for name in workspace.lake.columns(table) if name not in STAYS]
    for batch in pieces(workspace.lake, table, workspace.base_of(table), [c.SEQ, *payload]):
        is_of_rows = np.isin(np.asarray(batch[c.SEQ]), rows)
        if are_blank:
            _ensure_blank(batch.filter(pa.array(is_of_rows)), payload)
        kept_rows = batch.filter(pa.array(~is_of_rows))
        for name in payload:
            held = sought.in_column(kept_rows[name], of_user=not name.startswith("_"))
            stays = stays.and_also(held)
            for text in held.texts:
                _note_records(records.setdefault(text, []), kept_rows, name, text)
    distinct = sought.without(stays)
    alike = {seq for seqs in records.values() if len(seqs) < _FEW for seq in seqs}
    return Values(distinct.with_common(_common(workspace, distinct)), len(stays), tuple(sorted(alike)[:_FEW]))


def _note_records(seqs: list[int], rows: pa.RecordBatch, column: str, text: str) -> None:
    """Add the numbers of rows with a text in a column, as long as these are few."""
    if len(seqs) < _FEW:
        pairs = zip(rows[c.SEQ].to_pylist(), rows[column].to_pylist(), strict=True)
        seqs += [seq for seq, value in pairs if text in str(value)]


def _ensure_blank(rows: pa.RecordBatch, payload: Sequence[str]) -> None:
    if any(rows[name].null_count < rows.num_rows for name in payload):
        raise LakeError(
            f"Record {rows[c.SEQ][0]} of {tables.RAW_EVENTS} was forgotten and has a payload.",
            expected="null in every column of it",
            remedy="Look for who has changed the table, or restore its folder from a backup.",
        )


def _common(workspace: Workspace, sought: Sought) -> frozenset[str]:
    """Return the texts that files have whatever was read: words of Delta and Parquet, and names of columns.

    Such a text, like `true` or `add`, does not show where it comes from.
    """
    lake, held = workspace.lake, Sought()
    for file, _ in files_below(lake.path(tables.WATERMARKS) / LOG_FOLDER, "*.*"):
        trace = trace_in(file, sought)
        held = held if trace is None else held.and_also(trace.held)
    names = {name for table in workspace.base_of_existing for name in lake.columns(table)}
    names |= {*workspace.base_of_existing, *(source.name for source in workspace.spec.sources)}
    return held.and_also(sought.in_bytes("\n".join(sorted(names)).encode())).texts


def erase(
    workspace: Workspace,
    run_id: str,
    items: Sequence[Mapping[str, Any]],
    *,
    elsewhere: Callable[[Sought], tuple[int, list[Left]]],
) -> Proof:
    """Delete all files that hold forgotten payload, and look for it in all that are left; a batch of its own.

    No other run may be at work meanwhile: it waits until none is. Killed anywhere, it can be repeated.

    Args:
        workspace: The pipeline.
        run_id: The id of the run or command.
        items: The decisions, as `unfinished` returns them.
        elsewhere: Deletes and looks for values outside the warehouse; returns how many files it has read, and what is
            left there.

    Raises:
        BusyError: Another rebuild is at work.
        LakeError: A table is lost or damaged.
    """
    batch_input = RebuildInput(erased=sorted({item["_batch_id"] for item in items}))
    plan = when_free(workspace, partial(begin_without_records, workspace, run_id, batch_input))
    with at_work(workspace, plan):
        _refuse_other_rebuild(workspace)
        versions = _taken_back(workspace, plan)
        values = blanked_values(workspace, items)
        workspace.tell("deleting the files of older versions")
        for folder in tables.COPIES:
            remove_tree(workspace.folder / folder)
        for table, version in versions.items():
            if table != tables.RAW_EVENTS:
                erase_old_files(workspace.lake, table, version)
        old_log = _old_files(workspace, versions[tables.RAW_EVENTS])
        proof = _proved(workspace, plan, values, old_log, elsewhere)
        workspace.tell("deleting the old files of the log")
        erase_old_files(workspace.lake, tables.RAW_EVENTS, versions[tables.RAW_EVENTS])
        workspace.tell("the old files of the log are deleted")
        workspace.batches.commit(plan, {}, workspace.outputs(plan, but=_missing(workspace)), workspace.clock.now())
    (workspace.folder / _OUTCOME).unlink(missing_ok=True)
    return proof


def _refuse_other_rebuild(workspace: Workspace) -> None:
    left = Lake(workspace.folder / tables.REBUILD_FOLDER / workspace.spec.name)
    pending = BatchLog(left).pending() if left.exists(tables.BATCHES) else None
    if pending is not None and not pending.is_left(workspace.clock.now()):
        raise BusyError(f"Another rebuild is at work: {pending.owner}.", remedy="Wait for it, then run again.")


def _missing(workspace: Workspace) -> list[str]:
    """Return the tables of the spec that were not made yet."""
    return [table for table in workspace.tables if not workspace.lake.exists(table)]


def _taken_back(workspace: Workspace, plan: Plan) -> dict[str, int]:
    """Take back what runs that died have written; return the version of each table that stays readable."""
    last = workspace.batches.last_commit()
    versions = {table: workspace.ready(table, plan) for table in workspace.base_of_existing}
    ended = [table for table in (last.table_versions if last else {}) if table not in (*versions, tables.BATCHES)]
    return versions | {table: workspace.base_of(table) for table in ended if workspace.lake.exists(table)}


def _old_files(workspace: Workspace, version: int) -> set[Place]:
    folder = workspace.lake.path(tables.RAW_EVENTS)
    stays = {folder / name for name in workspace.lake.opened.version_at(tables.RAW_EVENTS, version).sizes}
    return {*data_files(folder)} - stays


def _proved(
    workspace: Workspace,
    plan: Plan,
    values: Values | None,
    but: set[Place],
    elsewhere: Callable[[Sought], tuple[int, list[Left]]],
) -> Proof:
    """Look for values everywhere but in the files of the log that are deleted next; keep the outcome until then."""
    outcome, erased = workspace.folder / _OUTCOME, [*RebuildInput.of(plan).erased]
    if values is None:
        stored = json.loads(outcome.read_text(encoding="utf-8")) if outcome.is_file() else {}
        if stored.pop("erased", None) != erased:
            return Proof(None, 0, 0)
        lists = {"left": tuple(Left(**left) for left in stored["left"]), "alike": tuple(stored["alike"])}
        return Proof(**stored | lists)
    for table in workspace.base_of_existing:
        redact(workspace.lake, table, values.sought)
    for file in _reports(workspace):
        if trace_in(file, values.sought) is not None:
            file.unlink(missing_ok=True)
    workspace.tell("looking for what was forgotten in all files of the warehouse")
    traces, files = traces_in(workspace.warehouse, values.sought, but)
    n_elsewhere, left = elsewhere(values.sought)
    left = [*(Left(relative(trace.file, workspace.warehouse), trace.where) for trace in traces), *left]
    proof = Proof(len(values.sought), values.shared, files + n_elsewhere, values.alike, tuple(left))
    write_whole(outcome, json.dumps(asdict(proof) | {"erased": erased}))
    return proof


def _reports(workspace: Workspace) -> list[Place]:
    """Return the reports of failed checks, and of an audit that was stopped: they may quote values."""
    reports = (file for file, _ in files_below(workspace.folder / FOLDER, "**/*.*"))
    files = [*reports, workspace.folder / tables.BOOKMARK]
    return [file for file in files if file.is_file()]


def _files_in(folder: Place) -> Iterator[Place]:
    """Yield all files below a folder; programs at work, such as SQLite, may remove some meanwhile."""
    if isinstance(folder, RemotePath):
        yield from folder.glob("**/*")
        return
    for above, _, names in os.walk(folder):
        yield from (Path(above) / name for name in names)


def traces_in(folder: Place, sought: Sought, but: set[Place]) -> tuple[list[Trace], int]:
    """Read all files below a folder, but some; return the ones that hold values, and how many were read."""
    traces, count = list[Trace](), 0
    for file in _files_in(folder):
        if file in but or (isinstance(file, Path) and not file.is_file()):  # such as a socket
            continue
        ensure_not_stopped()
        count += 1
        trace = trace_in(file, sought)
        if trace is not None:
            traces.append(trace)
    return sorted(traces, key=lambda trace: str(trace.file)), count


def inputs_of_rows(workspace: Workspace, rows: Numbers) -> dict[str, list[str]]:
    """Return the files, topics and tables that rows were read from, by source: these still have their payload."""
    inputs: dict[str, set[str]] = {}
    names = workspace.source_names
    version = workspace.base_of(tables.RAW_EVENTS)
    for batch in pieces(workspace.lake, tables.RAW_EVENTS, version, [c.SEQ, c.SOURCE, FILE]):
        for row in batch.filter(pa.array(np.isin(np.asarray(batch[c.SEQ]), rows))).to_pylist():
            inputs.setdefault(names.get(row[c.SOURCE], row[c.SOURCE]), set()).add(str(row[FILE]))
    return {name: sorted(files) for name, files in sorted(inputs.items())}
