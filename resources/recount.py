"""An independent recount of late drops, from the arrival log alone, without code of the pipeline's rules.

Here: the rules in numbers; in SQL event times, what each record says by itself, and duplicates; one loop over the
records of each timeline, which keeps its watermark. Not here: when windows close (recounted_ends.py), what the
recount is compared with (assets/recount/), and any code of `timeops` (an import contract forbids it): its mistakes
must not be repeated here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampNTZType, TimestampType

from tidemark.resources.recounted_ends import (
    FIRST_US,
    LAST_US,
    NONE,
    EndsOfWindow,
    Numbers,
    close_times,
    last_close_times,
)

_MOST = 2**63 - 1
_PIECE = 2_000_000  # records that Spark is asked for at once: the process has the rest of a batch in memory too
_COMPILED_FROM = 200_000  # records: to load the compiler takes as long as the loop over these does without it
_Split = tuple[str, str | None]  # source and split


@dataclass(frozen=True)
class SourceRules:
    """The time of a source; lengths in microseconds, `splits` are the splits known before they have an event.

    `timestamp_by` is SQL that never fails: null where the spec's expression fails. `waited_us` is how long it had
    waited for others before the range. `waits_since_us` is the clock from which on it waits throughout the range and
    so has no record there; None if it does not wait. `waits_of_splits` holds both for its splits that wait, or have
    waited, alone.
    """

    name: str
    timestamp_by: str | None
    time_zone: str
    out_of_orderness_us: int
    idle_timeout_us: int | None
    splits: tuple[str, ...]
    waited_us: int
    waits_since_us: int | None
    waits_of_splits: Mapping[str, tuple[int, int | None]]


@dataclass(frozen=True)
class RecountRules:
    """The numbers that decide, all in microseconds; policies are 'drop', 'adjust', 'keep' or None.

    `over` and `deduplicate_by` are SQL that never fails: null where the spec's expressions fail. `idle` is
    'exclude_split', 'window_close' or None; `windows` are the windows whose ends window_close uses. The `start_`
    fields are the clock before the range and the clock of the last record before its period of emission. The last two
    describe waits of any source, as SourceRules does for one.
    """

    sources: tuple[SourceRules, ...]
    uses_splits: bool
    over: tuple[str, ...]
    deduplicate_by: tuple[str, ...]
    within_us: int
    emit_every_us: int | None
    unit_us: int
    out_of_order: str
    early_us: int | None
    early_policy: str | None
    late_us: int | None
    late_policy: str | None
    clock_tolerance_us: int | None
    idle: str | None
    idle_timeout_us: int | None
    windows: tuple[EndsOfWindow, ...]
    first_clock_us: int | None
    start_clock_us: int | None
    start_ended_us: int | None
    waits_since_us: int | None
    waited_us: int

    @property
    def follows_clock(self) -> bool:
        """Return whether the clock of a record decides what it meets."""
        return any(us is not None for us in (self.idle, self.clock_tolerance_us, self.emit_every_us))


OUTCOMES = ("untimed", "duplicate", "mistaken", "early", "late_arrival")
"""The outcomes of a record by itself, or by other records of its key, before rule 3."""


@dataclass(frozen=True)
class Recounted:
    """Some records that follow one another in the log, judged again.

    Attributes:
        seqs: Their `_arrival_seq`, in order.
        flags: Which of OUTCOMES each is, bit by bit, the first one the lowest.
        t: The time that rule 3 judges, microseconds; NONE of a record that it does not judge.
        below: Whether it is below the watermark that it meets.
        after: The timelines after the records, see `recount`.
    """

    seqs: Numbers
    flags: NDArray[np.int8]
    t: Numbers
    below: NDArray[np.bool_]
    after: pa.Table

    def are(self, outcome: str) -> NDArray[np.bool_]:
        """Return whether each is one of OUTCOMES."""
        return np.asarray(self.flags & (1 << OUTCOMES.index(outcome)) != 0)


def recount(
    log: DataFrame,
    seqs: range,
    rules: RecountRules,
    timelines: pa.Table,
    *,
    compute: Callable[[DataFrame], DataFrame],
    told: DataFrame | None = None,
    first_times: DataFrame | None = None,
) -> dict[str, int]:
    """Count early, late and out-of-order drops of a range of the log, and duplicates; arguments as of `judge_again`.

    Returns:
        Numbers by name: `records`, `untimed` (no arrival, malformed, no or bad event time), `duplicate`, `mistaken`
        (records that are duplicates and were not refused as such, or the other way round), `early`, `late_arrival`,
        `out_of_order` (dropped), `below` (met by rule 3 under any policy).
    """
    counts = dict.fromkeys(["records", *OUTCOMES, "below"], 0)
    for part in judge_again(log, seqs, rules, timelines, compute=compute, refused=told, first_times=first_times):
        counts["records"] += len(part.seqs)
        counts["below"] += int(np.count_nonzero(part.below))
        for outcome in OUTCOMES:
            counts[outcome] += int(np.count_nonzero(part.are(outcome)))
    return counts | {"out_of_order": counts["below"] if rules.out_of_order == "drop" else 0}


def judge_again(
    log: DataFrame,
    seqs: range,
    rules: RecountRules,
    timelines: pa.Table,
    *,
    compute: Callable[[DataFrame], DataFrame],
    refused: DataFrame | None = None,
    first_times: DataFrame | None = None,
    most: int = _PIECE,
) -> Iterator[Recounted]:
    """Judge a range of the log again, piece after piece.

    Args:
        log: The range of `raw_events`.
        seqs: The numbers of its records.
        rules: The spec's numbers.
        timelines: `_timeline`, and before the first record of the range `watermark` (as seen last), `computed` (as
            the rules set it) and `clock`, in microseconds; `last_clock`, `max_close` and `splits` if a rule needs
            them.
        compute: Computes a frame that several queries read, and returns the same rows.
        refused: With `deduplicate_by` the `_arrival_seq` of records that were refused as duplicates.
        first_times: With it `key`, `event_us` and `_arrival_seq` of earlier records that were not refused, as far as
            they are near the records of the range.
        most: The most records that are asked for at once.
    """
    frames = {"log": _times(log, rules)}
    if refused is not None and first_times is not None:
        frames |= {"told": refused, "first_times": first_times}
    records = log.sparkSession.sql(_records(rules), None, **frames)
    bounds: list[int | None] = [None, *seqs[most::most], None]
    if rules.deduplicate_by and len(bounds) > 2:
        records = compute(records)  # else each piece would look for duplicates among all
    for first, end in pairwise(bounds):
        low, high = ("true" if first is None else f"seq >= {first}"), ("true" if end is None else f"seq < {end}")
        rows = _in_order(records.where(f"{low} AND {high}").toArrow())
        below, timelines = walk(rows, timelines, rules)
        yield Recounted(rows["seq"].to_numpy(), rows["flags"].to_numpy(), _ints(rows["t"]), below, timelines)
        rules = rules_after(rows, rules)


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by("seq") if (np.diff(rows["seq"].to_numpy()) < 0).any() else rows


def rules_after(rows: pa.Table, rules: RecountRules) -> RecountRules:
    """Return the rules with the clocks of the log after some records, which periods of emission ask for."""
    if rules.emit_every_us is None or not len(rows) or (clock_us := pc.max(rows["clock"]).as_py()) is None:
        return rules
    period_us = clock_us // rules.emit_every_us * rules.emit_every_us
    clocks = _ints(rows["clock"])
    earlier = clocks[(clocks != NONE) & (clocks < period_us)]
    if len(earlier):
        ended_us: int | None = int(earlier.max())
    else:  # the records lie in one period, which may have begun before them
        begins_it = rules.start_clock_us is None or rules.start_clock_us < period_us
        ended_us = rules.start_clock_us if begins_it else rules.start_ended_us
    return replace(rules, start_clock_us=clock_us, start_ended_us=ended_us)


# What a record says by itself, in SQL.


def _times(log: DataFrame, rules: RecountRules) -> DataFrame:
    return log.select(
        F.col("_arrival_seq").alias("seq"),
        F.unix_micros("_arrival_time").alias("a"),
        F.unix_micros("_clock").alias("clock"),
        F.col("_malformed").isNotNull().alias("malformed"),
        F.col("_source").alias("source"),
        F.col("_split").alias("part"),
        F.expr(_event_us(log, rules.sources)).alias("e"),
        F.expr(_timeline(rules)).alias("line"),
        F.expr(_key_of(rules.deduplicate_by)).alias("key"),
        *[F.expr(sql).alias(name) for name, sql in _gaps(rules).items()],
    )


def _gaps(rules: RecountRules) -> dict[str, str]:
    """Return SQL of the gaps that records say themselves, BIGINT microseconds, by the names of the columns."""
    gaps = dict[str, str]()
    for place, window in enumerate(rules.windows):
        if window.own_gap is not None:
            us = f"unix_micros(TIMESTAMP '1970-01-01 00:00:00' + {window.own_gap})"
            is_gap = f"us > 0L AND us <= {window.after_event_us}L"
            gaps[f"gap{place}"] = f"get(transform(array({us}), us -> IF({is_gap}, us, NULL)), 0)"
    return gaps


def _outcomes(rules: RecountRules) -> dict[str, str]:
    """Return SQL of what a record is, by the names in OUTCOMES."""
    return {
        "untimed": "untimed",
        "duplicate": "duplicate <> mistaken",
        "mistaken": "mistaken",
        "early": f"is_early AND {_is(rules.early_policy)}",
        "late_arrival": f"is_late AND {_is(rules.late_policy)}",
    }


def _records(rules: RecountRules) -> str:
    """Return SQL of the records: `seq`, `flags` of their outcomes, `t`, which is null unless rule 3 judges it.

    A record that is `active` belongs to a timeline; one that is early and kept has a `t` and no `moves`, as it moves
    no W. What only some rules ask for is there if they do.
    """
    early, late = _beyond("e - a", rules.early_us), _beyond("a - e", rules.late_us)
    # They come as one number: of many rows each column takes seconds.
    sql_of = _outcomes(rules)
    flags = " | ".join(f"IF({sql_of[outcome]}, {1 << place}, 0)" for place, outcome in enumerate(OUTCOMES))
    columns = ["seq", f"CAST({flags} AS TINYINT) AS flags", "t"]
    early_t = "e" if rules.early_policy == "keep" else f"a + {rules.early_us or 0}L"
    columns += ["NOT is_early AS moves"] if rules.early_policy == "keep" else []
    columns += ["clock", "active"] if rules.follows_clock else []
    columns += ["source", "part", "clock", "active"] if rules.uses_splits else []
    columns += ["line", "active"] if rules.over else []
    gaps = [*_gaps(rules)]
    columns += gaps
    more = "".join(f", {name}" for name in gaps)
    return f"""
