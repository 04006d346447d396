"""`windows/<name>` as Dagster assets with day partitions.

Here: the materialization of chosen days, which is a backfill from the log, and of all days after a change of the
window, which rebuilds it. Not here: which days there are (assets/catalog/days/partitions.py), the live run, which
reports the days it touched (assets/live.py).
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import date

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from tidemark.assets.batch import BatchWriter
from tidemark.assets.catalog.days.checks import check_freshness, day_check_specs, view_of
from tidemark.assets.catalog.days.counts import counts_of_days, days_of_batch, rows_by_day
from tidemark.assets.catalog.days.partitions import ensure_day, show_days, shown_days, tell_checks, tell_days
from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.runs import (
    RETRIES,
    OpenWorkspace,
    key,
    pool_of,
    run_tags,
    say_who_runs,
    step_name,
    told_to_dagster,
    under_run,
)
from tidemark.assets.log.spec_changes import changes_of_spec, needed_by
from tidemark.assets.rebuild.days import days_of_zone, rebuild_days
from tidemark.assets.rebuild.plan import plan_rebuild
from tidemark.assets.rebuild.report import Telling
from tidemark.assets.rebuild.switch import rebuild
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.spec import WindowSpec


def window_assets(
    file: SpecFile, assets: Mapping[str, dg.AssetSpec], open_workspace: OpenWorkspace
) -> list[dg.AssetsDefinition]:
    """Make one asset per window of a spec, with its checks; `assets` has the names of its tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of `backfill_policy`, which is used on purpose
        return [_window(file, window, assets, open_workspace) for window in file.spec.windows]


def _window(
    file: SpecFile, window: WindowSpec, assets: Mapping[str, dg.AssetSpec], open_workspace: OpenWorkspace
) -> dg.AssetsDefinition:
    spec, table = file.spec, tables.window_table(window.name)
    zone = spec.partitions.time_zone

    @dg.multi_asset(
        name=step_name(spec, table),
        specs=[assets[table]],
        check_specs=day_check_specs(file, assets[table]),
        can_subset=True,  # its checks alone, too; and an open day has no result of one
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=pool_of(spec),
        retry_policy=RETRIES,
    )
    @told_to_dagster
    def window_days(
        context: dg.AssetExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        say_who_runs(context)
        workspace = open_workspace(context, tidemark_spark)
        workspace.ensure_whole()
        wanted_days, report = context.partition_keys, under_run(context)
        for day in wanted_days:
            ensure_day(day)
        if not context.selected_asset_keys:
            view, counts = view_of(workspace, window), counts_of_days(workspace, window, wanted_days)
            fresh = check_freshness(view, workspace)
            tell_checks(context.instance, report, view, counts, fresh=fresh)
            return
        first, last = date.fromisoformat(min(wanted_days)), date.fromisoformat(max(wanted_days))
        chosen = days_of_zone(first, last, zone)
        plan, written = _compute(context, workspace, window, wanted_days, chosen)
        context.instance.add_run_tags(context.run.run_id, run_tags(plan))
        # Reported day by day, as of live runs: a result of the step has one data version for all of its days.
        named = dg.MetadataValue.text("{} to {}".format(*chosen))
        of_window = {**dict.fromkeys(wanted_days, 0), **written.get(window.name, {})}
        view = view_of(workspace, window)
        for other in spec.windows:
            days = of_window if other == window else written.get(other.name, {})
            if days:
                about = {"batch": show.number_of(plan), **({"days": named} if other == window else {})}
                of_days = view if other == window else view_of(workspace, other)
                tell_days(context.instance, report, workspace, of_days, days, about=about)
                show_days(context.instance, spec, other.name, days)
        tell_checks(context.instance, report, view, {}, fresh=check_freshness(view, workspace))
        yield from ()

    return window_days


def _compute(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    window: WindowSpec,
    days: Sequence[str],
    chosen: tuple[date, date],
) -> tuple[Plan, dict[str, Mapping[str, int]]]:
    """Compute days of a window; with all of its days, windows that a change of the spec asks for, whole.

    Returns:
        The batch, and the rows of each day that it wrote, by window; where windows are rebuilt, of this one alone:
        the rebuild reports the days of the others.
    """
    run_id, needed = context.run.run_id, needed_by(changes_of_spec(workspace))
    if window.name in needed.windows and set(shown_days(context.instance, workspace.spec, window.name)) <= {*days}:
        report, key_of_window = under_run(context), key(workspace.file, tables.window_table(window.name))

        def report_others(event: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> None:
            """Report all but the days that were asked for, which the run yields."""
            if event.asset_key != key_of_window or event.partition not in days:
                report(event)

        telling = Telling(context.instance, report_others)
        planned = plan_rebuild(workspace, needed, "all days in Dagster")
        plan = rebuild(workspace, run_id, planned, telling=telling).commit.plan
        rows = rows_by_day(workspace, tables.window_table(window.name))
        return plan, {window.name: {day: n for day, n in rows.items() if day in days}}
    plan = rebuild_days(workspace, window, *chosen, run_id).plan
    return plan, {**days_of_batch(BatchWriter(workspace, plan))}
