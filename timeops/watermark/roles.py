"""Roles: whether a record moves the watermark of its timeline, is judged against it, counts as activity.

Here: the role, as SQL for rows of Spark and for arrays. Not here: what the loop does with it (fold.py), rules 1 and 2
(../rules/arrival.py).
"""

import numpy as np
import pyarrow as pa

from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import literals
from tidemark.timeops.rules.arrival import kept_early
from tidemark.timeops.rules.reasons import AT_INGESTION, CODES, REASONS
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.values.instants import Array

OUTSIDE = 0
"""A dead letter of ingestion, which belongs to no timeline and only moves the clock. So is every record that rules 0
to 2 refuse or that has no time, unless a rule follows activity: a timeline without any other then has no state."""
ACTIVE = 1  # refused by rules 0 to 2, or without a time: activity that moves no watermark
JUDGED = 2  # it has a time that rule 3 judges, and moves the watermark
AHEAD = 3  # kept though it is early: rule 3 judges its time, and it moves no watermark


def role_sql(rules: TimeRules) -> str:
    """Return SQL for TINYINT, the role of a record that `judge_arrival` has judged."""
    # An event that is refused still ends the silence of its timeline and split.
    of_time = f"IF({c.REASON} IN ({literals(AT_INGESTION)}), {OUTSIDE}, {ACTIVE})"
    refused = of_time if rules.follows_activity else OUTSIDE
    accepted = f"IF({kept_early_sql(rules)}, {AHEAD}, {JUDGED})"
    return f"CAST(IF({c.REASON} IS NULL, {accepted}, {refused}) AS TINYINT)"


def roles(
    why: Array, event_us: Array | pa.ChunkedArray, arrival_us: Array | pa.ChunkedArray, rules: TimeRules
) -> Array:
    """Return the roles of records: `why` is what refuses each before rule 3, as CODES, 0 for nothing."""
    refused = ACTIVE if rules.follows_activity else OUTSIDE
    of_code = np.full(len(REASONS) + 1, refused, np.int8)
    of_code[[CODES[reason] for reason in AT_INGESTION]], of_code[0] = OUTSIDE, JUDGED
    role = of_code[why]
    rule = kept_early(rules.time)
    if rule is not None:
        role[rule.applies(np.asarray(event_us) - np.asarray(arrival_us)) & (why == 0)] = AHEAD
    return role


def kept_early_sql(rules: TimeRules) -> str:
    """Return SQL of whether rule 1 keeps an accepted event with its own time, so that it moves no watermark."""
    rule = kept_early(rules.time)
    return "false" if rule is None else f"{rule.beyond_sql} > 0"
