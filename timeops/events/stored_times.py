"""Times read directly from stored columns, where no SQL is needed.

Here: for which rules and records that is so, what the loop and the counts ask of these, and their roles, for arrays.
Not here: all other records, whose times Spark computes (timeops/events/event_time.py, timeops/events/adjustment.py);
where records are stored.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, TimestampType

from tidemark.timeops.columns import ARRIVAL, CLOCK, MALFORMED, MAX_US, MIN_US, SEQ, SOURCE, SPLIT, TIMELINE
from tidemark.timeops.computing.materialize import Stored, from_driver
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.rules.arrival import kept_early
from tidemark.timeops.rules.reasons import AT_INGESTION, CODES, REASONS
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.values.instants import Array
from tidemark.timeops.watermark.fold import ACTIVE, AHEAD, JUDGED, OUTSIDE
from tidemark.timeops.watermark.timelines import CLOCK_US, ROLE, T_US

WHY = "__tm_why"
"""TINYINT of a record: the place in REASONS, counted from 1, of what refused it before rule 3; else 0."""
MOVED_BY = "__tm_moved_by"
"""TINYINT: the bits of adjustment.MOVED that are known before rule 3; rule 1 may have moved or kept an event."""
SOURCE_PLACE = "__tm_source_place"
"""SMALLINT, of several sources: the place of the record's source in the rules; their number for another source."""
COUNTED_ARRIVAL_US, COUNTED_EVENT_US = "__tm_counted_arrival_us", "__tm_counted_event_us"

_EVENT, _CLOCK, _ARRIVAL = _INSTANTS = ("event", "clock", "arrival")


def stored_times(items: DataFrame, rules: TimeRules, read: Stored, *, counts: bool) -> pa.Table | None:
    """Return the narrow columns of the records of a segment without a query of Spark for each of them.

    Args:
        items: The records.
        rules: The rules of time.
        read: Reads columns of the same records.
        counts: Whether the columns that counts ask for are there too.

    Returns:
        The same as Spark for every record, in any order. None where a rule or a timeline asks for SQL, or a record is
        not plainly one with a time: the event time must be a column of TIMESTAMP, or the arrival.
    """
    column, over = column_of_time(items, rules), rules.time.over
    early = rules.time.early is not None and rules.time.early.policy != "keep"
    is_asked = early or rules.time.late or rules.time.deduplicate_by or rules.windows_to_close
    if column is None or is_asked or not all(_is_of(items, name, StringType()) for name in over) or len(over) > 1:
        return None
    of_source = [SOURCE] if rules.uses_splits or (counts and len(rules.sources) > 1) else []
    texts = [*(name.strip("`") for name in over), *of_source, *([SPLIT] if rules.uses_splits else [])]
    pieces = read([*dict.fromkeys([SEQ, CLOCK, ARRIVAL, MALFORMED, column, *texts])])
    tables = []
    for rows in pieces if pieces is not None else ():
        if not _are_as_declared(rows, column, texts):
            return None
        instants = [rows[name].cast(pa.int64()) for name in (column, CLOCK, ARRIVAL)]
        if any(map(_has_others, instants)) or rows[MALFORMED].null_count < len(rows):
            return None
        if not all(_is_utf8(rows[name]) for name in texts):
            return None
        tables.append(pa.table([rows[SEQ], *instants, *[rows[name] for name in texts]], [SEQ, *_INSTANTS, *texts]))
    if not tables:
        return None
    table = pa.concat_tables(tables)
    return None if over and table[texts[0]].null_count else _narrow(table, items, rules, texts, counts=counts)


def _are_as_declared(rows: pa.RecordBatch, column: str, texts: Sequence[str]) -> bool:
    """Return whether what is stored has the types that the spec declares."""
    instant = rows[column].type
    are_texts = all(
        pa.types.is_string(rows[name].type) or pa.types.is_large_string(rows[name].type) for name in texts
    )
    return are_texts and pa.types.is_timestamp(instant) and instant.tz is not None


