"""Days of window tables as Dagster's partitions: only the days that hold results, each with its materialization.

Here: which days Dagster shows, adding and removing them, and when they are reported. Not here: computing days
(assets/rebuild/days.py), which days a backfill or a rebuild wrote (assets/rebuild/report.py), what is checked of a
day (assets/catalog/days/checks.py).

Dagster keeps list and materializations in its instance. Runs add the days that they write. An instance may have no
days of a window because it is new or of an older version. The next run, or look for work, adds the days of the table.

The instance also notes what was reported about a pipeline. A run that may not report yet (`events.every`) leaves
the days of its batch to the next run or look; so does one that died between its commit and its report.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date

from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DynamicPartitionsDefinition,
)
from sqlalchemy.exc import IntegrityError

from tidemark.assets.catalog.days import checks as day_checks
from tidemark.assets.catalog.days.checks import DayView, view_of
from tidemark.assets.catalog.days.counts import DayCounts, counts_of_days, days_of_batches, is_plain_day, rows_by_day
from tidemark.assets.catalog.days.versions import day_tags
from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.runs import Report, key
from tidemark.resources import tables
from tidemark.resources.quality.checks import Checked
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import Spec, WindowSpec

_AT_ONCE, _FEW = 1_000, 31
_LONGEST_S = 20
"""How long a run or look takes to report days that it did not write: Dagster ends a look after a minute."""


def day_partitions(spec: Spec, window: str) -> DynamicPartitionsDefinition:
    """Return the partitions of a window: each has its own, as one may have results of a day and another none."""
    return DynamicPartitionsDefinition(name=_name(spec, window))


def shown_days(instance: DagsterInstance, spec: Spec, window: str) -> Sequence[str]:
    """Return the days of a window that Dagster shows."""
    return instance.get_dynamic_partitions(_name(spec, window))


def show_days(instance: DagsterInstance, spec: Spec, window: str, days: Iterable[str]) -> Sequence[str]:
    """Add days of a window, in the order of the calendar: by this order Dagster takes a range of partitions.

    Return the days that it shows then.
    """
    name, shown = _name(spec, window), shown_days(instance, spec, window)
    new = sorted({day for day in days if _may_be_shown(spec, day)}.difference(shown))
    if not new:
        return shown
    after = [day for day in shown if day > new[0]]
    again = sorted([*new, *after])
    try:
        _remove(instance, name, after)  # to come again after the new ones
    finally:
        for at in range(0, len(again), _AT_ONCE):
            instance.add_dynamic_partitions(name, again[at : at + _AT_ONCE])
    return [*(day for day in shown if day < new[0]), *again]


class _DaysInDagster:
    """The days of a pipeline that an instance has, asked for once for each window.

    Each question opens the instance's database, and reports ask several for every window and batch.
    """

    def __init__(self, instance: DagsterInstance, workspace: Workspace) -> None:
        self._instance, self._workspace = instance, workspace
        self._shown = dict[str, Sequence[str]]()
        self._reported = dict[str, set[str]]()

    def shown(self, window: str) -> Sequence[str]:
        """Return the days of a window that it shows."""
        if window not in self._shown:
            self._shown[window] = shown_days(self._instance, self._workspace.spec, window)
        return self._shown[window]

    def show(self, window: str, days: Iterable[str]) -> None:
        """Let it show some days of a window, too."""
        if not {*days} <= {*self.shown(window)}:
            self._shown[window] = show_days(self._instance, self._workspace.spec, window, days)

    def reported(self, window: WindowSpec) -> set[str]:
        """Return the days that were reported to it before the first such question; `note` adds others."""
        if window.name not in self._reported:
            asset = _asset(self._workspace, window)
            self._reported[window.name] = self._instance.get_materialized_partitions(asset)
        return self._reported[window.name]

    def note(self, window: WindowSpec, days: Iterable[str]) -> None:
        """Note days of a window that were reported to it."""
        self.reported(window).update(days)


def tell_days(
    instance: DagsterInstance,
    report: Report,
    workspace: Workspace,
    view: DayView,
    days: Mapping[str, int],
    *,
    about: show.Metadata,
) -> None:
    """Report days that were written to Dagster, with the rows written, all rows that the day has, and its checks."""
    window, newest = view.window, max(days, default="")
    asset, counts = _asset(workspace, window), counts_of_days(workspace, window, days)
    tags = day_tags(workspace, window, days)
    for day, rows in sorted(days.items()):
        of_table = show.table_rows(workspace.lake, tables.window_table(window.name)) if day == newest else {}
        in_all = {**show.partition_rows(counts[day].rows), **show.is_complete(complete=view.is_complete(day))}
        about_day = {**of_table, **about, **show.rows_written(rows), **in_all}
        report(AssetMaterialization(asset, partition=day, metadata=about_day, tags=tags.get(day)))
    tell_checks(instance, report, view, counts)


def tell_checks(
    instance: DagsterInstance,
    report: Report,
    view: DayView,
    counts: Mapping[str, DayCounts],
    *,
    fresh: Checked | None = None,
) -> None:
    """Report the checks of days whose materialization was reported; `fresh` is the one of the window."""
    checks: dict[str | None, list[Checked]] = {None: [fresh]} if fresh is not None else {}
    for day, of_day in sorted(counts.items()):
        complete = day_checks.check_complete(view, day, of_day)
        checks[day] = [day_checks.check_counts(view, day, of_day), *([complete] if complete else [])]
    _report_checks(instance, report, view, checks)


def _report_checks(
    instance: DagsterInstance, report: Report, view: DayView, checks: Mapping[str | None, Sequence[Checked]]
) -> None:
    asset = key(view.file, tables.window_table(view.window.name))
    targets = day_checks.targets_of(instance, asset, [day for day in checks if day is not None])
    for evaluation in day_checks.evaluations(asset, checks, targets):
        report(evaluation)


def _asset(workspace: Workspace, window: WindowSpec) -> AssetKey:
    return key(workspace.file, tables.window_table(window.name))


@dataclass(frozen=True)
class Told:
    """The note of an instance on which days of a pipeline were reported to it.

    Attributes:
        batch: All that this batch and earlier ones wrote was reported.
        at: When days were last reported, seconds since the epoch.
        complete: By window, the newest day that was reported as complete.
        overdue: By window, the newest open day that was reported as later than allowed.
    """

    batch: int
    at: float = 0.0
    complete: Mapping[str, str] = field(default_factory=dict)
    overdue: Mapping[str, str] = field(default_factory=dict)


def tell_changes(instance: DagsterInstance, report: Report, workspace: Workspace, *, first: int) -> bool:
    """Report the days that batches wrote, or made complete, since the last report, unless that is too soon.

    To one without a note all batches before `first` were reported. Return whether something is left to report.
    """
    return _tell_changes(instance, report, workspace, _DaysInDagster(instance, workspace), first=first)


def _tell_changes(
    instance: DagsterInstance, report: Report, workspace: Workspace, in_dagster: _DaysInDagster, *, first: int
) -> bool:
    with workspace.batches.as_of_now():
        last = workspace.batches.last_commit("process") if workspace.exists else None
        if last is None:
            return False
        noted, now = told_of(instance, workspace.spec), workspace.clock.now().timestamp()
        last_told = noted or Told(first - 1)
        events = workspace.spec.events
        if events is not None and now - last_told.at < events.every.total_seconds():
            return last_told.batch < last.batch_id
        written = days_of_batches(workspace, after=last_told.batch)
        complete, overdue, has_reported = dict[str, str](), dict[str, str](), False
        about: show.Metadata = {"batch": show.number_of(last.plan)}
        for window in workspace.spec.windows:
            days = written.get(window.name, {})
            in_dagster.show(window.name, days)
            view = view_of(workspace, window)
            if days:
                tell_days(instance, report, workspace, view, days, about=about)
                in_dagster.note(window, days)
            reported_days = in_dagster.reported(window)
            shown = [day for day in in_dagster.shown(window.name) if day in reported_days and _is_day(day)]
            checked_days = (
                day_checks.checked_days(instance, _asset(workspace, window)) if noted is None else set[str]()
            )
            news = _passed(workspace, view, [day for day in shown if day not in checked_days.union(days)], last_told)
            if last_told.batch < last.batch_id:
                fresh = day_checks.check_freshness(view, workspace)
                news |= {None: [fresh]} if fresh is not None else {}
            _report_checks(instance, report, view, news)
            complete[window.name], overdue[window.name] = _reached_days(view, shown)
            has_reported = has_reported or bool(days or news)
        note = Told(last.batch_id, now if has_reported else last_told.at, complete, overdue)
        if note != noted:
            _write_note(instance, workspace.spec, note)
        return False


def without_run(instance: DagsterInstance, workspace: Workspace) -> Report:
    """Return what reports to Dagster of a look, with checks of days under the run that made the last batch.

    Without a run, Dagster stores the result of a check of a partition once, and refuses any later one: its index of
    results is unique by check, run and partition. So where the instance does not know that run, the first one stays.
    """
    last = workspace.batches.last_commit("process") if workspace.exists else None
    run = instance.get_run_by_id(last.plan.owner.id) if last is not None else None

    def report(event: AssetMaterialization | AssetCheckEvaluation) -> None:
        if not isinstance(event, AssetCheckEvaluation) or event.partition is None:
            instance.report_runless_asset_event(event)
        elif run is not None:
            kind, message = DagsterEventType.ASSET_CHECK_EVALUATION.value, event.description
            instance.report_dagster_event(
                DagsterEvent(kind, run.job_name, message=message, event_specific_data=event), run.run_id
            )
        else:
            with suppress(IntegrityError):
                instance.report_runless_asset_event(event)

    return report


def are_told(instance: DagsterInstance, workspace: Workspace) -> bool:
    """Return whether all that live batches wrote was reported to an instance.

    The days that the clock alone has made late since then are reported after the next batch, or by the next look.
    """
    last = workspace.batches.last_commit("process") if workspace.exists else None
    noted = told_of(instance, workspace.spec)
    return last is not None and noted is not None and noted.batch >= last.batch_id


def told_of(instance: DagsterInstance, spec: Spec) -> Told | None:
    """Return an instance's note of what was reported about a pipeline; None if it has none."""
    name = _note_of(spec)
    note = instance.daemon_cursor_storage.get_cursor_values({name}).get(name)
    return Told(**json.loads(note)) if note else None


