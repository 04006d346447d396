"""Time adjustment: which events are accepted, with which timestamp, which are refused and why, which are released.

Here: a segment of the log between Spark and the loop: narrow columns go there, with the role of each record, and the
few records that are behind the watermark come back (rule 3, H, A2); rules 1 and 2 (A2), the rule of release (H). Not
here: the loop (timeops/watermark/fold.py), duplicates (timeops/events/duplicates.py), windows, and anything about
batches: a segment may be one event or the whole log.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import close_asked
from tidemark.timeops.computing.materialize import Execution, Some, Stored
from tidemark.timeops.events.duplicates import with_duplicates
from tidemark.timeops.events.event_time import extract, gap_us, timeline
from tidemark.timeops.events.stored_times import (
    COUNTED_ARRIVAL_US,
    COUNTED_EVENT_US,
    MOVED_BY,
    SOURCE_PLACE,
    WHY,
    stored_times,
)
from tidemark.timeops.expressions.tokens import literals
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.narrow import BROADCAST, fetched, to_join
from tidemark.timeops.rules.arrival import arrival_rules, kept_early
from tidemark.timeops.rules.reasons import AT_INGESTION, REASONS, Reason
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.values.instants import Array, integers, no_numbers
from tidemark.timeops.watermark.fold import ACTIVE, AHEAD, JUDGED, OUTSIDE
from tidemark.timeops.watermark.timelines import CLOCK_US, CLOSE, ROLE, T_US, LogPlace, by_seq
from tidemark.timeops.watermark.watermarks import Watermarks, judge_log

KEPT, FUTURE_ARRIVAL = "kept_out_of_order", "future_arrival"
MOVED = ("early", "late", "out_of_order", KEPT, FUTURE_ARRIVAL)
"""The values of `_adjusted_by` that say what a rule did, in the order of the bits of MOVED_BY."""
ADMITTED = "admitted"
"""In `_adjusted_by` of a record that an operator has let in: no rule of time refuses or moves it."""

FATE = "__tm_fate"
IN_SEQUENCE, PASSED, HELD = "sequence", "passed", "held"
"""Values of FATE: the properties of `Released`."""

_MET = {"watermark": c.W_BEFORE, "set_by": c.W_SET_BY}
"""By column of `Watermarks.behind` the column of a record that meets this watermark."""
_COUNTED = (WHY, MOVED_BY, SOURCE_PLACE, COUNTED_ARRIVAL_US, COUNTED_EVENT_US)

RELEASE_ORDER = (c.TIMELINE, c.TIMESTAMP, c.SEQ)
"""Released events of a timeline form one sequence in this order; ties keep arrival order."""


@dataclass(frozen=True)
class LogPlaces:
    """Where a segment of several logs, with timelines of their own, is in each.

    Each log may number its records by itself if the judged records stay in memory; else their numbers differ.

    Attributes:
        log: Returns the name of the log that a timeline is of.
        places: By name; all of them are flushed, or none.
        across: Returns the name of the timeline that represents all timelines of a log, by the name of the log, to
            which `log` leads back.
    """

    log: Callable[[str], str]
    places: Mapping[str, LogPlace]
    across: Callable[[str], str] = str

    @property
    def flushed(self) -> bool:
        """True if the segment of each ends with a flushing end of input."""
        return any(place.flushed for place in self.places.values())


@dataclass(frozen=True)
class Segment:
    """A segment of the log, before it is judged.

    Attributes:
        items: Its records: any cut of the arrival log, from one record to all of it.
        place: Where it is in its log, or in each of several logs, and what ends it.
        execution: How it is computed; by default nothing stays in memory.
        admitted: The events of the records in it that an operator has let in, see `admitted_events`; None for none.
        stored: Reads columns of its records without Spark; by default Spark reads them.
        find_records: Finds some of its records; by default they are looked for among all.
        counts: The judged records hold what `counts.Outcomes` is made of.
        tables: The right sides of joins that are tables, as events, by the join.
    """

    items: DataFrame
    place: LogPlace | LogPlaces
    execution: Execution = field(default_factory=Execution)
    admitted: DataFrame | None = None
    stored: Stored | None = None
    find_records: Some | None = None
    counts: bool = False
    tables: Mapping[str, DataFrame] = field(default_factory=dict)


@dataclass(frozen=True)
class Ends:
    """The watermark of the only timeline around a segment, microseconds; None where there is none yet."""

    before: int | None
    after: int | None


@dataclass(frozen=True)
class Adjusted:
    """A segment of the log that was judged.

    Attributes:
        accepted: The accepted events: `_timestamp`, `_event_time`, `_timeline`, `_adjusted_by`, `__tm_timestamp`,
            `__tm_w_before` (microseconds; null where the event is on time), and under `keep` `__tm_w_set_by`; with
            `deduplicate_by` also `__tm_key`.
        find_refused: Returns the records that rules refuse: `__tm_reason`, `__tm_lateness_us`, `__tm_w_before` and
            `__tm_w_set_by`; with `deduplicate_by` also `__tm_key` and `__tm_first_seq`. They are read when they are
            asked for.
        rules: The rules that it was judged by.
        before: timelines.STATE before the segment.
        state: The same after it.
        watermarks: How the watermarks rose in it.
        ends: The watermark around the segment where only one timeline can be; None where each row looks for its own.
        count_columns: With `Segment.counts` what counts ask of each record, in the order of the log: WHY, and as far
            as the rules make a difference MOVED_BY, SOURCE_PLACE, COUNTED_ARRIVAL_US and COUNTED_EVENT_US, NONE for
            null.
        seqs: The numbers of its records, where they are so many that they are fetched piece by piece.
        admitted: The records that an operator has let in, see `admitted_events`; None for none. Windows have them
            from the state before the log, so they are not among `accepted`. What a rule refuses is in `refused`, too.
        admitted_seqs: The numbers that the segment has of records that an operator has let in.
        by_rules: Where there are any, what the rules accept, whatever an operator has let in; else None.
        stored: Reads columns of its records without Spark, where the loop has all that the rules say of each of them,
            see `stored_times`; else None.
    """

    accepted: DataFrame
    find_refused: Callable[[], DataFrame]
    rules: TimeRules
    before: pa.Table
    state: pa.Table
    watermarks: Watermarks
    ends: Ends | None = None
    count_columns: Mapping[str, Array] | None = None
    seqs: range | None = None
    admitted: DataFrame | None = None
    admitted_seqs: Array = field(default_factory=no_numbers)
    by_rules: DataFrame | None = None
    stored: Stored | None = None

    @property
    def refused(self) -> DataFrame:
        """The records that rules refuse, see `find_refused`."""
        return self.find_refused()

    @property
    def all_accepted(self) -> DataFrame:
        """All accepted events, the ones that an operator has let in among them."""
        if self.admitted is None:
            return self.accepted
        return self.accepted.unionByName(self.admitted, allowMissingColumns=True)


@dataclass(frozen=True)
class Released:
    """Accepted events split by the watermark at the end of a segment.

    Attributes:
        events: All of them, with FATE.
    """

    events: DataFrame

    @property
    def sequence(self) -> DataFrame:
        """Released, to be numbered in RELEASE_ORDER after the ones released before."""
        return self._of(IN_SEQUENCE)

    @property
    def passed(self) -> DataFrame:
        """Behind the watermark when they came and kept (`keep`), or let in: released outside the sequence."""
        return self._of(PASSED)

    @property
    def held(self) -> DataFrame:
        """Not yet released."""
        return self._of(HELD)

    def _of(self, fate: str) -> DataFrame:
        return self.events.where(F.col(FATE) == fate).drop(FATE)


def time_adjustment(
    segment: Segment,
    state: pa.Table,
    rules: TimeRules,
    *,
    first_times: DataFrame | None = None,
    watermarks: Watermarks | None = None,
) -> Adjusted:
    """Judge every record of a segment of the log.

    Args:
        segment: The segment.
        state: timelines.STATE as it was before its first record.
        rules: The rules of time.
        first_times: duplicates.FIRST_TIMES_SCHEMA before the segment, at least all within reach of its events; by
            default none.
        watermarks: How watermarks rise in the segment, where that is known; by default it is found in the records.

    Returns:
        Accepted and refused records and the state after the segment.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
        InputError: A timeline has too many splits.
    """
    place, execution = segment.place, segment.execution
    let_in = segment.admitted
    admitted_seqs = None if let_in is None else fetched(let_in.select(c.SEQ), None)[c.SEQ].to_numpy()
    records_alone = judge_alone(segment.items, rules, first_times)
    # Finding duplicates costs more than a scan, so do it once.
    is_kept = execution.keep is not None or bool(rules.time.deduplicate_by)
    if is_kept:
        records_alone = (execution.keep or execution.materialize)(records_alone)
    count_columns, is_plain = None, False
    if watermarks is None:
        if isinstance(place, LogPlace):
            watermarks, count_columns, is_plain = _watermarks_of_log(segment, records_alone, state, rules, place)
        else:
            watermarks = _watermarks_of_logs(records_alone, state, rules, place)
    state_after = watermarks.state if watermarks.has_items else state
    by_all_rules = _with_rule_3(_with_watermark_met(records_alone, _behind(watermarks)), rules)
    by_rules = by_all_rules.where(F.col(c.REASON).isNull())
    return Adjusted(
        accepted=_without(by_rules, admitted_seqs),
        find_refused=cache(
            partial(_refused, by_all_rules, None if is_kept else segment.find_records, watermarks, rules)
        ),
        rules=rules,
        before=state,
        state=state_after,
        watermarks=watermarks,
        ends=_ends(state, state_after) if isinstance(place, LogPlace) and not rules.time.over else None,
        count_columns=count_columns,
        seqs=place.seqs if isinstance(place, LogPlace) else None,
        admitted=let_in,
        admitted_seqs=no_numbers() if admitted_seqs is None else admitted_seqs,
        by_rules=None if admitted_seqs is None else by_rules,
        stored=segment.stored if is_plain else None,
    )


def judge_alone(records: DataFrame, rules: TimeRules, first_times: DataFrame | None) -> DataFrame:
    """Return records with their event time and what rules 0 to 2 say of each, before any watermark."""
    timed = extract(records, rules)
    if rules.time.deduplicate_by:
        timed = with_duplicates(timed, first_times, rules.time)
    return judge_arrival(timed, rules.time)


def admitted_events(records: DataFrame, rules: TimeRules) -> DataFrame:
    """Return records that an operator has let in as accepted events, each with its own time, cut down to the unit.

    They look as if they had arrived at their event time. Their clock is that time, which early results need. A record
    without an event time is not among them.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    timed = extract(records, rules).where(F.col(c.REASON).isNull())
    columns = {
        c.T_FINAL: c.T,
        c.TIMESTAMP: f"timestamp_micros({c.T})",
        c.ADJUSTED_BY: f"array('{ADMITTED}')",
        c.CLOCK: f"least({c.CLOCK}, timestamp_micros({c.T}))",
        **dict.fromkeys((c.W_BEFORE, c.W_SET_BY, c.LATENESS), "CAST(NULL AS BIGINT)"),
    }
    return c.with_sql(timed, columns)


