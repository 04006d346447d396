"""Columns of the log that get a type which is not wider: their values are cast where all of them fit.

Here: which columns, the first value that does not fit, and the log with the other types. Not here: the value as
another type (schemas.py), wider types (resources/delta/columns.py).

Until the switch the log keeps its types, as live runs write it. A rebuild casts what it reads of it.
"""

from functools import reduce
from operator import or_

import numpy as np
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidemark.assets.exclusions import excluded, without
from tidemark.assets.schemas import as_declared, log_schema, payload_of, value_as
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.delta.columns import delta_columns, differences
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec.changes import is_wider, may_be_cast

_CAST_LOG = "_state/cast_log"  # beside the pipeline's tables


def to_cast(beside: Workspace) -> list[StructField]:
    """Return the columns of the log that are cast: their type under the spec is no wider one."""
    log, wanted = beside.log_of or beside, log_schema(payload_of(beside))
    found = differences(log.lake.schema(tables.RAW_EVENTS), delta_columns(wanted), of_both=True)
    names = [one.name for one in found if not is_wider(one.there, one.wanted) and may_be_cast(one.there, one.wanted)]
    return [field for field in wanted if field.name in names]


def with_types_of_log(beside: Workspace, schema: StructType) -> StructType:
    """Return a schema of the log with the types that columns to be cast have there."""
    log, cast = beside.log_of or beside, {field.name for field in to_cast(beside)}
    there = {field.name: field for field in log.read_base(tables.RAW_EVENTS).schema} if cast else {}
    return StructType([there[field.name] if field.name in cast else field for field in schema])


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
    there = {field.name: field.dataType for field in records.schema}
    wrong = {
        field.name: F.col(quoted(field.name)).isNotNull()
        & value_as(field.name, there[field.name], field.dataType, zone).isNull()
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
        f"Record {first[0][c.SEQ]} of the log has `{name}` = '{first[0][f'__tm_{number}']}', which is no {kind}; "
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
        beside.lake.make_anew(_CAST_LOG)
    beside.lake.create(_CAST_LOG, records.schema)
    beside.lake.append(_CAST_LOG, records, attempt=1, expect=0)
    made = beside.lake.opened.seen(_CAST_LOG)
    log.lake.take_over(tables.RAW_EVENTS, made, attempt=plan.attempt, expect=log.ready(tables.RAW_EVENTS, plan))