def untold_days(instance: DagsterInstance, workspace: Workspace) -> Mapping[str, Mapping[str, int]]:
    """Return the days that live batches wrote since the last report, by window, each with its rows."""
    noted = told_of(instance, workspace.spec)
    return {} if noted is None else days_of_batches(workspace, after=noted.batch)


def note_told(instance: DagsterInstance, spec: Spec, batch: int) -> None:
    """Note that all that a batch and earlier ones wrote was reported, if the instance has a note."""
    noted = told_of(instance, spec)
    if noted is not None and noted.batch < batch:
        _write_note(instance, spec, replace(noted, batch=batch))


def _write_note(instance: DagsterInstance, spec: Spec, note: Told) -> None:
    instance.daemon_cursor_storage.set_cursor_values({_note_of(spec): json.dumps(asdict(note))})


def _note_of(spec: Spec) -> str:
    return f"tidemark/{spec.name}/told"


def _passed(
    workspace: Workspace, view: DayView, shown: Sequence[str], last_told: Told
) -> dict[str | None, list[Checked]]:
    """Check the days that have become complete, or later than allowed, since the last report."""
    complete, overdue = _reached_days(view, shown)
    before, late_before = (noted.get(view.window.name, "") for noted in (last_told.complete, last_told.overdue))
    reopened = {day for day in shown if complete < day <= before}
    news = [day for day in shown if before < day <= complete or max(complete, late_before) < day <= overdue]
    checks: dict[str | None, list[Checked]] = {}
    for day, counts in counts_of_days(workspace, view.window, reopened.union(news)).items():
        checked = day_checks.check_complete(view, day, counts, was_complete=day in reopened)
        checks |= {day: [checked]} if checked is not None else {}
    return checks