WITH timed AS (
  SELECT *, malformed OR a IS NULL OR e IS NULL OR e < {FIRST_US} OR e > {LAST_US} AS untimed
  FROM {{log}}
), {_marked(rules.deduplicate_by, rules.within_us)}, judged AS (
  SELECT line, seq, source, part, clock{more}, untimed, duplicate, mistaken,
    NOT malformed AND a IS NOT NULL AS active,
    NOT untimed AND NOT duplicate AND {early} AS is_early,
    NOT untimed AND NOT duplicate AND NOT ({early}) AND {late} AS is_late,
    CASE WHEN {early} THEN {early_t} WHEN {late} THEN a - {rules.late_us or 0}L ELSE e END AS chosen
  FROM marked
), records AS (
  SELECT *, IF(untimed OR duplicate OR is_early AND {_is(rules.early_policy)}
    OR is_late AND {_is(rules.late_policy)}, NULL, chosen - pmod(chosen, {rules.unit_us}L)) AS t
  FROM judged
)
SELECT {", ".join(dict.fromkeys(columns))} FROM records"""


def _timeline(rules: RecountRules) -> str:
    values = ", ".join(map(_text_of, rules.over))
    return f"to_json(array({values}))" if values else "'[]'"


def _beyond(difference: str, tolerance_us: int | None) -> str:
    return "false" if tolerance_us is None else f"coalesce({difference} > {tolerance_us}L, false)"


def _is(policy: str | None) -> str:
    return "true" if policy == "drop" else "false"


def _by_source(values: Mapping[str, object], source: str = "source") -> str:
    """Return SQL of a text or number that depends on the source."""
    if len(set(values.values())) == 1:
        return _literal(next(iter(values.values())))
    cases = " ".join(f"WHEN '{name}' THEN {_literal(value)}" for name, value in values.items())
    return f"CASE {source} {cases} END"


def _literal(value: object) -> str:
    """Return SQL of a number or null; a text is SQL already."""
    if value is None:
        return "CAST(NULL AS BIGINT)"
    return f"{value}L" if isinstance(value, int) else str(value)


def _event_us(log: DataFrame, sources: tuple[SourceRules, ...]) -> str:
    """Return SQL of the event time in microseconds, null if there is none."""
    return _by_source({s.name: _event_us_of(log, s.timestamp_by, s.time_zone) for s in sources}, "_source")


def _event_us_of(log: DataFrame, timestamp_by: str | None, time_zone: str) -> str:
    if timestamp_by is None:
        return "unix_micros(_arrival_time)"
    by = f"({timestamp_by})"
    kind = log.select(F.expr(by).alias("e")).schema["e"].dataType
    utc = f"unix_micros(to_utc_timestamp(%s, '{time_zone}'))"
    if isinstance(kind, StringType):
        # A written offset comes after the 'T' or blank: a minus sign before it belongs to the date.
        shape = r"'^\\d{4}-\\d\\d-\\d\\d([Tt ]\\d\\d:\\d\\d(:\\d\\d([.,]\\d+)?)?( ?([Zz]|[+-]\\d\\d(:?\\d\\d)?))?)?$'"
        full = "regexp_replace(replace(upper(text), ',', '.'), '^(.{16})( ?[Z+-].*)?$', '$1:00$2')"
        cast = f"try_cast({full} AS TIMESTAMP)"
        offset = "substr(upper(text), 11) rlike '[Z+-]'"
        read = f"CASE WHEN {offset} THEN unix_micros({cast}) ELSE {utc % cast} END"
        return f"get(transform(array({by}), text -> CASE WHEN text rlike {shape} THEN {read} END), 0)"
    tried = f"try_add(CAST({by} AS TIMESTAMP), INTERVAL '0' SECOND)"
    if isinstance(kind, TimestampNTZType | DateType):
        return utc % tried
    if isinstance(kind, TimestampType):
        return f"unix_micros({tried})"
    return "CAST(NULL AS BIGINT)"


def _key_of(expressions: Sequence[str]) -> str:
    """Return SQL of a record's key; null if it has none."""
    if not expressions:
        return "CAST(NULL AS STRING)"
    has_all = " AND ".join(f"({expression}) IS NOT NULL" for expression in expressions)
    values = ", ".join(map(_text_of, expressions))
    return f"CASE WHEN {has_all} THEN to_json(array({values})) END"


