"""`tm.TidemarkResource`: an asset of a project reads tables of a pipeline, of its partition and as of one commit.

Here: which rows a partition has, and the commit that all reads of a run share. Not here: reading a table as of a
commit (resources/batches/committed.py), days of window tables in Dagster (assets/catalog/days/partitions.py).

The commit is noted on the run by the first read, as a tag: steps in other processes and steps that are tried again
find it there, and so does a run that continues where another one failed. Any other run begins with the last commit.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.catalog.days.partitions import ensure_day
from tidemark.pipelines.command_line import SPECS
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.committed import Published, consistent, read
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.place import Place
from tidemark.resources.scratch import user_lock
from tidemark.resources.settings import from_environment
from tidemark.resources.spark.choice import choose_spark, open_session, session_of_process
from tidemark.resources.tables import HELD_EVENTS, ORDERED_EVENTS
from tidemark.timeops.errors import LakeError, MachineError, SpecError
from tidemark.timeops.values.utc import begin_of, us_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame

Context = dg.AssetExecutionContext | dg.OpExecutionContext | dg.AssetCheckExecutionContext
Span = tuple[int, int]
"""From an instant, and before another one, microseconds since the epoch."""
_TAG = ".dagster/tidemark_read/"  # Dagster shows no tag with this prefix: the metadata of the output say it to people
_RESUMES = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")


class TidemarkResource(dg.ConfigurableResource):  # type: ignore[type-arg] # it is its own value
    """Reads tables of pipelines for one's own assets: `warehouse` is the folder of all tables, or its URL.

    All reads of a run see one commit of a pipeline, the last one at its first read.
    """

    warehouse: str | None = None
    """The folder of all tables, or its URL; by default `TIDEMARK_WAREHOUSE`, else `./warehouse`."""
    pipeline: str | None = None
    """The pipeline whose tables are read, unless a call names another one."""

    @overload
    def read(self, context: Context, table: str, *, pipeline: str | None = None) -> pa.Table: ...
    @overload
    def read(
        self, context: Context, table: str, *, as_: Literal["arrow"], pipeline: str | None = None
    ) -> pa.Table: ...
    @overload
    def read(
        self, context: Context, table: str, *, as_: Literal["pandas"], pipeline: str | None = None
    ) -> "pd.DataFrame": ...
    @overload
    def read(
        self, context: Context, table: str, *, as_: Literal["polars"], pipeline: str | None = None
    ) -> "pl.DataFrame": ...
    @overload
    def read(
        self, context: Context, table: str, *, as_: Literal["spark"], pipeline: str | None = None
    ) -> "DataFrame": ...

    def read(self, context: Context, table: str, *, as_: str = "arrow", pipeline: str | None = None) -> Any:
        """Return the rows of a table that belong to the partition of a run.

        A row of a window belongs to the day of its `window_start`, a row of `ordered_events` or `held_events` to that
        of its `_timestamp`, by `partitions.time_zone` of the pipeline. Of other time partitions than days, such as
        hours, it belongs to the time window. A run for a range of partitions gets the rows of all, and one
        without partitions all rows. The output of the asset gets the number of the commit and the version of the
        table as metadata.

        Args:
            context: The context of the asset, op or check.
            table: Name of the table, such as `windows/by_hour`.
            as_: `arrow`, `pandas`, `polars`, or `spark` for a DataFrame of the session of this process, which is
                started if there is none.
            pipeline: Name of the pipeline; by default that of the resource.

        Raises:
            SpecError: No pipeline is named, a partition is not a day or is one of another zone, or the table has no
                days.
            LakeError: There is no such pipeline or table, or it has committed nothing.
            MachineError: polars is not installed, or Spark does not start.
        """
        if as_ not in _FORMS and as_ != "spark":
            raise SpecError(f"`as_` is {as_!r}", expected=f"one of {', '.join(_FORMS)}, spark")
        name, place = self._pipeline_name(pipeline), self._place
        batch = self.batch(context, pipeline=name)
        tables = consistent(place, name, batch)
        if table not in tables:
            fault, choices = f"Pipeline {name} has no table {table} as of batch {batch}.", ", ".join(sorted(tables))
            raise LakeError(fault, expected=f"one of {choices}", remedy="Check the name.")
        version = tables[table][1]
        spans = _spans(context, place / name, table)
        column = None if spans is None else _time_of(table, name, batch)
        _tell(context, {f"{name}: batch": batch, f"{name}/{table}: version": version})
        if as_ == "spark":
            session = session_of_process() or open_session(choose_spark(from_environment(SPECS, warehouse=place)))
            rows = read(session, place, name, table, batch)
            return rows if spans is None else rows.where(_sql(str(column), spans))
        condition = None if spans is None else _condition(str(column), spans)
        return _FORMS[as_](Lake(place / name).dataset(table, version).to_table(filter=condition))

    def batch(self, context: Context, *, pipeline: str | None = None) -> int:
        """Return the number of the commit that all reads of a run are of, for `tm.table` and others.

        Raises:
            SpecError: No pipeline is named.
            LakeError: There is no such pipeline, or it has committed nothing.
        """
        name, place = self._pipeline_name(pipeline), self._place
        tag = f"{_TAG}{name}/{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
        run_id, instance = _run_of(context), context.instance
        if run_id is None:
            return _last_batch(place, name)
        with user_lock("read"):  # steps of a run begin together
            run = instance.get_run_by_id(run_id)
            assert run is not None  # it is at work
            noted = _noted(run, tag) or _of_parent(instance, run, tag)
            batch = _last_batch(place, name) if noted is None else noted
            if noted is None or _noted(run, tag) is None:
                instance.add_run_tags(run_id, {tag: f"{run_id} {batch}"})
        return batch

    @property
    def _place(self) -> Place:
        place = from_environment(SPECS, warehouse=self.warehouse).warehouse
        return place.absolute()

    def _pipeline_name(self, pipeline: str | None) -> str:
        if name := pipeline or self.pipeline:
            return name
        raise SpecError(
            "No pipeline is named",
            expected="the name of the pipeline whose table is read",
            remedy='write `TidemarkResource(pipeline="quakes")`, or `.read(context, table, pipeline="quakes")`',
        )


def _run_of(context: Context) -> str | None:
    """Return the run at work; None for an asset that a test calls directly."""
    try:
        return context.run.run_id
    except dg.DagsterError:  # it has a name, which is not public
        return None


def _last_batch(place: Place, pipeline: str) -> int:
    consistent(place, pipeline)  # says what is missing
    last = BatchLog(Lake(place / pipeline)).last_commit()
    assert last is not None  # else the line above has raised
    return last.batch_id


def _noted(run: dg.DagsterRun, tag: str) -> int | None:
    """Return the commit that a run noted; Dagster copies tags to the run that repeats it, which is another one."""
    of, _, batch = run.tags.get(tag, "").partition(" ")
    return int(batch) if of == run.run_id else None


def _of_parent(instance: dg.DagsterInstance, run: dg.DagsterRun, tag: str) -> int | None:
    """Return the commit of the run that this one continues: steps that it does not repeat have read that."""
    if run.parent_run_id is None or not (_is_resumed(run) or _leaves_steps(instance, run)):
        return None
    parent = instance.get_run_by_id(run.parent_run_id)
    return None if parent is None else _noted(parent, tag)


def _is_resumed(run: dg.DagsterRun) -> bool:
    return any(run.tags.get(name) == "true" for name in _RESUMES)


def _leaves_steps(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run repeats some steps of another one, and not all of them."""
    repeated = run.step_keys_to_execute
    if not repeated or run.parent_run_id is None:
        return False
    return any(step.step_key not in repeated for step in instance.get_run_step_stats(run.parent_run_id))


