"""The checks of a window that Dagster shows by day, and how old its newest result is.

Here: the checks, what each compares, and their results. Not here: when they are reported
(assets/catalog/days/partitions.py), the checks of a batch, which can hold it back (assets/checks.py), the place that
a window has come to (assets/state/completeness.py).

Dagster takes no result of a partition from a run over several: `AssetCheckResult` has no `partition`. So the results
are evaluations that a run logs, and looks report them without a run. A result counts for the newest materialization
of its day alone: a day that is written again has no result until the next one.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

import dagster as dg

from tidemark.assets.catalog.days.counts import DayCounts, is_plain_day
from tidemark.assets.state.completeness import Reached, reached_by
from tidemark.resources import tables
from tidemark.resources.delta.queries import newest_rows
from tidemark.resources.quality.checks import Checked, Expectation, Measured
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.automation import AgeLevels
from tidemark.timeops.values.durations import format_duration, roughly
from tidemark.timeops.values.utc import Instant, instant_of

COMPLETE = Expectation(
    name="complete",
    holds="no live batch changes the day: the watermark has passed the end of its last window and the allowed "
    "lateness, on every timeline, and all rows are final. An open day has no result, unless it is later than "
    "`alerts.freshness` allows",
    remedy="`tidemark status {file}` says what holds the watermark back. If no more input comes, "
    "`tidemark run {file} --end-of-input flush` closes the day",
)
COUNTS = Expectation(
    name="counts_agree",
    holds="each window and group of the day has one row, whichever batches and backfills wrote it",
    remedy="compute the day from the log: `tidemark backfill {file} --from {day} --to {day} --window {window}`",
)
FRESHNESS = Expectation(
    name="freshness",
    holds="the newest final result ended no longer ago than `alerts.freshness` says, by event time",
    remedy="`tidemark status {file}` says what holds the watermark back, and `tidemark run {file}` processes what "
    "is waiting",
)
_TARGET = "AssetCheckEvaluationTargetMaterializationData"
_AT_ONCE = 200
_NOT_FINAL = "compute the day from the log: `tidemark backfill {file} --from {day} --to {day} --window {window}`"


@dataclass(frozen=True)
class DayView:
    """A window as its days are checked: its spec file, the place that it has come to, and the clock."""

    file: SpecFile
    reached: Reached
    now: datetime

    @property
    def window(self) -> WindowSpec:
        """The window."""
        return self.reached.window

    def is_complete(self, day: str) -> bool:
        """Return whether no live batch changes a day any more."""
        return is_plain_day(day) and self.reached.has_completed(date.fromisoformat(day))

    def is_overdue(self, day: str) -> bool:
        """Return whether an open day is later than `alerts.freshness` allows."""
        levels = self.file.spec.alerts.freshness
        return levels is not None and is_plain_day(day) and _level(levels, self.late_by(day)) is not None

    def late_by(self, day: str) -> timedelta:
        """Return how long ago, by the wall clock, a day could have been complete; less than zero: it is to come."""
        return self.now - instant_of(self.reached.closed_at(date.fromisoformat(day)))


def view_of(workspace: Workspace, window: WindowSpec) -> DayView:
    """Return a window as of the last commit."""
    return DayView(workspace.file, reached_by(workspace, window), workspace.clock.now())


def day_check_specs(file: SpecFile, asset: dg.AssetSpec) -> list[dg.AssetCheckSpec]:
    """Return the checks of a window."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # of partitions of checks, which are used on purpose
        by_day = [
            dg.AssetCheckSpec(
                check.name, asset=asset.key, description=check.sentence, partitions_def=asset.partitions_def
            )
            for check in (COMPLETE, COUNTS)
        ]
    if file.spec.alerts.freshness is None:
        return by_day
    return [*by_day, dg.AssetCheckSpec(FRESHNESS.name, asset=asset.key, description=FRESHNESS.sentence)]