def _text_of(expression: str) -> str:
    """Return SQL of a value as text; -0.0 is 0.0, also in arrays and structs that hold no text of their own."""
    text = f"CAST(({expression}) AS STRING)"
    has_floats = f"typeof({expression}) RLIKE 'double|float' AND typeof({expression}) NOT RLIKE 'string'"
    return rf"IF({has_floats}, regexp_replace({text}, r'(?<![^\[{{ ])-0\.0(?![^,\]}}])', '0.0'), {text})"


def _marked(expressions: Sequence[str], within_us: int) -> str:
    """Return SQL of `marked`: records with `duplicate` (refused as one) and `mistaken` (wrongly refused or not).

    It reads `timed`, and the frames `told` (`_arrival_seq` of refused records) and `first_times` (`key`, `event_us`
    and `_arrival_seq` of earlier records that were not refused).
    """
    if not expressions:
        return "marked AS (SELECT *, false AS duplicate, false AS mistaken FROM timed)"
    return f"""both AS (
  SELECT timed.*, _arrival_seq IS NOT NULL AS duplicate, IF(untimed, NULL, key) AS own_key, true AS is_own
  FROM timed LEFT JOIN {{told}} ON seq = _arrival_seq
), near AS (
  SELECT duplicate, is_own, seq, own_key, e FROM both
  UNION ALL SELECT false, false, _arrival_seq, key, event_us FROM {{first_times}}
), found AS (
  SELECT seq AS found_seq, is_own, own_key IS NOT NULL AND coalesce(seq > min(IF(duplicate, NULL, seq)) OVER (
    PARTITION BY own_key, IF(own_key IS NULL, seq, NULL) ORDER BY e
    RANGE BETWEEN {within_us}L PRECEDING AND {within_us}L FOLLOWING), false) AS is_one
  FROM near
), marked AS (
  SELECT both.*, duplicate <> is_one AS mistaken FROM both JOIN found ON seq = found_seq AND found.is_own
)"""


