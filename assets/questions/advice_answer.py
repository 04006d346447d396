"""Advice: what is lost and why, what every tolerance would do, who loses most, how late the records are.

Here: its values, as JSON, as a text and as a picture. Not here: working it out (assets/questions/advice.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidemark.assets.questions.words import AnswerInParts, aligned, percent
from tidemark.timeops.figures.advice import FOUND_ON, Delay, Target, Tolerance
from tidemark.timeops.figures.losses import Habit
from tidemark.timeops.values.durations import format_duration, roughly
from tidemark.timeops.values.utc import Instant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FATE = {"drop": "refused", "adjust": "moved to the watermark", "keep": "left to the windows"}
LOST = {"drop": "lost", "adjust": "adjusted", "keep": "late"}
_MOST_ROWS = 16
_CLEARLY_LESS = 0.8
_MOST_VALUES, _MOST_HOURS = 8, 4
_FAR = 1.5
"""A share on the rest of the log that is so many times the target is marked."""


@dataclass(frozen=True)
class Loser:
    """The records of one value, and how many of them are lost.

    Attributes:
        by: `source`, `split`, `over`, or a column of the log.
        value: The value; of `over` the `_timeline`.
        lost: How many are behind the watermark.
        of: How many records it has that rule 3 judges.
        habit: What its times are like; None where nothing is special.
    """

    by: str
    value: str
    lost: int
    of: int
    habit: Habit | None = None


@dataclass(frozen=True)
class Leap:
    """A record that set the watermark which shut out others.

    Attributes:
        seq: Its `_arrival_seq`.
        event_us: Its event time, microseconds; None where it is not known.
        arrival_us: Its arrival; None where it is not known.
        raised_us: By how much it raised the watermark; None for the first one.
        cost: How many records were behind the watermark that it set.
    """

    seq: int
    event_us: int | None
    arrival_us: int | None
    raised_us: int | None
    cost: int


@dataclass(frozen=True)
class Advice(AnswerInParts):
    """How late the records of a log are, and what every out-of-orderness would make of them.

    The whole log is judged by the spec as it is: where that was another one for a part of the log, the tables have
    other numbers. «Lost» are the records that rule 3 finds behind the watermark: under `drop` they are refused, under
    `adjust` they are moved to the watermark, under `keep` the windows decide.

    Attributes:
        name: The pipeline.
        policy: `out_of_order`: drop, adjust or keep.
        records: The records of the log.
        judged: How many of them rule 3 judges.
        refused: How many records other rules refuse first, by reason.
        lost: How many are lost today.
        today_us: The out-of-orderness of today, by source where these differ.
        varied: The sources that the tolerances are for; empty for all.
        lines: What is lost, and why and what to do about it: two lines, one where nothing is lost.
        tolerances: What each tolerance would do, in order.
        targets: Tolerances for shares.
        losers: Who loses most, by kind.
        delays: How late the records come: all, by source, split, `over` and hour.
        leaps: The records whose watermarks shut out most.
    """

    name: str
    policy: str
    records: int
    judged: int
    refused: Mapping[str, int]
    lost: int
    today_us: Mapping[str, int]
    varied: tuple[str, ...]
    lines: tuple[str, ...]
    tolerances: tuple[Tolerance, ...]
    targets: tuple[Target, ...]
    losers: tuple[Loser, ...]
    delays: tuple[Delay, ...]
    leaps: tuple[Leap, ...]

    @property
    def today(self) -> Tolerance | None:
        """The row of today's out-of-orderness; None where sources have different ones."""
        today = {*self.today_us.values()}
        return next((row for row in self.tolerances if {row.tolerance_us} == today), None)

    def parts(self) -> Iterator[Iterable[str]]:
        """Say what is lost and why, then the numbers in tables."""
        for part in (_head, _tolerances, _targets, _losers, _leaps, _delays):
            yield part(self)

    def picture(self) -> "Figure | None":
        """Draw what each tolerance loses, with today's; None where none loses any."""
        from tidemark.assets.catalog.display.pictures import draw_tolerances  # noqa: PLC0415 - matplotlib takes a second

        shares = {row.tolerance_us / 1e6: row.share for row in self.tolerances}
        label = "today" if len(self.today_us) == 1 else "today, {}"
        today = {label.format(name): us / 1e6 for name, us in self.today_us.items()}
        return draw_tolerances(shares, today, self.records, LOST[self.policy])

    def to_dict(self) -> dict[str, Any]:
        """Return what `tidemark advise --json` prints; lengths are microseconds, shares from 0 to 1."""
        return {name: value for name, value in asdict(self).items() if name != "lines"} | {
            "lines": list(self.lines),
            "today_us": dict(self.today_us),
        }


def _head(advice: Advice) -> Iterator[str]:
    first, *lines = advice.lines
    yield f"{advice.name}: {first}"
    for line in lines:
        yield f"{line}"
    if advice.refused:
        counts = ", ".join(
            f"{n:,} {reason}" for reason, n in sorted(advice.refused.items(), key=lambda pair: -pair[1])
        )
        yield f"Refused by other rules: {counts}"


def _tolerances(advice: Advice) -> Iterator[str]:
    lost = LOST[advice.policy]
    of = f" of {' and '.join(advice.varied)}" if advice.varied else ""
    fate = f"how many of {advice.records:,} records would be {_FATE[advice.policy]}"
    yield f"What `out_of_orderness`{of} decides: {fate}"
    head = ("", "out_of_orderness", lost, "share", "results", "held at the end")
    rows = []
    for row in _worth_showing(advice.tolerances, advice.today):
        mark = ">" if row == advice.today else ""
        held = "" if row.held is None else f"{row.held:,}"
        rows.append((mark, _length(row.tolerance_us), f"{row.lost:,}", percent(row.share), _later(row), held))
    yield from aligned(head, rows, texts=(0, 1, 4))
    if advice.today is None:
        tolerances = ", ".join(f"{_length(us)} for {name}" for name, us in advice.today_us.items())
        yield f"Today: {tolerances}: {advice.lost:,} {lost}"


