"""Answers from tables on the right side of joins, looked up again in the versions that the batches had.

Here: which rows of a join are not the ones that the table has for their events. Not here: joins of two sources, and
which events are closed (assets/recount/joins.py), the versions and their rows (assets/state/right_tables.py).

A row of the join does not say in which batch it was answered. So an answer is right if it is the one of any version
that the join has had since its event came.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tidemark.assets.log.control import TABLE, recorded, table_of
from tidemark.assets.recount.joins import (
    NOBODY,
    ROW,
    Flags,
    JoinEvents,
    JoinStretch,
    Numbers,
    closed_lefts,
    events_of_join,
    has_key,
    key_hash,
    last_answers,
)
from tidemark.assets.schemas import columns_of_table, values_hash
from tidemark.assets.state.right_tables import rows_of_version
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import as_json
from tidemark.timeops.joins.tables import VALID_FROM
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import NEVER, NONE

_VALUES = "values"


def wrong_answers(workspace: Workspace, join: JoinSpec, stretch: JoinStretch) -> dict[str, pa.Table]:
    """Return final rows of a stretch, with ROW, that a join does not have from its table, by what is wrong with them.

    Lacking is the row of an event that has one in each version; too many is one that it has in no version.
    """
    lefts = closed_lefts(events_of_join(workspace, join, stretch), join, stretch)
    lefts = lefts.of(np.argsort(lefts.seqs))
    written_seqs, written_values, of_nulls = _written_hashes(workspace, join, stretch)
    seqs, first_at, times = np.unique(written_seqs, return_index=True, return_counts=True)
    has_row = np.isin(lefts.seqs, seqs)
    values = np.full(len(lefts), of_nulls)
    values[has_row] = written_values[first_at[np.searchsorted(seqs, lefts.seqs[has_row])]]
    is_right, may_have_row = np.zeros(len(lefts), bool), np.zeros(len(lefts), bool)
    for version, until_seq in _versions(workspace, join):
        # A later version is read only for events that no earlier one explains.
        undecided = np.flatnonzero(~is_right & (lefts.seqs <= until_seq))
        if len(undecided):
            expected, has_partner = _hashes_of_version(workspace, join, lefts.of(undecided), version, of_nulls)
            gives_row = has_partner | join.keeps_left
            may_have_row[undecided] |= gives_row
            is_right[undecided] = (has_row[undecided] == gives_row) & (values[undecided] == expected)
    wrong = {
        "there more than once": seqs[times > 1],
        "lacking": lefts.seqs[~is_right & ~has_row],
        "too many": np.append(lefts.seqs[~is_right & has_row & ~may_have_row], np.setdiff1d(seqs, lefts.seqs)),
        "not what its table says": lefts.seqs[~is_right & has_row & may_have_row],
    }
    return {fault: pa.table([left_seqs, np.full(len(left_seqs), NOBODY)], ROW) for fault, left_seqs in wrong.items()}


def _written_hashes(workspace: Workspace, join: JoinSpec, stretch: JoinStretch) -> tuple[Numbers, Numbers, int]:
    """Return the events of final rows, a hash of what each has of the table, and the hash of nothing but nulls."""
    table, of_join = tables.join_table(join.name), dict(workspace.spec.join_columns[join.name].right)
    kinds = {field.name: field.dataType for field in columns_of_table(join)}
    fields = [StructField(shown, kinds[name]) for name, shown in of_join.items()]
    rows = workspace.read_base(table, filters=stretch.times).where("_is_final")
    hashed = rows.select(F.col(ROW[0]), values_hash(fields).alias(_VALUES)).toArrow()
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in fields]
    [of_nulls] = workspace.spark.range(1).select(*nulls).select(values_hash(fields)).collect()
    return hashed[ROW[0]].to_numpy(), hashed[_VALUES].to_numpy(), of_nulls[0]


def _versions(workspace: Workspace, join: JoinSpec) -> Iterator[tuple[str, int]]:
    """Yield the versions of a table in the order of the log, each with the last record that came before the next."""
    items = [item for item in recorded(workspace, TABLE) if table_of(item)[0] == join.name]
    ends = [item["_after_seq"] for item in items[1:]]
    for item, until_seq in zip(items, [*ends, NEVER], strict=True):
        yield table_of(item)[1], until_seq


def _hashes_of_version(
    workspace: Workspace, join: JoinSpec, lefts: JoinEvents, version: str, of_nulls: int
) -> tuple[Numbers, Flags]:
    """Return for each event a hash of its row in a version, or the one of nulls; whether it has a row."""
    schema = columns_of_table(join)
    rows = rows_of_version(workspace, join, version)
    order = as_json(*map(quoted, schema.names))  # of rows of one key and instant one holds
    hashed = rows.select(
        F.expr(f"unix_micros({VALID_FROM})").alias("us"),
        F.expr(key_hash(rows, join)).alias("keys"),
        F.expr(has_key(join)).alias("has_key"),
        F.expr(order).alias("place"),
        values_hash(schema.fields).alias(_VALUES),
    )
    by_key = hashed.where("has_key").groupBy("keys", "us").agg(F.expr(f"max_by({_VALUES}, place)").alias(_VALUES))
    table = by_key.toArrow()
    numbers = np.arange(table.num_rows)
    no_flags = np.zeros(len(numbers), bool)
    rights = JoinEvents(
        seqs=numbers,
        us=table["us"].to_numpy(),
        met_us=np.full(len(numbers), NONE),  # a row of a table is never late
        keys=table["keys"].to_numpy(),
        has_key=~no_flags,
        is_left=no_flags,
        is_open=no_flags,
        is_first=no_flags,
    )
    partners = last_answers(lefts, rights, join)
    has_partner = partners != NOBODY
    hashes = np.full(len(lefts), of_nulls)
    hashes[has_partner] = table[_VALUES].to_numpy()[partners[has_partner]]
    return hashes, has_partner