def column_of_time(items: DataFrame, rules: TimeRules) -> str | None:
    """Return the column that holds the event time of all records; None where there is no such column."""
    if len(rules.event_times) > 1:
        return None
    by = rules.event_times[0].timestamp_by
    if by is None:
        return ARRIVAL
    return by.strip("`") if _is_of(items, by, TimestampType()) else None


def _is_of(items: DataFrame, expression: str, kind: StringType | TimestampType) -> bool:
    read = Columns.of(items).read(expression)
    return read.column is not None and read.type == kind


def _has_others(instants: pa.Array) -> bool:
    """Return whether one of some instants is none, or not in the years 0001 to 9999."""
    ends = pc.min_max(instants).as_py()
    return bool(instants.null_count) or (len(instants) > 0 and (ends["min"] < MIN_US or ends["max"] > MAX_US))


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _narrow(rows: pa.Table, items: DataFrame, rules: TimeRules, texts: Sequence[str], *, counts: bool) -> pa.Table:
    unit_us, count = rules.time.unit_us, len(rows)
    event = np.asarray(rows[_EVENT])
    role = roles(np.zeros(count, np.int8), event, rows[_ARRIVAL], rules)
    columns: dict[str, object] = {
        SEQ: rows[SEQ],
        T_US: rows[_EVENT] if unit_us == 1 else pa.array(event // unit_us * unit_us),
        CLOCK_US: rows[_CLOCK],
        ROLE: role,
    }
    if rules.time.over:
        columns[TIMELINE] = _timelines(rows[texts[0]], items, rules)
    if rules.uses_splits:
        columns |= {SOURCE: rows[SOURCE], SPLIT: rows[SPLIT]}
    if counts:
        columns[WHY] = np.zeros(count, np.int8)
        if kept_early(rules.time) is not None:
            columns[MOVED_BY] = (role == AHEAD).astype(np.int8)
        if len(rules.sources) > 1:
            names = pa.array([source.name for source in rules.sources])
            place = pc.fill_null(pc.index_in(rows[SOURCE], value_set=names), len(names))
            columns[SOURCE_PLACE] = place.cast(pa.int16())
        if any(source.timestamp_by is not None for source in rules.sources):
            columns |= {COUNTED_ARRIVAL_US: rows[_ARRIVAL], COUNTED_EVENT_US: rows[_EVENT]}
    return pa.table(columns)


def roles(
    why: Array, event_us: Array | pa.ChunkedArray, arrival_us: Array | pa.ChunkedArray, rules: TimeRules
) -> Array:
    """Return the roles of records, as `adjustment.role_sql` does.

    `why` is what refuses each before rule 3, as CODES; 0 for nothing.
    """
    refused = ACTIVE if rules.follows_activity else OUTSIDE
    of_code = np.full(len(REASONS) + 1, refused, np.int8)
    of_code[[CODES[reason] for reason in AT_INGESTION]], of_code[0] = OUTSIDE, JUDGED
    role = of_code[why]
    rule = kept_early(rules.time)
    if rule is not None:
        role[rule.applies(np.asarray(event_us) - np.asarray(arrival_us)) & (why == 0)] = AHEAD
    return role


def _timelines(texts: pa.ChunkedArray, items: DataFrame, rules: TimeRules) -> pa.Array:
    """Return `_timeline`: Spark is asked once for each value."""
    codes = texts.combine_chunks().dictionary_encode()
    [name] = [name.strip("`") for name in rules.time.over]
    values = from_driver(items.sparkSession, pa.table({name: codes.dictionary}))
    names = values.selectExpr(f"{timeline(Columns.of(values), rules.time.over)} AS {TIMELINE}").toArrow()[TIMELINE]
    return pa.DictionaryArray.from_arrays(codes.indices, names.combine_chunks())
