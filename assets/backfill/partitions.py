"""`windows/<name>` as Dagster assets with day partitions.

Here: the partitions, and the materialization of chosen days, which is a backfill from the log. Not here: the live
run, which reports the days it touched (live.py).
"""

from collections.abc import Iterator
from datetime import date

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    BackfillPolicy,
    DailyPartitionsDefinition,
    MaterializeResult,
    MetadataValue,
    asset,
)
from dagster_pyspark import LazyPySparkResource

from tidemark.assets.backfill.days import days_in, rebuild_days
from tidemark.assets.batch.writing import BatchWriter
from tidemark.assets.display import metadata as show
from tidemark.assets.failures import RETRIES, say_who_runs, told_to_dagster
from tidemark.assets.live import OpenWorkspace, key, pool_of, run_tags
from tidemark.assets.windows import days_of_batch
from tidemark.resources import tables
from tidemark.timeops.spec import Spec, WindowSpec


def window_assets(spec: Spec, open_workspace: OpenWorkspace, first: date) -> list[AssetsDefinition]:
    """One asset per window of a spec, with partitions from a day on."""
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
        chosen = days_in(context.partition_keys)
        plan = rebuild_days(workspace, window, *chosen, context.run.run_id).plan
        context.instance.add_run_tags(context.run.run_id, run_tags(plan))
        rows = days_of_batch(BatchWriter(workspace, plan)).get(window.name, {})
        for day in context.partition_keys:  # of each its own
            context.add_asset_metadata(show.rows(rows.get(day, 0)), partition_key=day)
        yield MaterializeResult(
            metadata={
                **show.table(workspace.lake, table),
                "batch": show.number_of(plan),
                "days": MetadataValue.text("{} to {}".format(*chosen)),
            }
        )

    return window_days