def _reached_days(view: DayView, shown: Sequence[str]) -> tuple[str, str]:
    """Return the last shown day that is complete, and the last that is or should be; empty for none."""
    n_complete = bisect_right(shown, False, key=lambda day: not view.is_complete(day))
    n_due = bisect_right(shown, False, key=lambda day: not (view.is_complete(day) or view.is_overdue(day)))
    return shown[n_complete - 1] if n_complete else "", shown[n_due - 1] if n_due else ""


def days_held(workspace: Workspace, windows: Iterable[str]) -> dict[str, set[str]]:
    """Return the days with results as of the last commit, by window, except days that Dagster does not show."""
    days_by_window = dict[str, set[str]]()
    for window in windows:
        table = tables.window_table(window)
        days = rows_by_day(workspace, table) if workspace.exists and workspace.lake.exists(table) else ()
        days_by_window[window] = {day for day in days if _may_be_shown(workspace.spec, day)}
    return days_by_window


def show_days_held(
    instance: DagsterInstance, workspace: Workspace, before: Mapping[str, Collection[str]] | None = None
) -> None:
    """Let Dagster show the days with results as of the last commit, and no other; by default of all windows.

    `before` has the days with results before a batch, by the windows that it wrote. Shown ones stay until the next
    call: a condition of an asset downstream sees what is reported of a day only while the day is shown.
    """
    for window in (window for window in workspace.spec.windows if before is None or window.name in before):
        held = days_held(workspace, [window.name])[window.name]
        shown = shown_days(instance, workspace.spec, window.name)
        stay = held.union(before[window.name]) if before is not None else held
        _remove(instance, _name(workspace.spec, window.name), [day for day in shown if day not in stay])
        show_days(instance, workspace.spec, window.name, held)


