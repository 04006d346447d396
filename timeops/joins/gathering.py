"""The events of both sides of a join, gathered as arrays from wherever they are.

Here: their times, which the loop has; the columns of `on`, which are numbered; both read without Spark where they are
stored as the spec declares them. Not here: what follows from the arrays (timeops/joins/events.py,
timeops/joins/as_of.py).

Equal values have one number, as in groups: 0.0 and -0.0 are equal, and a text is equal to itself alone. A value that
Spark has to make so comes from Spark.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import Stored
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.expressions.tokens import literal, literals, quoted
from tidemark.timeops.joins.events import NOBODY, OF_EARLIER, OF_SEGMENT, OF_TABLE, Events
from tidemark.timeops.narrow import as_flat, fetched, numbers
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import NONE, Array, integers

IS_LEFT = "__tm_is_left"
"""BOOLEAN, never null: the event is of the left side."""
HAS_PARTNER = "__tm_has_partner"
"""BOOLEAN of an event that an interval join keeps between segments: it has had a partner, if its side asks for that.
Null of an event of the segment, and before the log of one that an operator has let in."""
_ON = "__tm_on_"
_PLAIN = (
    *(T.StringType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType, T.BooleanType),
    *(T.DateType, T.TimestampType, T.TimestampNTZType),
)
"""Types whose values are equal for Arrow exactly where a group of Spark takes them for one."""


def gathered(
    adjusted: Adjusted,
    join: JoinSpec,
    earlier: Callable[[], DataFrame | None],
    stored: Stored | None = None,
    table: DataFrame | None = None,
) -> Events:
    """Return the events of both sides of a segment, and the earlier ones that the join keeps.

    Args:
        adjusted: The segment.
        join: The join.
        earlier: Returns the events that the join keeps from earlier segments, as they came; None for none.
        stored: Reads `_timeline`, `_arrival_seq`, T_FINAL, W_BEFORE, `_source`, the columns of `on` and, of an
            interval join, HAS_PARTNER of these without Spark; by default Spark does.
        table: The rows of a table on the right side, as events; None for none.
    """
    kinds, tables = _kinds(adjusted.accepted, join), dict[int, pa.Table]()
    rows = None if stored is None else _stored_sides(stored, join, kinds)
    events = earlier() if rows is None else None
    if rows is not None or events is not None:
        tables[OF_EARLIER] = _computed_sides(events, join, None) if events is not None else rows
    if adjusted.watermarks.has_items:
        rows = None if adjusted.stored is None else _of_log(adjusted, adjusted.stored, join, kinds)
        tables[OF_SEGMENT] = _computed_sides(adjusted.accepted, join, adjusted.seqs) if rows is None else rows
    if table is not None:
        tables[OF_TABLE] = _computed_sides(table, join, None)
    if not tables:
        tables[OF_SEGMENT] = _no_rows(kinds)
    return _events(tables, adjusted, join)


def _no_rows(kinds: Sequence[T.DataType]) -> pa.Table:
    on = {f"{_ON}{n}": pa.dictionary(pa.int32(), to_arrow_type(kind, timezone="UTC")) for n, kind in enumerate(kinds)}
    instants = dict.fromkeys([c.SEQ, c.T_FINAL, c.W_BEFORE, HAS_PARTNER], pa.int64())
    texts = {c.TIMELINE: pa.dictionary(pa.int32(), pa.string())}
    return pa.schema({**texts, **instants, IS_LEFT: pa.bool_(), **on}).empty_table()


def _computed_sides(events: DataFrame, join: JoinSpec, seqs: range | None) -> pa.Table:
    """Let Spark compute the narrow columns of the events of both sides among some."""
    names = [f"{_ON}{number}" for number in range(len(join.on))]
    narrow = [c.TIMELINE, c.SEQ, c.T_FINAL, c.W_BEFORE]
    has_partner = HAS_PARTNER if HAS_PARTNER in events.columns else "NULL"
    sides = events.where(f"{c.SOURCE} IN ({literals(join.sources)})").selectExpr(
        *(*narrow, f"{c.SOURCE} = {literal(join.left.source)} AS {IS_LEFT}"),
        f"CAST({has_partner} AS BIGINT) AS {HAS_PARTNER}",
        *[f"{quoted(on)} AS {name}" for on, name in zip(join.on, names, strict=True)],
    )
    flat = [f"IF({name} IS NULL, NULL, {as_flat(sides, name)}) AS {name}" for name in names]
    return fetched(sides.selectExpr(*narrow, HAS_PARTNER, IS_LEFT, *flat), seqs)


def _kinds(events: DataFrame, join: JoinSpec) -> Sequence[T.DataType]:
    return [field.dataType for field in events.select(*map(quoted, join.on)).schema] if join.on else []


def _stored_sides(stored: Stored, join: JoinSpec, kinds: Sequence[T.DataType]) -> pa.Table | None:
    """Read the narrow columns of the events of both sides; None where Spark has to compute some."""
    no_rows, has_partner = _no_rows(kinds), [HAS_PARTNER] if join.is_interval else []
    sides = _sides(stored, [c.TIMELINE, c.SEQ, c.T_FINAL, c.W_BEFORE, *has_partner], join, kinds)
    if sides is None:
        return None
    return pa.concat_tables([no_rows, *sides], promote_options="default")


def _of_log(adjusted: Adjusted, stored: Stored, join: JoinSpec, kinds: Sequence[T.DataType]) -> pa.Table | None:
    """Return the events of the segment by what the loop says of them; None where Spark has to compute some column."""
    sides = _sides(stored, [c.SEQ], join, kinds)
    if sides is None:
        return None
    [log] = adjusted.watermarks.logs
    items, findings = log.rises.items, log.rises.findings.out_of_order
    is_accepted, met_us = np.zeros(len(items.seq), bool), np.full(len(items.seq), NONE)
    is_accepted[log.accepted_of(join.sources, drops=adjusted.rules.time.out_of_order == "drop")] = True
    is_accepted &= ~np.isin(items.seq, adjusted.admitted_seqs)
    met_us[findings["item"]] = findings["watermark"]
    us, no_rows = log.t, _no_rows(kinds)
    tables = [no_rows]
    for rows in sides:
        item = np.searchsorted(items.seq, rows[c.SEQ].to_numpy())
        columns = {
            c.TIMELINE: pa.DictionaryArray.from_arrays(pa.array(items.timeline[item], pa.int32()), log.names),
            c.T_FINAL: pa.array(us[item]),
            c.W_BEFORE: pa.array(met_us[item]),
            HAS_PARTNER: pa.nulls(len(item), pa.int64()),
        }
        narrow = pa.table({**columns, **{name: rows[name] for name in rows.column_names}})
        tables.append(narrow.select(no_rows.column_names).filter(pa.array(is_accepted[item])))
    return pa.concat_tables(tables)


def _sides(
    stored: Stored, columns: Sequence[str], join: JoinSpec, kinds: Sequence[T.DataType]
) -> Iterable[pa.Table] | None:
    """Return columns of the events of both sides among stored rows, with IS_LEFT and the columns of `on`.

    None where these are not stored as they are declared, or are not equal for Arrow where they are for Spark.
    """
    pieces = stored([*dict.fromkeys([*columns, c.SOURCE, *join.on])])
    if pieces is None or not all(isinstance(kind, _PLAIN) for kind in kinds):
        return None
    tables = []
    for piece in pieces:
        if [from_arrow_type(piece.schema.field(name).type) for name in join.on] != kinds:
            return None
        source = piece[c.SOURCE]
        rows = piece.filter(pc.is_in(source, value_set=pa.array(join.sources, source.type)))
        values = {name: rows[name] for name in columns}
        if HAS_PARTNER in values:
            values[HAS_PARTNER] = values[HAS_PARTNER].cast(pa.int64())
        if c.TIMELINE in values:
            values[c.TIMELINE] = values[c.TIMELINE].dictionary_encode()
        values[IS_LEFT] = pc.equal(rows[c.SOURCE], join.left.source)
        values |= {f"{_ON}{number}": rows[name].dictionary_encode() for number, name in enumerate(join.on)}
        tables.append(pa.table(values))
    return tables


def _events(by_origin: dict[int, pa.Table], adjusted: Adjusted, join: JoinSpec) -> Events:
    on = [f"{_ON}{number}" for number in range(len(join.on))]
    coded = pa.table({name: _coded([rows[name] for rows in by_origin.values()]) for name in (c.TIMELINE, *on)})

    def joined(name: str) -> Array:
        return np.concatenate([integers(rows[name]) for rows in by_origin.values()])

    keys = numbers(coded, [c.TIMELINE, *on])
    for name in on:
        keys[np.asarray(coded[name].is_null())] = NOBODY
    timeline = coded[c.TIMELINE].combine_chunks()
    names = timeline.dictionary
    return Events(
        timelines=names,
        timeline=np.asarray(timeline.indices, np.int32),
        seq=joined(c.SEQ),
        us=joined(c.T_FINAL),
        met_us=joined(c.W_BEFORE),
        had_partner=np.maximum(joined(HAS_PARTNER), NOBODY).astype(np.int8),
        key=keys,
        origin=np.concatenate([np.full(len(rows), origin, np.int8) for origin, rows in by_origin.items()]),
        is_left=np.concatenate([np.asarray(rows[IS_LEFT], bool) for rows in by_origin.values()]),
        start_us=_watermarks(names, adjusted.before),
        end_us=_watermarks(names, adjusted.state),
    )


def _coded(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return columns one after the other, each value with a number that is the same in all of them."""
    values = columns[0].type.value_type if pa.types.is_dictionary(columns[0].type) else columns[0].type
    coded: Iterable[pa.Array] = (
        chunk.dictionary_encode() for column in columns for chunk in _of_values(column, values).chunks
    )
    kind = pa.dictionary(pa.int32(), values)
    return pa.chunked_array([*coded], kind).unify_dictionaries()


def _of_values(column: pa.ChunkedArray, values: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column if column.type.value_type == values else column.cast(values)
    return column if column.type == values else column.cast(values)


def _watermarks(names: pa.Array, timelines: pa.Table) -> Array:
    """Return the watermark of each timeline, NONE where there is none."""
    place = pc.index_in(names, value_set=timelines[c.TIMELINE].combine_chunks())
    return integers(timelines["watermark"].combine_chunks().take(place))
