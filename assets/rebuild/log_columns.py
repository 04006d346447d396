"""Columns of the log that a rebuild changes: values cast to another type, and the past of added columns.

Here: which columns; the first value that does not fit a type; the one commit that fills added columns from what
`_rescued` has. Not here: a value as another type (assets/schemas.py), a column in `_rescued`
(resources/sources/text_files.py), wider types (resources/delta/columns.py).

Until the switch the log keeps its types, as live runs write it. A rebuild casts what it reads of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidemark.assets.batch import BatchWriter
from tidemark.assets.log.exclusions import excluded, without
from tidemark.assets.planning import at_work
from tidemark.assets.schemas import as_declared, log_schema, payload_of, value_as
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.delta.columns import column_differences, delta_columns
from tidemark.resources.delta.versions import Filters
from tidemark.resources.sources.records import RESCUED, schema_in_input
from tidemark.resources.sources.text_files import FITS, HAS, with_column
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import Source
from tidemark.timeops.spec.changes import is_wider, may_be_cast
from tidemark.timeops.spec.fields import all_names

_CAST_LOG = "_state/cast_log"  # next to the pipeline's tables


def to_cast(beside: Workspace) -> list[StructField]:
    """Return the columns of the log that are cast: their type under the spec is not a wider one."""
    log, schema = beside.log_of or beside, log_schema(payload_of(beside))
    mismatches = column_differences(log.lake.schema(tables.RAW_EVENTS), delta_columns(schema), of_both=True)
    names = [
        column.name
        for column in mismatches
        if not is_wider(column.stored_type, column.wanted_type)
        and may_be_cast(column.stored_type, column.wanted_type)
    ]
    return [field for field in schema if field.name in names]


def with_types_of_log(beside: Workspace, schema: StructType) -> StructType:
    """Return a schema of the log with the types that columns to be cast have there."""
    log, cast = beside.log_of or beside, {field.name for field in to_cast(beside)}
    stored_fields = {field.name: field for field in log.read_base(tables.RAW_EVENTS).schema} if cast else {}
    return StructType([stored_fields[field.name] if field.name in cast else field for field in schema])


def ensure_all_fit(beside: Workspace) -> None:
    """Check that all values of the log can be cast, except in records that no place holds any longer.

    Raises:
        SpecError: One cannot; it names the first, and how many there are.
    """
    log, fields, zone = beside.log_of or beside, to_cast(beside), beside.rules.sources[0].time_zone
    if not fields:
        return
    out = excluded(beside)
    unused = np.setdiff1d(np.union1d(out.between(0, log.progress.log_end()), out.places), out.records)
    records = without(beside, log.read_base(tables.RAW_EVENTS), unused)
    kinds = {field.name: field.dataType for field in records.schema}
    wrong = {
        field.name: F.col(quoted(field.name)).isNotNull()
        & value_as(field.name, kinds[field.name], field.dataType, zone).isNull()
        for field in fields
    }
    shown = [F.col(quoted(field.name)).cast("string").alias(f"__tm_{n}") for n, field in enumerate(fields)]
    flags = [wrong[field.name].alias(f"__tm_wrong_{n}") for n, field in enumerate(fields)]
    misfits = records.where(reduce(or_, wrong.values())).select(c.SEQ, *shown, *flags)
    first = misfits.orderBy(c.SEQ).limit(1).collect()
    if not first:
        return
    number = next(n for n in range(len(fields)) if first[0][f"__tm_wrong_{n}"])
    name, kind = fields[number].name, fields[number].dataType.simpleString().upper()
    raise SpecError(
        f"Record {first[0][c.SEQ]} of the log has `{name}` = '{first[0][f'__tm_{number}']}', which is not {kind}; "
        f"records with such values: {misfits.count():,}",
        expected=f"values that are {kind}, of all records",
        remedy="take the change of `schema` back, choose another name for the new column with `rename`, or take "
        "these records out of the log with `tidemark rejudge SPEC --exclude SEQ --reason …`",
    )


def cast_log(beside: Workspace, plan: Plan) -> None:
    """Cast the log to the types of the spec, in one commit of the batch that switches the tables."""
    log = beside.log_of
    if log is None or not to_cast(beside):
        return
    log.tell("casting the columns of raw_events that have another type")
    records = as_declared(log.read_base(tables.RAW_EVENTS), payload_of(beside), beside.rules.sources[0].time_zone)
    if beside.lake.exists(_CAST_LOG):  # of a switch that did not end
        beside.lake.remove_table(_CAST_LOG)
    beside.lake.create(_CAST_LOG, records.schema)
    beside.lake.append(_CAST_LOG, records, attempt=1, expect=0)
    made = beside.lake.opened.version_at(_CAST_LOG)
    log.lake.take_over(tables.RAW_EVENTS, made, attempt=plan.attempt, expect=log.ready(tables.RAW_EVENTS, plan))


_FITS, _HAS = "__tm_fits_", "__tm_has_"  # and a number
Rescued = Sequence[tuple[Source, StructField]]


def keeps_unknown(workspace: Workspace) -> bool:
    """Return whether the log keeps values of columns that no `schema` names."""
    return RESCUED in workspace.lake.columns(tables.RAW_EVENTS)


def fill_from_rescued(workspace: Workspace, first_seq: int, begin: Callable[[], Plan]) -> None:
    """Fill columns of the log that `schema` names now and did not when the records were read, in one commit.

    Only records from `first_seq` on are looked at. Other runs wait only while it is written, in the batch that
    `begin` takes on. What they read before that is left.
    """
    to_fill = _to_fill(workspace, first_seq)
    if to_fill is not None:
        plan = begin()
        with at_work(workspace, plan):
            _commit(workspace, plan, to_fill)


def fill_all_from_rescued(workspace: Workspace, first_seq: int, plan: Plan) -> None:
    """Do so while no other run is at work, so that nothing is left; commit the batch."""
    with at_work(workspace, plan):
        _commit(workspace, plan, _to_fill(workspace, first_seq))


@dataclass(frozen=True)
class _ToFill:
    """Columns to fill, the records from the first to the last that have values for them, and how many have."""

    columns: Rescued
    span: Filters
    counts: Mapping[str, int]


def _to_fill(workspace: Workspace, first_seq: int) -> _ToFill | None:
    """Return what should be filled, and report it; None where it is nothing."""
    if not keeps_unknown(workspace):
        return None
    since: Filters = [(c.SEQ, ">=", first_seq)]
    columns = _rescued_columns(workspace, since)
    if not columns:
        return None
    counted = _fit_counts(_filled(workspace, workspace.read_base(tables.RAW_EVENTS, filters=since), columns), columns)
    if not counted["any"]:
        return None
    counts: dict[str, int] = {}
    for number, (_, field) in enumerate(columns):
        fits, has = counted[f"{_FITS}{number}"], counted[f"{_HAS}{number}"]
        counts |= {f"filled.{field.name}": fits, f"not_filled.{field.name}": has - fits}
        kind = field.dataType.simpleString().upper()
        wrong = f"; {has - fits:,} are not {kind} and stay there" if has > fits else ""
        workspace.tell(f"{field.name}: {fits:,} values of earlier records are taken from {RESCUED}{wrong}")
    return _ToFill(columns, [(c.SEQ, ">=", counted["first"]), (c.SEQ, "<=", counted["last"])], counts)


def _commit(workspace: Workspace, plan: Plan, to_fill: _ToFill | None) -> None:
    counts, versions = dict[str, int](), dict[str, int]()
    if to_fill is not None:
        rows = _filled(workspace, workspace.read_base(tables.RAW_EVENTS, filters=to_fill.span), to_fill.columns)
        rows = rows.select([f"`{name}`" for name in workspace.lake.columns(tables.RAW_EVENTS)])
        written = BatchWriter(workspace, plan).replace(tables.RAW_EVENTS, rows, where=to_fill.span)
        counts, versions = {**to_fill.counts}, {tables.RAW_EVENTS: written.version}
    workspace.batches.commit(plan, counts, versions, workspace.clock.now())


def _rescued_columns(workspace: Workspace, since: Filters) -> Rescued:
    """Return the columns that have values in `_rescued`."""
    records = workspace.read_base(tables.RAW_EVENTS, filters=since).where(F.col(RESCUED).isNotNull())
    keys = records.select(c.SOURCE, F.explode(F.json_object_keys(RESCUED)).alias("key")).distinct().collect()
    by_source: dict[str, set[str]] = {}
    names = workspace.source_names
    for row in keys:
        by_source.setdefault(names.get(row[c.SOURCE], row[c.SOURCE]), set()).add(row["key"])
    return [
        (source, field)
        for source in workspace.spec.sources
        for field in schema_in_input(workspace.spark, source)
        if by_source.get(source.name, set()).intersection(all_names(field.name, source.rename))
    ]


def _filled(workspace: Workspace, records: DataFrame, columns: Rescued) -> DataFrame:
    """Return records with the values of these columns, and for each whether there was one, and whether it fits."""
    zone, filled = workspace.spec.time.time_zone, records
    for number, (source, field) in enumerate(columns):
        of_source = c.named(c.SOURCE, workspace.source_names) == source.name
        filled = with_column(filled, source, field, of_source, zone)
        filled = filled.withColumnsRenamed({HAS: f"{_HAS}{number}", FITS: f"{_FITS}{number}"})
    return filled


def _fit_counts(filled: DataFrame, columns: Rescued) -> dict[str, int]:
    flags = [f"{flag}{number}" for number in range(len(columns)) for flag in (_HAS, _FITS)]
    fits = reduce(or_, (F.col(f"{_FITS}{number}") for number in range(len(columns))))
    filled_seq = F.when(fits, F.col(c.SEQ))
    aggregates = [F.min(filled_seq).alias("first"), F.max(filled_seq).alias("last"), F.count_if(fits).alias("any")]
    [row] = filled.agg(*aggregates, *[F.count_if(flag).alias(flag) for flag in flags]).collect()
    return row.asDict()
