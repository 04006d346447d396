"""The pipeline next to a pipeline that judges its log again: tables of its own, and a log of batches of its own.

Here: beginning or continuing it, and the batches in which it judges the log. Not here: where the log is cut
(assets/judging/replay.py), the switch (assets/rebuild/switch.py), the control items themselves
(assets/log/control.py).

It is a pipeline like any other, except that it reads another pipeline's log: the stages of live runs write its
tables, and the checks look at them. So a rebuild has the results of a new pipeline, and a stopped one continues from
its last commit. The numbers of its batches are reserved for it in the pipeline's log of batches, so no other batch
has them: rows lead by them to their batch, and the newest row of state is the one with the highest number.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version as installed_version
from typing import Any, TypeVar

from tidemark.assets.batch import Batch
from tidemark.assets.checks import check_rows, checks_of
from tidemark.assets.joins import answer_join
from tidemark.assets.judging.replay import REPLAYED_KINDS, Piece, pieces_left
from tidemark.assets.judging.segment import judge
from tidemark.assets.log.control import SPEC, recorded
from tidemark.assets.log.exclusions import CHANGES_LOG, items_of, log_clocks
from tidemark.assets.log.retention import ensure_whole_log
from tidemark.assets.planning import at_work, begin, input_of
from tidemark.assets.rebuild.log_columns import (
    ensure_all_fit,
    fill_all_from_rescued,
    fill_from_rescued,
    keeps_unknown,
    with_types_of_log,
)
from tidemark.assets.rebuild.plan import RebuildPlan, ensure_can_begin, windows_in
from tidemark.assets.schemas import create_tables, ensure_fits, log_schema, payload_of
from tidemark.assets.time_adjustment import adjust_time, write_dead_letters
from tidemark.assets.windows import aggregate_windows
from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import BatchInput, Commit, Plan, RebuildInput
from tidemark.resources.batches.position import plan_end
from tidemark.resources.delta.columns import column_differences, delta_columns
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.migration import fit
from tidemark.resources.machine import ensure_not_stopped
from tidemark.resources.opening import Memory
from tidemark.resources.places.place import remove_tree
from tidemark.resources.quality.checks import Checked, Expectation
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import BusyError, LakeError
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.spec.pipeline import digest
from tidemark.timeops.spec.window import inputs_of

_SPARE = 8
"""How many numbers are reserved beyond the present need of the log: for the live runs until the switch."""
_PAUSE_S = 1.0
Done = TypeVar("Done")


@dataclass(frozen=True, eq=False)
class Shadow:
    """A rebuild that was begun.

    Attributes:
        workspace: The pipeline, with the new spec.
        run_id: The id of the run or command.
        plan: What it does.
        checked: The results of checks of all pieces: of each expectation the last, or the last that failed.
    """

    workspace: Workspace
    run_id: str
    plan: RebuildPlan
    checked: dict[Expectation, Checked] = field(default_factory=dict)

    @cached_property
    def tables(self) -> Workspace:
        """The pipeline next to it."""
        workspace, beside = self.workspace, self.workspace.folder / tables.REBUILD_FOLDER
        # Before the switch its batches are not the pipeline's: no operator watches or accepts them.
        made = replace(workspace, warehouse=beside, memory=Memory(), accepted=None, log_of=workspace, watch=None)
        made = replace(made, windows_alone=not self.plan.scope.of_all, decided=self.plan.items)
        made = replace(made, clocks=log_clocks(made)) if items_of(made, *CHANGES_LOG) else made
        return made if self.plan.scope.of_all else made.under(self._spec_of_windows)

    @cached_property
    def chosen(self) -> tuple[WindowSpec, ...]:
        """The windows that are rebuilt."""
        return windows_in(self.plan.scope, self.workspace.spec)

    @property
    def _spec_of_windows(self) -> Spec:
        """The spec with only the windows that are rebuilt and their input windows."""
        spec = self.workspace.spec
        needed = {
            needed_window.name
            for window in self.chosen
            for needed_window in (window, *inputs_of(window, spec.windows))
        }
        windows = tuple(window for window in spec.windows if window.name in needed)
        # A rebuild of windows writes nothing but what they have.
        outputs = spec.outputs.model_copy(update={"ordered_events": False})
        return spec.model_copy(update={"windows": windows, "joins": (), "outputs": outputs})

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """First and last of the numbers that are kept for its batches, in order; none before it has begun."""
        ranges = []
        for commit in reversed(self.workspace.batches.history("rebuild")):
            rebuild = RebuildInput.of(commit.plan)
            if rebuild.leaves_results:
                continue  # it does not affect what is rebuilt
            if rebuild.rebuild != self._identity:
                break
            ranges.append((commit.batch_id + 1, commit.batch_id + rebuild.reserves))
        return ranges[::-1]

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """The identity of the rebuild: a rebuild of another identity takes nothing from tables begun for this one."""
        made_by = installed_version("tidemark")
        spec = self.workspace.spec.fingerprint()
        windows = sorted(self.plan.scope.windows)
        return {"spec": spec, "tidemark": made_by, "windows": windows, "items": self._digest_of_items}

    @property
    def _digest_of_items(self) -> str:
        """A digest of the items that change the log: corrections come while a rebuild is at work."""
        return digest(json.dumps([[item["kind"], item["argument"]] for item in items_of(self.tables)]))

    @property
    def is_outdated(self) -> bool:
        """Return whether the log was corrected since the rebuild began."""
        return self._digest_of_items != str(self._identity["items"])

    @property
    def is_superseded(self) -> bool:
        """Return whether another rebuild has begun or ended since, or live runs have taken another spec."""
        begun = {
            commit.batch_id: RebuildInput.of(commit.plan) for commit in self.workspace.batches.history("rebuild")
        }
        if not self.numbers:
            return True
        now = recorded(self.workspace, SPEC)[-1]["argument"]
        under = begun[self.numbers[0][0] - 1].under
        return bool(now != self.workspace.spec.canonical_json() and under != digest(now))

    def begin(self) -> None:
        """Begin, or continue what was begun; throw away what another rebuild has left.

        Raises:
            LakeError: The log is lost or damaged, or nothing was processed yet.
            SpecError: The spec does not go with the log, or `retention` has removed its beginning.
            BusyError: Another rebuild is at work.
        """
        workspace = self.workspace
        ensure_can_begin(workspace, self.plan.scope)
        ensure_whole_log(workspace, "a rebuild")
        if self._is_begun() and not self._goes_on():
            workspace.tell("what another rebuild has left, which did not end, is thrown away")
            self.discard()
        create_tables(self.tables)
        self._fit_log()

    def _is_begun(self) -> bool:
        """Return whether the rebuild has tables, complete or not."""
        try:
            return self.tables.exists
        except LakeError:  # their log of batches is gone
            return True

    def _fit_log(self) -> None:
        """Add the columns of the spec to the log, as a batch of live runs does; change no rows.

        Raises:
            SpecError: It has a column of a type that no earlier row can have, or a value that cannot be cast.
        """
        workspace = self.workspace
        ensure_all_fit(self.tables)
        schema = with_types_of_log(self.tables, log_schema(payload_of(self.tables)))
        ensure_fits(workspace, tables.RAW_EVENTS, schema)
        columns = workspace.lake.schema(tables.RAW_EVENTS)
        if any(column.wanted_type for column in column_differences(columns, delta_columns(schema))):
            plan = self._reserve(_SPARE)
            with at_work(workspace, plan):
                fit(workspace.lake, tables.RAW_EVENTS, schema, workspace.rules.sources[0].time_zone)
                workspace.batches.commit(plan, {}, {}, workspace.clock.now())

    def _goes_on(self) -> bool:
        """Return whether the shadow's tables belong to this rebuild, and are complete."""
        beside, numbers = self.tables, self.numbers
        if not beside.lake.exists(tables.BATCHES):
            return False
        pending, last = beside.batches.pending(), beside.batches.last_commit()
        if pending is not None and not pending.is_left(beside.clock.now()):
            raise BusyError(
                f"Another rebuild is at work: {pending.owner}. Nothing was changed.", remedy="Wait for it."
            )
        if last is None or not any(first <= last.batch_id <= final for first, final in numbers):
            return False
        try:
            beside.ensure_whole()
        except LakeError:
            return False
        beside.tell(f"continuing a rebuild that was begun, after {plan_end(last.plan):,} records")
        return True

    def discard(self) -> None:
        """Remove the shadow's tables."""
        remove_tree(self.tables.warehouse)
        vars(self).pop("tables")  # what is known of them

    def keep_numbers(self) -> None:
        """Reserve numbers for the batches to come, in the pipeline's log of batches, unless enough are reserved.

        Raises:
            ConflictError: Another process has written the log of batches.
        """
        n_needed = len(self._left()) + _SPARE
        last = self.tables.batches.last_commit()
        last_id = last.batch_id if last else 0
        n_free = sum(max(final - max(first - 1, last_id), 0) for first, final in self.numbers)
        if n_free < n_needed:
            plan = self._reserve(n_needed)
            self.workspace.batches.commit(plan, {}, {}, self.workspace.clock.now())

    def fill_rest(self) -> int | None:
        """Fill columns of what is not judged yet, from `_rescued`: the last piece is judged as it is then.

        Returns:
            The end of the log up to which all is filled; None where no more of it needs to be.
        """
        workspace, last = self.workspace, self.tables.batches.last_commit()
        if not self.plan.scope.of_all or not keeps_unknown(workspace):
            return None
        end, judged = workspace.progress.log_end(), plan_end(last.plan) if last else 0
        if end > judged:
            plan = self._reserve(_SPARE)
            end = workspace.progress.log_end()  # what came while it waited
            fill_all_from_rescued(workspace, judged, plan)
        return end

    def _reserve(self, numbers: int) -> Plan:
        """Take on a batch of the pipeline that keeps numbers and changes no rows; wait for other runs."""
        under = digest(recorded(self.workspace, SPEC)[-1]["argument"])
        batch_input = RebuildInput(reserves=numbers, rebuild=self._identity, under=under)
        return when_free(self.workspace, partial(begin_without_records, self.workspace, self.run_id, batch_input))

    def _left(self) -> Sequence[Piece]:
        """Return the pieces of the log that the pipeline has processed and its shadow has not."""
        last = self.tables.batches.last_commit()
        begin, replayed = (plan_end(last.plan), BatchInput.of(last.plan).replayed or 0) if last else (0, 0)
        end = self.workspace.progress.processed_end()  # first: what is committed after it comes with its items
        return [*pieces_left(recorded(self.workspace, *REPLAYED_KINDS), begin, replayed, end)]

    def catch_up(self, *, is_last: bool = False) -> None:
        """Judge what the pipeline has processed, piece after piece, until nothing is left.

        Args:
            is_last: Other runs cannot process anything now.

        Raises:
            LakeError: A check failed.
            BusyError: Live runs have processed so much that there are no numbers left.
        """
        workspace, begun_at, first = self.workspace, self.workspace.clock.now(), None
        while left := self._left():
            begin_seq, end = left[0].segment.first_seq, left[-1].segment.end_seq
            first = begin_seq if first is None else first
            workspace.tell(f"judging {end - begin_seq:,} records of the log again")
            if not is_last:
                if self.plan.scope.of_all:
                    fill_from_rescued(workspace, begin_seq, partial(self._reserve, _SPARE))
                self.keep_numbers()
            for piece in left:
                ensure_not_stopped()
                self._judge(piece)
                at, took_s = piece.segment.end_seq, (workspace.clock.now() - begun_at).total_seconds()
                n_judged, n_left = at - first, end - at
                about = (
                    f"; about {max(round(took_s / n_judged * n_left / 60), 1)} min left"
                    if n_judged and n_left
                    else ""
                )
                workspace.tell(f"{at:,} of {end:,} records judged again{about}")

    def _judge(self, piece: Piece) -> None:
        beside, segment = self.tables, piece.segment
        last = beside.batches.last_commit()
        batch_input, number = input_of(beside, segment, piece.replayed), self._number_after(last)
        seqs = (segment.first_seq, segment.end_seq)
        plan = begin(beside, self.run_id, "process", batch_input, after=last, seqs=seqs, number=number)
        with at_work(beside, plan):
            beside.prepare(plan)
            batch = Batch(beside, plan, judge)
            with batch.stage():
                adjust_time(batch)
                if beside.spec.windows:
                    aggregate_windows(batch)
                for join in beside.spec.joins:
                    answer_join(batch, join)
                write_dead_letters(batch)
                self._check(batch)
            counts, versions = beside.progress.counts_of(plan.batch_id), beside.outputs(plan)
            beside.batches.commit(plan, counts, versions, beside.clock.now())

    def _check(self, batch: Batch) -> None:
        """Run the checks of what a piece wrote; a LakeError names a failed check that holds a batch back."""
        for asset in checks_of(self.tables.spec):
            for checked in check_rows(batch, asset):
                expectation = checked.expectation
                if expectation.blocking and not checked.passed:
                    raise LakeError(
                        f"check {expectation.name} failed in the rebuild. {checked.message}",
                        expected="all blocking checks of a batch to pass before it is committed",
                        remedy="The tables are as they were. Report what the check found.",
                    )
                if self.checked.get(expectation, checked).passed:
                    self.checked[expectation] = checked

    def _number_after(self, last: Commit | None) -> int:
        last_id = last.batch_id if last else 0
        number = next((max(first, last_id + 1) for first, final in self.numbers if final > last_id), None)
        if number is None:
            raise BusyError(
                "Live runs have processed more than the rebuild kept numbers for.", remedy="Run it again."
            )
        return number