def check_complete(view: DayView, day: str, counts: DayCounts, *, was_complete: bool = False) -> Checked | None:
    """Check whether a day is complete; None if it is open and may be."""
    if not view.is_complete(day):
        return _open(view, day, was_complete=was_complete) if was_complete or view.is_overdue(day) else None
    not_final = counts.rows - counts.final
    sentence = f"{not_final:,} rows of {day} of `{view.window.name}` are not final, and all its windows are closed"
    broken = (Measured("rows that are not final", 0, not_final, sentence),) if not_final else ()
    numbers = {"seconds_left": 0.0, "not_final": not_final, **_numbers_of(counts)}
    remedy = _in_words(_NOT_FINAL if broken else COMPLETE.remedy, view, day)
    return Checked(
        replace(COMPLETE, remedy=remedy), broken, is_error=True, note=f"{day} is complete", numbers=numbers
    )


def _open(view: DayView, day: str, *, was_complete: bool) -> Checked:
    """Say how far the watermark is from the end of a day that is later than allowed, or is open again."""
    levels, reached, late = view.file.spec.alerts.freshness, view.reached, view.late_by(day)
    level = _level(levels, late) if levels is not None else None
    closes_us, at_us = reached.closed_at(date.fromisoformat(day)), reached.watermark_us
    of = f" of `{reached.timeline}`" if reached.timeline else ""
    left = timedelta(0) if at_us is None else timedelta(microseconds=max(closes_us - at_us, 0))
    if at_us is None:
        where = f"no watermark{of} yet"
    elif left:
        where = f"the watermark{of} at {Instant(at_us)} UTC, {roughly(left)} before {Instant(closes_us)} UTC"
    else:
        where = "the watermark past it, and a session or an empty window that waits for more"
    limit = late if levels is None or level is None else getattr(levels, level)
    overdue = f"; by the clock that was {roughly(late)} ago, limit {format_duration(limit)}" if level else ""
    again = "; it was complete, and a new timeline or the end of a flush has opened it again" if was_complete else ""
    seconds = max(int((late - limit).total_seconds()), 1)
    broken = Measured(
        "seconds beyond the limit", 0, seconds, f"{day} of `{view.window.name}` still open: {where}{overdue}{again}"
    )
    numbers = {"seconds_left": left.total_seconds(), "seconds_late": late.total_seconds()}
    remedy = _in_words(COMPLETE.remedy, view, day)
    return Checked(replace(COMPLETE, remedy=remedy), (broken,), is_error=level == "error", numbers=numbers)


def check_counts(view: DayView, day: str, counts: DayCounts) -> Checked:
    """Check whether a day has one row of each window and group."""
    doubled = counts.doubled or 0
    of = f"{counts.rows:,} rows of {day} of `{view.window.name}`"
    sentence = f"{doubled:,} of {of} have the window and group of another row"
    broken = (Measured("rows that the table has twice", 0, doubled, sentence),) if doubled else ()
    compared = "" if counts.doubled is not None else "; not compared, as a group is a struct or an array"
    note = f"{day} has {counts.rows:,} rows, {counts.final:,} of them final{compared}"
    check = replace(COUNTS, remedy=_in_words(COUNTS.remedy, view, day))
    return Checked(check, broken, is_error=True, note=note, numbers={**_numbers_of(counts), "doubled": doubled})


def check_freshness(view: DayView, workspace: Workspace) -> Checked | None:
    """Check how long ago the newest final result ended; None before the first one, or without a limit."""
    levels = view.file.spec.alerts.freshness
    newest_us = _newest_end(workspace, view.window) if levels is not None else None
    return None if levels is None or newest_us is None else freshness_of(view, levels, newest_us)


def freshness_of(view: DayView, levels: AgeLevels, newest_us: int) -> Checked:
    """Do the same for a result that ended at an instant, microseconds since the epoch."""
    age = timedelta(seconds=view.now.timestamp() - newest_us / 1e6)
    level = None if view.reached.final else _level(levels, age)
    numbers = {"seconds_behind": age.total_seconds()}
    ended = f"the newest final result of `{view.window.name}` ended at {Instant(newest_us)} UTC"
    check = replace(FRESHNESS, remedy=_in_words(FRESHNESS.remedy, view, ""))
    if level is None:
        return Checked(check, (), note=ended, numbers=numbers)
    limit: timedelta = getattr(levels, level)
    sentence = f"{ended}, {roughly(age)} ago; limit {format_duration(limit)}"
    broken = Measured("seconds beyond the limit", 0, int((age - limit).total_seconds()), sentence)
    return Checked(check, (broken,), is_error=level == "error", numbers=numbers)


