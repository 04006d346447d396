"""Rules 0 to 2 on one record: has it a time, is it a duplicate, too early, too late.

Rule 3 needs a watermark and is in the referee.
"""

from dataclasses import dataclass

from tests.oracle.grids import MIN_US, floor
from tests.oracle.model import Record, TimeRules
from tests.oracle.outcome import Counts, DeadLetter


@dataclass(frozen=True)
class Timed:
    """A record that rules 0 to 2 let through: its event time, its time t, the rules that moved t."""

    event_us: int
    t: int
    adjusted_by: tuple[str, ...] = ()
    moves: bool = True  # whether it moves W


def refused_at_ingestion(record: Record) -> str | None:
    """Return the reason of a dead letter of ingestion, which belongs to no timeline."""
    if record.bad == "malformed":
        return "malformed"
    return "no_arrival_time" if record.arrival_us is None else None


class TimePolicies:
    """Rules 0 to 2, and the memory that the duplicate rule needs."""

    def __init__(self, rules: TimeRules, counts: Counts) -> None:
        self.rules = rules
        self.counts = counts
        self.first_times: list[tuple[object, int]] = []  # (key, event time) of records that are no duplicates

    def judge(self, record: Record, arrival: int) -> Timed | DeadLetter:
        """Return the time of a record that has an arrival, or why it is refused."""
        e = arrival if self.rules.processing_time else record.event_us
        if record.bad is not None or e is None:
            return DeadLetter(record.seq, "time", record.bad or "no_timestamp")
        if self.is_duplicate(record, e):
            return DeadLetter(record.seq, "time", "duplicate", event_us=e)
        if self.rules.early is not None and e - arrival > self.rules.early[0]:
            return self.judge_early(record, arrival, e, *self.rules.early)
        if self.rules.late is not None and arrival - e > self.rules.late[0]:
            return self.judge_late(record, arrival, e, *self.rules.late)
        return Timed(e, floor(e, self.rules.unit_us))

    def is_duplicate(self, record: Record, e: int) -> bool:
        """Rule 0; a record without a key has no duplicates."""
        within = self.rules.within_us
        if within is None or record.key is None:
            return False
        for key, first in self.first_times:
            if key == record.key and abs(e - first) <= within:
                return True
        self.first_times.append((record.key, e))
        return False

    def judge_early(self, record: Record, arrival: int, e: int, tolerance: int, policy: str) -> Timed | DeadLetter:
        """Rule 1 on a record that arrived before its time by more than the tolerance."""
        self.counts.early += 1
        if policy == "drop":
            return DeadLetter(record.seq, "time", "early", event_us=e, lateness_us=e - arrival - tolerance)
        if policy == "keep":
            return Timed(e, floor(e, self.rules.unit_us), moves=False)
        return Timed(e, floor(arrival + tolerance, self.rules.unit_us), ("early",))

    def judge_late(self, record: Record, arrival: int, e: int, tolerance: int, policy: str) -> Timed | DeadLetter:
        """Rule 2 on a record that arrived after its time by more than the tolerance."""
        self.counts.late += 1
        if policy == "drop":
            return DeadLetter(record.seq, "time", "late_arrival", event_us=e, lateness_us=arrival - e - tolerance)
        return Timed(e, floor(max(arrival - tolerance, MIN_US), self.rules.unit_us), ("late",))
