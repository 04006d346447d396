"""Running the cases of a spec in memory: all of them at once, each as a whole and cut into segments at every record.

Here: which segments are run, and the contents of the tables after each. Not here: the stages
(timeops/engine.py), what is compared (differences.py).

Each case becomes several logs. One has all records in the first segment. For each record another one has that record
in a segment of its own, between the records before and after it. So three segments serve all cases, and one more if
some cases are flushed and some are not. Every place between two records is the end of a segment in one of the logs.
A tick ends a segment, so cases with ticks have more of them.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.pipelines.case_tests.differences import CaseOutcomes, Outcome, Row
from tidemark.pipelines.case_tests.many_logs import (
    LOG,
    Rules,
    dead_letters_of,
    in_one_part,
    judge_segment,
    log_of_timeline,
    log_watermarks,
    rules_for_many_logs,
    state_of,
    timeline_in_log,
)
from tidemark.pipelines.case_tests.records import End, Records
from tidemark.resources.spark.frames import small_frame
from tidemark.timeops import columns as c
from tidemark.timeops.cases import DEAD_LETTERS, FINAL, HELD, NONE, ORDERED, WINDOWS, Case, read_row, text_of
from tidemark.timeops.engine import State
from tidemark.timeops.events.adjustment import Released
from tidemark.timeops.expressions.try_expression import as_json
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.utc import instant_of
from tidemark.timeops.watermark.timelines import STATE_SCHEMA, LogPlace
from tidemark.timeops.windows.gap_filling import told_in_words
from tidemark.timeops.windows.results import with_next_revision
from tidemark.timeops.windows.revisions import PASSES

MOST_CUTS = 32
"""Places at which a case is cut; a longer one is cut at the ends of its steps and at so many other places."""

_TIMELINES, _LOGS = "timelines", "logs"  # beside the tables: watermarks of both
_SEGMENT = "__tm_segment"  # of a row that was written
_REPLACED = "__tm_replaced"  # of a result the segment whose revision replaces it; null for none
_IN_SEQUENCE = "__tm_in_sequence"  # of a released event: false if it passes outside the sequence


@dataclass(frozen=True)
class Log:
    """One case cut in one way.

    Attributes:
        case: Its position among the cases.
        cut: A segment ends after so many records, and another one after the next record.
        records: How many there are.
        ticks: After how many records its ticks come.
    """

    case: int
    cut: int
    records: int
    ticks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the frames."""
        return f"{self.case}:{self.cut}"

    @property
    def ends(self) -> list[End]:
        """The end of each segment; one that has more ticks than the end before is a tick."""
        found: list[End] = []
        for place in sorted({self.cut, min(self.cut + 1, self.records), self.records, *self.ticks}):
            before, count = bisect_left(self.ticks, place), self.ticks.count(place)
            if place == self.cut or not count:
                found.append((place, before))
            found += [(place, before + 1 + number) for number in range(count)]
        return found

    def end(self, segment: int) -> End:
        """Return the end of a segment; if the log has fewer, the end of its last."""
        return self.ends[min(segment, len(self.ends) - 1)]

    def ticks_in(self, segment: int) -> bool:
        """Return whether a segment ends with a tick."""
        return self.end(segment)[1] > (self.end(segment - 1)[1] if segment else 0)


def run_cases(
    spark: SparkSession, spec: Spec, cases: Sequence[Case], records: Records, schemas: Mapping[str, StructType]
) -> list[CaseOutcomes]:
    """Run all cases."""
    logs = [log for number, case in enumerate(cases) for log in logs_of(number, case)]
    flushing = [log.name for log in logs if _flushes(cases[log.case], spec)]
    rules = rules_for_many_logs(spec, records.payload.names)
    with told_in_words():
        segments = _fold(spark, records, logs, flushing, rules)
        rows = _collected(segments, schemas, rules.time.windows)
    written = _Written(rows, _last(logs), len(segments), frozenset(flushing))
    return [_outcomes(number, case, logs, written, list(schemas)) for number, case in enumerate(cases)]


