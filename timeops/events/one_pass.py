"""A segment of the log judged in one pass: all records in order, and what became of each in one frame that is kept.

Here: the rules of adjustment.py as columns of one frame, for segments that are computed once. Not here: what the
rules mean, and larger segments (adjustment.py); who set a watermark that several scans find (watermark/scans.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    ADJUSTED_BY,
    LATENESS,
    PROPOSED,
    REASON,
    SEQ,
    SET_BY,
    T_FINAL,
    TIMELINE,
    TIMESTAMP,
    W_BEFORE,
    W_RANK,
    W_SET_BY,
    T,
    to_instant,
)
from tidemark.timeops.events.adjustment import (
    KEPT,
    Adjusted,
    JudgedRows,
    adjusted_from,
    judge_arrival,
    more_of_advances,
)
from tidemark.timeops.events.duplicates import with_duplicates
from tidemark.timeops.events.event_time import extract
from tidemark.timeops.materialize import Materialize
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.log_clock import LogClock
from tidemark.timeops.watermark.scans import ADVANCES, in_order
from tidemark.timeops.watermark.timelines import event_of, proposing

_ACCEPTED = "__tm_accepted"


def needs_one_pass(rules: TimeRules) -> bool:
    """Whether the order of a timeline's records says what each of them meets: no periods, splits or silences do."""
    return not rules.follows_activity and rules.time.emit_every_us is None


def judged_in_one_pass(
    items: DataFrame,
    state: DataFrame,
    rules: TimeRules,
    clock: LogClock,
    *,
    first_times: DataFrame | None,
    materialize: Materialize,
) -> Adjusted:
    """Judges every record of a segment of the log, and computes what became of all of them at once.

    Args:
        items: As of `time_adjustment`, and so are the next three.
        state: The timelines before.
        rules: The rules of time; `needs_one_pass` holds of them.
        clock: The clock of the log.
        first_times: As of `time_adjustment`.
        materialize: Gives the judged rows computed; what follows is planned from them.
    """
    timed = extract(items, rules)
    if rules.time.deduplicate_by:
        timed = with_duplicates(timed, first_times, rules.time)
    proposed = proposing(judge_arrival(timed, rules.time), rules)
    is_refused = F.col(REASON).isNotNull()  # it proposes nothing, and has no time to be behind a watermark with
    proposed = proposed.withColumns({name: F.when(~is_refused, F.col(name)) for name in (PROPOSED, SET_BY)})
    seen = in_order(proposed, state)
    both = materialize(seen.withColumns(_outcome(rules)).withColumn(_ACCEPTED, F.col(REASON).isNull()))
    marks = (_ACCEPTED, ADVANCES)
    rows = JudgedRows(
        accepted=both.where(_ACCEPTED).drop(*marks),
        refused=both.where(~F.col(_ACCEPTED)).drop(*marks),
        advances=both.where(ADVANCES).select(TIMELINE, SEQ, T, PROPOSED, SET_BY, *more_of_advances(rules)),
        together=both.drop(*marks),
    )
    return adjusted_from(rows, items, state, rules, clock)


def _outcome(rules: TimeRules) -> dict[str, Column]:
    """What rule 3 makes of a record, by its policy."""
    policy, behind = rules.time.out_of_order, F.col(W_BEFORE).isNotNull()
    set_by = F.when(behind, event_of(F.col(W_RANK)))
    final, more = F.col(T), dict[str, Column]()
    if policy == "drop":
        late = F.col(W_BEFORE) - F.col(T)
        if rules.clock_moves:  # no tolerance lets in what the clock has passed
            late = F.when(set_by.isNotNull(), late)
        more = {
            REASON: F.when(behind, "out_of_order").otherwise(F.col(REASON)),
            LATENESS: F.when(behind, late).otherwise(F.col(LATENESS)),
        }
    else:
        rule = F.array(F.lit("out_of_order" if policy == "adjust" else KEPT))
        more = {ADJUSTED_BY: F.when(behind, F.concat(ADJUSTED_BY, rule)).otherwise(F.col(ADJUSTED_BY))}
    if policy == "adjust":
        final, set_by = F.when(behind, F.col(W_BEFORE)).otherwise(F.col(T)), F.lit(None).cast("bigint")
    return {W_SET_BY: set_by, T_FINAL: final, TIMESTAMP: to_instant(final), **more}