def across_timelines(adjusted: Adjusted) -> Adjusted:
    """Return the segment as windows across timelines see it: all events are of the timeline that represents all.

    The accepted events have the watermark across timelines where they are below it, and what set it; OWN_TIMELINE
    says which timeline each is of.
    """
    behind = adjusted.watermarks.behind_across.rename_columns(_MET) if adjusted.watermarks.logs else None
    apart, admitted = adjusted.rules.apart, adjusted.admitted
    accepted = _with_watermark_met(adjusted.accepted.drop(*_MET.values()), behind)
    return replace(
        adjusted,
        accepted=of_all_timelines(accepted, apart),
        admitted=None if admitted is None else of_all_timelines(admitted, apart),
    )


OWN_TIMELINE = "__tm_own_timeline"
"""STRING of an event as windows across timelines see it: its own timeline."""


def of_all_timelines(events: DataFrame, apart: tuple[str, ...]) -> DataFrame:
    """Return events as ones of the timeline that represents all, with OWN_TIMELINE; see `TimeRules.apart`."""
    sql = timeline(Columns.of(events), apart)
    return events.withColumns({OWN_TIMELINE: F.col(c.TIMELINE), c.TIMELINE: F.expr(sql)})


def _ends(before: pa.Table, after: pa.Table) -> Ends:
    first, last = (rows["watermark"][0].as_py() if len(rows) else None for rows in (before, after))
    return Ends(first, last)


