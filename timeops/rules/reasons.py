"""Why a record is a dead letter: the reasons, what each means, and which function decides it.

Here: the list from which code and SQL take them. Not here: the rows of `dead_letters` (timeops/dead_letters.py).
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Self


class Stage(StrEnum):
    """The stage that refuses a record: column `stage` of `dead_letters`."""

    INGEST = "ingest"
    TIME = "time"
    WINDOW = "window"
    JOIN = "join"


class Reason(StrEnum):
    """A reason, as column `reason` of `dead_letters` has it; of several the first counts.

    Attributes:
        stage: The stage that refuses a record for it. A window too does for BAD_EXPRESSION, if an aggregate fails.
        by_watermark: True if a watermark decides it.
        sentence: What it means, for people.
    """

    stage: Stage
    by_watermark: bool
    sentence: str

    def __new__(cls, stored: str, stage: Stage, by_watermark: bool, sentence: str) -> Self:
        """Make a reason of its text, as it is stored, and what is known of it."""
        made = str.__new__(cls, stored)
        made._value_ = stored
        made.stage, made.by_watermark, made.sentence = stage, by_watermark, sentence
        return made

    # `extract` in timeops/events/event_time.py, whose CASE has their order; of MALFORMED the source's reader decides,
    # in `_malformed`: `to_records` and `too_large` in records.py of resources/sources/, and text_files.py there
    MALFORMED = ("malformed", Stage.INGEST, False, "the record does not fit the schema of its source")
    NO_ARRIVAL_TIME = ("no_arrival_time", Stage.INGEST, False, "nothing says when the record arrived")
    BAD_EXPRESSION = (  # of a window: `unfit` in timeops/windows/segment.py
        *("bad_expression", Stage.TIME, False),
        "the event time, or an aggregate of a window, cannot be computed from the record",
    )
    BAD_TIMESTAMP = ("bad_timestamp", Stage.TIME, False, "the event time in the record is not a valid time")
    NO_TIMESTAMP = ("no_timestamp", Stage.TIME, False, "the record has no event time")
    # rule 0: `with_duplicates` in timeops/events/duplicates.py
    DUPLICATE = ("duplicate", Stage.TIME, False, "an earlier record describes the same event")
    # rules 1 and 2: `arrival_rules` in timeops/rules/arrival.py, `judge_arrival` in timeops/events/adjustment.py
    EARLY = ("early", Stage.TIME, False, "its event time is too far ahead of its arrival")
    LATE_ARRIVAL = ("late_arrival", Stage.TIME, False, "it arrived too long after its event time")
    # rule 3: `_apply_out_of_order` in timeops/watermark/fold.py finds it; `_with_rule_3` in
    # timeops/events/adjustment.py refuses it where the policy is `drop`
    OUT_OF_ORDER = (
        *("out_of_order", Stage.TIME, True),
        "it came behind the watermark: results for its time were final",
    )
    # `late_of` in timeops/windows/segment.py; of sessions `_take` in timeops/windows/sessions.py
    WINDOW_CLOSED = (
        *("window_closed", Stage.WINDOW, True),
        "all windows of the event had closed; the event itself was accepted",
    )
    # `came_too_late` in timeops/joins/events.py
    JOIN_CLOSED = (
        *("join_closed", Stage.JOIN, True),
        "all answers of the join that the event could change were final; the event itself was accepted",
    )


REASONS = tuple(Reason)
CODES = {reason: number for number, reason in enumerate(REASONS, start=1)}
"""By reason its number in arrays; 0 is none."""
AT_INGESTION = tuple(reason for reason in Reason if reason.stage == Stage.INGEST)
"""Reasons of records that belong to no timeline or split and do not count as activity."""
UNTIMED = (*AT_INGESTION, Reason.BAD_EXPRESSION, Reason.BAD_TIMESTAMP, Reason.NO_TIMESTAMP)
"""Reasons of records that have no event time."""
OF_WINDOWS = (Reason.BAD_EXPRESSION, Reason.WINDOW_CLOSED)
"""The reasons for which a window refuses an event."""
OF_ACCEPTED = (*OF_WINDOWS, Reason.JOIN_CLOSED)
"""The reasons for which a window or a join refuses an event, which was accepted."""


def in_sql(reasons: Iterable[Reason]) -> str:
    """Write reasons as a list of SQL, to follow IN."""
    return "(" + ", ".join(f"'{reason}'" for reason in reasons) + ")"
