"""The alerts of a spec, as checks of a batch: how much was refused, how old results are, what is far ahead.

Here: what is compared, and the share of refused records in a period: of all, of each source, of each value of `over`.
Not here: the other checks (checks.py), the age of a pipeline that has stopped running, which Dagster sees by a
freshness policy (live.py). No alert holds a batch back.

A period is made of whole batches: the one at work, and the batches of the period before it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from tidemark.assets.batch import BatchWriter
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, Plan
from tidemark.resources.batches.position import Position, plan_end, records_in
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.quality.checks import Checked, Expectation, Measured, check
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.counts import FURTHEST_SEQ, FURTHEST_T_US, FURTHEST_US
from tidemark.timeops.durations import format_duration, roughly
from tidemark.timeops.reasons import Reason, Stage
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.pipeline import has_event_time
from tidemark.timeops.utc import instant_of

_MOST_RECORDS = 5_000_000
"""Sources and values of `over` are counted in the tables, in the newest batches that hold at most so many records."""


@dataclass(frozen=True)
class Rate:
    """How many of some records were refused.

    Attributes:
        of: Whose they are, as the words before a rate; empty where it is of all.
        refused: How many were refused.
        records: How many there are.
    """

    of: str
    refused: int
    records: int

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100 * self.refused / self.records if self.records else 0.0

    @property
    def in_words(self) -> str:
        """The share and what it is made of."""
        share = f"{self.percent:.1f}" if self.percent >= 1 or not self.refused else f"{self.percent:.2g}"
        return f"{self.of}{share} % refused ({self.refused:,} of {self.records:,})"

    def beyond(self, share: float) -> int:
        """Return how many more were refused than a share of them."""
        allowed = int(self.records * share + 1e-9)  # the product with a decimal fraction may be a hair below
        return max(self.refused - allowed, 0)


def rates_of_period(batch: BatchWriter, period: timedelta) -> list[Rate]:
    """Return the rate of all records of a period, then those of sources and values of `over`, the largest first."""
    workspace, plan = batch.workspace, batch.plan
    since = workspace.clock.now() - period
    done = [one for one in workspace.batches.history("process") if one.batch_id != plan.batch_id]
    done = [one for one in done if one.committed_at > since and not one.plan.is_replayed]
    own = workspace.progress.counts_of(plan.batch_id)
    lost = sum(sum(counts.refused.values()) for counts in (own, *(one.counts for one in done)))
    rates = [Rate("", lost, records_in(plan) + sum(records_in(one.plan) for one in done))]
    if not lost:
        return rates
    spec, first = workspace.spec, _first_counted(plan, done)
    of_log: Filters = [(c.SEQ, ">=", first.first_seq), (c.SEQ, "<", plan_end(plan))]
    parts: list[Rate] = []
    if len(spec.sources) > 1:
        records = _counted(batch, tables.RAW_EVENTS, c.SOURCE, of_log)
        parts += _rates("source ", _lost(batch, c.SOURCE, of_log), records)
    if spec.time.over and spec.outputs.ordered_events:
        gone = _lost(batch, c.TIMELINE, of_log)
        accepted = _counted(batch, tables.HELD_EVENTS, c.TIMELINE, of_log)
        accepted += _counted(batch, tables.ORDERED_EVENTS, c.TIMELINE, [*of_log, (c.BATCH, ">=", first.batch_id)])
        parts += _rates("over ", gone, accepted + gone)
    return rates + sorted(parts, key=lambda one: (-one.percent, -one.refused, one.of))


def _first_counted(plan: Plan, done: Sequence[Commit]) -> Plan:
    """Return the first batch of the period that is counted in the tables."""
    first, records = plan, records_in(plan)
    for one in reversed(done):
        records += records_in(one.plan)
        if records > _MOST_RECORDS:
            break
        first = one.plan
    return first


def _lost(batch: BatchWriter, by: str, which: Filters) -> Counter[str]:
    """Count records that ingestion or rules 0 to 3 refused, by source or timeline; ingestion knows no timeline."""
    return _counted(batch, tables.DEAD_LETTERS, by, [*which, ("stage", "in", [Stage.INGEST, Stage.TIME])])


def _counted(batch: BatchWriter, table: str, by: str, which: Filters) -> Counter[str]:
    found: Counter[str] = Counter()
    lake, names = batch.workspace.lake, batch.workspace.source_names if by == c.SOURCE else {}
    for piece in pieces(lake, table, lake.version(table), [by], which):
        for row in piece[by].value_counts().to_pylist():
            if row["values"] is not None:
                found[names.get(row["values"], row["values"])] += row["counts"]
    return found


def _rates(what: str, lost: Mapping[str, int], records: Mapping[str, int]) -> list[Rate]:
    return [Rate(f"{what}{name}: ", n, records[name]) for name, n in lost.items()]


_MOST_NAMED = 5

DEAD_LETTER_RATE = Expectation(
    name="dead_letter_rate",
    holds="no larger share of the records of a period was refused than `alerts.dead_letter_rate` says: of all, of a "
    "source, or of a value of `over`",
    remedy="look at the reasons in `dead_letters`: a source may have changed its format, or a tolerance is too small",
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
    remedy="see whether the time of that record is right: what comes behind the watermark is late, and it never goes "
    "back. `time.early: {tolerance: 1 day, policy: drop}` refuses such events from the next record on; "
    "`tidemark rejudge` judges the log without that one, so that what was lost comes back",
)
CLOCK_AHEAD = Expectation(
    name="clock_far_ahead",
    holds="the clock of arrivals is no further ahead of this machine's clock than `alerts.far_ahead` says, a day by "
    "default",
    remedy="see whether the arrival time of that record is right: the clock never goes back, and idle rules and "
    "ticks follow it. Correct the clock of the machine that sets it, or write an `arrival_time` that is null for "
    "such a record; `tidemark rejudge` judges the log without this one, so that what was lost comes back",
)
MOST_FAILING = 0.2
"""The share of a batch's records on which expressions may fail."""
FRESHNESS = Expectation(
    name="freshness",
    holds="the watermark is no further behind the clock than `alerts.freshness` says",
    remedy="see what delays it in the metadata of ordered_events: a source that is silent or late, or too few runs",
)


