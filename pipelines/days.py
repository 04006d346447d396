"""Days of window tables, computed anew in this process: one Dagster run of the assets that the UI materializes.

Here: which days may be asked for, and the run. Not here: the command's words (commands/operating.py), the computation
(assets/backfill/days.py).
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from uuid import uuid4
from zoneinfo import ZoneInfo

from dagster import DagsterInstance

from tidemark.assets.backfill.days import days_of_zone
from tidemark.assets.day_partitions import show_days, show_days_held
from tidemark.assets.runs import key
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.rebuilding import chosen_windows
from tidemark.pipelines.runner import execute, failure_of
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import choose_spark, open_session
from tidemark.resources.tables import window_table
from tidemark.resources.workspace import SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import Spec

EARLIEST = date(1900, 1, 1)
"""The first day that may be asked for, unless the spec says another."""


def rebuild(
    file: SpecFile,
    settings: Settings,
    windows: Sequence[str],
    first: date,
    last: date,
    *,
    instance: DagsterInstance,
    tell: Callable[[str], None] = silent,
) -> Mapping[str, int]:
    """Compute days of windows, or of all if none is named, anew from the arrival log, in one run.

    Args:
        file: The spec.
        settings: The folders, addresses and Spark of this process.
        windows: The windows.
        first: First day, as `chosen_days` returned it.
        last: Last day.
        instance: Dagster's instance.
        tell: Called with a line on what is being done.

    Returns:
        Rows written, by window.

    Raises:
        SpecError: There is no such window.
        TidemarkError: Anything else prevents it.
    """
    workspace = Workspace(file, settings.warehouse)
    asked = chosen_windows(file.spec, windows)
    choice = choose_spark(settings, file.inputs)
    open_session(choice, tell)
    last_before = workspace.batches.last_commit() if workspace.exists else None
    job = build_definitions(settings, [file], choice, tell=tell).resolve_implicit_global_asset_job_def()
    try:
        for name in asked:  # Dagster takes a range by its first and its last partition
            show_days(instance, file.spec, name, [first.isoformat(), last.isoformat()])
        result = execute(
            job,
            instance,
            str(uuid4()),
            assets=[key(file.spec, window_table(name)) for name in asked],
            tags={
                "dagster/asset_partition_range_start": first.isoformat(),
                "dagster/asset_partition_range_end": last.isoformat(),
            },
        )
    finally:
        show_days_held(instance, workspace)
    if not result.success:
        raise failure_of(result, None)
    done = [one for one in workspace.batches.history() if last_before is None or one.batch_id > last_before.batch_id]
    return {name: sum(one.counts.get(f"{name}.rows", 0) for one in done) for name in asked}


def chosen_days(spec: Spec, first: date, last: date, *, now: datetime) -> tuple[date, date]:
    """Return the first and the last day of a range that can be computed anew, without days the time zone never had.

    Raises:
        SpecError: It is reversed, or a part of it is no partition.
    """
    start, zone = spec.partitions.start or EARLIEST, spec.partitions.time_zone
    today = now.astimezone(ZoneInfo(zone)).date()
    if first > last:
        raise SpecError(
            f"--from {first} is after --to {last}",
            expected="the first day before the last one",
            remedy="exchange them",
        )
    if first < start:
        raise SpecError(
            f"--from {first} is before the first partition of {spec.name}, {start}",
            expected=f"a day from {start} on",
            remedy=f"set `partitions: {{start: {first}}}` in the spec, or begin later",
        )
    if last > today:
        raise SpecError(f"--to {last} is in the future", expected=f"a day up to today, {today} ({zone})")
    return days_of_zone(first, last, zone)