def _watermarks_of_log(
    segment: Segment, judged: DataFrame, state: pa.Table, rules: TimeRules, place: LogPlace
) -> tuple[Watermarks, dict[str, Array], bool]:
    """Let the loop judge a segment of one log; return what counts ask of its records, and if no SQL was needed."""
    rows = None
    if segment.stored is not None:  # it needs a time that is a TIMESTAMP column: that of a text Spark computes
        rows = stored_times(segment.items, rules, segment.stored, counts=segment.counts)
    is_plain = rows is not None
    if rows is None:
        counted = _asked_by_counts(rules, has_marks=c.ARRIVED_AHEAD in judged.columns) if segment.counts else []
        rows = fetched(judged.selectExpr(*_narrow(rules, judged), *counted), place.seqs)
    rows = by_seq(rows)
    count_columns = _copied(rows)
    narrow = rows.drop_columns(list(count_columns))
    del rows  # a good part of the memory of a run
    return Watermarks((judge_log(narrow, state, rules, place),)), count_columns, is_plain


def _watermarks_of_logs(judged: DataFrame, state: pa.Table, rules: TimeRules, place: LogPlaces) -> Watermarks:
    """Let the loop judge a segment of several logs, one after the other."""
    items = judged.selectExpr(*_narrow(rules, judged)).toArrow()
    log_of_item, log_of_timeline = (_logs(rows[c.TIMELINE], place) for rows in (items, state))
    by_log = []
    for name, log_place in place.places.items():
        rows = by_seq(items.filter(pc.equal(log_of_item, name)))
        before = state.filter(pc.equal(log_of_timeline, name))
        by_log.append(judge_log(rows, before, rules, log_place, across=place.across(name)))
    return Watermarks(tuple(by_log))