def begin_without_records(
    workspace: Workspace, run_id: str, batch_input: RebuildInput, fingerprint: str | None = None
) -> Plan:
    """Take on a batch of kind `rebuild` that judges no record.

    The fingerprint is by default that of the last batch, so that the next one applies all that the spec has changed.
    """
    last, end = workspace.batches.last_commit(), workspace.progress.processed_end()
    assert last is not None  # something was processed, or there is a table of a window
    fingerprint = fingerprint or last.plan.fingerprint
    return begin(
        workspace, run_id, "rebuild", batch_input.to_json(), after=last, seqs=(end, end), fingerprint=fingerprint
    )


def _last_rebuild(workspace: Workspace) -> Commit | None:
    """Return the last commit of a rebuild, begun or ended; to drop tables or to delete old files is none."""
    rebuilds = [
        commit for commit in workspace.batches.history("rebuild") if not RebuildInput.of(commit.plan).leaves_results
    ]
    return rebuilds[-1] if rebuilds else None


def discard_left_over(workspace: Workspace) -> None:
    """Remove the tables of a rebuild that has switched and died before it removed them."""
    last = _last_rebuild(workspace)
    folder = workspace.folder / tables.REBUILD_FOLDER
    left = Lake(folder / workspace.spec.name)
    if last is None or RebuildInput.of(last.plan).rebuild or not left.exists(tables.BATCHES):
        return  # none, or one that was begun and continues
    if BatchLog(left).last_commit() is not None:  # else another one begins just now
        workspace.tell("removing what a rebuild has left")
        remove_tree(folder)


def begun(workspace: Workspace) -> str:
    """Describe how far a rebuild has come that was begun and has not ended; empty if there is none."""
    left = Lake(workspace.folder / tables.REBUILD_FOLDER / workspace.spec.name)
    rebuilt = _last_rebuild(workspace)
    identity = {} if rebuilt is None else RebuildInput.of(rebuilt.plan).rebuild
    if not identity or not left.exists(tables.BATCHES):
        return ""
    last = BatchLog(left).last_commit()
    of = " and ".join(identity["windows"]) or "all tables"
    judged = plan_end(last.plan) if last else 0
    return f"of {of}, {judged:,} of {workspace.progress.processed_end():,} records judged again"


def when_free(workspace: Workspace, act: Callable[[], Done]) -> Done:
    """Do something as soon as no other run is at work on the pipeline."""
    waits = False
    while True:
        try:
            return act()
        except BusyError as error:
            if not waits:
                workspace.tell(f"waiting: {error.found}")
            waits = True
        ensure_not_stopped()
        time.sleep(_PAUSE_S)
