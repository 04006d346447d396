"""Records that an operator has let in although a rule had refused them: which they are, and their events.

Here: what the control items say, and reading the records. Not here: deciding on it
(assets/rebuild/decisions/replaying.py), what the rules make of it (timeops/events/adjustment.py).

Such a record is judged at its place as any other: it moves the watermark or not, as it did when it was refused, so
no other verdict of a rule depends on the decision. But it is accepted with its own time, passes outside the sequence,
and is in its windows from the beginning, as if it had come in time: they have it from the state before the log.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.log.control import ADMIT, REFUSE
from tidemark.assets.log.exclusions import Numbers, items_of, numbers_in, records_between, some_records
from tidemark.assets.log.retention import log_begins_at
from tidemark.assets.schemas import payload_of
from tidemark.resources import tables
from tidemark.resources.delta.versions import Filters
from tidemark.resources.sources.records import LINE, RAW, Reading
from tidemark.resources.sources.text_files import objects_of
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed, from_driver
from tidemark.timeops.errors import LakeError
from tidemark.timeops.events.adjustment import admitted_events
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.narrow import to_join
from tidemark.timeops.rules.reasons import Reason, Stage
from tidemark.timeops.values.instants import no_numbers
from tidemark.timeops.values.utc import us_of

NOT_YET = 0
"""The instant of a decision that is not committed yet, microseconds."""
REPLAYED_AT = "replayed_at"
_MISFIT = "__tm_misfit"


@dataclass(frozen=True, eq=False)
class Admitted:
    """The records that are let in.

    Attributes:
        seqs: Their numbers, in order.
        at_us: The instant of the commit that let each in, microseconds; NOT_YET before it.
        fixes: The values of corrected ones, as JSON objects, by number.
    """

    seqs: Numbers = field(default_factory=no_numbers)
    at_us: Numbers = field(default_factory=no_numbers)
    fixes: Mapping[int, str] = field(default_factory=dict)

    def after(self, item: Mapping[str, Any]) -> "Admitted":
        """Return what is let in after one more item."""
        argument = json.loads(item["argument"])
        item_seqs = numbers_in(argument["records"])
        stays = ~np.isin(self.seqs, item_seqs)
        fixes = {seq: fix for seq, fix in self.fixes.items() if not (item_seqs == seq).any()}
        seqs, at_us = self.seqs[stays], self.at_us[stays]
        if item["kind"] == ADMIT:
            at = NOT_YET if item["clock"] is None else us_of(item["clock"])
            seqs, at_us = np.concatenate([seqs, item_seqs]), np.concatenate([at_us, np.full(len(item_seqs), at)])
            fixes |= {int(seq): json.dumps(values) for seq, values in argument.get("with", {}).items()}
        order = np.argsort(seqs, kind="stable")
        return Admitted(seqs[order], at_us[order], fixes)

    def between(self, first_seq: int, end_seq: int) -> Numbers:
        """Return the numbers from one on and before another."""
        first, end = np.searchsorted(self.seqs, [first_seq, end_seq])
        return self.seqs[first:end]


def admitted(workspace: Workspace) -> Admitted:
    """Return the records that are let in, also by decisions that are not committed yet."""
    if not workspace.exists and workspace.log_of is None:
        return Admitted()
    return admitted_by(items_of(workspace, ADMIT, REFUSE))


def admitted_by(items: Iterable[Mapping[str, Any]]) -> Admitted:
    """Return the records that some items let in."""
    return reduce(Admitted.after, items, Admitted())


def events_let_in(workspace: Workspace, seqs: Numbers | None = None) -> DataFrame | None:
    """Return the events of records that are let in, computed once; None without any.

    Args:
        workspace: The pipeline.
        seqs: Some of their numbers, in order; by default all that the log has.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    let_in = admitted(workspace)
    seqs = let_in.seqs[let_in.seqs >= log_begins_at(workspace)] if seqs is None else seqs
    if not len(seqs):
        return None
    first, end = int(seqs[0]), int(seqs[-1]) + 1
    records = some_records(workspace, first, end, seqs)
    if records is None:
        wanted_seqs = to_join(workspace.spark, pa.table({c.SEQ: seqs}))
        records = records_between(workspace, first, end).join(wanted_seqs, c.SEQ, "left_semi")
    fixes = {seq: let_in.fixes[seq] for seq in np.intersect1d(seqs, np.array([*let_in.fixes], np.int64)).tolist()}
    return computed(admitted_events(corrected(workspace, records, fixes) if fixes else records, workspace.rules))


def corrected(workspace: Workspace, records: DataFrame, fixes: Mapping[int, str]) -> DataFrame:
    """Return records of the log, some with the values that an operator has written for them, each as a JSON object.

    What else is known of a record stays: its place, its arrival and its source. Where nothing said when it arrived,
    that is the clock of the log at its place.
    """
    payload, zone = payload_of(workspace), workspace.rules.sources[0].time_zone
    texts = pa.table({c.SEQ: pa.array([*fixes], pa.int64()), LINE: pa.array([*fixes.values()], pa.string())})
    reading = Reading(zone, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW})
    read = objects_of(from_driver(workspace.spark, texts), payload, reading)
    values = read.frame.select(c.SEQ, read.malformed.alias(_MISFIT), *[v.alias(n) for n, v in read.columns.items()])
    unfixed = records.join(values.select(c.SEQ), c.SEQ, "left_anti")
    places = records.drop(*payload.names).join(values, c.SEQ)
    fixed = places.withColumns(
        {c.MALFORMED: F.col(_MISFIT), c.ARRIVAL: F.coalesce(F.col(c.ARRIVAL), F.col(c.CLOCK))}
    ).drop(_MISFIT)
    return unfixed.unionByName(fixed.select(*map(quoted, records.columns)))


def with_instants(workspace: Workspace, letters: DataFrame) -> DataFrame:
    """Add `replayed_at` to dead letters: the instant of the commit that let the record in, or null."""
    let_in = admitted(workspace)
    if not len(let_in.seqs):
        return letters.withColumn(REPLAYED_AT, F.lit(None).cast("timestamp"))
    at = pa.table({c.SEQ: let_in.seqs, REPLAYED_AT: pa.array(let_in.at_us).cast(pa.timestamp("us", "UTC"))})
    joined = letters.join(to_join(workspace.spark, at), c.SEQ, "left")
    # A window whose aggregate fails on an event refuses it, let in or not.
    is_let_in = ~((F.col("reason") == Reason.BAD_EXPRESSION) & (F.col("stage") == Stage.WINDOW))
    return joined.withColumn(REPLAYED_AT, F.when(is_let_in, F.col(REPLAYED_AT)))


def letters_let_in(workspace: Workspace) -> DataFrame | None:
    """Return the dead letters of windows and joins, of records that are let in, as the pipeline of a shadow has them.

    What is computed again has no such letter: the windows were open. None where there is no such pipeline, or no
    such letter, or the table is lost.
    """
    seqs, log = admitted(workspace).seqs, workspace.log_of
    if log is None or not len(seqs):
        return None
    closed: Filters = [("reason", "in", [Reason.WINDOW_CLOSED, Reason.JOIN_CLOSED])]
    try:
        letters = log.read_base(tables.DEAD_LETTERS, filters=closed)
    except LakeError:
        return None
    letters = letters.join(to_join(workspace.spark, pa.table({c.SEQ: seqs})), c.SEQ, "left_semi")
    dated = computed(with_instants(workspace, letters.drop(REPLAYED_AT, c.BATCH)))
    return None if dated.isEmpty() else dated
