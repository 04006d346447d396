"""The alerts of a spec, as checks of a batch: what was lost, how old results are, what is far ahead, who is silent.

Here: what is compared. Not here: what was lost, and why (assets/alarms/losses/), who came when
(assets/alarms/silences.py), the other checks (assets/checks.py), the age of a pipeline that has stopped running,
which Dagster sees by a freshness policy (assets/live.py). No alert holds a batch back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from tidemark.assets.alarms import silences
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.alarms.losses.rates import Losses
from tidemark.assets.alarms.losses.sentences import advice, beyond, loss_in_words
from tidemark.assets.batch import BatchWriter
from tidemark.assets.log.exclusions import excluded
from tidemark.resources import tables
from tidemark.resources.batches.position import Position, plan_end, records_in
from tidemark.resources.quality.checks import Checked, Counted, Expectation, Measured, validated
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.figures.counts import FURTHEST_SEQ, FURTHEST_T_US, FURTHEST_US
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.between_parts import has_event_time
from tidemark.timeops.values.durations import format_duration, roughly
from tidemark.timeops.values.utc import instant_of

DEAD_LETTER_RATE = Expectation(
    name="dead_letter_rate",
    holds="no larger share of the records of a day was lost than `alerts.dead_letter_rate` says, 5 % by default: of "
    "all, of a source, or of a value of `over`; duplicates are not losses",
    remedy="`tidemark show SPEC dead_letters` shows the records, each with a sentence that says why",
)
BAD_EXPRESSIONS = Expectation(
    name="bad_expressions",
    holds="expressions of the spec can be computed on nearly all records",
    remedy="read the dead letters with the reason `bad_expression`: their `detail` names the expression. Correct it, "
    "or let it be null where it has no value",
)
FAR_AHEAD = Expectation(
    name="far_ahead",
    holds="no event moved the watermark further ahead of the clock than `alerts.far_ahead` says, a day by default",
    remedy="see whether the time of that record is right: what arrives behind the watermark is late, and it never "
    "goes back. With `time.early: {tolerance: 1 day, policy: keep}` no such event moves it from the next record on; "
    "`tidemark rejudge` judges the log without that one, so that what was lost comes back",
)
CLOCK_AHEAD = Expectation(
    name="clock_far_ahead",
    holds="the clock of arrivals is ahead of this machine's clock by at most what `alerts.far_ahead` says, a day by "
    "default",
    remedy="see whether the arrival time of that record is right: the clock never goes back, and idle rules and "
    "ticks follow it. Correct the clock of the machine that sets it, or write an `arrival_time` that is null for "
    "such a record; `tidemark rejudge` judges the log without this one, so that what was lost comes back",
)
FUTURE_ARRIVALS = Expectation(
    name="future_arrival",
    holds="no record arrived further ahead of this machine's clock than `future_arrival` of its source says, an hour "
    "by default",
    remedy="correct the clock of the machine that sets the arrival, or the `arrival_time` of the source. Such "
    "records arrive when they are read; `future_arrival` in `_adjusted_by` and an item of `log_control` name them",
)
SILENCE = Expectation(
    name="silence",
    holds="every value of `over`, and every source, has sent something within twice the longest time for which it "
    "was silent before, by the clock of the log",
    remedy="look at the device or source. If it is retired, there is nothing to do: it is no longer looked for once "
    "the newest 200 batches lack it. If a watermark or windows wait for it, `time.idle` says for how long they "
    "do",
)
MOST_FAILING = 0.2
"""The share of a batch's records on which expressions may fail."""
FRESH_WATERMARK = Expectation(
    name="freshness",
    holds="the watermark is behind the clock by at most what `alerts.freshness` says",
    remedy="see what delays it in the metadata of ordered_events: a source that is silent or late, or too few runs",
)


def alerts_of(spec: Spec) -> dict[str, tuple[Expectation, ...]]:
    """Return the alerts of a spec, its own and the ones that every spec has, by the asset that shows them."""
    ahead = (FAR_AHEAD,) if has_event_time(spec.sources, spec.time) else ()
    freshness = (FRESH_WATERMARK,) if spec.alerts.freshness is not None else ()
    arrived = (FUTURE_ARRIVALS,) if any(source.future_arrival_us is not None for source in spec.sources) else ()
    silence = (SILENCE,) if silences.may_be_silent(spec) else ()
    return {
        tables.ORDERED_EVENTS: (*ahead, CLOCK_AHEAD, *arrived, *silence, *freshness),
        tables.DEAD_LETTERS: (DEAD_LETTER_RATE, BAD_EXPRESSIONS),
    }


def check_alert(lost: BatchLosses, expectation: Expectation) -> Checked:
    """Compare a batch with what an alert allows."""
    [checked] = validated([count_alert(lost, expectation)])
    return checked


