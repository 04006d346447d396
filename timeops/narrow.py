"""Narrow rows on the driver for the loops, and joining their results back to Spark's rows.

Here: fetching many rows piece by piece, numbers for groups, joins by few columns. Not here: what the loops find.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, TIMELINE, same_in
from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import as_json, without_minus_zero
from tidemark.timeops.values.instants import Array

PIECE = 4_000_000  # records of a large segment that are fetched at once
BROADCAST = 2_000_000  # rows that every core may be sent
_SPARK_DECIDES = 2_000_000  # bytes: of less Spark knows itself whether to send them, and in small batches does not

_BLOCK_BITS = 12
_BLOCK = 1 << _BLOCK_BITS  # what was found for so many numbers is a row
_NUMBER = "__tm_block"


def fetched(narrow: DataFrame, seqs: range | None) -> pa.Table:
    """Fetch narrow rows; many of them piece by piece, as one answer of Spark has a bound.

    Args:
        narrow: The rows, of records with their `_arrival_seq`.
        seqs: The numbers of the segment's records, if these are many; rows of others are fetched as well.
    """
    if seqs is None or len(seqs) <= PIECE:
        return narrow.toArrow()
    ends = [*seqs[PIECE::PIECE], None]
    pieces = []
    for start, end in zip([None, *ends], ends, strict=False):
        later = narrow if start is None else narrow.where(f"{SEQ} >= {start}")
        piece = (later if end is None else later.where(f"coalesce({SEQ} < {end}, true)")).toArrow()
        pieces.append(piece.combine_chunks())  # copied, as what Spark sends together is freed together
    return pa.concat_tables(pieces)


def as_flat(frame: DataFrame, name: str) -> str:
    """Return SQL of a column, a nested one as text: values are equal for Arrow where a group takes them for one."""
    kind = frame.schema[name].dataType
    value = without_minus_zero(quoted(name), kind)
    if kind.typeName() in ("float", "double"):  # Arrow takes two NaN of different bits for two values
        value = f"IF(isnan({value}), CAST('NaN' AS {kind.typeName()}), {value})"
    is_nested = kind.typeName() in ("array", "struct", "map", "variant")
    return as_json(f"{value} AS {quoted(name)}") if is_nested else value


def numbers(rows: pa.Table, names: Sequence[str]) -> Array:
    """Return a number for each row: rows with equal values in some columns share one, and numbers count from 0."""
    codes, count = np.zeros(len(rows), np.int64), 1
    for name in names:
        chunks = rows[name].dictionary_encode().unify_dictionaries().chunks
        indices = [np.asarray(pc.fill_null(chunk.indices, -1)) for chunk in chunks]
        different = 1 + max((len(chunk.dictionary) for chunk in chunks), default=0)
        codes, count = codes * different + np.concatenate([*indices, np.zeros(0, np.int32)]) + 1, count * different
        if count > 4 * len(rows) + 16:
            distinct, codes = np.unique(codes, return_inverse=True)
            count = len(distinct)
    return codes


def to_join(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows of the driver as a frame to join with, which is sent to every core unless they are too many.

    In a batch of few rows sending them would be a job of its own, which takes longer than to sort both sides.
    """
    frame = from_driver(spark, rows)
    return F.broadcast(frame) if len(rows) <= BROADCAST and rows.nbytes > _SPARK_DECIDES else frame


def beside(rows: DataFrame, added: pa.Table, keys: Sequence[str], how: str = "inner") -> DataFrame:
    """Add to rows the other columns of what was found for them: at most one row for each combination of keys.

    Null is equal to null. `inner` leaves the rows out for which nothing was found, `left` leaves them without it.
    """
    names = [name for name in added.column_names if name not in keys]
    if len(added) > BROADCAST and list(keys) == [SEQ] and _is_dense(added):
        blocks = F.broadcast(from_driver(rows.sparkSession, _in_blocks(added, names)))
        near = rows.withColumn(_NUMBER, F.shiftright(SEQ, _BLOCK_BITS)).join(blocks, _NUMBER, how)
        columns = [f"get({quoted(name)}, CAST(pmod({SEQ}, {_BLOCK}) AS INT)) AS {quoted(name)}" for name in names]
        joined = near.selectExpr(*map(quoted, rows.columns), *columns)
        return joined.where(F.col(quoted(names[0])).isNotNull()) if how == "inner" else joined
    if set(keys) <= {SEQ, TIMELINE}:  # they are never null
        same = F.expr(" AND ".join(f"row.{name} = found.{name}" for name in keys))
    else:
        same = same_in("row", "found", keys)
    both = rows.alias("row").join(to_join(rows.sparkSession, added).alias("found"), same, how)
    return both.selectExpr("row.*", *[f"found.{quoted(name)}" for name in names])


def _is_dense(added: pa.Table) -> bool:
    ends = pc.min_max(added[SEQ]).as_py()
    return int(ends["max"] - ends["min"]) < 8 * len(added)


def _in_blocks(added: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the same, one row for a block of numbers: an array for each column, null where nothing was found."""
    seq = added[SEQ].to_numpy()
    first = int(seq.min()) // _BLOCK
    count = int(seq.max()) // _BLOCK - first + 1
    offsets = pa.array(np.arange(count + 1) * _BLOCK, pa.int32())
    columns = {_NUMBER: pa.array(np.arange(first, first + count))}
    for name in names:
        values, is_none = np.zeros(count * _BLOCK, np.int64), np.ones(count * _BLOCK, bool)
        column = added[name]
        values[seq - first * _BLOCK] = pc.fill_null(column, 0).to_numpy()
        is_none[seq - first * _BLOCK] = np.asarray(column.is_null())
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(values, pa.int64(), mask=is_none))
    return pa.table(columns)
