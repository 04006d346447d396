"""An independent recount of late drops, from the arrival log alone, without code of the pipeline's rules.

Here: the rules in numbers; event times and duplicates in SQL; watermarks in SQL, with silences and periods of
emission, or of one timeline by its largest time so far, or by a walk through its splits. Not here: what the recount
is compared with (assets/recount/), and any code of `timeops` (an import contract forbids it): its mistakes must not
be repeated here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampNTZType, TimestampType

_FIRST_US = -62135596800000000  # the year 0001
_EARLIER = "ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_EARLIER_BLOCKS = "ORDER BY block ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_OF_SPLITS = ("line", "seq", "source", "part", "clock_now", "t")
_ROWS_AT_ONCE = 100_000
_PIECE = 2_000_000  # records that Spark is asked for at once: the process has the rest of a batch in memory too
_NONE = np.iinfo(np.int64).min
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
class EndsOfWindow:
    """The times at which windows close; one of the last three is set.

    Attributes:
        allowed_lateness_us: Time after the ends of windows.
        inside_us: 1 where an event on the end is inside.
        delay_us: How far after its end and lateness the clock closes a window: one unit if the end is inside.
        grid: Offset, size, how far apart starts are and how far apart ends are, microseconds.
        calendar: `day` or `month`, and the time zone.
        after_event_us: Windows end this long after an event, and are not on a grid.
    """

    allowed_lateness_us: int
    inside_us: int = 0
    delay_us: int = 0
    grid: tuple[int, int, int, int] | None = None
    calendar: tuple[str, str] | None = None
    after_event_us: int | None = None


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
    def publishes_silences(self) -> bool:
        """Return whether periods of emission publish watermarks that the clock sets."""
        moves = self.idle is not None or self.clock_tolerance_us is not None
        return moves and self.emit_every_us is not None


def recount(
    log: DataFrame,
    seqs: range,
    rules: RecountRules,
    timelines: pa.Table,
    *,
    frame: Callable[[pa.Table], DataFrame],
    compute: Callable[[DataFrame], DataFrame],
    told: DataFrame | None = None,
    first_times: DataFrame | None = None,
) -> dict[str, int]:
    """Count early, late and out-of-order drops of a range of the log, and duplicates.

    Args:
        log: The range of `raw_events`.
        seqs: The numbers of its records.
        rules: The spec's numbers.
        timelines: `_timeline`, and before the first record of the range `watermark` (as seen last), `computed` (as
            the rules set it) and `clock`, in microseconds; `last_clock`, `max_close` and `splits` if a rule needs
            them.
        frame: Returns rows that the driver has as a frame.
        compute: Computes a frame that a query reads several times, and returns the same rows.
        told: With `deduplicate_by` the `_arrival_seq` of records that were refused as duplicates.
        first_times: With it `key`, `event_us` and `_arrival_seq` of earlier records that were not refused, as far as
            they are near the records of the range.

    Returns:
        Numbers by name: `records`, `untimed` (no arrival, malformed, no or bad event time), `duplicate`, `mistaken`
        (records that are duplicates and were not refused as such, or the other way round), `early`, `late_arrival`,
        `out_of_order` (dropped), `below` (met by rule 3 under any policy).
    """
    times = log.select(
        F.col("_arrival_seq").alias("seq"),
        F.unix_micros("_arrival_time").alias("a"),
        F.unix_micros("_clock").alias("clock_now"),
        F.col("_malformed").isNotNull().alias("malformed"),
        F.col("_source").alias("source"),
        F.col("_split").alias("part"),
        F.expr(_event_us(log, rules.sources)).alias("e"),
        F.expr(_timeline(rules)).alias("line"),
        F.expr(_key_of(rules.deduplicate_by)).alias("key"),
    )
    frames = {"log": times}
    if told is not None and first_times is not None:
        frames |= {"told": told, "first_times": first_times}
    follows_clock = rules.emit_every_us is not None or rules.idle is not None
    if follows_clock or rules.uses_splits or rules.over:
        frames["timelines"] = frame(timelines)
    if follows_clock or rules.uses_splits:
        # Spark plans a named part of a query anew wherever it is used: the records would be, a dozen times.
        frames["records"] = compute(_query(f"{_watched(rules)} SELECT * FROM {_records_of(rules)}", frames))
        records = f"WITH {_records_of(rules)} AS (SELECT * FROM {{records}})"
        if rules.publishes_silences:
            records += f", {_watched_with_watchers(rules)}"
        if rules.uses_splits:
            asked = _query(f"{records} SELECT {', '.join(_OF_SPLITS)} FROM watched WHERE active", frames)
            frames["of_splits"] = frame(_lowest_of_splits(asked.toArrow(), timelines, rules))
        found = _one_row(f"{records}, {_below(rules)}, {_with_outcomes(rules)}", frames)
    elif rules.over:  # many timelines share the work among the cores
        found = _one_row(f"{_watched(rules)}, {_in_order(rules)}", frames)
    else:
        found = _of_one_timeline(rules, frames, seqs, timelines, compute)
    return found | {"out_of_order": found["below"] if rules.out_of_order == "drop" else 0}


def _query(text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    return frames["log"].sparkSession.sql(text, None, **frames)


def _one_row(text: str, frames: Mapping[str, DataFrame]) -> dict[str, int]:
    return _query(text, frames).collect()[0].asDict()


def _records_of(rules: RecountRules) -> str:
    """Return the name that records have in SQL; `watched` may be records with watchers between them."""
    return "events" if rules.publishes_silences else "watched"


def _watched(rules: RecountRules) -> str:
    """Return SQL that begins a query: records, see `_records_of`, in which `t` is null unless it moves W."""
    unit = rules.unit_us
    early, late = _beyond("e - a", rules.early_us), _beyond("a - e", rules.late_us)
    return f"""
