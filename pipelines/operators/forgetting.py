"""Forgetting records: the decision carried out, all that still holds them deleted, and what a person reads of it.

Here: the order of the steps, Dagster's own storage, the result in plain values and in words. Not here: the decision
and the log (assets/rebuild/decisions/forgetting.py), files of the warehouse (assets/rebuild/decisions/erasing.py),
the command (pipelines/commands/deciding.py).
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import numpy as np

from tidemark.assets.catalog.days.partitions import show_days_first, show_days_held, without_run
from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.runs import key
from tidemark.assets.checks import expectations_by_asset
from tidemark.assets.log.exclusions import Numbers, ranges_of
from tidemark.assets.rebuild.decisions.erasing import (
    Follower,
    Left,
    Proof,
    erase,
    inputs_of_rows,
    traces_in,
    unfinished,
    values_to_forget,
    waited_for,
)
from tidemark.assets.rebuild.decisions.forgetting import all_rows, plan_forgetting, rows_to_forget
from tidemark.assets.rebuild.differences import WindowDifference, window_differences
from tidemark.pipelines.code_location.rebuilding import ForgetSettings
from tidemark.pipelines.code_location.upkeep import ENDED, forget_run, is_run_of, jobs_of
from tidemark.pipelines.command_line import pipeline_of
from tidemark.pipelines.operators.deciding import Decided
from tidemark.pipelines.running.execution import rebuild_pipeline
from tidemark.resources import tables
from tidemark.resources.places.place import relative
from tidemark.resources.settings import Settings
from tidemark.resources.traces import Sought
from tidemark.resources.workspace import SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.printable import plural

_MOST_NAMED = 20  # files, of a source or of what is left
_MOST_CHECKS = 10_000  # evaluations of a check that are looked through


@dataclass(frozen=True, kw_only=True)
class Forgotten(Decided):
    """The result of forgetting records, or of a look at what would go.

    Attributes:
        continued: An earlier call had decided it, and had not come to its end.
        inputs: What the records were read from, by source: this still has them.
        waits_for: The pipelines that have to read the correction before old files can go; empty where these are gone.
        proof: What was found by looking for the values; None where nothing was deleted yet.
        holding: Of a dry run: files of the warehouse that hold some of the values now.
        alike: Of a dry run: records that do not match, and hold values which hardly any others have.
    """

    continued: bool = False
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    waits_for: tuple[Follower, ...] = ()
    proof: Proof | None = None
    holding: tuple[str, ...] = ()
    alike: tuple[int, ...] = ()

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to do, and nothing of the records is left."""
        return self.dry_run or (self.proof is not None and self.proof.holds)

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain values, as `--json` shows it."""
        proof = self.proof
        return {
            **super().to_dict(),
            "continued": self.continued,
            "inputs": {name: list(files) for name, files in self.inputs.items()},
            "waits_for": [vars(follower) for follower in self.waits_for],
            "holding": list(self.holding),
            "alike": list(self.alike if proof is None else proof.alike),
            "sought": proof and proof.sought,
            "shared": proof and proof.shared,
            "files_read": proof and proof.files,
            "left": None if proof is None else [vars(left) for left in proof.left],
        }

    def _decision_in_words(self) -> str:
        return "forgotten" if self.batch is None else "forgotten, all tables rebuilt"

    def _notes(self) -> Iterator[str]:
        if self.continued:
            yield "  decided by an earlier call, which had not come to its end"
        for name, files in self.inputs.items():
            named = ", ".join(files[:_MOST_NAMED]) + (" …" if len(files) > _MOST_NAMED else "")
            yield f"  still in the input, which is yours: source {name}: {named}"
        if self.dry_run:
            yield f"  values of these records are in {plural(len(self.holding), 'file')} of the warehouse now"
            if self.alike:
                yield _alike_in_words(self.alike)
        for follower in self.waits_for:
            yield (
                f"  not done yet: {follower.pipeline} follows {follower.table} and has not read version "
                f"{follower.version}. Run {follower.pipeline}, then this command again: it deletes the old files"
            )
        if self.proof is not None:
            yield from _proof_in_words(self.proof)


def _alike_in_words(records: Sequence[int]) -> str:
    return (
        f"  records {', '.join(map(str, records))} stay and have some of the same values, which hardly any others "
        "have: forget them too if they are of the same person"
    )


def _proof_in_words(proof: Proof) -> Iterator[str]:
    if proof.sought is None:
        yield (
            "  the files that held the values were deleted before, by a VACUUM for example: the rows are blank, and "
            "whether the values are elsewhere could not be looked up"
        )
        return
    if proof.alike:
        yield _alike_in_words(proof.alike)
    shared = f"; {proof.shared:,} more are also in records that stay" if proof.shared else ""
    yield f"  {plural(proof.sought, 'value')} sought in {plural(proof.files, 'file')}{shared}"
    for left in proof.left[:_MOST_NAMED]:
        yield f"  LEFT in {left.place}: {left.where}"
    if (n_more := len(proof.left) - _MOST_NAMED) > 0:
        yield f"  and in {n_more:,} more"
    if not proof.left:
        yield "  none of them was found"


def forget(
    file: SpecFile,
    settings: Settings,
    where: str,
    reason: str,
    *,
    dry_run: bool,
    instance: Callable[[bool], dg.DagsterInstance],
    tell: Callable[[str], None] = silent,
) -> Forgotten:
    """Forget records of a pipeline: blank them, compute all tables without them, delete all that still holds them.

    What an earlier call has left undone is done first.

    Args:
        file: The spec.
        settings: Where the tables are, and Dagster's home.
        where: The records, a condition in SQL over `raw_events`.
        reason: Why; kept, so it must not hold what is forgotten.
        dry_run: Only look; nothing is written.
        instance: Returns the instance of Dagster, with what it captures of runs or without; not called for a dry run.
        tell: Reports the current work.

    Raises:
        SpecError: The condition cannot be used, no record meets it, or the reason holds a value.
        TidemarkError: Anything else prevents it.
    """
    workspace = pipeline_of(file, settings, tell)
    left = unfinished(workspace)
    rows = rows_to_forget(workspace, where) if workspace.exists else np.zeros(0, np.int64)
    if dry_run:
        return _trial_run(workspace, rows, reason)
    forgotten = Forgotten(pipeline=file.spec.name, dry_run=False, records=len(all_rows(left)), continued=bool(left))
    if len(rows) or not left:
        forgotten = _decided(workspace, file, settings, rows, reason, instance=instance(False), tell=tell)
        workspace = pipeline_of(file, settings, tell)
        left = unfinished(workspace)
    forgotten = replace(forgotten, inputs=inputs_of_rows(workspace, all_rows(left)))
    if waits := waited_for(workspace, left):
        return replace(forgotten, waits_for=tuple(waits))

    def elsewhere(sought: Sought) -> tuple[int, list[Left]]:
        return erase_in_dagster(workspace, settings.dagster_home, instance(True), sought)

    return replace(forgotten, proof=erase(workspace, str(uuid4()), left, elsewhere=elsewhere))


def _trial_run(workspace: Workspace, rows: Numbers, reason: str) -> Forgotten:
    plan = plan_forgetting(workspace, reason, rows)
    values = values_to_forget(workspace, rows)
    _refuse_reason(values.sought, reason)
    traces, _ = traces_in(workspace.warehouse, values.sought, set())
    return Forgotten(
        pipeline=workspace.spec.name,
        dry_run=True,
        records=len(rows),
        windows=window_differences(workspace, plan.items),
        inputs=inputs_of_rows(workspace, rows),
        holding=tuple(relative(trace.file, workspace.warehouse) for trace in traces),
        alike=values.alike,
    )


def _decided(
    workspace: Workspace,
    file: SpecFile,
    settings: Settings,
    rows: Numbers,
    reason: str,
    *,
    instance: dg.DagsterInstance,
    tell: Callable[[str], None],
) -> Forgotten:
    """Carry the decision out; no value becomes part of Dagster's run."""
    plan_forgetting(workspace, reason, rows)  # what is wrong with it does not become a run
    _refuse_reason(values_to_forget(workspace, rows).sought, reason)
    run_settings = ForgetSettings(rows=ranges_of(rows), reason=reason)
    rebuilt = rebuild_pipeline(file, settings, run_settings, instance=instance, tell=tell)
    assert rebuilt is not None  # there are rows
    windows: tuple[WindowDifference, ...] = rebuilt.differs
    commit = rebuilt.commit
    return Forgotten(
        pipeline=file.spec.name,
        dry_run=False,
        records=len(rows),
        batch=commit.batch_id,
        committed_at=commit.committed_at,
        windows=windows,
    )