def _newest_end(workspace: Workspace, window: WindowSpec) -> int | None:
    """Return the end of the newest final result as of the last commit, microseconds; None before the first."""
    table = tables.window_table(window.name)
    if not workspace.exists or not workspace.lake.exists(table):
        return None
    only = [("_is_final", "=", True)] if window.revises else []
    version = workspace.base_of(table)
    rows = newest_rows(workspace.lake, table, version, ["window_end"], by="window_end", most=1, filters=only)
    return rows["window_end"].cast("int64")[0].as_py() if rows.num_rows else None


@dataclass(frozen=True)
class Target:
    """A materialization that the result of a check is about; without it Dagster shows no result of the day."""

    storage_id: int
    run_id: str
    timestamp: float

    @property
    def stored(self) -> Any:
        """Dagster's own value, which has no public class. It reads the stored form as long as today's results."""
        return dg.deserialize_value(json.dumps({"__class__": _TARGET, **asdict(self)}))


def evaluations(
    asset: dg.AssetKey, by_day: Mapping[str | None, Iterable[Checked]], targets: Mapping[str, Target]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield results as Dagster takes them, by day (None for the whole window); `targets` has materializations."""
    for day, checks in by_day.items():
        target = targets.get(day) if day is not None else None
        for checked in checks:
            yield dg.AssetCheckEvaluation(
                asset_key=asset,
                check_name=checked.expectation.name,
                passed=checked.passed,
                severity=dg.AssetCheckSeverity.ERROR if checked.is_error else dg.AssetCheckSeverity.WARN,
                description=checked.note if checked.passed else checked.message,  # the check itself says what holds
                metadata={name: dg.MetadataValue.float(float(n)) for name, n in checked.numbers.items()},
                target_materialization_data=target.stored if target else None,
                partition=day,
            )


def targets_of(instance: dg.DagsterInstance, asset: dg.AssetKey, days: Iterable[str]) -> dict[str, Target]:
    """Return the newest materialization of each day that has one."""
    kind, wanted_days = dg.DagsterEventType.ASSET_MATERIALIZATION, {*days}
    numbers = instance.get_latest_storage_id_by_partition(asset, kind, partitions=wanted_days) if wanted_days else {}
    ids, targets = sorted(numbers.values()), dict[str, Target]()
    for at in range(0, len(ids), _AT_ONCE):
        some = dg.AssetRecordsFilter(asset, storage_ids=ids[at : at + _AT_ONCE])
        for record in instance.fetch_materializations(some, limit=_AT_ONCE).records:
            if record.partition_key is not None:
                targets[record.partition_key] = Target(record.storage_id, record.run_id, record.timestamp)
    return targets


def checked_days(instance: dg.DagsterInstance, asset: dg.AssetKey) -> set[str]:
    """Return the days whose newest materialization was found complete, or later than allowed."""
    check = dg.AssetCheckKey(asset, COMPLETE.name)
    infos = instance.event_log_storage.get_asset_check_partition_info([check])
    return {info.partition_key for info in infos if info.partition_key is not None and info.is_current}


def _level(levels: AgeLevels, age: timedelta) -> str | None:
    """Return the level that an age is above, the highest first."""
    for level in ("error", "warn"):
        limit: timedelta | None = getattr(levels, level)
        if limit is not None and age > limit:
            return level
    return None


def _numbers_of(counts: DayCounts) -> dict[str, float]:
    return {"rows": counts.rows, "final_rows": counts.final}


def _in_words(remedy: str, view: DayView, day: str) -> str:
    return remedy.format(file=view.file.in_command, day=day, window=view.window.name)