# The watermark of each timeline, one record after the other.

_SPLIT = ("allows", "last", "timeout", "waited", "since", "listed")
_ALLOWS, _LAST, _TIMEOUT, _WAITED, _SINCE, _LISTED = range(6)
"""A split: the watermark that it allows, the clock of its last record less its waits, after how long it is idle, how
long it had waited, since which clock it waits, and 1 if it counts before its first event."""


class _Rules(NamedTuple):
    """The numbers that the loop asks for, in microseconds; NONE for what does not hold."""

    every: int
    unit: int
    clock_tolerance: int
    excludes: int
    timeout: int
    waited: int
    waits: int


class _Line(NamedTuple):
    """A timeline before its records, see `recount`; `closes` is `max_close`."""

    seen: int
    watermark: int
    period: int
    last: int


class _Records(NamedTuple):
    """The records of a timeline in order.

    Attributes:
        t: The time that may be below W; NONE of a record that is refused before or has none.
        allows: The watermark that its split allows by it; NONE of a record that moves none.
        clock: The clock at the record.
        ended: The clock at the end of the period of emission before.
        split: Its split.
        closes: For each window the close time that t asks for, NONE for none.
        reached: For each window the latest close time that a silence until the clock may bring; NONE where any may.
        ended_reached: The same of the clock at the end of the period before.
    """

    t: Numbers
    allows: Numbers
    clock: Numbers
    ended: Numbers
    split: Numbers
    closes: Numbers
    reached: Numbers
    ended_reached: Numbers


