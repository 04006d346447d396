"""`windows/<name>` as Dagster assets with day partitions.

Here: the partitions, the first of them, and the materialization of chosen days, which is a backfill from the log. Not
here: the live run, which reports the days it touched (../live.py).
"""

import warnings
from collections.abc import Iterable, Iterator
from datetime import date
from zoneinfo import ZoneInfo

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    BackfillPolicy,
    BetaWarning,
    DailyPartitionsDefinition,
    MaterializeResult,
    MetadataValue,
    asset,
)
from dagster_pyspark import LazyPySparkResource

from tidemark.assets.backfill.days import days_of_zone, rebuild_days
from tidemark.assets.batch.batch import BatchWriter
from tidemark.assets.display import metadata as show
from tidemark.assets.runs import RETRIES, OpenWorkspace, key, pool_of, run_tags, say_who_runs, told_to_dagster
from tidemark.assets.windows import days_of_batch
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.utc import Instant, begin_of, instant_of, us_of

UNTIL_KNOWN = date(2020, 1, 1)
"""The first day while no window was closed yet."""
EARLIEST = date(1900, 1, 1)
"""The first day at the earliest, unless the spec says another: one wild event must not give a million days."""


def window_assets(spec: Spec, open_workspace: OpenWorkspace, first: date) -> list[AssetsDefinition]:
    """One asset per window of a spec, with partitions from a day on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)  # of `backfill_policy`, which is used on purpose
        return [_window(spec, window, open_workspace, first) for window in spec.windows]


def _window(spec: Spec, window: WindowSpec, open_workspace: OpenWorkspace, first: date) -> AssetsDefinition:
    table = tables.window_table(window.name)
    inputs = [] if window.input is None else [key(spec, tables.window_table(window.input))]
    # Windows of today are there as soon as they are closed, so today is a partition too.
    zone = spec.partitions.time_zone
    days = DailyPartitionsDefinition(start_date=first.isoformat(), timezone=zone, end_offset=1)

    @asset(
        key=key(spec, table),
        group_name=spec.name,
        description=f"Final results of the {window.kind} window `{window.name}`. A partition is the day of "
        f"window_start ({zone}). Live runs write it; materializing days computes them anew from the arrival log.",
        deps=[key(spec, "window_results"), *inputs],
        kinds={"pyspark", "delta"},
        owners=list(spec.owners),
        tags=dict(spec.tags),
        partitions_def=days,
        backfill_policy=BackfillPolicy.single_run(),
        pool=pool_of(spec),
        retry_policy=RETRIES,
    )
    @told_to_dagster
    def window_days(
        context: AssetExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[MaterializeResult[None]]:
        say_who_runs(context)
        workspace = open_workspace(tidemark_spark)
        workspace.ensure_whole()
        asked = context.partition_key_range
        chosen = days_of_zone(date.fromisoformat(asked.start), date.fromisoformat(asked.end), zone)
        plan = rebuild_days(workspace, window, *chosen, context.run.run_id).plan
        context.instance.add_run_tags(context.run.run_id, run_tags(plan))
        rows = days_of_batch(BatchWriter(workspace, plan)).get(window.name, {})
        for day in context.partition_keys:  # of each its own
            if chosen[0] <= date.fromisoformat(day) <= chosen[1]:
                n = rows.get(day, 0)  # all that it has: the days are written whole
            context.add_asset_metadata({**show.day(n), **show.rows_written(n)}, partition_key=day)
        yield MaterializeResult(
            metadata={
                **show.table(workspace.lake, table),
                "batch": show.number_of(plan),
                "days": MetadataValue.text("{} to {}".format(*chosen)),
            }
        )

    return window_days


def first_day(workspace: Workspace) -> date:
    """The first day of the partitions: `partitions.start`, else the first one on which a window starts.

    Windows that come in later may start on earlier days: Dagster shows those when it loads its definitions anew.
    """
    given = workspace.spec.partitions.start
    if given is not None:
        return given
    try:
        return _first_in_tables(workspace)
    except Exception as error:  # whatever is wrong with the tables, the pipeline has to be shown
        warnings.warn(f"{workspace.spec.name}: its first day cannot be read: {error}", stacklevel=2)
        return UNTIL_KNOWN


def _first_in_tables(workspace: Workspace) -> date:
    earliest = min(_first_starts(workspace), default=None)
    if earliest is None:
        return UNTIL_KNOWN
    zone = workspace.spec.partitions.time_zone
    if earliest.us < us_of(begin_of(EARLIEST, zone)):
        return EARLIEST
    now_us = us_of(workspace.clock.now())  # a window of the year 9999 has no day that every zone could name
    return instant_of(min(earliest.us, now_us)).astimezone(ZoneInfo(zone)).date()


def _first_starts(workspace: Workspace) -> Iterable[Instant]:
    """When the first window of each table starts, as of the last commit; from the statistics of its files."""
    if not workspace.exists:
        return
    base = workspace.base()
    for table in workspace.window_tables.values():
        start = workspace.lake.lowest(table, base[table], "window_start") if base[table] else None
        if start is not None:
            yield start