def _refuse_reason(sought: Sought, reason: str) -> None:
    if sought.in_bytes(reason.encode()):
        raise SpecError(
            "--reason holds a value of a record that you want to forget, and the reason is stored",
            expected="a reason without such values",
            remedy="name the request, for example by its number",
        )


def erase_in_dagster(
    workspace: Workspace, home: Path, instance: dg.DagsterInstance, sought: Sought
) -> tuple[int, list[Left]]:
    """Delete what Dagster has stored of a pipeline and quotes values, and look for them in its home.

    Runs that have ended are deleted whole, and the history of an asset whose checks or newest materialization quote
    one. What assets lose of the present is reported again.

    Returns:
        How many files the home has, and what is left there.
    """
    for run in _runs_that_hold(workspace.file, home, instance, sought):
        forget_run(instance, run.run_id, home)
    _wipe_assets(workspace, instance, sought)
    show_days_held(instance, workspace)
    show_days_first(instance, workspace)
    if not home.is_dir():
        return 0, []
    traces, files = traces_in(home, sought, set())
    names = {str(trace.file).removesuffix("-wal") for trace in traces if isinstance(trace.file, Path)}
    bases = [Path(name) for name in sorted(names) if name.endswith(".db")]
    if bases:  # SQLite keeps the bytes of deleted rows until it packs a file, and its log while a daemon has it open
        for base in bases:
            _pack(base)
        traces, files = traces_in(home, sought, set())
    return files, [Left(str(trace.file), trace.where) for trace in traces]


