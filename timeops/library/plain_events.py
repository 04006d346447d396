"""A plain DataFrame as an arrival log: numbers, arrivals, the clock.

Here: the columns that a log has and a DataFrame lacks, and why it may not get them. Not here: judging events.
"""

from pydantic import TypeAdapter, ValidationError
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, MapType, StringType, TimestampType

from tidemark.timeops import columns as c
from tidemark.timeops.errors import InputError
from tidemark.timeops.events.event_time import BAD, FAILED, US, with_instant
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.problems import problems_of, spec_error
from tidemark.timeops.spec import TimeSpec, is_reserved
from tidemark.timeops.spec.consistency import keys_by_arrival
from tidemark.timeops.spec.expressions import InstantExpression

SOURCE_NAME = "events"
"""`_source` of events that have none."""

TAKEN = {
    c.SEQ: (IntegralType, "whole numbers"),
    c.ARRIVAL: (TimestampType, "TIMESTAMP"),
    c.SOURCE: (StringType, "STRING"),
    c.SPLIT: (StringType, "STRING"),
}
"""Columns of the product that events may have, with their types."""


def arrival_log(events: DataFrame, time: TimeSpec, arrival_time: str | None) -> DataFrame:
    """Return the events with all that a record of the log has.

    Args:
        events: A DataFrame; see `frames.adjust` for the columns that have a meaning.
        time: The rules that the events are judged by.
        arrival_time: Spark SQL that says when an event arrived.

    Raises:
        SpecError: `arrival_time` is wrong, or does not fit the columns.
        InputError: The events have no order of arrival, or a column that has another meaning here.
    """
    _check_columns(events, arrival_time)
    timed = _with_arrival(events, time, arrival_time)
    nothing = F.lit(None).cast("string")
    given = {
        c.SEQ: F.col(c.SEQ).cast("bigint") if c.SEQ in events.columns else _numbers(events),
        c.SOURCE: F.col(c.SOURCE) if c.SOURCE in events.columns else F.lit(SOURCE_NAME),
        c.SPLIT: F.col(c.SPLIT) if c.SPLIT in events.columns else nothing,
    }
    earlier = Window.orderBy(c.SEQ).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return timed.withColumns(given).withColumns(
        {
            c.CLOCK: F.max(c.ARRIVAL).over(earlier),
            c.POSITION: F.col(c.SEQ),
            c.FILE: nothing,
            c.MALFORMED: nothing,
            c.BATCH: F.lit(0).cast("bigint"),
        }
    )


def _check_columns(events: DataFrame, arrival_time: str | None) -> None:
    taken = sorted(name for name in events.columns if is_reserved(name) and name.lower() not in TAKEN)
    if taken:
        raise InputError(
            f"the events have the column {', '.join(f'`{name}`' for name in taken)}, a name that Tidemark reserves",
            expected=f"other names; of the reserved ones only {', '.join(TAKEN)}",
            remedy=f'rename it: events.withColumnRenamed("{taken[0]}", "another_name"), or drop it',
        )
    for name, (kind, words) in TAKEN.items():
        if name in events.columns and not isinstance(events.schema[name].dataType, kind):
            found = events.schema[name].dataType.simpleString().upper()
            raise InputError(f"the column `{name}` is {found}", expected=words, remedy="cast it")
    if arrival_time is not None and c.ARRIVAL in events.columns:
        raise InputError(
            f"the events have a column `{c.ARRIVAL}`, and `arrival_time` is {arrival_time!r} as well",
            expected="one of them",
            remedy="leave `arrival_time` out, or drop the column",
        )
    if arrival_time is None and not {c.ARRIVAL, c.SEQ} & set(events.columns):
        raise InputError(
            f"the events have no order of arrival: no `arrival_time`, no column `{c.ARRIVAL}` or `{c.SEQ}`",
            expected="one of these: results depend on the order in which events arrived",
            remedy=f'name the column that says when an event arrived: arrival_time="…"; or number them in `{c.SEQ}`',
        )


def _with_arrival(events: DataFrame, time: TimeSpec, arrival_time: str | None) -> DataFrame:
    if arrival_time is not None:
        read = with_instant(events, _expression(arrival_time), time.time_zone, where="arrival_time")
        return read.withColumn(c.ARRIVAL, c.to_instant(US)).drop(US, FAILED, BAD)
    if c.ARRIVAL in events.columns:
        return events
    if keys := keys_by_arrival(time):
        raise no_arrival(keys)
    return events.withColumn(c.ARRIVAL, c.to_instant(F.lit(0).cast("bigint")))


def _expression(arrival_time: str) -> str:
    try:
        return str(TypeAdapter(InstantExpression).validate_python(arrival_time))
    except ValidationError as error:
        raise spec_error("arrival_time", problems_of(error, {}), {}) from None


def no_arrival(keys: list[str]) -> InputError:
    """Return the error that rules go by arrivals that are not known."""
    return InputError(
        f"{', '.join(keys)} needs to know when events arrived",
        expected=f"`arrival_time`, or a column `{c.ARRIVAL}`",
        remedy='name the column that says when an event arrived: arrival_time="…"',
    )


def _numbers(events: DataFrame) -> Column:
    """Return 0, 1, 2, … by arrival; ties by all columns, so that only equal rows share a place."""
    values = [
        F.to_json(F.col(quoted(field.name))) if isinstance(field.dataType, MapType) else F.col(quoted(field.name))
        for field in events.schema
    ]
    return F.row_number().over(Window.orderBy(F.col(c.ARRIVAL).asc_nulls_last(), *values)).cast("bigint") - 1