def _time_of(table: str, pipeline: str, batch: int) -> str:
    if table.startswith(("windows/", "history/")):
        return "window_start"
    if table in (ORDERED_EVENTS, HELD_EVENTS):
        return "_timestamp"
    raise SpecError(
        f"The rows of {table} belong to no day, but the run is for a partition",
        expected=f"a table of windows, {ORDERED_EVENTS} or {HELD_EVENTS}",
        remedy=f"read all of it as of the same commit, batch {batch}: "
        f'`tm.table(warehouse, "{pipeline}", "{table}", resource.batch(context))`',
    )


def _spans(context: Context, pipeline: Place, table: str) -> list[Span] | None:
    """Return the spans of time of a run's partitions; None if it has none."""
    if not (context.has_partition_key or context.has_partition_key_range):
        return None
    keys, of, zone = context.partition_keys, _partitions_of(context), _zone_of(pipeline, table)
    if isinstance(of, dg.TimeWindowPartitionsDefinition) and of.is_basic_daily:
        _check_zone(keys[0], of.timezone, zone)
        return _of_days(keys, zone)
    with suppress(dg.DagsterInvariantViolationError):  # they are not of time
        window = context.partition_time_window
        return [(us_of(window.start), us_of(window.end))]
    return _of_days(keys, zone)