WITH timed AS (
  SELECT *, malformed OR a IS NULL OR e IS NULL OR e < {_FIRST_US} OR e > 253402300799999999 AS untimed
  FROM {{log}}
), {_marked(rules.deduplicate_by, rules.within_us)}, judged AS (
  SELECT line, seq, source, part, clock_now, untimed, duplicate, mistaken,
    NOT malformed AND a IS NOT NULL AS active,
    NOT untimed AND NOT duplicate AND {early} AS is_early,
    NOT untimed AND NOT duplicate AND NOT ({early}) AND {late} AS is_late,
    CASE WHEN {early} THEN a + {rules.early_us or 0}L WHEN {late} THEN a - {rules.late_us or 0}L ELSE e END AS chosen
  FROM marked
), {_records_of(rules)} AS (
  SELECT *, clock_now AS own_clock, IF(untimed OR duplicate OR is_early AND {_is(rules.early_policy)}
    OR is_late AND {_is(rules.late_policy)}, NULL, chosen - pmod(chosen, {unit}L)) AS t
  FROM judged
)"""


def _outcomes(rules: RecountRules) -> dict[str, str]:
    """Return SQL of what a record is, by the name of its count."""
    return {
        "untimed": "untimed",
        "duplicate": "duplicate <> mistaken",
        "mistaken": "mistaken",
        "early": f"is_early AND {_is(rules.early_policy)}",
        "late_arrival": f"is_late AND {_is(rules.late_policy)}",
    }


def _counted(rules: RecountRules) -> str:
    return ", ".join(["count(*) AS records", *(f"count_if({sql}) AS {n}" for n, sql in _outcomes(rules).items())])


def _with_outcomes(rules: RecountRules) -> str:
    """Return SQL that ends a query with `below`: its number beside those of the outcomes."""
    return f"""outcomes AS (
  SELECT {_counted(rules)} FROM {_records_of(rules)}
)
SELECT outcomes.*, n AS below FROM outcomes CROSS JOIN below"""


def _in_order(rules: RecountRules) -> str:
    """Return SQL that ends a query: outcomes, and `below` by a running maximum over all records of a timeline."""
    return f"""seen AS (
  SELECT *, {_tolerance_of(rules)} AS tolerance, max(t) OVER (PARTITION BY line {_EARLIER}) AS largest FROM watched
)
SELECT {_counted(rules)}, count_if({_is_below("largest", "computed", rules)}) AS below
FROM seen LEFT JOIN {{timelines}} ON line = _timeline"""


def _of_one_timeline(
    rules: RecountRules,
    frames: Mapping[str, DataFrame],
    seqs: range,
    timelines: pa.Table,
    compute: Callable[[DataFrame], DataFrame],
) -> dict[str, int]:
    """Count records of one timeline: SQL says what each is, and Python which of them comes below the largest t."""
    computed_us = timelines["computed"][0].as_py() if len(timelines) else None
    is_below = f"coalesce(t < greatest({_literal(computed_us)}, {_by_clock(rules)}), false)"
    flags = {**_outcomes(rules), "below": is_below}
    # They come as one number: of many rows each column takes seconds.
    bits = " | ".join(f"IF({sql}, {1 << place}, 0)" for place, sql in enumerate(flags.values()))
    tolerances = {source.out_of_orderness_us for source in rules.sources}
    tolerance = f", {_tolerance_of(rules)} AS tolerance" if len(tolerances) > 1 else ""
    columns = f"seq, t, CAST({bits} AS TINYINT) AS flags{tolerance}"
    records = _query(f"{_watched(rules)} SELECT {columns} FROM watched", frames)
    if rules.deduplicate_by and len(seqs) > _PIECE:
        records = compute(records)  # else each piece would look for duplicates among all
    found, highest_us = Counter(dict.fromkeys(["records", *flags], 0)), _NONE
    for first, end in pairwise([None, *seqs[_PIECE::_PIECE], None]):
        low, high = ("true" if first is None else f"seq >= {first}"), ("true" if end is None else f"seq < {end}")
        own, highest_us = _of_piece(records.where(f"{low} AND {high}").toArrow(), list(flags), tolerances, highest_us)
        found.update(own)
    return dict(found)


def _of_piece(
    rows: pa.Table, flags: Sequence[str], tolerances: set[int], highest_us: int
) -> tuple[dict[str, int], int]:
    """Count records that follow others, whose largest t is known, and return the largest t after them as well."""
    if (np.diff(rows["seq"].to_numpy()) < 0).any():
        rows = rows.sort_by("seq")
    t = pc.fill_null(rows["t"], _NONE).to_numpy()
    tolerance = pc.fill_null(rows["tolerance"], 0).to_numpy() if "tolerance" in rows.column_names else min(tolerances)
    largest = np.maximum.accumulate(np.concatenate([[highest_us], t]))
    seen = largest[:-1]
    are = {name: (rows["flags"].to_numpy() & (1 << place)) != 0 for place, name in enumerate(flags)}
    are["below"] |= (t != _NONE) & (seen != _NONE) & (t < np.maximum(seen - tolerance, _FIRST_US))
    return {"records": len(rows), **{n: int(np.count_nonzero(one)) for n, one in are.items()}}, int(largest[-1])


def _below(rules: RecountRules) -> str:
    """Return SQL of `below`: the number of events that were below the watermark that they saw."""
    if rules.uses_splits or rules.idle is not None:
        return f"{_before_and_after(rules)}, {_below_asked(rules)}"
    assert rules.emit_every_us is not None  # a period sees all earlier ones
    last = _period_of("clock", rules.emit_every_us)
    before = f"CASE WHEN block > {last} THEN greatest(watermark, computed) ELSE watermark END"
    return f"""moving AS (
  SELECT *, {_period_of("clock_now", rules.emit_every_us)} AS block, {_tolerance_of(rules)} AS tolerance
  FROM watched WHERE t IS NOT NULL
), periods AS (
  SELECT line, block, max(max(t)) OVER (PARTITION BY line {_EARLIER_BLOCKS}) AS carried
  FROM moving GROUP BY line, block
), below AS (
  SELECT count_if({_is_below("carried", before, rules)}) AS n
  FROM moving JOIN periods USING (line, block) LEFT JOIN {{timelines}} ON line = _timeline
)"""


def _is_below(largest: str, before: str, rules: RecountRules) -> str:
    """Return SQL: is an event below the watermark, by the largest t that it sees and the one before the range?"""
    by_events = f"greatest({largest} - tolerance, IF({largest} IS NULL, NULL, {_FIRST_US}L))"
    return f"t < greatest({before}, {by_events}, {_by_clock(rules)})"


def _below_asked(rules: RecountRules) -> str:
    if rules.emit_every_us is None:
        seen = f"greatest(computed, max(greatest(before, after)) OVER (PARTITION BY line {_EARLIER}), before)"
    else:
        own = _period_of("clock_now", rules.emit_every_us)
        earlier = f"PARTITION BY line ORDER BY {own} RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
        waiting = f"IF({own} > {_period_of('clock', rules.emit_every_us)}, computed, NULL)"
        seen = f"greatest(watermark, {waiting}, max(greatest(before, after)) OVER ({earlier}))"
    return f"""below AS (
  SELECT count_if(t < seen) AS n
  FROM (SELECT t, {seen} AS seen FROM asked LEFT JOIN {{timelines}} ON line = _timeline)
)"""


def _timeline(rules: RecountRules) -> str:
    values = ", ".join(map(_text_of, rules.over))
    return f"to_json(array({values}))" if values else "'[]'"


def _beyond(difference: str, tolerance_us: int | None) -> str:
    return "false" if tolerance_us is None else f"coalesce({difference} > {tolerance_us}L, false)"


def _is(policy: str | None) -> str:
    return "true" if policy == "drop" else "false"


def _period_of(clock: str, every_us: int) -> str:
    """Return SQL of the start of a period of emission."""
    return f"{clock} - pmod({clock}, {every_us}L)"


def _by_clock(rules: RecountRules) -> str:
    """Return SQL of the watermark that the clock alone sets at an event."""
    if rules.clock_tolerance_us is None:
        return "CAST(NULL AS BIGINT)"
    reached = f"greatest(clock_now - {rules.clock_tolerance_us}L, {_FIRST_US}L)"
    return f"{reached} - pmod({reached}, {rules.unit_us}L)"


def _watched_with_watchers(rules: RecountRules) -> str:
    """Return SQL of `watched`: the records of `events`, with watchers between them, at most one a period."""
    every_us = rules.emit_every_us
    assert every_us is not None
    period, start_us = _period_of("clock_now", every_us), _literal(rules.start_clock_us)
    start = f"IF({start_us} < period, {start_us}, {_literal(rules.start_ended_us)})"
    return f"""ended AS (
  SELECT period, coalesce(
    max(max(clock_now)) OVER (ORDER BY period ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), {start}) AS ended
  FROM (SELECT clock_now, {period} AS period FROM {{log}} WHERE clock_now IS NOT NULL) GROUP BY period
), watchers AS (
  SELECT line, period, min(seq) AS first_seq
  FROM (SELECT line, seq, {period} AS period FROM events WHERE active) GROUP BY line, period
), watched AS (
  SELECT line, 2 * seq + 1 AS seq, source, part, clock_now, own_clock, active, t FROM events
  UNION ALL
  SELECT line, 2 * first_seq AS seq, NULL, NULL, ended, NULL, true, NULL
  FROM watchers JOIN ended USING (period) LEFT JOIN {{timelines}} ON line = _timeline
  WHERE ended IS NOT NULL AND coalesce(last_clock < period, true)
)"""


def _before_and_after(rules: RecountRules) -> str:
    """Return SQL of `asked`: `line`, `seq`, `clock_now`, `t`, `before` and `after`, the watermarks asked for.

    `before` is from the clock before a record, `after` from its events on.
    """
    excludes, by_windows = rules.idle == "exclude_split", rules.idle == "window_close"
    if rules.uses_splits:
        found = "of_splits AS (SELECT * FROM {of_splits})"
    else:
        found = f"""of_splits AS (
  SELECT line, seq, CAST(NULL AS BIGINT) AS left_before,
    greatest(t - {_tolerance_of(rules)}, IF(t IS NOT NULL, {_FIRST_US}L, NULL)) AS lowest_after
  FROM watched WHERE active
)"""
    before = "left_before" if excludes else _by_clock(rules)
    if by_windows:
        before = f"closed - pmod(closed, {rules.unit_us}L)"
        found += ", " + _of_windows(rules)
    joined = "JOIN of_windows USING (line, seq)" if by_windows else ""
    return f"""{found}, asked AS (
  SELECT line, seq, clock_now, t, {before} AS before, IF(t IS NOT NULL, lowest_after, NULL) AS after
  FROM watched JOIN of_splits USING (line, seq) {joined}
  WHERE active
)"""


def _lowest_of_splits(records: pa.Table, timelines: pa.Table, rules: RecountRules) -> pa.Table:
    """Go through the records in order: in SQL each one would meet each split of its timeline.

    Args:
        records: _OF_SPLITS of the records, and of watchers, which have no source.
        timelines: The splits of each as the range begins: LIST<STRUCT<source, split, max_t, last_clock>>.
        rules: The spec's numbers.

    Returns:
        `line`, `seq`, and the watermark of the splits BIGINT: `left_before` from the clock before the record,
        `lowest_after` with its event; see `_Splits.watermark`.
    """
    met = timelines.filter(pc.is_in(timelines["_timeline"], records["line"].unique()))
    carried = dict(zip(met["_timeline"].to_pylist(), met["splits"].to_pylist(), strict=True))
    of_lines: dict[str, _Splits] = {}
    for name in ("line", "source", "part"):  # millions of the same few texts
        at = records.column_names.index(name)
        records = records.set_column(at, name, records[name].dictionary_encode())
    records = records.sort_by("seq")
    before, after = list[pa.Array](), list[pa.Array]()
    for piece in records.to_batches(max_chunksize=_ROWS_AT_ONCE):
        left, lowest = list[int | None](), list[int | None]()
        for line, _, source, part, clock_us, t in zip(*(piece[n].to_pylist() for n in _OF_SPLITS), strict=True):
            if line not in of_lines:
                of_lines[line] = _Splits(carried.get(line) or (), rules, clock_us)
            splits = of_lines[line]
            left.append(splits.watermark(clock_us))
            if source is not None:
                splits.meet((source, part), clock_us, t)
            lowest.append(splits.watermark(clock_us))
        before.append(pa.array(left, pa.int64()))
        after.append(pa.array(lowest, pa.int64()))
    found = {"left_before": pa.chunked_array(before, pa.int64()), "lowest_after": pa.chunked_array(after, pa.int64())}
    return pa.table({"line": records["line"].cast(pa.string()), "seq": records["seq"], **found})


class _Splits:
    """The splits of one timeline, record after record; heaps find the slowest and the next idle one of thousands."""

    def __init__(self, carried: Iterable[Mapping[str, Any]], rules: RecountRules, clock_us: int) -> None:
        self._excludes = rules.idle == "exclude_split"
        self._of = {source.name: source for source in rules.sources}
        self._listed = {(source.name, part) for source in rules.sources for part in source.splits}
        # By split: its largest t less the out-of-orderness, and the clock of its last record.
        self._values: dict[_Split, int | None] = dict.fromkeys(self._listed)
        self._last: dict[_Split, int | None] = dict.fromkeys(self._listed, rules.first_clock_us)
        for one in carried:
            split = (one["source"], one["split"])
            self._values[split] = None if one["max_t"] is None else self._value(split, one["max_t"])
            self._last[split] = one["last_clock"] if one["last_clock"] is not None else self._last.get(split)
        self._highest = max((value for value in self._values.values() if value is not None), default=None)
        self._counting: set[_Split] = set()  # active, and listed or with an event
        self._awaited: set[_Split] = set()  # of these, the ones without an event
        self._number: dict[_Split, int] = {}
        # Of each split one entry at most, a value or an end that it had: it may have risen since.
        self._slowest: list[tuple[int, int, _Split]] = []
        self._queued: set[_Split] = set()
        self._idle: list[tuple[int, int, _Split]] = []
        for split in self._values:
            self._count(split, clock_us)

    def watermark(self, clock_us: int) -> int | None:
        """Return the lowest of the active splits, or the highest of idle ones; none while a listed one is awaited.

        The clock does not go back.
        """
        while self._idle and self._idle[0][0] <= clock_us:
            split = heappop(self._idle)[2]
            self._counting.discard(split)
            self._awaited.discard(split)
            self._count(split, clock_us)
        if not self._counting:
            return self._highest
        if self._awaited:
            return None
        while True:
            value, number, split = self._slowest[0]
            now = self._values[split]
            if split not in self._counting or now is None:
                heappop(self._slowest)
                self._queued.discard(split)
            elif now > value:
                heapreplace(self._slowest, (now, number, split))
            else:
                return value

    def meet(self, split: _Split, clock_us: int, t: int | None) -> None:
        """Take a record: a split is active from it on, and its largest t may rise."""
        last_us, reading_us = self._last.get(split), self._reading(split, clock_us, has_record=True)
        self._last[split] = reading_us if last_us is None else max(last_us, reading_us)
        known = self._values.setdefault(split, None)
        value = None if t is None else self._value(split, t)
        if value is not None and (known is None or value > known):
            self._values[split] = value
            self._highest = value if self._highest is None else max(self._highest, value)
            self._awaited.discard(split)
        self._count(split, clock_us)

    def _count(self, split: _Split, clock_us: int) -> None:
        """Let a split count from now on, if it is active."""
        value = self._values[split]
        if value is None and split not in self._listed:
            return
        number = self._number.setdefault(split, len(self._number))
        if split not in self._counting:
            if not self._is_active(split, clock_us):
                return
            self._counting.add(split)
            if self._excludes and (end := self._idle_from(split)) is not None:
                heappush(self._idle, (end, number, split))
        if value is None:
            self._awaited.add(split)
        elif split not in self._queued:
            self._queued.add(split)
            heappush(self._slowest, (value, number, split))

    def _value(self, split: _Split, t: int) -> int:
        return max(t - self._of[split[0]].out_of_orderness_us, _FIRST_US)

    def _is_active(self, split: _Split, clock_us: int) -> bool:
        last_us = self._last.get(split)
        if not self._excludes:
            return True
        return last_us is not None and self._reading(split, clock_us) < last_us + self._timeout_us(split)

    def _idle_from(self, split: _Split) -> int | None:
        """Return the clock from which on an active split is idle without another record; none while it waits."""
        since_us, waited_us = self._waits(split)
        last_us = self._last[split]
        assert last_us is not None
        return None if since_us is not None else last_us + self._timeout_us(split) + waited_us

    def _timeout_us(self, split: _Split) -> int:
        timeout_us = self._of[split[0]].idle_timeout_us
        assert timeout_us is not None
        return timeout_us

    def _reading(self, split: _Split, clock_us: int, *, has_record: bool = False) -> int:
        """Return a clock less the waits of a split, which does not move while it waits; a record ends a wait."""
        since_us, waited_us = self._waits(split)
        return (clock_us if has_record or since_us is None else since_us) - waited_us

    def _waits(self, split: _Split) -> tuple[int | None, int]:
        """Return the clock since which a split waits, with its source or alone, and how long it waited before."""
        source, part = self._of[split[0]], split[1]
        waited_us, since_us = (0, None) if part is None else source.waits_of_splits.get(part, (0, None))
        return source.waits_since_us if since_us is None else since_us, source.waited_us + waited_us


def _reading(clock: str, waits_since_us: int | None, waited_us: int) -> str:
    """Return SQL of a clock less the waits; the reading does not move during a wait."""
    return f"{clock} - {waited_us}L" if waits_since_us is None else f"{waits_since_us - waited_us}L"


def _of_windows(rules: RecountRules) -> str:
    """Return SQL of `of_windows`: the highest close time that the clock has reached before a record.

    The waits are about any source: no timeline is silent meanwhile.
    """
    windows, waits_since_us, waited_us = rules.windows, rules.waits_since_us, rules.waited_us
    rows = "PARTITION BY line ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    now = "clock_now" if waits_since_us is None else f"{waits_since_us}L"
    reached = f"{now} - 1L - {rules.idle_timeout_us or 0}L"
    own = _reading("own_clock", waits_since_us, waited_us)
    latest = [f"greatest(max_close[{i}], max({_close_of(w)}) OVER ({rows}))" for i, w in enumerate(windows)]
    closed = [
        f"IF(latest{i} IS NULL, NULL, least(latest{i}, {_last_close(w, reached)}))"
        if w.after_event_us is None
        else f"IF(latest{i} <= {reached}, latest{i}, NULL)"
        for i, w in enumerate(windows)
    ]
    columns = "".join(f", {text} AS latest{i}" for i, text in enumerate(latest))
    return f"""silent AS (
  SELECT line, seq, clock_now, greatest(last_clock, max({own}) OVER ({rows})) + {waited_us}L AS last_now{columns}
  FROM watched LEFT JOIN {{timelines}} ON line = _timeline WHERE active
), of_windows AS (
  SELECT line, seq, IF(last_now <= {reached}, greatest({", ".join(closed)}, CAST(NULL AS BIGINT)), NULL) AS closed
  FROM silent
)"""


def _close_of(window: EndsOfWindow) -> str:
    """Return SQL of the close time of the last window that holds t; null in a gap."""
    later_us, inside = window.allowed_lateness_us + window.delay_us, f"(t - {window.inside_us}L)"
    if window.calendar is not None:
        return f"{_midnight(window.calendar, inside, 1)} + {later_us}L"
    if window.grid is None:
        return f"t + {(window.after_event_us or 0) + later_us}L"
    offset_us, size_us, begins_every_us, _ = window.grid
    end = f"{inside} - pmod({inside} - {offset_us}L, {begins_every_us}L) + {size_us}L"
    return f"IF({inside} < {end}, {end} + {later_us}L, NULL)"


def _last_close(window: EndsOfWindow, limit: str) -> str:
    """Return SQL of the latest close time that is at most a limit."""
    later_us = window.allowed_lateness_us + window.delay_us
    if window.calendar is not None:
        return f"{_midnight(window.calendar, f'({limit} - {later_us}L)', 0)} + {later_us}L"
    if window.grid is None:
        return limit
    offset_us, size_us, _, ends_every_us = window.grid
    return f"({limit}) - pmod({limit} - {offset_us + size_us + later_us}L, {ends_every_us}L)"


def _midnight(calendar: tuple[str, str], instant: str, later: int) -> str:
    """Return SQL of the local midnight at the beginning of an instant's day or month, or of a later one."""
    unit, zone = calendar
    first = f"date_trunc('{unit}', from_utc_timestamp(timestamp_micros({instant}), '{zone}'))"
    return f"unix_micros(to_utc_timestamp({first} + INTERVAL {later} {unit}, '{zone}'))"


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


def _tolerance_of(rules: RecountRules) -> str:
    """Return SQL of the out-of-orderness of an event's source."""
    return _by_source({one.name: one.out_of_orderness_us for one in rules.sources}, "source")


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