_AFTER = pa.schema(
    [
        ("_timeline", pa.string()),
        *[(name, pa.int64()) for name in ("watermark", "computed", "clock", "last_clock")],
        ("max_close", pa.list_(pa.int64())),
        (
            "splits",
            pa.list_(
                pa.struct(
                    [
                        ("source", pa.string()),
                        ("split", pa.string()),
                        ("max_t", pa.int64()),
                        ("last_clock", pa.int64()),
                    ]
                )
            ),
        ),
    ]
)


def walk(records: pa.Table, timelines: pa.Table, rules: RecountRules) -> tuple[NDArray[np.bool_], pa.Table]:
    """Return whether each record comes below the watermark that it meets, and the timelines after the records.

    Args:
        records: `seq` and `t`, by `seq`; `line`, `source`, `part`, `clock`, `active`, `moves` as the rules ask.
        timelines: See `judge_again`.
        rules: The spec's numbers.
    """
    below = np.zeros(len(records), np.bool_)
    ended, places = _ended(records, rules), np.arange(len(records))
    if "active" in records.column_names:
        places = np.flatnonzero(records["active"].to_numpy())
        records = records.take(places)
    if not len(records):
        return below, timelines
    lines, of_lines = _by_line(records)
    order = np.concatenate(of_lines)
    ready = _records_of(records.take(order) if len(lines) > 1 else records, ended[places][order], rules)
    are_here = pc.is_in(timelines["_timeline"], lines)
    before = {row["_timeline"]: row for row in timelines.filter(are_here).to_pylist()}
    numbers, loop, begin = _numbers_of(rules), _walk if len(records) < _COMPILED_FROM else _compiled(), 0
    after = []
    for line, rows in zip(lines.to_pylist(), of_lines, strict=True):
        state, end = before.get(line, {}), begin + len(rows)
        of_line = _Records(*(column[begin:end] for column in ready.arrays))
        splits, names, of_line = _with_splits(of_line, ready.pairs, state.get("splits") or (), rules)
        closes = [_or_none(us) for us in state.get("max_close") or ()]
        latest = np.array([*closes, *[NONE] * len(rules.windows)][: len(rules.windows)], np.int64)
        period = (
            state["clock"] // rules.emit_every_us if rules.emit_every_us and state.get("clock") is not None else None
        )
        start = _Line(
            *map(_or_none, (state.get("watermark"), state.get("computed"), period, state.get("last_clock")))
        )
        below[places[rows]], *line_after = loop(of_line, start, splits, latest, numbers)
        after.append(_row_after(line, _Line(*map(int, line_after)), zip(names, splits.tolist(), strict=True), rules))
        after[-1]["max_close"] = [us if us != NONE else None for us in latest.tolist()]
        begin = end
    others = timelines.filter(pc.invert(are_here))
    unmoved = [
        others[field.name].cast(field.type)
        if field.name in others.column_names
        else pa.nulls(len(others), field.type)
        for field in _AFTER
    ]
    return below, pa.concat_tables([pa.table(unmoved, schema=_AFTER), pa.Table.from_pylist(after, schema=_AFTER)])