def count_alert(lost: BatchLosses, expectation: Expectation) -> Counted:
    """Count what an alert asks for: with the limit of an error if that is exceeded, else with that of a warning."""
    of_level = _comparison(lost, expectation)
    allowed = Counted(expectation)
    for level in ("error", "warn"):
        met = of_level(level)
        if met is None:
            continue
        expected = replace(expectation, remedy=met.remedy or expectation.remedy)
        allowed = Counted(expected, met.measured, note=met.note, numbers=met.numbers)
        if any(count.expected != count.actual for count in met.measured):
            return replace(allowed, is_error=level == "error", note="")
    return allowed


def _comparison(lost: BatchLosses, expectation: Expectation) -> "Callable[[str], _Met | None]":
    """Return what compares the batch with a level, `warn` or `error`; None where the alert does not have it."""
    if expectation.name == DEAD_LETTER_RATE.name:
        return _refused(lost)
    if expectation.name == FRESH_WATERMARK.name:
        return partial(_age, lost.batch)
    if expectation.name == SILENCE.name:
        return lambda level: _silent(lost) if level == "warn" else None
    warnings = {
        BAD_EXPRESSIONS.name: _failing,
        FAR_AHEAD.name: _ahead,
        CLOCK_AHEAD.name: _clock_ahead,
        FUTURE_ARRIVALS.name: _arrived_ahead,
    }
    return lambda level: warnings[expectation.name](lost.batch) if level == "warn" else None


@dataclass(frozen=True)
class _Met:
    """The findings of an alert at one level.

    Attributes:
        measured: How much more than allowed.
        numbers: What Dagster plots.
        note: What was found, in words, where it is allowed.
        remedy: What to do; empty for what the expectation says.
    """

    measured: tuple[Measured, ...]
    numbers: Mapping[str, float]
    note: str = ""
    remedy: str = ""


def _refused(lost: BatchLosses) -> Callable[[str], _Met | None]:
    """Count what was lost up to the end of the batch, once for all levels."""
    spec, losses = lost.batch.workspace.spec, lost.losses
    levels = spec.alerts.dead_letter_rate

    def of_level(level: str) -> _Met | None:
        limit: float | None = getattr(levels, level)
        if limit is None:
            return None
        excess = beyond(losses, limit, levels)
        remedy = advice(lost.cause(excess.letters), spec) if excess.records else ""
        sentence = "; ".join([*excess.sentences, f"limit {limit * 100:g} %"])
        note = f"{loss_in_words(losses.newest) if losses.newest else 'Nothing was lost'}; limit {limit * 100:g} %"
        measured = Measured("records lost beyond the limit", 0, excess.records, sentence)
        return _Met((measured,), _shares(losses), note, remedy)

    return of_level


def _shares(losses: Losses) -> dict[str, float]:
    """Return the shares of the newest day, of all records and by reason, and the largest share of all."""
    newest = losses.newest
    if newest is None:
        return {"refused_percent": 0.0, "refused": 0, "records": losses.records}
    by_reason = {f"{reason}_percent": 100 * n / newest.records for reason, n in newest.by_reason.items()}
    in_all = {"refused_percent": newest.percent, "refused": newest.lost, "records": newest.records}
    return in_all | {"refused_percent_at_most": max(loss.percent for loss in losses.rates)} | by_reason


def _failing(batch: BatchWriter) -> _Met:
    """Warn of the records on which the event time fails, or of the window's aggregates where most do."""
    workspace, plan = batch.workspace, batch.plan
    counts, records = workspace.progress.counts_of(plan.batch_id), records_in(plan)
    failing = counts.of_windows(Reason.BAD_EXPRESSION, [window.name for window in workspace.spec.windows])
    failing = {f"aggregates of `{name}`": n for name, n in failing.items()}
    failing["time of the event"] = counts.refused.get(Reason.BAD_EXPRESSION, 0)
    expression, n = max(failing.items(), key=lambda item: item[1])
    sentence = f"the {expression} failed on {n:,} of {records:,} records; limit {MOST_FAILING * 100:g} %"
    too_many = max(n - int(records * MOST_FAILING), 0)
    beyond = Measured("records on which an expression failed beyond the limit", 0, too_many, sentence)
    return _Met((beyond,), {"failing_percent": 100 * n / max(records, 1)})


