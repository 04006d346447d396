"""Rows that another table has changed since they were read, and the records of the log that this corrects.

Here: comparing the table before and after, finding the records, the control item. Not here: reading the table
(resources/sources/), the log with corrections (assets/log/exclusions.py), what was recorded of earlier ones
(assets/log/control.py), rebuilding tables (assets/rebuild/).

The upstream pipeline decides which columns identify a row: window and groups for a result. A row that has changed
takes the place of the one that it replaces. It is judged as if it had come as it is now. In other tables only equal
rows are the same: a row that is gone leaves the log, a new one is a new record.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.assets.log.control import CORRECTION, control_item
from tidemark.assets.log.exclusions import (
    Excluded,
    Numbers,
    excluded,
    moved_clock,
    pairs_of,
    ranges_of,
    records_under,
)
from tidemark.resources import tables
from tidemark.resources.batches.committed import Published, pipeline_of
from tidemark.resources.sources.records import FILE, MALFORMED, MODIFIED, POSITION, RESCUED
from tidemark.resources.sources.table_versions import TableVersion
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.expressions.tokens import quoted, top_level_names
from tidemark.timeops.expressions.try_expression import as_json
from tidemark.timeops.narrow import beside
from tidemark.timeops.spec import Source, Spec
from tidemark.timeops.spec.fields import all_names, name_in_tables

REPLACED_SEQ = "__tm_place"
"""`_arrival_seq` of the record that this one replaces; null for a record that is new."""
REPLACED_ARRIVAL = "__tm_place_arrival_us"
_IDENTITY, _CONTENT, _KEY, _NTH = "__tm_identity", "__tm_content", "__tm_key", "__tm_nth"
_GONE, _CAME = "__tm_gone", "__tm_came"
_BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True, eq=False)
class Correction:
    """The corrections that a version of a table makes.

    Attributes:
        source: Name of the source.
        version: The version.
        rows: Its rows that were not there before: `_file`, `_position`, the place that each takes, and its arrival.
        removed: Records that leave the log.
        unknown: Rows that the version removed and the log does not have.
    """

    source: str
    version: TableVersion
    rows: pa.Table
    removed: Numbers
    unknown: int

    def of(self, records: DataFrame) -> DataFrame:
        """Return the records of the version that were not there before, each with the place that it takes."""
        return beside(records, self.rows, [FILE, POSITION])

    @property
    def replaced(self) -> int:
        """How many records it replaces."""
        return len(self.rows) - int(self.rows[REPLACED_SEQ].null_count)

    @property
    def is_none(self) -> bool:
        """Return whether no record changes, and none is missing from the log."""
        return not self.replaced and not len(self.removed) and not self.unknown


def correction_of(
    workspace: Workspace, source: Source, version: TableVersion, after: DataFrame, before: DataFrame
) -> Correction:
    """Find the records that a version of a table corrects, from the rows that it may have changed, as records."""
    columns = [name for name in after.columns if name not in (RESCUED, MALFORMED, FILE, POSITION, MODIFIED)]
    identity, is_whole = _identity(source, pipeline_of(version.folder))
    same = (_IDENTITY, _CONTENT)
    old, new = (_numbered(_identified(frame, columns, identity), same, (FILE, POSITION)) for frame in (before, after))
    removed_rows = computed(old.join(new, [*same, _NTH], "left_anti").drop(_NTH, FILE, POSITION))
    added_rows = computed(new.join(old, [*same, _NTH], "left_anti").drop(_NTH))
    removed_rows = _with_places(workspace, source, removed_rows, columns, identity if is_whole else ())
    if identity:
        removed_rows, added_rows = (
            _numbered(frame, (_IDENTITY,), (_CONTENT,)).drop(_CONTENT) for frame in (removed_rows, added_rows)
        )
        both = removed_rows.join(added_rows, [_IDENTITY, _NTH], "full_outer")
    else:
        both = removed_rows.unionByName(added_rows, allowMissingColumns=True)
    rows = both.select(FILE, POSITION, REPLACED_SEQ, REPLACED_ARRIVAL, _GONE).toArrow()
    return _correction_from(source, version, rows)


def _correction_from(source: Source, version: TableVersion, pairs: pa.Table) -> Correction:
    """Say what becomes of each row that is gone, each that came, and each that another one replaced."""
    is_added, has_place = pc.is_valid(pairs[FILE]), pc.is_valid(pairs[REPLACED_SEQ])
    takes = pc.and_(is_added, pc.is_valid(pairs[REPLACED_ARRIVAL]))  # a record without an arrival was never judged
    rows = pairs.filter(is_added).select([FILE, POSITION, REPLACED_SEQ, REPLACED_ARRIVAL])
    place = pc.if_else(pc.is_valid(rows[REPLACED_ARRIVAL]), rows[REPLACED_SEQ], pa.scalar(None, pa.int64()))
    rows = rows.set_column(2, REPLACED_SEQ, place)
    removed = pairs.filter(pc.and_(has_place, pc.invert(takes)))[REPLACED_SEQ]
    unknown = pairs.filter(pc.and_(pc.is_valid(pairs[_GONE]), pc.invert(has_place)))
    return Correction(source.name, version, rows, np.sort(np.asarray(removed, np.int64)), len(unknown))


def _identified(records: DataFrame, columns: Sequence[str], identity: Sequence[str]) -> DataFrame:
    """Return the place of each record, its content, and the columns that distinguish it from others."""
    return records.select(
        FILE, POSITION, _text_of(columns, records).alias(_CONTENT), _text_of(identity, records).alias(_IDENTITY)
    )


def _text_of(columns: Sequence[str], records: DataFrame) -> Column:
    """Return a STRING of values of columns, equal if these are; a malformed record has only its text."""
    here = records.columns
    values = [f"{quoted(name) if name in here else 'NULL'} AS {quoted(name)}" for name in (*columns, MALFORMED)]
    return F.expr(as_json(*values))


def _numbered(frame: DataFrame, by: Sequence[str], order: Sequence[str]) -> DataFrame:
    return frame.withColumn(_NTH, F.row_number().over(Window.partitionBy(*by).orderBy(*order)))


def _with_places(
    workspace: Workspace, source: Source, rows: DataFrame, columns: Sequence[str], identity: Sequence[str]
) -> DataFrame:
    """Return rows that are gone with the number and the arrival of their record; null where the log has none."""
    key = _IDENTITY if identity else _CONTENT
    keyed_rows = _numbered(rows.withColumn(_KEY, F.col(key)), (_KEY,), (_IDENTITY, _CONTENT)).withColumn(
        _GONE, F.lit(1)
    )
    out = excluded(workspace)
    everything = Excluded(corrected=out.corrected, places=out.places, records=out.records)  # also excluded records
    log = records_under(workspace, everything, 0, workspace.progress.log_end()).where(F.col(c.SOURCE) == source.name)
    candidates = log.select(
        F.col(c.SEQ).alias(REPLACED_SEQ),
        c.to_us(c.ARRIVAL).alias(REPLACED_ARRIVAL),
        _text_of(identity or columns, log).alias(_KEY),
    )
    candidates = candidates.join(keyed_rows.select(_KEY).distinct(), _KEY, "left_semi")
    places = _numbered(candidates, (_KEY,), (REPLACED_SEQ,))
    return computed(keyed_rows.join(places, [_KEY, _NTH], "left").drop(_KEY, _NTH))


def _identity(source: Source, of: Published | None) -> tuple[tuple[str, ...], bool]:
    """Return the columns of the source that distinguish rows of a table, and whether these are all such columns."""
    keys = _keys_of(of) if of is not None else ()
    names = {
        name: name_in_tables(column, source.rename)
        for column in top_level_names(source.columns)
        for name in all_names(column, source.rename)
    }
    columns = tuple(names[key] for key in keys if key in names)
    is_whole = len(columns) == len(keys)
    if not is_whole and set(_BOUNDS) & {*keys} and not set(_BOUNDS) & {*names}:
        return (), False  # otherwise a result would take the place of a result of another time
    return columns, is_whole and bool(keys)


def _keys_of(of: Published) -> tuple[str, ...]:
    """Return the columns that distinguish the rows of a pipeline's table; none if they are not known."""
    if of.table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS, tables.RAW_EVENTS):
        return (c.SEQ,)
    folder, _, name = of.table.partition("/")
    if folder not in ("windows", "history") or (text := of.spec) is None:
        return ()
    try:
        windows = Spec.model_validate(json.loads(text)).windows
    except ValidationError:  # written by a Tidemark with other keys
        return ()
    keys = next((window.key_columns for window in windows if window.name == name), ())
    return (*keys, "_revision") if keys and folder == "history" else keys