def _runs_that_hold(
    file: SpecFile, home: Path, instance: dg.DagsterInstance, sought: Sought
) -> Iterator[dg.DagsterRun]:
    for name in jobs_of(file):
        for run in instance.get_runs(dg.RunsFilter(job_name=name, statuses=ENDED)):
            if not is_run_of(file, run):
                continue
            texts = [str(run.run_config), str(dict(run.tags))]
            texts += [dg.serialize_value(entry) for entry in instance.all_logs(run.run_id)]
            output, _ = traces_in(home / "storage" / run.run_id, sought, set())  # what its steps have printed
            if output or any(sought.in_bytes(text.encode()) for text in texts):
                yield run


def _wipe_assets(workspace: Workspace, instance: dg.DagsterInstance, sought: Sought) -> None:
    """Delete the history of assets that quotes values, and report the tables that they are as of now."""
    spec, report = workspace.spec, without_run(instance, workspace)
    windows = [tables.window_table(window.name) for window in spec.windows]
    joins = [tables.join_table(join.name) for join in spec.joins]
    for name in dict.fromkeys((tables.RAW_EVENTS, *expectations_by_asset(spec), *joins, *windows, tables.BATCHES)):
        asset = key(workspace.file, name)
        newest = instance.get_latest_materialization_event(asset)
        texts = [] if newest is None else [dg.serialize_value(newest)]
        texts += [
            dg.serialize_value(record.event)
            for check in expectations_by_asset(spec).get(name, ())
            for record in instance.event_log_storage.get_asset_check_execution_history(
                dg.AssetCheckKey(asset, check.name), limit=_MOST_CHECKS
            )
            if record.event is not None
        ]
        if any(sought.in_bytes(text.encode()) for text in texts):
            instance.wipe_assets([asset])
            has_rows = name in (*workspace.tables, tables.BATCHES) and name not in windows
            if newest is not None and name not in windows:  # days are reported by themselves
                rows = show.table_rows(workspace.lake, name) if has_rows else {}
                report(dg.AssetMaterialization(asset, metadata=rows))


def _pack(base: Path) -> None:
    try:
        with closing(sqlite3.connect(base, timeout=30, isolation_level=None)) as opened:
            opened.execute("VACUUM")
            opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error:  # another process holds it: what is left is named
        return