def _worth_showing(rows: Sequence[Tolerance], today: Tolerance | None) -> list[Tolerance]:
    """Return 0, today's, the last, and the rows that lose clearly less than the one before them."""
    differing: list[Tolerance] = []
    for number, row in enumerate(rows):
        is_less = not differing or row.lost < _CLEARLY_LESS * differing[-1].lost
        if is_less or row == today or number == len(rows) - 1:
            differing.append(row)
    step = max(len(differing) / _MOST_ROWS, 1)
    chosen = {round(number * step) for number in range(_MOST_ROWS)} | {len(differing) - 1}
    return [row for number, row in enumerate(differing) if number in chosen or row == today]


def _later(tolerance: Tolerance) -> str:
    if tolerance.later_us is None:
        return ""
    if not tolerance.later_us:
        return "as today"
    return f"{_about(abs(tolerance.later_us))} {'later' if tolerance.later_us > 0 else 'earlier'}"


def _targets(advice: Advice) -> Iterator[str]:
    part = f"{FOUND_ON * 100:.0f} %"
    yield f"Tolerances for a target, found on the first {part} of the log, verified on the rest"
    rows = [
        (
            f"at most {100 * target.share:g} % {LOST[advice.policy]}",
            "none is enough: the clock closes what they belong to"
            if target.tolerance_us is None
            else _length(target.tolerance_us),
            "" if target.verified_share is None else percent(target.verified_share),
            _verdict(target),
        )
        for target in advice.targets
    ]
    yield from aligned(("target", "out_of_orderness", "on the rest", ""), rows, texts=(0, 1, 3))


def _verdict(target: Target) -> str:
    if target.verified_share is None or target.tolerance_us is None:
        return ""
    if target.verified_share > _FAR * target.share:
        return "the rest is later than the first part"
    return "holds" if target.verified_share <= target.share else "a little above"


def _losers(advice: Advice) -> Iterator[str]:
    several = [loser for loser in advice.losers if loser.by != "source" or _are_several(advice, "source")]
    if not several:
        return
    yield "Who loses most"
    shown, counts = [], dict[str, int]()
    for loser in several:
        counts[loser.by] = counts.get(loser.by, 0) + 1
        if counts[loser.by] <= _MOST_VALUES:
            shown.append(loser)
    rows = [
        (
            f"{loser.by} {loser.value}",
            f"{loser.lost:,}",
            f"{loser.of:,}",
            percent(loser.lost / loser.of),
            _habit(loser),
        )
        for loser in shown
    ]
    yield from aligned(("", LOST[advice.policy], "of", "share", "likely reason"), rows, texts=(0, 4))


def _are_several(advice: Advice, by: str) -> bool:
    return len([delay for delay in advice.delays if delay.by == by]) > 1


def _habit(loser: Loser) -> str:
    return "" if loser.habit is None else habit_in_words(loser.habit)


def habit_in_words(habit: Habit) -> str:
    """Say what the times of some records are like."""
    length = _about(habit.length_us)
    if habit.kind == "ahead":
        return f"its clock is {length} ahead"
    if habit.kind == "slow":
        return f"its clock is {length} slow, or everything takes so long to arrive"
    return f"comes in bursts after silences of {length}"


def _leaps(advice: Advice) -> Iterator[str]:
    """Yield the records that raised the watermark by more than the out-of-orderness: others had no time to come."""
    wide_us = max(advice.today_us.values())
    far = [leap for leap in advice.leaps if leap.cost > 1 and (leap.raised_us or 0) > wide_us]
    if not far:
        return
    yield "Records that moved the watermark ahead of others"
    rows = []
    for leap in far:
        ahead = ""
        if leap.event_us is not None and leap.arrival_us is not None and leap.event_us > leap.arrival_us:
            ahead = f"{_about(leap.event_us - leap.arrival_us)} ahead of its arrival"
        time = "" if leap.event_us is None else f"{Instant(leap.event_us)} UTC"
        rows.append((f"record {leap.seq:,}", time, f"by {_about(leap.raised_us or 0)}", f"{leap.cost:,}", ahead))
    yield from aligned(("", "event time", "raised it", "cost", ""), rows, texts=(0, 1, 2, 4))


def _delays(advice: Advice) -> Iterator[str]:
    yield "How late they are: how much older than the latest event before them"
    rows = []
    for by in ("", "source", "split", "over", "hour"):
        delays = [delay for delay in advice.delays if delay.by == by]
        if by and len(delays) < 2:
            continue
        rows += [_delay(delay) for delay in delays[: _MOST_HOURS if by == "hour" else _MOST_VALUES]]
    head = ("", "records", "late at all", "half at most", "99 % at most", "longest", LOST[advice.policy])
    yield from aligned(head, rows)


def _delay(delay: Delay) -> tuple[str, ...]:
    name = f"{delay.by} {delay.value}" if delay.by else "all"
    return (
        f"{name} UTC" if delay.by == "hour" else name,
        f"{delay.records:,}",
        percent(delay.behind / delay.records),
        *(_about(us) for us in (delay.half_us, delay.most_us, delay.longest_us)),
        f"{delay.lost:,}",
    )


def _length(us: int) -> str:
    return format_duration(timedelta(microseconds=us))


def _about(us: int) -> str:
    return roughly(timedelta(microseconds=us))
