"""The past of columns that were added: older records of the log get the values that `_rescued` has kept of them.

Here: which columns, and the one commit that fills them. Not here: the value of a column in `_rescued`
(resources/sources/rescued.py), judging the log (shadow.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tidemark.assets.planning import at_work
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.delta.versions import Filters
from tidemark.resources.sources.files import schema_in_input
from tidemark.resources.sources.lines import RESCUED
from tidemark.resources.sources.rescued import FITS, HAS, with_column
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import Source
from tidemark.timeops.spec.fields import all_names

_FITS, _HAS = "__tm_fits_", "__tm_has_"  # and a number
Kept = Sequence[tuple[Source, StructField]]


def keeps_unknown(workspace: Workspace) -> bool:
    """Return whether the log keeps values of columns that no `schema` names."""
    return RESCUED in workspace.lake.columns(tables.RAW_EVENTS)


def fill_from_rescued(workspace: Workspace, first_seq: int, begin: Callable[[], Plan]) -> None:
    """Fill columns of the log that `schema` names now and did not when the records were read, in one commit.

    Other runs wait only while it is written. What they read before that is left.

    Args:
        workspace: The pipeline; its log has the columns.
        first_seq: Look at the records from this one on.
        begin: Takes on a batch of the pipeline.
    """
    found = _to_fill(workspace, first_seq)
    if found is not None:
        plan = begin()
        with at_work(workspace, plan):
            _commit(workspace, plan, found)


def fill_all_from_rescued(workspace: Workspace, first_seq: int, plan: Plan) -> None:
    """Do so while no other run is at work, so that nothing is left; commit the batch."""
    with at_work(workspace, plan):
        _commit(workspace, plan, _to_fill(workspace, first_seq))


@dataclass(frozen=True)
class _ToFill:
    """Columns to fill, the records from the first to the last that have values for them, and how many have."""

    kept: Kept
    span: Filters
    counts: Mapping[str, int]


def _to_fill(workspace: Workspace, first_seq: int) -> _ToFill | None:
    """Return what is to be filled, and say it; None where it is nothing."""
    if not keeps_unknown(workspace):
        return None
    kept = _kept(workspace, first_seq)
    filled = _filled(workspace, _records(workspace, [(c.SEQ, ">=", first_seq)]), kept)
    found = _counted(filled, kept) if kept else {}
    if not found.get("any"):
        return None
    counts: dict[str, int] = {}
    for number, (_, field) in enumerate(kept):
        fits, has = found[f"{_FITS}{number}"], found[f"{_HAS}{number}"]
        counts |= {f"filled.{field.name}": fits, f"not_filled.{field.name}": has - fits}
        wrong = (
            f"; {has - fits:,} are no {field.dataType.simpleString().upper()} and stay there" if has > fits else ""
        )
        workspace.tell(f"{field.name}: {fits:,} values of records before are taken from {RESCUED}{wrong}")
    return _ToFill(kept, [(c.SEQ, ">=", found["first"]), (c.SEQ, "<=", found["last"])], counts)


def _commit(workspace: Workspace, plan: Plan, found: _ToFill | None) -> None:
    """Write the records with their values, and commit the batch."""
    counts, versions = dict[str, int](), dict[str, int]()
    if found is not None:
        rows = _filled(workspace, _records(workspace, found.span), found.kept)
        rows = rows.select([f"`{name}`" for name in workspace.lake.columns(tables.RAW_EVENTS)])
        expect, attempt = workspace.ready(tables.RAW_EVENTS, plan), plan.attempt
        done = workspace.lake.replace(tables.RAW_EVENTS, rows, where=found.span, attempt=attempt, expect=expect)
        counts, versions = {**found.counts}, {tables.RAW_EVENTS: done.version}
    workspace.batches.commit(plan, counts, versions, workspace.clock.now())


def _records(workspace: Workspace, part: Filters) -> DataFrame:
    return workspace.read_base(tables.RAW_EVENTS, filters=part)


def _kept(workspace: Workspace, first_seq: int) -> Kept:
    """Return the columns that have values in `_rescued`."""
    records = _records(workspace, [(c.SEQ, ">=", first_seq)]).where(F.col(RESCUED).isNotNull())
    keys = records.select(c.SOURCE, F.explode(F.json_object_keys(RESCUED)).alias("key")).distinct().collect()
    by_source: dict[str, set[str]] = {}
    names = workspace.source_names
    for row in keys:
        by_source.setdefault(names.get(row[c.SOURCE], row[c.SOURCE]), set()).add(row["key"])
    return [
        (source, field)
        for source in workspace.spec.sources
        for field in schema_in_input(workspace.spark, source)
        if by_source.get(source.name, set()).intersection(all_names(field.name, source.rename))
    ]


def _filled(workspace: Workspace, records: DataFrame, kept: Kept) -> DataFrame:
    """Return records with the values of these columns, and for each whether there was one, and whether it fits."""
    zone, found = workspace.spec.time.time_zone, records
    for number, (source, field) in enumerate(kept):
        of_source = c.named(c.SOURCE, workspace.source_names) == source.name
        found = with_column(found, source, field, of_source, zone)
        found = found.withColumnsRenamed({HAS: f"{_HAS}{number}", FITS: f"{_FITS}{number}"})
    return found


def _counted(filled: DataFrame, kept: Kept) -> dict[str, int]:
    flags = [f"{flag}{number}" for number in range(len(kept)) for flag in (_HAS, _FITS)]
    fits: Column = F.lit(False)
    for number in range(len(kept)):
        fits |= F.col(f"{_FITS}{number}")
    own = F.when(fits, F.col(c.SEQ))
    asked = [F.min(own).alias("first"), F.max(own).alias("last"), F.count_if(fits).alias("any")]
    [row] = filled.agg(*asked, *[F.count_if(flag).alias(flag) for flag in flags]).collect()
    return row.asDict()