def _row_after(line: str, after: "_Line", splits: Iterator[tuple[_Split, list[int]]], rules: RecountRules) -> Any:
    """Return a timeline after its records, as `walk` takes it."""
    tolerances = {source.name: source.out_of_orderness_us for source in rules.sources}
    seen, watermark, period, last = (us if us != NONE else None for us in after)
    return {
        "_timeline": line,
        "watermark": seen,
        "computed": watermark,
        "clock": period * rules.emit_every_us if rules.emit_every_us and period is not None else None,
        "last_clock": last,
        "splits": [
            {
                "source": source,
                "split": split,
                "max_t": None if row[_ALLOWS] == NONE else row[_ALLOWS] + tolerances[source],
                "last_clock": None if row[_LAST] == NONE else row[_LAST],
            }
            for (source, split), row in splits
        ],
    }


def _walk(
    records: Any, line: Any, splits: Any, latest: Any, rules: Any
) -> tuple[NDArray[np.bool_], int, int, int, int]:
    """Go through the records of a timeline: W by the clock before each one, whether it is below, W by it.

    Return whether each is below, and the fields of _Line after them. Changed are `splits`, rows of _SPLIT, and
    `latest`, of each window the latest close time that its events ask for.
    """
    seen, watermark, period, last = line.seen, line.watermark, line.period, line.last
    below = np.zeros(len(records.t), np.bool_)
    lowest, next_idle = _lowest(splits, records.clock[0], rules)
    if rules.excludes:
        next_idle = NONE  # some may have become idle since the timeline's last record
    for i in range(len(records.t)):
        now, ended, t = records.clock[i], records.ended[i], records.t[i]
        if rules.every > 0 and now // rules.every > period:
            # A period shows W as it was after the last item of the log before it, which may be of another timeline.
            if ended != NONE:
                lowest, next_idle = _left(splits, ended, lowest, next_idle, rules)
                by_clock = _by_clock(ended, last, lowest, records.ended_reached[i], latest, rules)
                watermark = max(watermark, by_clock)
            seen, period = watermark, now // rules.every
        lowest, next_idle = _left(splits, now, lowest, next_idle, rules)
        watermark = max(watermark, _by_clock(now, last, lowest, records.reached[i], latest, rules))
        if rules.every == 0:
            seen = watermark
        below[i] = t != NONE and t < seen
        last = now - rules.waited
        allows = records.allows[i]
        if len(splits) > 0:
            lowest, next_idle = _met(splits, records.split[i], now, allows, lowest, next_idle, rules)
            allows = NONE if allows == NONE else lowest
        watermark = max(watermark, allows)
        for w in range(len(latest)):
            latest[w] = max(latest[w], records.closes[i][w])
    return below, seen, watermark, period, last