def _check_zone(day: str, zone: str, of_pipeline: str) -> None:
    """Refuse days of two zones: Dagster takes them for the same, by their keys, and they have different rows."""
    if zone != of_pipeline:
        raise SpecError(
            f"The partition {day} is a day in {zone}, but the days of the pipeline are in {of_pipeline}",
            expected="days of one time zone",
            remedy=f'write `DailyPartitionsDefinition(…, timezone="{of_pipeline}")`',
        )


def _partitions_of(context: Context) -> dg.PartitionsDefinition[Any] | None:
    op = context if isinstance(context, dg.OpExecutionContext) else context.op_execution_context
    return op.assets_def.partitions_def if op.has_assets_def else None


def _zone_of(pipeline: Place, table: str) -> str:
    """Return `partitions.time_zone` of the spec that the pipeline was last processed with."""
    spec = json.loads(Published(pipeline, table).spec or "{}")
    return str(spec.get("partitions", {}).get("time_zone", "UTC"))


def _of_days(keys: Sequence[str], zone: str) -> list[Span]:
    spans: list[Span] = []
    for key in sorted(keys):
        ensure_day(key)
        day = date.fromisoformat(key)
        begin, end = us_of(begin_of(day, zone)), us_of(begin_of(day + timedelta(days=1), zone))
        if begin == end:
            raise SpecError(
                f"{zone} had no {key}: the clocks went past it, so no row belongs to it",
                expected="a day that existed",
                remedy="delete this partition in Dagster, or leave it out",
            )
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    return spans


def _condition(column: str, spans: Iterable[Span]) -> pc.Expression:
    def instant(us: int) -> pa.Scalar:
        return pa.scalar(us, pa.timestamp("us", "UTC"))

    condition = pc.scalar(False)
    for begin, end in spans:
        condition |= (pc.field(column) >= instant(begin)) & (pc.field(column) < instant(end))
    return condition


def _sql(column: str, spans: Iterable[Span]) -> str:
    at = "timestamp_micros({}L)".format
    conditions = (f"({column} >= {at(begin)} AND {column} < {at(end)})" for begin, end in spans)
    return " OR ".join(conditions) or "false"


def _tell(context: Context, metadata: dict[str, int]) -> None:
    """Note what was read on the outputs of a step that are not made yet; the result of a check is its author's."""
    if _run_of(context) is None:
        return
    if isinstance(context, dg.AssetExecutionContext):
        for asset in context.selected_asset_keys:
            with suppress(dg.DagsterInvariantViolationError):
                context.add_asset_metadata(metadata, asset)
    elif isinstance(context, dg.OpExecutionContext):
        with suppress(dg.DagsterInvariantViolationError):  # of several outputs none is named
            context.add_output_metadata(metadata)


def as_pandas(rows: pa.Table) -> "pd.DataFrame":
    """Return exact numbers: whole ones with nulls would become floats."""
    import pandas as pd  # noqa: PLC0415 - takes a second to import

    exact = {getattr(pa, f"int{bits}")(): getattr(pd, f"Int{bits}Dtype")() for bits in (8, 16, 32, 64)}
    frame: pd.DataFrame = rows.to_pandas(types_mapper={**exact, pa.bool_(): pd.BooleanDtype()}.get)
    return frame


def _as_polars(rows: pa.Table) -> "pl.DataFrame":
    try:
        import polars as pl  # noqa: PLC0415 - it is not among what Tidemark needs
    except ImportError as error:
        raise MachineError(
            'The rows were requested as a polars frame (`as_="polars"`), but polars is not installed.',
            expected="the package polars",
            remedy='`pip install polars`, or use `as_="arrow"` or `as_="pandas"`',
        ) from error
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)  # of a table, not of an array
    return frame


_FORMS: Mapping[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda rows: rows,
    "pandas": as_pandas,
    "polars": _as_polars,
}
