"""Audit of payload: each event has the values of its record in the log.

Here: `ordered_events` and `held_events` against `raw_events`. Not here: where a record is (verdicts.py).
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tidemark.assets.audit.findings import Finding, some, wrong_rows
from tidemark.resources import tables
from tidemark.resources.sources.records import RESCUED
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.printable import plural
from tidemark.timeops.spec import is_reserved

Numbers = NDArray[np.int64]
_MOST = 5_000_000
"""Records whose values are compared at once, by a hash of 8 bytes each."""
_MOST_NAMED = 1_000


def audit_payload(workspace: Workspace, readable: Callable[[str], bool]) -> Iterator[Finding]:
    """Compare the payload of events with the log's; `readable` says of a table whether its rows can be compared."""
    end, log = workspace.progress.processed_end(), tables.RAW_EVENTS
    for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS):
        if not readable(table):
            continue
        of_log, of_events = workspace.read_base(log).schema, workspace.lake.columns(table)
        payload = [field for field in of_log if field.name in of_events and _is_of_record(field.name)]
        changed_seqs: list[int] = []
        for first in range(0, end, _MOST):
            workspace.tell(f"comparing the payload of {table} with the log, from record {first:,} of {end:,} on")
            seqs = range(first, min(first + _MOST, end))
            hashes = np.zeros(len(seqs), np.int64)
            at, values = _hashes(workspace, log, seqs, payload)
            hashes[at] = values
            at, values = _hashes(workspace, table, seqs, payload)
            changed_seqs += (first + np.sort(at[hashes[at] != values])[:_MOST_NAMED]).tolist()
        if changed_seqs:
            events = plural(len(changed_seqs), "event")
            what = f"the payload of {events} is not the one of the record in `{log}`: {some(changed_seqs)}"
            yield wrong_rows(workspace, table, what)


def _is_of_record(name: str) -> bool:
    return name in (c.ARRIVAL, RESCUED) or not is_reserved(name)


def _hashes(workspace: Workspace, table: str, seqs: range, payload: list[StructField]) -> tuple[Numbers, Numbers]:
    """Return by row of a table its place in a range of numbers, and a hash of its values as the log types them."""
    rows = workspace.read_base(table, filters=[(c.SEQ, ">=", seqs.start), (c.SEQ, "<", seqs.stop)])
    hashed = rows.select(c.SEQ, F.xxhash64(*map(_hashable, payload)).alias("hash")).toArrow()
    return hashed[c.SEQ].to_numpy() - seqs.start, hashed["hash"].to_numpy()


def _hashable(field: StructField) -> Column:
    """Return a column as Spark can hash it: a map has no order."""
    column = F.col(quoted(field.name)).cast(field.dataType)
    return F.to_json(F.struct(column)) if "map<" in field.dataType.simpleString() else column