def logs_of(number: int, case: Case) -> Iterator[Log]:
    """Return the ways in which a case is cut: before each record, at the ends of its steps, and not at all.

    Args:
        number: Its position among the cases.
        case: The case.
    """
    ends = [records for records, _ in _step_ends(case)]
    count = ends[-1]
    some = range(count) if count <= MOST_CUTS else (i * count // MOST_CUTS for i in range(MOST_CUTS))
    ticks = tuple(place for place, _ in case.ticks)
    yield from (Log(number, cut, count, ticks) for cut in sorted({*some, *ends}))


def _step_ends(case: Case) -> list[End]:
    ends, records, ticks = [], 0, 0
    for step in case.segments:
        records += len(step.records)
        ticks += step.tick is not None
        ends.append((records, ticks))
    return ends


def _last(logs: Sequence[Log]) -> int:
    """Return the segment after which every log has all of its items."""
    return max(len(log.ends) for log in logs) - 1


def _flushes(case: Case, spec: Spec) -> bool:
    return spec.time.flushes(case.segments[-1].end_of_input)


@dataclass(frozen=True)
class _Segment:
    """The result of one segment of the logs.

    Attributes:
        tables: Rows by table.
        timelines: The timelines after it.
        logs: The watermark of every log after it.
    """

    tables: Mapping[str, DataFrame]
    timelines: DataFrame
    logs: DataFrame


def _fold(
    spark: SparkSession, records: Records, logs: Sequence[Log], flushing: Sequence[str], rules: Rules
) -> list[_Segment]:
    last = _last(logs)
    ends = [(log.case, log.name, json.dumps([log.end(part)[0] for part in range(last)])) for log in logs]
    cut = small_frame(spark, ends, f"__tm_case INT, {LOG} STRING, __tm_ends STRING")
    items = records.frame.join(F.broadcast(cut), "__tm_case")
    passed = F.filter(F.from_json("__tm_ends", "array<bigint>"), lambda end: end <= F.col(c.SEQ))
    items = items.withColumn("__tm_part", F.size(passed))
    parts = last + 1
    if flushing and (len(flushing) < len(logs) or any(log.ticks for log in logs)):  # these go on to the end of input
        parts += 1
    state = State(small_frame(spark, [], STATE_SCHEMA))
    known: dict[str, int | None] = {}
    ended: dict[str, int | None] = {}
    every_us = rules.time.time.emit_every_us or 1
    segments = []
    for number in range(parts):
        flushed = bool(flushing) and number == parts - 1
        if number:
            state = (state_of(flushing, state) if number > last else state).materialized(in_one_part)
        before, ended_before = known, ended
        known = {log.name: records.clock_us(log.case, log.end(number)) for log in logs}
        ended = {log.name: records.ended_clock_us(log.case, log.end(number), every_us) for log in logs}
        rows = items.where(F.col("__tm_part") == number).drop("__tm_case", "__tm_ends", "__tm_part")
        places = {
            log.name: LogPlace(
                records.first_clock_us(log.case) if log.name in before else None,
                before.get(log.name),
                ended_before.get(log.name),
                known[log.name] if log.ticks_in(number) else None,
                flushed,
            )
            for log in logs
        }
        outcome = judge_segment(rows, rules, places, state)
        state = outcome.state()
        seen = ended if rules.time.publishes_silences else known
        by_log = log_watermarks(outcome, seen, rules.time.time)
        segments.append(
            _Segment(
                tables={
                    DEAD_LETTERS: dead_letters_of(outcome, rules),
                    **{WINDOWS + window.name: outcome.results(window) for window in outcome.windows},
                    ORDERED: _released(outcome.released),
                    HELD: _unnumbered(outcome.released.held),
                },
                timelines=outcome.judged.state,
                logs=small_frame(spark, list(by_log.items()), f"{LOG} STRING, watermark BIGINT"),
            )
        )
    return segments


def _collected(
    segments: Sequence[_Segment], schemas: Mapping[str, StructType], windows: Sequence[WindowSpec]
) -> dict[tuple[int, str, str], list[dict[str, Any]]]:
    """Collect all rows by segment, log and table, in one job."""
    state = StructType.fromDDL("_timeline STRING, watermark BIGINT")
    assert isinstance(state, StructType)
    log_state = StructType([state["watermark"]])
    kinds = {**schemas, _TIMELINES: state, _LOGS: log_state}
    revised = {WINDOWS + window.name: window for window in windows if window.revises}
    by_table: dict[str, list[DataFrame]] = defaultdict(list)
    for number, segment in enumerate(segments):
        timelines = segment.timelines.withColumn(LOG, log_of_timeline())
        for table, frame in {**segment.tables, _TIMELINES: timelines, _LOGS: segment.logs}.items():
            by_table[table].append(frame.withColumn(_SEGMENT, F.lit(number)))
    frames = []
    for table, columns in kinds.items():
        each = by_table[table]
        if table in revised:
            each = [with_next_revision(reduce(DataFrame.unionByName, each), revised[table], _SEGMENT, _REPLACED)]
        frames += [_as_json(frame, table, columns) for frame in each]
    rows: dict[tuple[int, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in reduce(DataFrame.unionByName, frames).collect():
        read = read_row(row["row"], kinds[row["table"]])
        rows[row["segment"], row["log"], row["table"]].append(
            read | {_IN_SEQUENCE: row["in_sequence"], PASSES: row["passes"], _REPLACED: row["replaced"]}
        )
    return rows


def _released(released: Released) -> DataFrame:
    in_sequence = released.sequence.withColumn(_IN_SEQUENCE, F.lit(True))
    return _unnumbered(in_sequence.unionByName(released.passed.withColumn(_IN_SEQUENCE, F.lit(False))))


def _unnumbered(events: DataFrame) -> DataFrame:
    return events.withColumn(c.RELEASE_SEQ, F.lit(None).cast("bigint"))


def _as_json(frame: DataFrame, table: str, columns: StructType) -> DataFrame:
    named = frame.withColumn(c.TIMELINE, timeline_in_log()) if c.TIMELINE in frame.columns else frame
    in_sequence = F.col(_IN_SEQUENCE) if _IN_SEQUENCE in frame.columns else F.lit(None).cast("boolean")
    replaced = F.col(_REPLACED) if _REPLACED in frame.columns else F.lit(None).cast("int")
    return named.select(
        F.col(_SEGMENT).alias("segment"),
        F.lit(table).alias("table"),
        F.col(LOG).alias("log"),
        in_sequence.alias("in_sequence"),
        as_json(*[F.col(f"`{name}`") for name in columns.names]).alias("row"),
        (F.col(PASSES) if PASSES in frame.columns else F.lit(True)).alias("passes"),
        replaced.alias("replaced"),
    )


@dataclass(frozen=True)
class _Written:
    """The rows that the segments wrote, by segment, log and table.

    It also holds after which segment all items are there, the number of segments, and which logs were flushed.
    """

    rows: Mapping[tuple[int, str, str], Sequence[Row]]
    last: int
    segments: int
    flushed: frozenset[str]

    def final(self, log: str, tables: Sequence[str]) -> Outcome:
        """Return the contents of the tables when all of a log is done."""
        is_flushed = log in self.flushed
        return self.outcome(log, tables, self.segments - 1 if is_flushed else self.last, final=is_flushed)

    def outcome(self, log: str, tables: Sequence[str], end: int, *, final: bool = False) -> Outcome:
        """Return the contents of a log's tables after one of the segments; `final` if it was flushed by then."""
        found = {table: self._appended(log, table, end) for table in tables if table != HELD}
        if ORDERED in tables:
            found[ORDERED] = _numbered(found[ORDERED])
            found[HELD] = list(self.rows.get((end, log, HELD), ()))
        [of_log] = self.rows[end, log, _LOGS]
        timelines = self.rows.get((end, log, _TIMELINES), ())
        return Outcome(
            tables={table: _plain(rows) if table == ORDERED else _sorted(rows) for table, rows in found.items()},
            watermark=_watermark(of_log["watermark"], final=final),
            watermarks={row["_timeline"]: _watermark(row["watermark"], final=final) for row in timelines},
        )

    def _appended(self, log: str, table: str, end: int) -> list[Row]:
        """Return the rows of a table after a segment, without rows that a revision has replaced by then."""
        rows: list[Row] = [{**row, _SEGMENT: s} for s in range(end + 1) for row in self.rows.get((s, log, table), ())]
        return [row for row in rows if row[PASSES] and (row[_REPLACED] is None or row[_REPLACED] > end)]


def _numbered(rows: Sequence[Row]) -> list[Row]:
    """Number released events in their order, with `_release_seq`; events outside the sequence come last."""
    order = sorted(rows, key=lambda row: (row[_SEGMENT], row["_timeline"], row["_timestamp"], row["_arrival_seq"]))
    counts: dict[str, int] = defaultdict(int)
    numbered = []
    for row in order:
        number = counts[row["_timeline"]] if row[_IN_SEQUENCE] else None
        counts[row["_timeline"]] += row[_IN_SEQUENCE]
        numbered.append({**row, "_release_seq": number})
    return sorted(numbered, key=lambda row: (not row[_IN_SEQUENCE], row["_timeline"], row["_release_seq"] or 0))


def _plain(rows: Sequence[Row]) -> list[Row]:
    return [
        {name: value for name, value in row.items() if name not in (_IN_SEQUENCE, PASSES, _REPLACED, _SEGMENT)}
        for row in rows
    ]


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """Sort the rows of a table that has no order, so that equal tables are equal lists."""
    return sorted(_plain(rows), key=lambda row: (row.get(c.SEQ, 0), text_of(row)))


def _watermark(us: int | None, *, final: bool) -> datetime | str:
    if final:
        return FINAL
    return NONE if us is None else instant_of(us)


def _outcomes(number: int, case: Case, logs: Sequence[Log], written: _Written, tables: Sequence[str]) -> CaseOutcomes:
    own = {log.cut: log for log in logs if log.case == number}
    ends = _step_ends(case)
    whole = own[ends[-1][0]]
    steps = [written.outcome(own[end[0]].name, tables, own[end[0]].ends.index(end)) for end in ends[:-1]]
    final = {cut: written.final(log.name, tables) for cut, log in own.items()}
    return CaseOutcomes(
        steps=(*steps, final[whole.cut]), cuts={cut: outcome for cut, outcome in final.items() if cut != whole.cut}
    )