def _by_clock(now: int, last: int, lowest: int, reached: Any, latest: Any, rules: Any) -> int:
    """Return how far the clock alone raises W; NONE if it does not."""
    if rules.excludes:
        return lowest
    if rules.clock_tolerance != NONE:
        return int(max(now - rules.clock_tolerance, FIRST_US) // rules.unit * rules.unit)
    if rules.timeout == NONE or rules.waits or last == NONE:  # while a source waits, no timeline is silent
        return NONE
    limit = now - 1 - rules.timeout  # an event at the very instant of the timeout beats it
    if limit < last + rules.waited:
        return NONE
    highest = NONE
    for w in range(len(latest)):
        if reached[w] != NONE:
            highest = max(highest, min(latest[w], reached[w]))
        elif latest[w] <= limit:
            highest = max(highest, latest[w])
    return highest if highest == NONE else highest // rules.unit * rules.unit


def _left(splits: Any, now: int, lowest: int, next_idle: int, rules: Any) -> tuple[int, int]:
    """Return the same as `_lowest` at a clock; `lowest` and `next_idle` are what it returned at an earlier one."""
    return _lowest(splits, now, rules) if rules.excludes and now >= next_idle else (lowest, next_idle)


def _met(splits: Any, split: int, now: int, allows: int, lowest: int, next_idle: int, rules: Any) -> tuple[int, int]:
    """Let a split have a record; return the same as `_lowest` after it."""
    row = splits[split]
    was_idle = rules.excludes and now >= _idle_at(row)
    holds_back = was_idle or row[_ALLOWS] <= lowest  # one that is ahead of the slowest changes nothing
    row[_LAST] = max(row[_LAST], now - row[_WAITED])
    row[_ALLOWS] = max(row[_ALLOWS], allows)
    return _lowest(splits, now, rules) if holds_back else (lowest, next_idle)


def _lowest(splits: Any, now: int, rules: Any) -> tuple[int, int]:
    """Return what the active splits allow, the highest if all are idle, and the clock at which a next one is idle.

    A listed split without an event allows no watermark.
    """
    lowest, highest, next_idle, is_any = _MOST, NONE, _MOST, False
    for s in range(len(splits)):
        row = splits[s]
        if row[_ALLOWS] == NONE and row[_LISTED] == 0:
            continue
        highest = max(highest, row[_ALLOWS])
        if rules.excludes:
            if now >= _idle_at(row):
                continue
            next_idle = min(next_idle, _idle_at(row))
        lowest, is_any = min(lowest, row[_ALLOWS]), True
    return (lowest if is_any else highest), next_idle


def _idle_at(split: Any) -> int:
    """Return the clock from which on a split is idle."""
    if split[_LAST] == NONE:
        return NONE
    at = split[_LAST] + split[_TIMEOUT] + split[_WAITED]
    # Waiting is not idleness; but a split that was idle before it had to wait stays so.
    return _MOST if split[_SINCE] != NONE and at > split[_SINCE] else at


@cache
def _compiled() -> Callable[..., Any]:
    from numba import njit  # noqa: PLC0415  (only who has many records pays for it)
    from numba.extending import register_jitable  # noqa: PLC0415

    for part in (_by_clock, _left, _met, _lowest, _idle_at):
        register_jitable(part)
    loop: Callable[..., Any] = njit(cache=True)(_walk)
    return loop


# From tables to the arrays of the loop.


def _or_none(us: int | None) -> int:
    return NONE if us is None else us


def _ints(column: pa.ChunkedArray) -> Numbers:
    return np.array(pc.fill_null(column, NONE).to_numpy(), np.int64)


def _numbers_of(rules: RecountRules) -> _Rules:
    return _Rules(
        every=rules.emit_every_us or 0,
        unit=rules.unit_us,
        clock_tolerance=_or_none(rules.clock_tolerance_us),
        excludes=rules.idle == "exclude_split",
        timeout=(rules.idle_timeout_us or 0) if rules.idle == "window_close" else NONE,
        waited=rules.waited_us,
        waits=rules.waits_since_us is not None,
    )


def _by_line(records: pa.Table) -> tuple[pa.Array, list[Numbers]]:
    """Return the timelines of some records, and of each the places of its records, in their order."""
    if "line" not in records.column_names:
        return pa.array(["[]"]), [np.arange(len(records))]
    lines = records["line"].combine_chunks().dictionary_encode()
    codes = lines.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    return lines.dictionary, np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _ended(records: pa.Table, rules: RecountRules) -> Numbers:
    """Return for each record the clock of the last item before its period of emission; NONE for none."""
    ended, every_us = np.full(len(records), NONE), rules.emit_every_us
    if every_us is None or not len(records):
        return ended
    clock = _ints(records["clock"])
    timed = np.flatnonzero(clock != NONE)  # the clock does not go back
    begins = clock[timed] // every_us * every_us
    place = np.searchsorted(clock[timed], begins, "left") - 1
    start, before = _or_none(rules.start_clock_us), _or_none(rules.start_ended_us)
    ended[timed] = np.where(place >= 0, clock[timed][place], np.where(start < begins, start, before))
    return ended


@dataclass(frozen=True)
class _Ready:
    """The records of all timelines as arrays, and source and split by the number that is in `arrays.split`."""

    arrays: _Records
    pairs: Sequence[_Split]


def _records_of(records: pa.Table, ended: Numbers, rules: RecountRules) -> _Ready:
    t = _ints(records["t"])
    moving = np.where(records["moves"].to_numpy(), t, NONE) if "moves" in records.column_names else t
    clock = _ints(records["clock"]) if "clock" in records.column_names else np.zeros(len(t), np.int64)
    split, pairs = np.zeros(len(t), np.int64), list[_Split]()
    tolerance = np.full(1, rules.sources[0].out_of_orderness_us)
    if rules.uses_splits:
        source, part = (records[name].combine_chunks().dictionary_encode("encode") for name in ("source", "part"))
        parts = len(part.dictionary)
        pairs = [(name, value) for name in source.dictionary.to_pylist() for value in part.dictionary.to_pylist()]
        of_source = {rule.name: rule.out_of_orderness_us for rule in rules.sources}
        tolerance = np.array([of_source[name] for name in source.dictionary.to_pylist()])[source.indices.to_numpy()]
        split = source.indices.to_numpy().astype(np.int64) * parts + part.indices.to_numpy()
    silence_us = 1 + (rules.idle_timeout_us or 0)
    limits = (clock - silence_us, np.where(ended == NONE, clock, ended) - silence_us)
    gaps = {name: _ints(records[name]) for name in _gaps(rules)}
    reached, ended_reached = ([last_close_times(window, limit) for window in rules.windows] for limit in limits)
    arrays = _Records(
        t=t,
        allows=np.where(moving == NONE, NONE, np.maximum(np.where(moving == NONE, 0, moving) - tolerance, FIRST_US)),
        clock=clock,
        ended=ended,
        split=split,
        closes=_side_by_side(
            [close_times(w, moving, gaps.get(f"gap{place}")) for place, w in enumerate(rules.windows)], len(t)
        ),
        reached=_side_by_side(reached, len(t)),
        ended_reached=_side_by_side(ended_reached, len(t)),
    )
    return _Ready(arrays, pairs)


def _side_by_side(columns: Sequence[Numbers], rows: int) -> Numbers:
    return np.column_stack(columns) if columns else np.zeros((rows, 0), np.int64)


def _with_splits(
    records: _Records, pairs: Sequence[_Split], carried: Sequence[Mapping[str, Any]], rules: RecountRules
) -> tuple[Numbers, list[_Split], _Records]:
    """Return the splits of a timeline, rows of _SPLIT, what they are called, and its records with their places."""
    if not rules.uses_splits:
        return np.zeros((0, len(_SPLIT)), np.int64), [], records
    of = {source.name: source for source in rules.sources}
    listed = {(source.name, part) for source in rules.sources for part in source.splits}
    before = {(split["source"], split["split"]): (split["max_t"], split["last_clock"]) for split in carried}
    each, places = np.unique(records.split, return_inverse=True)
    rows, names = [], [*dict.fromkeys([*(pairs[number] for number in each.tolist()), *sorted(listed), *before])]
    for name, part in names:
        source, (max_t, last_us) = of[name], before.get((name, part), (None, None))
        waited_us, since_us = (0, None) if part is None else source.waits_of_splits.get(part, (0, None))
        is_listed = (name, part) in listed
        row = (
            None if max_t is None else max(max_t - source.out_of_orderness_us, FIRST_US),
            rules.first_clock_us if last_us is None and is_listed else last_us,
            source.idle_timeout_us or 0,
            source.waited_us + waited_us,
            source.waits_since_us if since_us is None else since_us,
            int(is_listed),
        )
        rows.append([_or_none(value) for value in row])
    return np.array(rows, np.int64), names, records._replace(split=places.astype(np.int64))