def _logs(timelines: pa.ChunkedArray, place: LogPlaces) -> pa.Array:
    """Return the name of the log of each timeline."""
    codes = timelines.combine_chunks().dictionary_encode()
    names = pa.array([place.log(name) for name in codes.dictionary.to_pylist()], pa.string())
    return names.take(codes.indices)


def _narrow(rules: TimeRules, records: DataFrame) -> list[str]:
    """Return the columns, in SQL, of judged records that the loop asks for."""
    columns = [c.SEQ, f"{c.T} AS {T_US}", f"unix_micros({c.CLOCK}) AS {CLOCK_US}", f"{role_sql(rules)} AS {ROLE}"]
    if rules.time.over:
        columns.append(c.TIMELINE)
    if rules.uses_splits:
        columns += [c.SOURCE, c.SPLIT]
    for w, window in enumerate(rules.windows_to_close):
        gap = gap_us(Columns.of(records), window) if window.has_gap_of_records else None
        columns.append(f"{close_asked(c.T, window, rules.time.unit_us, gap)} AS {CLOSE}{w}")
    return columns


def role_sql(rules: TimeRules) -> str:
    """Return SQL for TINYINT, the role of a record that `judge_arrival` has judged."""
    # An event that is refused still ends the silence of its timeline and split.
    of_time = f"IF({c.REASON} IN ({literals(AT_INGESTION)}), {OUTSIDE}, {ACTIVE})"
    refused = of_time if rules.follows_activity else OUTSIDE
    accepted = f"IF({kept_early_sql(rules)}, {AHEAD}, {JUDGED})"
    return f"CAST(IF({c.REASON} IS NULL, {accepted}, {refused}) AS TINYINT)"


def kept_early_sql(rules: TimeRules) -> str:
    """Return SQL of whether rule 1 keeps an accepted event with its own time, so that it moves no watermark."""
    rule = kept_early(rules.time)
    return "false" if rule is None else f"{rule.beyond_sql} > 0"


def _asked_by_counts(rules: TimeRules, *, has_marks: bool) -> list[str]:
    """Return the columns of a judged record that counts and pictures ask for, in SQL: `Adjusted.count_columns`."""
    why = f"coalesce(array_position(array({literals(REASONS)}), {c.REASON}), 0)"
    columns = [f"CAST({why} AS TINYINT) AS {WHY}"]
    movers = [policy for policy in (rules.time.early, rules.time.late) if policy is not None]
    if has_marks or any(policy.policy != "drop" for policy in movers):
        bits = {name: 1 << MOVED.index(name) for name in ("early", "late", FUTURE_ARRIVAL)}
        moved_by = " + ".join(
            f"IF(array_contains({c.ADJUSTED_BY}, '{name}'), {bit}, 0)" for name, bit in bits.items()
        )
        moved_by = f"{moved_by} + IF({kept_early_sql(rules)}, {bits['early']}, 0)"
        columns.append(f"CAST({moved_by} AS TINYINT) AS {MOVED_BY}")
    if len(rules.sources) > 1:
        place = f"array_position(array({literals(source.name for source in rules.sources)}), {c.SOURCE})"
        number = f"IF({place} > 0, {place} - 1, {len(rules.sources)})"
        columns.append(f"CAST({number} AS SMALLINT) AS {SOURCE_PLACE}")
    if any(source.timestamp_by is not None for source in rules.sources):
        columns += [
            f"unix_micros({c.ARRIVAL}) AS {COUNTED_ARRIVAL_US}",
            f"unix_micros({c.EVENT_TIME}) AS {COUNTED_EVENT_US}",
        ]
    return columns