def item_of(workspace: Workspace, correction: Correction, taken: pa.Table, end_seq: int) -> dict[str, Any]:
    """Return the control item of a correction, after an ingestion that ends at `end_seq`.

    `taken` has the records of all sources that take places: `_source`, `_arrival_seq` and REPLACED_SEQ.
    """
    taken = taken.filter(pc.equal(taken[c.SOURCE], correction.source)).sort_by(REPLACED_SEQ)
    places, records = (np.asarray(taken[name], np.int64) for name in (REPLACED_SEQ, c.SEQ))
    removed, version = correction.removed, correction.version
    touched = np.concatenate([places, removed])
    fields = {
        "source": correction.source,
        "version": version.version,
        **_upstream(version),
        "replaced": pairs_of(places, records),
        "records": ranges_of(removed),
        "moved_clock": bool(len(removed)) and moved_clock(workspace, removed),
        "judged": bool((touched < workspace.progress.processed_end()).any()),
    }
    argument = json.dumps(fields, separators=(",", ":"))
    return control_item(end_seq - 1, CORRECTION, sentence_of(correction), argument=argument)


def _upstream(version: TableVersion) -> Mapping[str, Any]:
    """Return the pipeline and the batch that made a version; nothing if no pipeline made it."""
    of = pipeline_of(version.folder)
    made_by = None if of is None else of.commit_of(version.version)
    if of is None or made_by is None:
        return {}
    maker = {"pipeline": of.root.name, "table": of.table, "batch": made_by.batch_id, "of": made_by.plan.kind}
    return maker if made_by.reason is None else maker | {"why": made_by.reason}


def sentence_of(correction: Correction) -> str:
    """Say what a version of a table corrects, and which batch made it."""
    maker = _upstream(correction.version)
    why = f": {maker['why']}" if "why" in maker else ""
    by = f" (batch {maker['batch']} of {maker['pipeline']}, {maker['of']}{why})" if maker else ""
    new = len(correction.rows) - correction.replaced
    counts = {"replaces": correction.replaced, "takes away": len(correction.removed), "adds": new}
    did = ", ".join(f"{verb} {n:,} record{'' if n == 1 else 's'}" for verb, n in counts.items() if n)
    sentence = f"{correction.source}: version {correction.version.version}{by} {did or 'changes no record'}"
    if not correction.unknown:
        return sentence
    rows = "row" if correction.unknown == 1 else "rows"
    return f"{sentence}; the log has no record of {correction.unknown:,} {rows} that it took away"
