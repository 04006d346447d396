"""Losses in words: what was lost, why, and the line of the spec to change."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.alarms.losses.causes import Cause, tolerance_us
from tidemark.assets.alarms.losses.rates import Losses
from tidemark.timeops import columns as c
from tidemark.timeops.figures.losses import LIKELY, Loss, Pull, Shortfall, Trait
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.automation import RateLevels
from tidemark.timeops.values.durations import format_duration, micros, roughly, rounded_up
from tidemark.timeops.values.utc import Instant

_WHOSE = {c.SOURCE: "source", c.TIMELINE: "over"}
_MOST_NAMED = 5


@dataclass(frozen=True)
class Beyond:
    """The losses beyond a limit.

    Attributes:
        records: How many more were lost than allowed, where most were.
        sentences: What was lost, and of whom.
        letters: Their letters.
    """

    records: int
    sentences: tuple[str, ...]
    letters: pa.Table


def beyond(losses: Losses, limit: float, levels: RateLevels) -> Beyond:
    """Return what is beyond a limit; of each whose records it is the worst day."""
    by_whose: dict[tuple[str, str], list[Loss]] = defaultdict(list)
    for loss in losses.rates:
        if loss.beyond(limit, levels.min_records):
            by_whose[loss.column, loss.value].append(loss)
    sentences = [loss_in_words(losses_of[0]) + _elsewhen(losses_of) for losses_of in by_whose.values()]
    ending = [f"and {len(sentences) - _MOST_NAMED} more"] if len(sentences) > _MOST_NAMED else []
    letters = losses.letters
    if by_whose and ("", "") not in by_whose:
        of_these = [
            pc.is_in(letters[column], pa.array([value for of, value in by_whose if of == column], pa.string()))
            for column in _WHOSE
        ]
        letters = letters.filter(pc.or_(*of_these))
    records = max((loss.beyond(limit, levels.min_records) for loss in losses.rates), default=0)
    return Beyond(records, (*sentences[:_MOST_NAMED], *ending), letters)


def _elsewhen(losses: Sequence[Loss]) -> str:
    """Say in how many other periods the same share is beyond the limit."""
    n_others = len({loss.period for loss in losses if loss.is_arrived == losses[0].is_arrived}) - 1
    return f", and in {n_others} other period{'s' if n_others > 1 else ''}" if n_others else ""


def loss_in_words(loss: Loss) -> str:
    """Say what was lost, and for which reasons."""
    share = f"{loss.percent:.1f}" if loss.percent >= 1 or not loss.lost else f"{loss.percent:.2g}"
    reasons = sorted(loss.refused.items(), key=lambda item: (-item[1], item[0]))
    of = [f"{n:,} {reason}{f' by `{window}`' if window else ''}" for (window, reason), n in reasons if n]
    owner = f"{_WHOSE[loss.column]} {loss.value}: " if loss.column else ""
    records = f"records that arrived {loss.period}" if loss.is_arrived else f"events with a time {loss.period}"
    return f"{owner}{share} % of the {records} were lost ({loss.lost:,} of {loss.records:,}: {', '.join(of)})"


_SHOW = "`tidemark show SPEC dead_letters --where \"reason = '{}'\"` shows them"
_OTHERWISE = {
    Reason.MALFORMED: f"a source may have changed its format: {_SHOW.format(Reason.MALFORMED)}",
    Reason.NO_ARRIVAL_TIME: f"`arrival_time` is null for them: {_SHOW.format(Reason.NO_ARRIVAL_TIME)}",
    **{
        reason: f"`timestamp_by` does not fit them: {_SHOW.format(reason)}"
        for reason in (Reason.NO_TIMESTAMP, Reason.BAD_TIMESTAMP)
    },
    Reason.BAD_EXPRESSION: f"an expression of the spec fails on them: {_SHOW.format(Reason.BAD_EXPRESSION)}",
}
_MOST_SAID = 2


def advice(cause: Cause, spec: Spec) -> str:
    """Say what to do about lost records: who pulled the watermark, and the lines of the spec that would help."""
    letters = sum(shortfall.letters for shortfall in cause.shortfalls)
    if cause.pull is not None and 2 * cause.pull.letters >= letters:
        return _of_pull(cause.pull, cause, spec)
    much = [shortfall for shortfall in cause.shortfalls if 5 * shortfall.letters >= letters][:_MOST_SAID]
    return "; ".join(
        [*(_of_shortfall(shortfall, spec) for shortfall in much), *(f"or {way}" for way in _over(cause, spec))]
    )


def _of_pull(pull: Pull, cause: Cause, spec: Spec) -> str:
    record = f"record {pull.seq} with the event time {Instant(pull.event_us)} UTC"
    if pull.ahead_us is not None and pull.ahead_us > 0 and pull.arrival_us is not None:
        record += f", which arrived at {Instant(pull.arrival_us)} UTC"
        far = f"{_about(pull.ahead_us)} ahead of their arrival: a clock is wrong"
    else:
        far = f"{_about(pull.behind_us)} ahead of half of the records that they shut out"
    who = f"records with {_who(pull.trait)} set the watermark" if pull.trait else "a few records set the watermark"
    is_single = 10 * pull.alone >= 9 * pull.of
    if is_single:
        who = f"record {pull.seq}{f', with {_who(pull.trait)},' if pull.trait else ''} set the watermark"
    share = 100 * pull.letters / pull.of
    sentence = f"{who} for {pull.letters:,} of {pull.of:,} late ones ({share:.0f} %), {far} (such as {record})"
    ways = [*_over(cause, spec), *_early(pull, spec), *(() if is_single else _wider(cause, spec))]
    if is_single:
        sentence += f'. The log without it: `tidemark rejudge SPEC --exclude {pull.seq} --reason "…"`'
    return f"{sentence}. Write {'; or '.join(ways)}" if ways else sentence


def in_two_lines(loss: Loss, cause: Cause, spec: Spec) -> tuple[str, ...]:
    """Say what was lost, and why and what to do about it."""
    return tuple(line for line in (loss_in_words(loss), advice(cause, spec)) if line)


def _who(trait: Trait) -> str:
    if trait.column in (c.SOURCE, c.SPLIT):
        return f"the {trait.column.strip('_')} `{trait.value}`"
    return f"`{trait.column}` = `{trait.value}`"


def _about(us: int) -> str:
    return roughly(timedelta(microseconds=max(us, 0)))


def _over(cause: Cause, spec: Spec) -> Iterator[str]:
    """Propose a watermark for each value, unless there is one."""
    if cause.over is None or cause.over in spec.time.over or spec.uses_splits:
        return
    over = ", ".join([*spec.time.over, cause.over])
    windows = [window.name for window in spec.event_windows if cause.over not in window.group_columns]
    then = f" (`group_by` of {', '.join(f'`{name}`' for name in windows)} then needs it too)" if windows else ""
    yield f"`time.over: [{over}]`, a watermark for each{then}"


def _early(pull: Pull, spec: Spec) -> Iterator[str]:
    """Propose that what is ahead of its arrival moves no watermark, by a tolerance that leaves out what is not."""
    least = rounded_up(max(tolerance_us(spec), 1_000_000))
    if pull.ahead_us is not None and 2 * micros(least) <= pull.ahead_us and spec.time.early is None:
        policy = f"{{tolerance: {format_duration(least)}, policy: keep}}"
        yield f"`time.early: {policy}`: what is further ahead of its arrival then moves no watermark"


def _wider(cause: Cause, spec: Spec) -> Iterator[str]:
    by_watermark = [
        shortfall for shortfall in cause.shortfalls if shortfall.more_us and shortfall.reason.by_watermark
    ]
    tolerances_us = [shortfall.more_us[LIKELY[-1]] for shortfall in by_watermark]
    if tolerances_us:
        yield f"{_key(spec, max(tolerances_us))}, which lets in 99 % of them"


def _key(spec: Spec, more_us: int) -> str:
    wide = format_duration(rounded_up(tolerance_us(spec) + more_us))
    return f"`time.out_of_orderness: {wide}`"


def _of_shortfall(shortfall: Shortfall, spec: Spec) -> str:
    """Say by how much letters of a reason missed their tolerance, and which would let them in."""
    reason, trait, window = shortfall.reason, shortfall.trait, shortfall.window
    owner = f", most of them with {_who(trait)}" if trait else ""
    many = f"{shortfall.letters:,} {reason}{owner}"
    if reason in _OTHERWISE:
        return f"{many}: {_OTHERWISE[reason]}"
    if not shortfall.more_us:
        return f"{many}: no tolerance would let them in, as a clock or a flush had closed what they belong to"
    key = {
        Reason.EARLY: ("time.early.tolerance", spec.time.early and spec.time.early.tolerance_us),
        Reason.LATE_ARRIVAL: ("time.late.tolerance", spec.time.late and spec.time.late.tolerance_us),
        Reason.OUT_OF_ORDER: ("time.out_of_orderness", tolerance_us(spec)),
        Reason.WINDOW_CLOSED: (f"allowed_lateness` of `{window}", _allowed_us(spec, window)),
        Reason.JOIN_CLOSED: (f"allowed_lateness` of `{window}", _allowed_us(spec, window)),
    }[reason]
    half, most = (
        format_duration(rounded_up((key[1] or 0) + shortfall.more_us[part])) for part in (LIKELY[0], LIKELY[-1])
    )
    name, _, of = key[0].partition("`")
    of = f" for{of[3:]}`" if of else ""
    lets = f"`{name}: {most}`{of} would let in 99 % of them" + (f", {half} half" if half != most else "")
    return f"{many}: {lets}"


def _allowed_us(spec: Spec, name: str) -> int:
    of_windows = {window.name: window.allowed_lateness_us for window in spec.windows}
    of_joins = {join.name: join.allowed_lateness_us for join in spec.joins}
    return (of_windows | of_joins).get(name, 0)
