"""Audit of payload: each event has the values of its record in the log.

Here: `ordered_events` and `held_events` against `raw_events`. Not here: where a record is (verdicts.py).
"""

from collections.abc import Callable, Iterator

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tidemark.assets.audit.findings import Finding, some, wrong_rows
from tidemark.assets.exclusions import Numbers, records_between
from tidemark.assets.retention import log_begins_at
from tidemark.assets.schemas import payload_of
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.printable import plural

_MOST = 1_000_000
"""Records whose values are compared at once, by a hash of 8 bytes each."""
_MOST_NAMED = 1_000


def audit_payload(workspace: Workspace, readable: Callable[[str], bool]) -> Iterator[Finding]:
    """Compare the payload of events with the log's; `readable` says of a table whether its rows can be compared."""
    changed_seqs = {table: list[int]() for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS) if readable(table)}
    end, names = workspace.progress.processed_end(), {*payload_of(workspace).names, c.ARRIVAL}
    names = names.intersection(*map(workspace.lake.columns, changed_seqs))
    for first in range(log_begins_at(workspace), end, _MOST):
        workspace.tell(f"comparing the payload of events with the log, from record {first:,} of {end:,} on")
        seqs = range(first, min(first + _MOST, end))
        log = records_between(workspace, seqs.start, seqs.stop)  # also with records in the places of others
        payload = [field for field in log.schema if field.name in names]
        hashes = np.zeros(len(seqs), np.int64)
        at, values = _hashes(log, seqs, payload)
        hashes[at] = values
        for table, seqs_of_table in changed_seqs.items():
            events = workspace.read_base(table, filters=[(c.SEQ, ">=", seqs.start), (c.SEQ, "<", seqs.stop)])
            at, values = _hashes(events, seqs, payload)
            seqs_of_table.extend((first + np.sort(at[hashes[at] != values])[:_MOST_NAMED]).tolist())
    for table, seqs_of_table in changed_seqs.items():
        if seqs_of_table:
            what = f"the payload of {plural(len(seqs_of_table), 'event')} is not the one of the record"
            yield wrong_rows(workspace, table, f"{what} in `{tables.RAW_EVENTS}`: {some(seqs_of_table)}")


def _hashes(rows: DataFrame, seqs: range, payload: list[StructField]) -> tuple[Numbers, Numbers]:
    """Return by row its place in a range of numbers, and a hash of its values as the log types them."""
    hashed = rows.select(c.SEQ, F.xxhash64(*map(_hashable, payload)).alias("hash")).toArrow()
    return hashed[c.SEQ].to_numpy() - seqs.start, hashed["hash"].to_numpy()


def _hashable(field: StructField) -> Column:
    """Return a column as Spark can hash it: a map has no order."""
    column = F.col(quoted(field.name)).cast(field.dataType)
    return F.to_json(F.struct(column)) if "map<" in field.dataType.simpleString() else column