def _copied(rows: pa.Table) -> dict[str, Array]:
    """Copy the columns that counts ask for, so that the full rows can be freed."""
    names = [name for name in _COUNTED if name in rows.column_names]
    instants = (COUNTED_ARRIVAL_US, COUNTED_EVENT_US)
    return {n: integers(rows[n]).copy() if n in instants else rows[n].to_numpy().copy() for n in names}


def _refused(by_all_rules: DataFrame, find: Some | None, watermarks: Watermarks, rules: TimeRules) -> DataFrame:
    """Return the records that rules refuse; where they can be found by themselves, only these are judged again."""
    seqs = None if find is None else _refused_seqs(watermarks, rules)
    some = None if seqs is None or find is None else find(seqs)
    if some is None:
        return by_all_rules.where(F.col(c.REASON).isNotNull())
    judged_again = _with_watermark_met(judge_alone(some, rules, None), _behind(watermarks))
    return _with_rule_3(judged_again, rules).where(F.col(c.REASON).isNotNull())


def _behind(watermarks: Watermarks) -> pa.Table | None:
    """Return the watermark that each record below it meets, by `_arrival_seq`; None without a log."""
    return watermarks.behind.rename_columns(_MET) if watermarks.logs else None


def _refused_seqs(watermarks: Watermarks, rules: TimeRules) -> np.ndarray | None:
    """Return the records that rules 0 to 3 refuse; None where they are too many to be named."""
    refused = [log.rises.items.seq[log.rises.items.role < JUDGED] for log in watermarks.logs]
    if rules.time.out_of_order == "drop":
        refused.append(watermarks.behind[c.SEQ].to_numpy())
    seqs = np.concatenate(refused) if refused else no_numbers()
    return seqs if len(seqs) <= BROADCAST else None


def _without(events: DataFrame, seqs: np.ndarray | None) -> DataFrame:
    if seqs is None or not len(seqs):
        return events
    numbers = to_join(events.sparkSession, pa.table({c.SEQ: pa.array(seqs, pa.int64())}))
    return events.join(numbers, c.SEQ, "left_anti")


def _with_watermark_met(judged: DataFrame, behind: pa.Table | None) -> DataFrame:
    """Return judged records with `__tm_w_before` and `__tm_w_set_by`, null where they are in order."""
    if behind is None or not len(behind):
        return c.with_sql(judged, dict.fromkeys((c.W_BEFORE, c.W_SET_BY), "CAST(NULL AS BIGINT)"))
    keys = [name for name in (c.TIMELINE, c.SEQ) if name in behind.column_names]
    return judged.join(to_join(judged.sparkSession, behind), keys, "left")


def _with_rule_3(rows: DataFrame, rules: TimeRules) -> DataFrame:
    """Apply rule 3 to records by its policy: one that is behind the watermark is dropped, adjusted or let in."""
    policy, in_order = rules.time.out_of_order, f"{c.W_BEFORE} IS NULL"
    final = f"IF({in_order}, {c.T}, {c.W_BEFORE})" if policy == "adjust" else c.T
    new_columns = {c.T_FINAL: final, c.TIMESTAMP: f"timestamp_micros({final})"}
    if policy == "drop":
        late = f"{c.W_BEFORE} - {c.T}"
        if rules.clock_moves:  # if the clock set W, no tolerance would have helped
            late = f"IF({c.W_SET_BY} IS NULL, NULL, {late})"
        new_columns[c.REASON] = f"IF({in_order}, {c.REASON}, '{Reason.OUT_OF_ORDER}')"
        new_columns[c.LATENESS] = f"IF({in_order}, {c.LATENESS}, {late})"
    else:
        rule = "out_of_order" if policy == "adjust" else KEPT
        new_columns[c.ADJUSTED_BY] = f"IF({in_order}, {c.ADJUSTED_BY}, concat({c.ADJUSTED_BY}, array('{rule}')))"
    if policy == "adjust":
        new_columns[c.W_SET_BY] = "CAST(NULL AS BIGINT)"
    return c.with_sql(rows, new_columns)


