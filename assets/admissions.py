"""Records that an operator has let in although a rule had refused them: which they are, and their events.

Here: what the control items say, and reading the records. Not here: deciding on it (rebuild/replaying.py), what the
rules make of it (timeops/events/adjustment.py).

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

from tidemark.assets.exclusions import Numbers, items_of, no_numbers, numbers_in, records_between, some_records
from tidemark.assets.log_control import ADMIT, REFUSE
from tidemark.resources import tables
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import LakeError
from tidemark.timeops.events.adjustment import admitted_events
from tidemark.timeops.materialize import computed
from tidemark.timeops.narrow import to_join
from tidemark.timeops.reasons import Reason, Stage
from tidemark.timeops.utc import us_of

NOT_YET = 0
"""The instant of a decision that is not committed yet, microseconds."""
REPLAYED_AT = "replayed_at"


@dataclass(frozen=True, eq=False)
class Admitted:
    """The records that are let in.

    Attributes:
        seqs: Their numbers, in order.
        at_us: The instant of the commit that let each in, microseconds; NOT_YET before it.
    """

    seqs: Numbers = field(default_factory=no_numbers)
    at_us: Numbers = field(default_factory=no_numbers)

    def after(self, item: Mapping[str, Any]) -> "Admitted":
        """Return what is let in after one more item."""
        these = numbers_in(json.loads(item["argument"])["records"])
        stays = ~np.isin(self.seqs, these)
        seqs, at_us = self.seqs[stays], self.at_us[stays]
        if item["kind"] == ADMIT:
            at = NOT_YET if item["clock"] is None else us_of(item["clock"])
            seqs, at_us = np.concatenate([seqs, these]), np.concatenate([at_us, np.full(len(these), at)])
        order = np.argsort(seqs, kind="stable")
        return Admitted(seqs[order], at_us[order])

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


def events_let_in(workspace: Workspace) -> DataFrame | None:
    """Return the events of the records that are let in, computed once; None without any.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    seqs = admitted(workspace).seqs
    if not len(seqs):
        return None
    first, end = int(seqs[0]), int(seqs[-1]) + 1
    records = some_records(workspace, first, end, seqs)
    if records is None:
        these = to_join(workspace.spark, pa.table({c.SEQ: seqs}))
        records = records_between(workspace, first, end).join(these, c.SEQ, "left_semi")
    return computed(admitted_events(records, workspace.rules))


def with_instants(workspace: Workspace, letters: DataFrame) -> DataFrame:
    """Add `replayed_at` to dead letters: the instant of the commit that let the record in, or null."""
    found = admitted(workspace)
    if not len(found.seqs):
        return letters.withColumn(REPLAYED_AT, F.lit(None).cast("timestamp"))
    at = pa.table({c.SEQ: found.seqs, REPLAYED_AT: pa.array(found.at_us).cast(pa.timestamp("us", "UTC"))})
    told = letters.join(to_join(workspace.spark, at), c.SEQ, "left")
    # A window whose aggregate fails on an event refuses it, let in or not.
    is_let_in = F.col("reason") != Reason.BAD_EXPRESSION
    return told.withColumn(REPLAYED_AT, F.when(is_let_in, F.col(REPLAYED_AT)))


def letters_let_in(workspace: Workspace) -> DataFrame | None:
    """Return the dead letters of windows, of records that are let in, as the pipeline of a shadow has them.

    What is computed again has no such letter: the windows were open. None where there is no such pipeline, or no
    such letter, or the table is lost.
    """
    seqs, log = admitted(workspace).seqs, workspace.log_of
    if log is None or not len(seqs):
        return None
    closed: Filters = [("stage", "=", Stage.WINDOW), ("reason", "=", Reason.WINDOW_CLOSED)]
    try:
        letters = log.read_base(tables.DEAD_LETTERS, filters=closed)
    except LakeError:
        return None
    own = letters.join(to_join(workspace.spark, pa.table({c.SEQ: seqs})), c.SEQ, "left_semi")
    found = computed(with_instants(workspace, own.drop(REPLAYED_AT, c.BATCH)))
    return None if found.isEmpty() else found
