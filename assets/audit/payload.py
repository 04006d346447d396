"""Audit of payload: each event, row of a join and dead letter has the values of its record in the log.

Here: tables that copy payload, against `raw_events`. Not here: where a record is (assets/audit/verdicts.py), which
events a row of a join is made of, and what it takes from a table that is not a stream (assets/audit/joins.py).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tidemark.assets.audit.findings import Finding, some, wrong_rows
from tidemark.assets.log.exclusions import Numbers, records_between, some_records
from tidemark.assets.log.retention import log_begins_at
from tidemark.assets.log.spec_changes import recorded_specs
from tidemark.assets.schemas import payload_of, values_hash
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.memory import release_memory
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.expressions.try_expression import as_json
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.changes import types_in_tables
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ

_MOST = 1_000_000
"""Records whose values are compared at once, by a hash of 8 bytes each."""
_MOST_NAMED = 1_000


@dataclass(frozen=True)
class _Copies:
    """Rows with values of records.

    Attributes:
        table: Their table.
        seq: The column with the number of the record.
        names: The columns of the log, each with its name in the table.
        changed_seqs: The records that have other values in a row, so far.
    """

    table: str
    seq: str
    names: Mapping[str, str]
    changed_seqs: set[int] = field(default_factory=set)


def audit_payload(workspace: Workspace, readable: Callable[[str], bool]) -> Iterator[Finding]:
    """Compare what tables have of records with the log; `readable` says whether the rows of one can be compared."""
    copies = [_existing_copies(workspace, copy) for copy in _copies(workspace) if readable(copy.table)]
    has_letters, changed_letters = readable(tables.DEAD_LETTERS), set[int]()
    names = payload_of(workspace).names
    compared_names = _of_one_type(workspace, names)
    end = workspace.progress.processed_end()
    for first in range(log_begins_at(workspace), end, _MOST):
        workspace.tell(f"comparing payload with the log, from record {first:,} of {end:,} on")
        seqs = range(first, min(first + _MOST, end))
        log = records_between(workspace, seqs.start, seqs.stop)  # also with records in the places of others
        _compare_copies(workspace, log, seqs, copies)
        if has_letters and len(changed_letters) < _MOST_NAMED:
            changed_letters.update(_changed_letters(workspace, log, seqs, names, compared_names))
        release_memory()
    by_table = {copy.table: set[int]() for copy in copies}
    for copy in copies:
        by_table[copy.table] |= copy.changed_seqs
    for table, changed_seqs in (*by_table.items(), (tables.DEAD_LETTERS, changed_letters)):
        if changed_seqs:
            rows = "dead letter" if table == tables.DEAD_LETTERS else "event"
            sentence = f"the payload of {plural(len(changed_seqs), rows)} is not the one of the record"
            yield wrong_rows(workspace, table, f"{sentence} in `{tables.RAW_EVENTS}`: {some(sorted(changed_seqs))}")


def _copies(workspace: Workspace) -> Iterator[_Copies]:
    """Yield the tables with values of records; a row of a join has the ones of two."""
    spec, of_log = workspace.spec, {*payload_of(workspace).names, c.ARRIVAL}
    if spec.outputs.ordered_events:
        for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS):
            yield _Copies(table, c.SEQ, {name: name for name in of_log})
    for join in spec.joins:
        table, columns = tables.join_table(join.name), spec.join_columns[join.name]
        yield _Copies(table, LEFT_SEQ, {name: name for name in columns.left})
        if not join.has_table:
            yield _Copies(table, RIGHT_SEQ, dict(columns.right))


def _existing_copies(workspace: Workspace, copy: _Copies) -> _Copies:
    """Return copies with the columns alone that their table has; one that was read later may lack in it."""
    columns = workspace.lake.columns(copy.table)
    return _Copies(copy.table, copy.seq, {name: shown for name, shown in copy.names.items() if shown in columns})


def _compare_copies(workspace: Workspace, log: DataFrame, seqs: range, copies: Sequence[_Copies]) -> None:
    """Note which records of a range have other values in the rows of tables."""
    types = {field.name: field for field in log.schema}
    columns = list(dict.fromkeys(tuple(copy.names) for copy in copies))
    at, hashes = _hashes(log, c.SEQ, seqs, [values_hash([types[name] for name in names]) for names in columns])
    of_records = dict(zip(columns, hashes, strict=True))
    for copy in copies:
        expected = np.zeros(len(seqs), np.int64)
        expected[at] = of_records[tuple(copy.names)]
        rows = workspace.read_base(copy.table, filters=[(copy.seq, ">=", seqs.start), (copy.seq, "<", seqs.stop)])
        named = [StructField(shown, types[name].dataType) for name, shown in copy.names.items()]
        row_at, [written] = _hashes(rows, copy.seq, seqs, [values_hash(named)])
        changed = np.unique(row_at[expected[row_at] != written])
        copy.changed_seqs.update((seqs.start + changed[:_MOST_NAMED]).tolist())


def _hashes(rows: DataFrame, seq: str, seqs: range, hashes: Sequence[Column]) -> tuple[Numbers, list[Numbers]]:
    """Return by row its place in a range of numbers, and some hashes of its values."""
    names = [f"hash_{number}" for number in range(len(hashes))]
    hashed = rows.select(
        F.col(seq), *[value.alias(name) for name, value in zip(names, hashes, strict=True)]
    ).toArrow()
    return hashed[seq].to_numpy() - seqs.start, [hashed[name].to_numpy() for name in names]


def _changed_letters(
    workspace: Workspace, log: DataFrame, seqs: range, names: Sequence[str], compared_names: Sequence[str]
) -> list[int]:
    """Return the records of a range whose dead letters have other values, or another text where it was malformed.

    A letter of an earlier spec may lack columns, which its record then lacks too. Columns that have had other types,
    and so other texts, are not among `compared_names`, and letters of records that were let in again, maybe
    corrected, are left out.
    """
    numbers: Filters = [(c.SEQ, ">=", seqs.start), (c.SEQ, "<", seqs.stop)]
    letter_seqs = _seqs_of_letters(workspace, numbers)
    if not len(letter_seqs):
        return []
    records = some_records(workspace, seqs.start, seqs.stop, letter_seqs, {*names, c.MALFORMED})
    letters = workspace.read_base(tables.DEAD_LETTERS, filters=numbers).where("replayed_at IS NULL")
    both = (log if records is None else records).join(letters.select(c.SEQ, "payload"), c.SEQ)
    both = both.selectExpr(c.SEQ, c.MALFORMED, "payload", f"{as_json(*map(quoted, names))} AS __tm_expected")
    written, expected = (f"from_json({text}, 'map<string,string>')" for text in ("payload", "__tm_expected"))
    values = [
        f"try_element_at({written}, {literal(name)}) <=> try_element_at({expected}, {literal(name)})"
        for name in compared_names
    ]
    same = f"payload <=> coalesce({c.MALFORMED}, __tm_expected)"
    is_same = f"({same} OR ({c.MALFORMED} IS NULL AND {' AND '.join(values) or 'true'}))"
    changed = both.where(f"NOT coalesce({is_same}, false)").select(c.SEQ).limit(_MOST_NAMED)
    return [row[c.SEQ] for row in changed.collect()]


def _seqs_of_letters(workspace: Workspace, numbers: Filters) -> Numbers:
    table = tables.DEAD_LETTERS
    rows = pieces(workspace.lake, table, workspace.base_of(table), [c.SEQ], numbers)
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(piece[c.SEQ].to_numpy() for piece in rows)]))


def _of_one_type(workspace: Workspace, names: Sequence[str]) -> list[str]:
    """Return the columns that have had no other type in any spec of the log."""
    types = defaultdict[str, set[str]](set)
    for recorded in recorded_specs(workspace):
        for source in Spec.model_validate(recorded).sources:
            for name, kind in types_in_tables(source.columns, source.rename).items():
                types[name.lower()].add(kind)
    return [name for name in names if len(types[name.lower()]) <= 1]