def judge_arrival(events: DataFrame, time: TimeSpec) -> DataFrame:
    """Apply rules 1 and 2: drop or adjust events that are early or late against their arrival, in that order (A2).

    Neither rule knows a timeline or a watermark. An early event that is kept is as it was (`kept_early_sql`).

    Returns:
        `events`, rows of `extract`, with `__tm_reason` set to `early` or `late_arrival` where an event is refused,
        `__tm_t` moved where one is adjusted, `_adjusted_by` ARRAY<STRING>, and `__tm_lateness_us`: by how much the
        tolerance was too small.
    """
    rules = arrival_rules(time)
    dropping = [rule for rule in rules if rule.policy == "drop"]
    moving = [rule for rule in rules if rule.policy == "adjust"]
    drop_reason = _case([(rule.beyond_sql, f"'{rule.reason}'") for rule in dropping], "CAST(NULL AS STRING)")
    lateness = _case([(rule.beyond_sql, rule.beyond_sql) for rule in dropping], "CAST(NULL AS BIGINT)")
    moved = _case([(rule.beyond_sql, rule.limit_sql) for rule in moving], c.T)
    no_names = "CAST(array() AS ARRAY<STRING>)"
    names = _case([(rule.beyond_sql, f"array('{rule.name}')") for rule in moving], no_names)
    if c.ARRIVED_AHEAD in events.columns:
        names = f"concat(IF({c.ARRIVED_AHEAD}, array('{FUTURE_ARRIVAL}'), {no_names}), {names})"
    reason = f"coalesce({c.REASON}, {drop_reason})"
    return c.with_sql(
        events,
        {
            c.LATENESS: f"IF({c.REASON} IS NULL, {lateness}, NULL)",
            c.REASON: reason,
            c.T: f"IF({reason} IS NULL, {moved}, NULL)",
            c.ADJUSTED_BY: f"IF({reason} IS NULL, {names}, {no_names})",
        },
    )


def _case(branches: Sequence[tuple[str, str]], otherwise: str) -> str:
    """Return SQL of the first value whose number of microseconds is above zero; or else another one."""
    cases = "".join(f" WHEN {by} > 0 THEN {value}" for by, value in branches)
    return f"CASE{cases} ELSE {otherwise} END" if cases else otherwise


def release(accepted: DataFrame, adjusted: Adjusted, *, flushed: bool) -> Released:
    """Split accepted events, including the ones held before, by the watermark after the segment.

    An event is held while `_timestamp >= W` and released when `_timestamp < W`; with no watermark yet all are
    held, and an end of input that the spec or the operator flushes releases everything. `accepted` has `_timestamp`,
    `_timeline` and `_adjusted_by`.
    """
    # Only `keep` leaves such events, so search only then.
    outside = [KEPT] if adjusted.rules.time.out_of_order == "keep" else []
    outside += [] if adjusted.admitted is None else [ADMITTED]
    passed = f" WHEN arrays_overlap({c.ADJUSTED_BY}, array({literals(outside)})) THEN '{PASSED}'" if outside else ""
    with_ends = with_end(accepted, adjusted)
    is_out = "true" if flushed else f"unix_micros({c.TIMESTAMP}) < {c.W_END}"
    fate = F.expr(f"CASE{passed} WHEN {is_out} THEN '{IN_SEQUENCE}' ELSE '{HELD}' END")
    return Released(with_ends.withColumn(FATE, fate).drop(c.W_END))


def with_end(rows: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Add W_END to rows with `_timeline`: the watermark of their timeline after the segment."""
    if adjusted.ends is not None:
        return rows.withColumn(c.W_END, F.lit(adjusted.ends.after).cast("bigint"))
    return _with_watermark(rows, adjusted.state, c.W_END)


def with_both_ends(rows: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Add W_START and W_END to rows with `_timeline`."""
    if adjusted.ends is not None:
        return with_end(rows.withColumn(c.W_START, F.lit(adjusted.ends.before).cast("bigint")), adjusted)
    return with_end(_with_watermark(rows, adjusted.before, c.W_START), adjusted)


def _with_watermark(rows: DataFrame, timelines: pa.Table, name: str) -> DataFrame:
    watermarks = timelines.select([c.TIMELINE, "watermark"]).rename_columns([c.TIMELINE, name])
    return rows.join(to_join(rows.sparkSession, watermarks), c.TIMELINE, "left")