def show_days_first(instance: DagsterInstance, workspace: Workspace) -> bool:
    """Add the days of the tables where an instance has none yet, and report shown days that were not reported.

    The instance is new, or of a version that kept no list or reported no such days. While a day is shown and not
    materialized, conditions of assets downstream wait for it. Return whether some are left: of many, some are
    reported, as a run or look has time, the newest first; and `events.every` may have it wait.
    """
    with workspace.batches.as_of_now():
        end, report = time.monotonic() + _LONGEST_S, without_run(instance, workspace)
        in_dagster = _DaysInDagster(instance, workspace)
        for window in workspace.spec.windows:
            if not in_dagster.shown(window.name):
                in_dagster.show(window.name, days_held(workspace, [window.name])[window.name])
            reported_days = in_dagster.reported(window)
            unseen = {day for day in in_dagster.shown(window.name) if day not in reported_days and _is_day(day)}
            if not unseen:
                continue
            left, view = sorted(unseen, reverse=True), view_of(workspace, window)
            for at in range(0, len(left), _FEW):
                counts = counts_of_days(workspace, window, left[at : at + _FEW])
                some = [
                    day for day, of_day in counts.items() if of_day.rows
                ]  # one that a person has added has none yet
                if some and time.monotonic() > end:
                    return True
                tell_days(instance, report, workspace, view, dict.fromkeys(some, 0), about={})
                in_dagster.note(window, some)
        last = workspace.batches.last_commit("process") if workspace.exists else None
        if last is None:
            return False
        return _tell_changes(instance, report, workspace, in_dagster, first=last.batch_id + 1)


def ensure_day(key: str) -> None:
    """Check that a partition is a day: Dagster's dialog takes any text for a new one.

    Raises:
        SpecError: It is not a day.
    """
    if not _is_day(key):
        raise SpecError(
            f"The partition `{key}` is not a day",
            expected="a day such as 2026-01-31",
            remedy="delete this partition in Dagster, and choose days",
        )


def _is_day(key: str) -> bool:
    try:
        date.fromisoformat(key)
    except ValueError:
        return False
    return is_plain_day(key)


def _name(spec: Spec, window: str) -> str:
    return f"{spec.name}/{tables.window_table(window)}"


def _may_be_shown(spec: Spec, day: str) -> bool:
    """Return whether a day can be recomputed, and is not left out by the spec."""
    start = spec.partitions.start
    return is_plain_day(day) and (start is None or date.fromisoformat(day) >= start)


def _remove(instance: DagsterInstance, name: str, days: Iterable[str]) -> None:
    for day in days:
        instance.delete_dynamic_partition(name, day)