def alerts_of(spec: Spec) -> dict[str, tuple[Expectation, ...]]:
    """Return the alerts of a spec, its own and the ones that every spec has, by the asset that shows them."""
    ahead = (FAR_AHEAD,) if has_event_time(spec.sources, spec.time) else ()
    freshness = (FRESHNESS,) if spec.alerts.freshness is not None else ()
    rate = (DEAD_LETTER_RATE,) if spec.alerts.dead_letter_rate is not None else ()
    return {
        tables.ORDERED_EVENTS: (*ahead, CLOCK_AHEAD, *freshness),
        tables.DEAD_LETTERS: (*rate, BAD_EXPRESSIONS),
    }


def check_alert(batch: BatchWriter, expectation: Expectation) -> Checked:
    """Compare a batch with what an alert allows: first with what is an error, then with what is a warning."""
    with_levels = {DEAD_LETTER_RATE.name: _refused, FRESHNESS.name: _age}
    warnings = {BAD_EXPRESSIONS.name: _failing, FAR_AHEAD.name: _ahead, CLOCK_AHEAD.name: _clock_ahead}
    passed = Checked(expectation, ())
    for level in ("error", "warn"):
        if expectation.name in with_levels:
            met = with_levels[expectation.name](batch, level)
        else:
            met = warnings[expectation.name](batch) if level == "warn" else None
        if met is None:
            continue
        done = replace(check(expectation, met.measured, note=met.note), numbers=met.numbers)
        if not done.passed:
            return replace(done, is_error=level == "error", note="")
        passed = done
    return passed


@dataclass(frozen=True)
class _Met:
    """The findings of an alert at one level.

    Attributes:
        measured: How much more than allowed.
        numbers: What Dagster plots.
        note: What was found, in words, where it is allowed.
    """

    measured: tuple[Measured, ...]
    numbers: Mapping[str, float]
    note: str = ""


def _refused(batch: BatchWriter, level: str) -> _Met | None:
    rate = batch.workspace.spec.alerts.dead_letter_rate
    limit: float | None = getattr(rate, level)
    if rate is None or limit is None:
        return None
    found = rates_of_period(batch, rate.period)
    allowed = f"limit {limit * 100:g} %"
    above = [one.in_words for one in found if one.beyond(limit)]
    more = [f"and {len(above) - _MOST_NAMED} more"] if len(above) > _MOST_NAMED else []
    said = "; ".join([*above[:_MOST_NAMED], *more, allowed])
    beyond = Measured("records refused beyond the limit", 0, max(one.beyond(limit) for one in found), said)
    numbers = {"refused_percent": found[0].percent, "refused": found[0].refused, "records": found[0].records}
    numbers |= {"refused_percent_at_most": max(one.percent for one in found)} if len(found) > 1 else {}
    return _Met((beyond,), numbers, f"{found[0].in_words}; {allowed}")


def _failing(batch: BatchWriter) -> _Met:
    """Warn of the records on which the event time fails, or of the window's aggregates where most do."""
    workspace, plan = batch.workspace, batch.plan
    counts, records = workspace.progress.counts_of(plan.batch_id), records_in(plan)
    failing = counts.of_windows(Reason.BAD_EXPRESSION, [window.name for window in workspace.spec.windows])
    failing = {f"aggregates of `{name}`": n for name, n in failing.items()}
    failing["time of the event"] = counts.refused.get(Reason.BAD_EXPRESSION, 0)
    what, n = max(failing.items(), key=lambda one: one[1])
    said = f"the {what} failed on {n:,} of {records:,} records; limit {MOST_FAILING * 100:g} %"
    too_many = Rate("", n, records).beyond(MOST_FAILING)
    beyond = Measured("records on which an expression failed beyond the limit", 0, too_many, said)
    return _Met((beyond,), {"failing_percent": 100 * n / max(records, 1)})