def _age(batch: BatchWriter, level: str) -> _Met | None:
    workspace, plan = batch.workspace, batch.plan
    levels = workspace.spec.alerts.freshness
    oldest: timedelta | None = getattr(levels, level)
    position = workspace.progress.position_after(plan.batch_id)
    if oldest is None or position.final or position.watermark_us is None:
        return None
    behind = workspace.clock.since(position.watermark_us)
    sentence = f"the watermark is {roughly(abs(behind))} behind the clock; limit {format_duration(oldest)}"
    beyond = Measured("seconds beyond the limit", 0, max((behind - oldest) // timedelta(seconds=1), 0), sentence)
    return _Met((beyond,), {"seconds_behind": behind.total_seconds()})


def _ahead(batch: BatchWriter) -> _Met:
    """Warn of the event of the batch that was furthest ahead, else of the watermark if it still is."""
    workspace, plan = batch.workspace, batch.plan
    counts, position = workspace.progress.counts_of(plan.batch_id), workspace.progress.position_after(plan.batch_id)
    if FURTHEST_US in counts and not workspace.spec.uses_splits:  # of several splits the lowest counts
        ahead = timedelta(microseconds=counts[FURTHEST_US])
        sentence = f"record {counts[FURTHEST_SEQ]} has the event time {_utc(counts[FURTHEST_T_US])}"
        return _far(batch, ahead, sentence, seq=counts[FURTHEST_SEQ])
    if position.final or position.watermark_us is None or position.clock_us is None:
        return _far(batch, timedelta(0), "")
    ahead = timedelta(microseconds=position.watermark_us - position.clock_us)
    seq = _set_by(workspace, position) if ahead > workspace.spec.alerts.far_ahead else None
    since = "" if seq is None else f" since record {seq}"
    return _far(batch, ahead, f"the watermark is {_utc(position.watermark_us)}{since}", seq=seq)


def _clock_ahead(batch: BatchWriter) -> _Met:
    """Warn if the clock after the batch is ahead of the wall clock, with the record that set it."""
    workspace = batch.workspace
    clock_us = workspace.progress.position_after(batch.plan.batch_id).clock_us
    ahead = timedelta(0) if clock_us is None else -workspace.clock.since(clock_us)
    if clock_us is None or ahead <= workspace.spec.alerts.far_ahead:
        return _far(batch, ahead, "", than="this machine")
    seq, who = _first_record(workspace, (c.ARRIVAL, "=", instant_of(clock_us)))
    return _far(batch, ahead, f"{who} has the arrival time {_utc(clock_us)}", than="this machine", seq=seq)


def _first_record(workspace: Workspace, which: tuple[str, str, object]) -> tuple[int | None, str]:
    """Return the number of the first record that meets a condition, and where it is from, in words."""
    columns = [c.SEQ, c.SOURCE, c.FILE, c.POSITION]
    rows = workspace.lake.rows(tables.RAW_EVENTS, columns=columns, filters=[which]).sort_by(c.SEQ).slice(0, 1)
    for row in rows.to_pylist():
        where = f"source {row[c.SOURCE]}, {row[c.FILE]}, record {row[c.POSITION]} of it"
        return row[c.SEQ], f"record {row[c.SEQ]} ({where})"
    return None, "the log"


def _arrived_ahead(batch: BatchWriter) -> _Met:
    """Warn of the records of the batch that arrived ahead of the machine's clock."""
    workspace, plan = batch.workspace, batch.plan
    seqs = excluded(workspace).ahead_between(plan.first_seq, plan_end(plan))
    sentence = ""
    if len(seqs):
        who = _first_record(workspace, (c.SEQ, "=", int(seqs[0])))[1]
        sentence = f"{len(seqs):,} arrived ahead of this machine's clock, the first is {who}"
    return _Met((Measured("records ahead of this machine's clock", 0, len(seqs), sentence),), {"records": len(seqs)})


def _silent(lost: BatchLosses) -> _Met:
    """Warn of the values of `over`, and the sources, that have been silent for longer than ever before."""
    batch_id = lost.batch.plan.batch_id
    clock_us = lost.batch.workspace.progress.position_after(batch_id).clock_us
    silent, among = silences.silences_after(lost.log, batch_id, clock_us)
    longest_us = max((silence.silence_us for silence in silent), default=0)
    numbers = {"silent": len(silent), "looked_at": among, "longest_silence_seconds": longest_us / 1e6}
    measured = Measured("silent values of `over` and sources", 0, len(silent), silences.silences_in_words(silent))
    return _Met((measured,), numbers)


def _far(batch: BatchWriter, ahead: timedelta, what: str, *, than: str = "the clock", seq: int | None = None) -> _Met:
    """Compare how far something is ahead with `alerts.far_ahead`; say how to judge the log without the record."""
    allowed = batch.workspace.spec.alerts.far_ahead
    beyond = max(ahead - allowed, timedelta(0))
    seconds = max(beyond // timedelta(seconds=1), 1) if beyond else 0  # less than a second is beyond the limit too
    sentence = f"{what}, {roughly(abs(ahead))} ahead of {than}; limit {format_duration(allowed)}"
    if seq is not None:
        sentence += f'. The log without it: `tidemark rejudge SPEC --exclude {seq} --reason "…"`'
    return _Met(
        (Measured("seconds beyond the limit", 0, seconds, sentence),), {"seconds_ahead": ahead.total_seconds()}
    )


def _set_by(workspace: Workspace, position: Position) -> int | None:
    """Return the number of the record that set the watermark, if one record did."""
    seq = position.set_by
    if seq is None and position.max_t_us is not None:  # one of several timelines has it
        newest = [("max_timestamp", "=", instant_of(position.max_t_us))]
        rows = workspace.lake.rows(tables.WATERMARKS, columns=["watermark_set_by"], filters=newest)
        numbers = [number for number in rows["watermark_set_by"].to_pylist() if number is not None]
        seq = min(numbers, default=None)
    return seq


def _utc(us: int) -> str:
    return f"{instant_of(us).replace(tzinfo=None).isoformat(sep=' ')} UTC"
