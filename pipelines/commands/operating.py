"""Commands that set up and look after pipelines: `tidemark init`, `backfill`, `rebuild`, `backup`, and others.

Here: what a person types and reads, what `init` lays out where. Not here: what is done
(pipelines/code_location/rebuilding.py, pipelines/code_location/upkeep.py, pipelines/warm/serving.py,
assets/upkeep/foreign_changes.py), what `dagster.yaml` says (resources/settings.py).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

import shlex
import sys
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    FAILED,
    Warehouse,
    for_each,
    known_settings,
    overrides_option,
    put,
    read_specs,
    say,
    says_errors,
    sentence,
    settings_of,
    spark_ui_option,
    spec_path,
    spec_paths,
    warehouse_option,
)
from tidemark.pipelines.examples.files import QUAKES, ROOMS, lay_out_example
from tidemark.resources.settings import Clock, make_dagster_home
from tidemark.resources.spark.server import PORT
from tidemark.resources.tables import TIMELINES
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.values.durations import format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.assets.upkeep.removal import Removal
    from tidemark.pipelines.code_location.upkeep import Upkeep
    from tidemark.resources.places.place import Place
    from tidemark.resources.workspace import SpecFile

_SPECS, _WAREHOUSE, _DAGSTER = "specs", "warehouse", "dagster"
_DAY = click.DateTime(formats=["%Y-%m-%d"])


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--example",
    type=click.Choice([ROOMS, QUAKES]),
    help="rooms: temperatures of three rooms, as in the tutorial; quakes: two days of made-up earthquakes, as in the "
    "README. [default: rooms if there are no specs yet]",
)
@says_errors
def init(folder: Path, example: str | None) -> None:
    """Prepare FOLDER for pipelines, with an example.

    FOLDER gets a spec and its input, a folder for tables, and Dagster's home. What already exists
    stays, so the command can be run again. FOLDER defaults to the current one.

    Exit status: 0 done; 2 bad usage; 1 a failure.
    """
    home = folder.absolute()
    for path in lay_out(home, example):
        say(f"init: {path}")
    put(_next_steps(home, home if example == QUAKES else home / _SPECS))


def lay_out(home: Path, example: str | None) -> list[Path]:
    """Make what is missing of a home; return the paths that were made, folders before what is in them.

    Without an example it is the one with the rooms, if there are no specs.

    Raises:
        TidemarkError: A file is where a folder belongs, or the place cannot be written.
    """
    made: list[Path] = []
    try:
        for name in (_WAREHOUSE,) if example == QUAKES else (_SPECS, _WAREHOUSE):
            made += _make_folder(home / name)
        if example is None and not any((home / _SPECS).glob("*.yaml")):  # an operator with specs needs no example
            example = ROOMS
        made += lay_out_example(home, example) if example else []
        made += make_dagster_home(home / _DAGSTER)
    except OSError as error:
        raise TidemarkError(
            f"{error.filename or home} cannot be created: {error.strerror}.",
            expected="a writable folder, or one that does not exist yet",
            remedy="name another one: `tidemark init FOLDER`",
        ) from error
    return made


def _make_folder(folder: Path) -> list[Path]:
    is_new = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    return [folder] if is_new else []


def _next_steps(home: Path, specs: Path) -> str:
    places = {"TIDEMARK_SPECS": specs, "TIDEMARK_WAREHOUSE": home / _WAREHOUSE, "DAGSTER_HOME": home / _DAGSTER}
    exports = " ".join(f"{name}={shlex.quote(str(place))}" for name, place in places.items())
    return (
        f"Next:\n"
        f"  export {exports}\n"
        f'  tidemark run "$TIDEMARK_SPECS"/*.yaml        process what is waiting, once\n'
        f"  dg dev -m tidemark.pipelines.definitions     the same, automatically as files arrive: http://localhost:3000"
    )


@click.command()
@spec_path
@click.option("--from", "first", metavar="DAY", type=_DAY, required=True, help="First day, such as 2026-01-31.")
@click.option("--to", "last", metavar="DAY", type=_DAY, required=True, help="Last day, included.")
@click.option("--window", "windows", metavar="NAME", multiple=True, help="Only this window; can be repeated.")
@warehouse_option
@overrides_option
@spark_ui_option
@says_errors
def backfill(
    *,
    spec: Path,
    first: datetime,
    last: datetime,
    windows: tuple[str, ...],
    warehouse: "Place | None",
    overrides: tuple[str, ...],
    spark_ui: bool,
) -> None:
    """Recompute days of SPEC's window tables from the arrival log.

    The rows of all windows that start on these days (of `partitions.time_zone`, else UTC) are replaced, in one commit
    per window, by the spec as it is now: also when its aggregates changed. It is what Materialize does in
    Dagster with a range of partitions.

    Exit status: 0 done; 2 bad spec, days or usage; 1 a failure.
    """
    from tidemark.pipelines.code_location.rebuilding import chosen_windows
    from tidemark.pipelines.running.execution import backfill_days, chosen_days
    from tidemark.pipelines.running.instance import dagster_instance
    from tidemark.pipelines.views.terminal import listed, telling

    [file] = read_specs([spec], overrides)
    names = chosen_windows(file.spec, windows)
    days = chosen_days(file.spec, first.date(), last.date(), now=Clock().now())
    settings = settings_of(warehouse, spark_ui=spark_ui)
    with dagster_instance(settings, file.spec.name, tell=say) as instance, telling(file.spec.name) as tell:
        filled = backfill_days(file, settings, names, days, instance=instance, tell=tell)
    count = (filled.last - filled.first).days + 1
    batches = f"batch{'' if len(filled.batches) == 1 else 'es'} {listed(filled.batches)}"
    days_text = f"{filled.first} to {filled.last}, {count} day{'' if count == 1 else 's'} recomputed"
    put(f"{file.spec.name}: {days_text}{f', as {batches}' if filled.batches else ''}")
    _show_rows(filled.rows)


@click.command()
@spec_path
@click.option(
    "--window",
    "windows",
    metavar="NAME",
    multiple=True,
    help="Only this window, and the windows over its results; can be repeated.",
)
@click.option(
    "--to-spec", is_flag=True, help="Only what `tidemark plan` names: some windows, all tables, or nothing."
)
@click.option(
    "--drop",
    metavar="NAME",
    multiple=True,
    help="Delete the tables of this window, which is no longer in the spec; can be repeated.",
)
@click.option("--reason", metavar="TEXT", help="Why; recorded in `batches` and `log_control`.")
@warehouse_option
@overrides_option
@spark_ui_option
@says_errors
def rebuild(
    *,
    spec: Path,
    windows: tuple[str, ...],
    to_spec: bool,
    drop: tuple[str, ...],
    reason: str | None,
    warehouse: "Place | None",
    overrides: tuple[str, ...],
    spark_ui: bool,
) -> None:
    """Rebuild all derived tables of SPEC from its log.

    They become the tables of a new pipeline with the spec as it is now and the same log: use it after a change of the
    spec that needs the past, or if a table was lost or damaged. It needs `raw_events`, `log_control`, `batches`
    and `_state/files`. It works next to the old tables and switches all of them in one commit. Until then readers see
    the old ones, and runs continue; what they process is included. If stopped, it continues where it was. The
    old state stays readable as long as `tidemark maintain --retain` says.

    Exit status: 0 done; 2 bad spec or usage; 1 a failure, or a failed blocking check.
    """
    if sum(map(bool, (windows, to_spec, drop))) > 1:
        raise click.UsageError("Use only one of --window, --to-spec and --drop.")
    why = sentence(reason, "--reason") if reason is not None else None
    from uuid import uuid4

    from tidemark.assets.rebuild.switch import drop_windows
    from tidemark.pipelines.code_location.rebuilding import RebuildSettings
    from tidemark.pipelines.code_location.watches import lineage_watch
    from tidemark.pipelines.running.execution import rebuild_pipeline
    from tidemark.pipelines.running.instance import dagster_instance
    from tidemark.pipelines.views.terminal import telling
    from tidemark.resources.workspace import Workspace

    [file] = read_specs([spec], overrides)
    settings, name = settings_of(warehouse, spark_ui=spark_ui), file.spec.name
    if drop:
        with telling(name) as tell:
            workspace = Workspace(file, settings.warehouse, tell=tell, watch=lineage_watch(lambda: None))
            dropped = drop_windows(workspace, str(uuid4()), drop, why)
        put(f"{name}: the tables of {' and '.join(drop)} are deleted, as batch {dropped.batch_id}")
        return
    with dagster_instance(settings, name, tell=say) as instance, telling(name) as tell:
        request = RebuildSettings(reason=why, windows=[*windows], to_spec=to_spec)
        rebuilt = rebuild_pipeline(file, settings, request, instance=instance, tell=tell)
    if rebuilt is None:
        put(
            f"{name}: nothing needs the past, so nothing was rebuilt. `tidemark run` continues with the spec as it is"
        )
        return
    records = f"{rebuilt.commit.plan.end_seq or 0:,} records"
    put(f"{name}: rebuilt from the {records} of the log, as batch {rebuilt.commit.batch_id}")
    _show_rows(rebuilt.rows)


def _show_rows(rows: "Mapping[str, int]") -> None:
    width = max(len(table) for table in rows)
    for table, n in rows.items():
        put(f"  {table:<{width}}  {n:>12,} rows")


@click.command()
@spec_path
@click.option("--accept", metavar="TEXT", help="Keep them, and why; recorded in `batches`.")
@click.option(
    "--take-back", metavar="TEXT", help="Bring back what the last commit had, and why; recorded in `batches`."
)
@warehouse_option
@overrides_option
@says_errors
def changes(
    *,
    spec: Path,
    accept: str | None,
    take_back: str | None,
    warehouse: "Place | None",
    overrides: tuple[str, ...],
) -> None:
    """Show rows of SPEC's tables that others changed, and decide.

    These are changes since the last commit, for example a requested DELETE. No run continues until you have
    decided. It needs no Spark.

    Exit status: 0 there are none, or it is decided; 1 there are some, or a failure; 2 bad spec or usage.
    """
    if accept is not None and take_back is not None:
        raise click.UsageError("Use either --accept or --take-back, not both.")
    reason = sentence(accept, "--accept") if accept is not None else None
    reason = sentence(take_back, "--take-back") if take_back is not None else reason
    from uuid import uuid4

    from tidemark.pipelines.code_location.watches import batch_watch
    from tidemark.resources.workspace import Workspace

    [file] = read_specs([spec], overrides)
    settings, name = known_settings(warehouse) if reason is None else settings_of(warehouse), file.spec.name
    watch = batch_watch(lambda: None)
    workspace = Workspace(file, settings.warehouse, watch=watch)
    if reason is None:
        foreign = workspace.changes_by_others
        put(f"{name}: {len(foreign) or 'no'} change{'' if len(foreign) == 1 else 's'} of rows by others")
    else:
        from tidemark.assets.upkeep.foreign_changes import decide_on_changes
        from tidemark.pipelines.running.instance import dagster_instance

        with dagster_instance(settings, name, tell=say) as instance:
            foreign = decide_on_changes(workspace, reason, str(uuid4()), keep=accept is not None, instance=instance)
        last = workspace.batches.last_commit()
        decision = "kept" if accept is not None else "taken back"
        put(f"{name}: {decision}, as batch {last.batch_id if last else 0}")
    for change in foreign:
        put(f"  {change}")
    if foreign and reason is None:
        sys.exit(FAILED)


@click.command()
@spec_paths
@warehouse_option
@click.option(
    "--retain",
    metavar="DURATION",
    default="7 days",
    show_default=True,
    help="How long commits stay readable, and Dagster's runs and failed checks stay; at least 1 hour.",
)
@click.option("--dry-run", is_flag=True, help="Only show the rows that `retention` of the spec would remove.")
@overrides_option
@says_errors
def maintain(
    *, specs: tuple[Path, ...], warehouse: "Place | None", retain: str, dry_run: bool, overrides: tuple[str, ...]
) -> None:
    """Join small files, delete old ones, also while pipelines run.

    It needs no Spark. Deleted are files of old versions of tables, failed checks, and Dagster's runs. The last commit
    stays readable, and each that is younger than --retain. Rows stay, but for ones that `retention` of the spec says:
    these are removed as soon as no run is at work.

    Exit status: 0 done; 1 a failure; 2 bad spec or usage.
    """
    try:
        readable_for = parse_duration(retain)
    except SpecError as error:
        raise click.BadParameter(str(error), param_hint="--retain") from error
    from tidemark.pipelines.code_location.upkeep import look_for_old_rows
    from tidemark.pipelines.code_location.upkeep import maintain as look_after
    from tidemark.pipelines.running.instance import dagster_instance
    from tidemark.pipelines.views.terminal import telling

    files = read_specs(specs, overrides)
    settings = settings_of(warehouse)

    def look_after_one(file: "SpecFile") -> None:
        name = file.spec.name
        if dry_run:
            put(f"{name}: would remove")
            _show_removal(look_for_old_rows(file, settings))
            return
        with dagster_instance(settings, name, tell=say, captures_output=True) as instance, telling(name) as tell:
            upkeep = look_after(file, settings, readable_for, instance=instance, tell=tell)
        _show_upkeep(name, readable_for, upkeep, Clock().now())

    sys.exit(for_each(files, look_after_one, name_of=lambda file: file.spec.name))


@click.command()
@spec_path
@click.option(
    "--to",
    "target",
    metavar="DIR",
    type=Warehouse(file_okay=False, path_type=Path),
    required=True,
    help="Warehouse for the copy, a folder or the URL of a store; it must hold no tables of this pipeline.",
)
@warehouse_option
@says_errors
def backup(*, spec: Path, target: "Place", warehouse: "Place | None") -> None:
    """Copy SPEC's tables as of the last commit, also while it runs.

    The copy is a warehouse of its own: name it with --warehouse, and every command works on it. It needs no Spark and
    changes nothing of the original.

    Exit status: 0 done; 1 a failure; 2 bad spec or usage, or there is something in DIR already.
    """
    from tidemark.assets.upkeep.backup import back_up
    from tidemark.pipelines.views.terminal import telling
    from tidemark.resources.workspace import Workspace

    [file] = read_specs([spec], ())
    settings, name = known_settings(warehouse), file.spec.name
    with telling(name) as tell:
        copy = back_up(Workspace(file, settings.warehouse, tell=tell), target.absolute())
    put(f"{name}: copied as of batch {copy.commit.batch_id}, {copy.files:,} files, {copy.bytes:,} bytes")
    put(f"  {copy.folder}")


def _show_upkeep(name: str, retain: timedelta, upkeep: "Upkeep", now: datetime) -> None:
    """Show what was done in each table with any work, and what is still to be deleted, and when."""
    if not upkeep.tables:
        put(f"{name}: has no tables yet.")
        return
    files_before, files_after = upkeep.files
    if upkeep.removal.old or upkeep.removal.waits:
        put(f"{name}: removed")
        _show_removal(upkeep.removal)
    put(f"{name}: {files_before:,} files in {len(upkeep.tables)} tables, now {files_after:,}")
    width = max(len(table.table) for table in upkeep.tables)
    for table in upkeep.tables:
        if table.before.files != table.after.files or table.freed:
            freed = f"{table.freed:>14,} bytes freed" if table.freed else ""
            put(f"  {table.table:<{width}}  {table.before.files:>7,} -> {table.after.files:<7,}{freed}".rstrip())
    put(
        f"older than {format_duration(retain)}: {upkeep.freed:,} bytes of files, {upkeep.failures} file(s) of failed "
        f"checks and {upkeep.runs} run(s) of Dagster deleted"
    )
    put(f"tables: {upkeep.bytes[0]:,} bytes, {upkeep.bytes[1]:,} now")
    # Backfills begin with the old versions of this one.
    old = sum(table.after.of_old_versions for table in upkeep.tables if table.table != TIMELINES)
    if old:
        put(
            f"{old:,} of these belong to old versions, such as files that were joined, and stay readable for "
            f"{format_duration(retain)}: the same command after {now + retain:%Y-%m-%d %H:%M} UTC deletes what the "
            "last commit does not need"
        )


@click.command()
@spec_paths
@warehouse_option
@overrides_option
@says_errors
def register(*, specs: tuple[Path, ...], warehouse: Path | None, overrides: tuple[str, ...]) -> None:
    """Name the tables of pipelines in a catalog.

    It also lets the views show the last commit. Runs do this by themselves where the spec has a `catalog`. Use it
    after a failure, or for a catalog that is new.

    Exit status: 0 done; 1 a failure; 2 bad spec or usage.
    """
    from tidemark.pipelines.views.terminal import telling
    from tidemark.resources.catalog import committed_view
    from tidemark.resources.catalog import register as give_names
    from tidemark.resources.spark.choice import choose_spark, open_session
    from tidemark.resources.workspace import Workspace

    files = read_specs(specs, overrides)
    if without := [file.name for file in files if file.spec.catalog is None]:
        raise SpecError(
            f"{', '.join(without)}: there is no `catalog`.",
            expected="the catalog in which to name the tables",
            remedy="write `catalog: {name: spark_catalog, schema: quakes}`; the docs say how Spark finds one",
        )
    settings = known_settings(warehouse)

    def register_one(file: "SpecFile") -> None:
        name = file.spec.name
        with telling(name) as tell:
            assert file.spec.catalog is not None  # refused above
            spark = partial(open_session, choose_spark(settings), tell)
            registered = give_names(Workspace(file, settings.warehouse, spark), file.spec.catalog)
        if registered.batch_id is None:
            put(f"{name}: nothing is committed yet, so there is nothing to name")
            return
        put(
            f"{name}: {len(registered.names)} tables in {registered.schema}, and views of them as of batch "
            f"{registered.batch_id}"
        )
        for table in registered.names:
            put(f"  {table}, {committed_view(table)}")

    sys.exit(for_each(files, register_one, name_of=lambda file: file.spec.name))


@click.command()
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1024, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on.",
)
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(1024, 65535),
    help="Also answer with metrics for Prometheus, of the specs in TIDEMARK_SPECS, at /metrics; this machine only.",
)
@spark_ui_option
@says_errors
def serve(*, port: int, metrics_port: int | None, spark_ui: bool) -> None:
    """Keep Spark and Python warm for runs on this machine, until Ctrl-C.

    Runs that have the same DAGSTER_HOME use that Spark as long as it answers, and compute in their own process when
    it does not. It is a Spark Connect server with Delta Lake that listens on this machine only and admits users that
    can read DAGSTER_HOME. The Python process has imported everything: commands of this user, and runs that Dagster
    launches, begin as forks of it.

    Exit status: 130 stopped with Ctrl-C; 143 with SIGTERM; 1 a failure, also when Spark ends by itself.
    """
    from tidemark.pipelines.warm.serving import serve as serve_until_stopped

    try:
        settings = settings_of(spark_ui=spark_ui)
        serve_until_stopped(settings, port, lambda doing: say(f"serve: {doing}"), metrics_port=metrics_port)
    except KeyboardInterrupt:
        say("serve: from now on runs compute in their own processes")
        raise


def _show_removal(removal: "Removal") -> None:
    """Show the old rows of each table, and the first day that stays."""
    width = max((len(old.table) for old in removal.old), default=0)
    for old in removal.old:
        put(f"  {old.table:<{width}}  {old.rows:>11,} old rows, kept from {old.gone.first_day} on")
    if removal.freed:
        put(f"  {removal.freed:,} bytes of files that the tables no longer need")
    if removal.waits:
        put(f"  nothing yet: {removal.waits}")
    elif not removal.old:
        put("  nothing: no row is older than `retention` says, or the spec has none")


COMMANDS = (init, backfill, rebuild, changes, maintain, backup, register, serve)