def _age(batch: BatchWriter, level: str) -> _Met | None:
    workspace, plan = batch.workspace, batch.plan
    levels = workspace.spec.alerts.freshness
    oldest: timedelta | None = getattr(levels, level)
    position = workspace.progress.position_after(plan.batch_id)
    if oldest is None or position.final or position.watermark_us is None:
        return None
    behind = workspace.clock.since(position.watermark_us)
    said = f"the watermark is {roughly(abs(behind))} behind the clock; limit {format_duration(oldest)}"
    beyond = Measured("seconds beyond the limit", 0, max((behind - oldest) // timedelta(seconds=1), 0), said)
    return _Met((beyond,), {"seconds_behind": behind.total_seconds()})


def _ahead(batch: BatchWriter) -> _Met:
    """Warn of the event of the batch that was furthest ahead, else of the watermark if it still is."""
    workspace, plan = batch.workspace, batch.plan
    counts, after = workspace.progress.counts_of(plan.batch_id), workspace.progress.position_after(plan.batch_id)
    if FURTHEST_US in counts and not workspace.spec.uses_splits:  # of several splits the lowest counts
        ahead = timedelta(microseconds=counts[FURTHEST_US])
        said = f"record {counts[FURTHEST_SEQ]} has the event time {_utc(counts[FURTHEST_T_US])}"
        return _far(batch, ahead, said, seq=counts[FURTHEST_SEQ])
    if after.final or after.watermark_us is None or after.clock_us is None:
        return _far(batch, timedelta(0), "")
    ahead = timedelta(microseconds=after.watermark_us - after.clock_us)
    seq = _set_by(workspace, after) if ahead > workspace.spec.alerts.far_ahead else None
    since = "" if seq is None else f" since record {seq}"
    return _far(batch, ahead, f"the watermark is {_utc(after.watermark_us)}{since}", seq=seq)


def _clock_ahead(batch: BatchWriter) -> _Met:
    """Warn if the clock after the batch is ahead of the wall clock, with the record that set it."""
    workspace = batch.workspace
    clock_us = workspace.progress.position_after(batch.plan.batch_id).clock_us
    ahead = timedelta(0) if clock_us is None else -workspace.clock.since(clock_us)
    if clock_us is None or ahead <= workspace.spec.alerts.far_ahead:
        return _far(batch, ahead, "", than="this machine")
    columns = [c.SEQ, c.SOURCE, c.FILE, c.POSITION]
    came = [(c.ARRIVAL, "=", instant_of(clock_us))]
    rows = workspace.lake.rows(tables.RAW_EVENTS, columns=columns, filters=came).sort_by(c.SEQ).slice(0, 1)
    who, seq = "the log", None
    for row in rows.to_pylist():
        seq = row[c.SEQ]
        who = f"record {seq} (source {row[c.SOURCE]}, {row[c.FILE]}, record {row[c.POSITION]} of it)"
    return _far(batch, ahead, f"{who} has the arrival time {_utc(clock_us)}", than="this machine", seq=seq)


def _far(batch: BatchWriter, ahead: timedelta, what: str, *, than: str = "the clock", seq: int | None = None) -> _Met:
    """Compare how far something is ahead with `alerts.far_ahead`; say how to judge the log without the record."""
    allowed = batch.workspace.spec.alerts.far_ahead
    beyond = max(ahead - allowed, timedelta(0))
    seconds = max(beyond // timedelta(seconds=1), 1) if beyond else 0
    said = f"{what}, {roughly(abs(ahead))} ahead of {than}; limit {format_duration(allowed)}"
    if seq is not None:
        said += f'. The log without it: `tidemark rejudge SPEC --exclude {seq} --reason "…"`'
    return _Met((Measured("seconds beyond the limit", 0, seconds, said),), {"seconds_ahead": ahead.total_seconds()})


def _set_by(workspace: Workspace, after: Position) -> int | None:
    """Return the number of the record that set the watermark, if one record did."""
    seq = after.set_by
    if seq is None and after.max_t_us is not None:  # one of several timelines has it
        newest = [("max_timestamp", "=", instant_of(after.max_t_us))]
        rows = workspace.lake.rows(tables.WATERMARKS, columns=["watermark_set_by"], filters=newest)
        known = [number for number in rows["watermark_set_by"].to_pylist() if number is not None]
        seq = min(known, default=None)
    return seq


def _utc(us: int) -> str:
    return f"{instant_of(us).replace(tzinfo=None).isoformat(sep=' ')} UTC"
