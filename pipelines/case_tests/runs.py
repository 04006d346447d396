"""Running the cases of a spec in memory: all of them at once, each as a whole and cut into segments at every record.

Here: case records as frames, with the source's types and a place in the log, which segments are run, how many
logs are judged together, and the contents of the tables after each. Not here: keys (timeops/cases.py), the stages
(timeops/engine.py), what is compared (pipelines/case_tests/differences.py).

Each case becomes several logs. One has all records in the first segment. For each record another one has that record
in a segment of its own, between the records before and after it. So three segments serve all cases, and one more if
some cases are flushed and some are not. Every place between two records is the end of a segment in one of the logs. A
tick ends a segment, so cases with ticks have more of them.

The column `log` names the log of a row. It is the first of the columns that timelines go over and that windows group
by.
"""

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark.pipelines.case_tests.differences import CaseOutcomes, Outcome, Row
from tidemark.resources.sources.records import LINE, RAW, Reading, split_of
from tidemark.resources.sources.text_files import objects_of
from tidemark.resources.spark.frames import small_frame
from tidemark.timeops import columns as c
from tidemark.timeops import engine
from tidemark.timeops.cases import (
    DEAD_LETTERS,
    FINAL,
    HELD,
    JOINS,
    NONE,
    ORDERED,
    WINDOWS,
    Case,
    CasesFile,
    is_written_as_text,
    read_row,
    text_of,
)
from tidemark.timeops.computing.materialize import Execution, by_row, from_driver
from tidemark.timeops.engine import State, advance_all
from tidemark.timeops.errors.problems import Misread, Path, Problem, as_flag, as_number, show
from tidemark.timeops.events.adjustment import LogPlaces, Released, Segment
from tidemark.timeops.events.event_time import BAD, FAILED, US, with_instant
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.expressions.try_expression import as_json
from tidemark.timeops.joins.rows import row_keys
from tidemark.timeops.joins.tables import right_events
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import Source, Spec, TimeSpec
from tidemark.timeops.spec.fields import read_instant
from tidemark.timeops.values.utc import EPOCH, instant_of, us_of
from tidemark.timeops.watermark.timelines import LogPlace, arrival_watermark
from tidemark.timeops.windows.gap_filling import told_in_words
from tidemark.timeops.windows.results import with_next_revision
from tidemark.timeops.windows.revisions import PASSES

_LINES = pa.schema(
    {
        "__tm_case": pa.int32(),
        c.SEQ: pa.int64(),
        "__tm_record": pa.string(),
        "__tm_given": pa.list_(pa.string()),
        "__tm_arrival": pa.int64(),
        "__tm_ticked": pa.int64(),
        c.SOURCE: pa.string(),
        c.SPLIT: pa.string(),
        c.FILE: pa.string(),
    }
)


End = tuple[int, int]
"""A place in a case: after so many of its records and so many of its ticks."""


@dataclass(frozen=True)
class Records:
    """The records of all cases.

    Attributes:
        frame: Items of the arrival log with `__tm_case`, the position of their case.
        payload: The payload columns.
        arrivals: Arrival of each record by case, microseconds; None without one.
        ticks: By case the ticks: after how many records, and their clock.
        right_rows: The rows of the tables on the right side of joins, by the join.
    """

    frame: DataFrame
    payload: StructType
    arrivals: Sequence[Sequence[int | None]]
    ticks: Sequence[Sequence[tuple[int, int]]]
    right_rows: Mapping[str, DataFrame] = field(default_factory=dict)

    def place(self, log: "Log", segment: int, rules: TimeRules) -> LogPlace:
        """Return where a segment is in a log."""
        start, end = log.end(segment - 1), log.end(segment)
        first = self._clocks(log.case, (len(self.arrivals[log.case]), len(self.ticks[log.case])))
        return LogPlace(
            next(iter(first), None) if segment else None,
            self._clock_us(log.case, start),
            self._ended_clock_us(log.case, start, rules.time.emit_every_us or 1),
            self._clock_us(log.case, end) if end[1] > start[1] else None,
        )

    def seen_us(self, log: "Log", segment: int, rules: TimeRules) -> int | None:
        """Return the clock that is seen of a log after a segment, microseconds."""
        if rules.publishes_silences:
            return self._ended_clock_us(log.case, log.end(segment), rules.time.emit_every_us or 1)
        return self._clock_us(log.case, log.end(segment))

    def _clock_us(self, case: int, end: End) -> int | None:
        """Return the clock of a case after so many of its items, microseconds."""
        return max(self._clocks(case, end), default=None)

    def _ended_clock_us(self, case: int, end: End, every_us: int) -> int | None:
        """Return the clock of a case after its last item before the period of such a clock, microseconds."""
        clocks = list(accumulate(self._clocks(case, end), max))
        return max((us for us in clocks if us // every_us < clocks[-1] // every_us), default=None)

    def _clocks(self, case: int, end: End) -> list[int]:
        """Return arrivals of records and clocks of ticks up to a place, in their order."""
        records, ticks = end
        clocks: list[int | None] = []
        for position in range(records + 1):
            clocks += [us for place, us in self.ticks[case][:ticks] if place == position]
            clocks += self.arrivals[case][position : min(position + 1, records)]
        return [us for us in clocks if us is not None]


def read_records(spark: SparkSession, spec: Spec, file: CasesFile, payload: StructType) -> Records:
    """Return the records of all cases, as the pipeline would have them in its log.

    Raises:
        SpecError: A value does not fit its column.
    """
    file.complain(list(_unquoted(file.cases, payload)))
    lines = [line for number, case in enumerate(file.cases) for line in _lines(number, case, spec)]
    written = from_driver(spark, pa.Table.from_pylist(lines, schema=_LINES))
    timed = _union([_of_source(written, source, spec, payload) for source in spec.sources])
    misfits = F.array_compact(F.array(*[_misfit(name) for name in payload.names]))
    records = timed.withColumn("__tm_misfits", misfits).coalesce(1).localCheckpoint()
    arrivals: list[list[int | None]] = [[] for _ in file.cases]
    places = [list(case.places()) for case in file.cases]
    problems = []
    columns = ["__tm_case", c.SEQ, "__tm_arrival", "__tm_misfits"]
    for row in records.select(columns).orderBy("__tm_case", c.SEQ).collect():
        arrivals[row["__tm_case"]].append(row["__tm_arrival"])
        at, record = places[row["__tm_case"]][row[c.SEQ]]
        for name in row["__tm_misfits"]:
            kind = payload[name].dataType.simpleString().upper()
            place: Path = ("cases", row["__tm_case"], *at, name)
            problems.append(Problem(f"found {show(record[name])}", expected=f"a value of {kind}", at=place))
    file.complain(problems)
    ticks = [[(place, us_of(clock)) for place, clock in case.ticks] for case in file.cases]
    return Records(_items(records, payload), payload, arrivals, ticks)


def _unquoted(cases: Sequence[Case], payload: StructType) -> Iterator[Problem]:
    """Find values that YAML reads as something else than their text says, which may not be what was meant."""
    for number, case in enumerate(cases):
        for at, record in case.places():
            for name, value in record.items():
                place: Path = ("cases", number, *at, name)
                kind = payload[name].dataType if name in payload.names else None
                if kind is not None and is_written_as_text(kind) and value is not None and not isinstance(value, str):
                    expected = f"text, for {kind.simpleString().upper()}"
                    yield Problem(
                        f"found {show(value)}", expected=expected, remedy="put the value in quotes", at=place
                    )
                else:
                    yield from _ambiguous(value, place, kind)


def _ambiguous(value: object, at: Path, kind: DataType | None) -> Iterator[Problem]:
    """Find values, also within another one, that only some readers of YAML take for a number or a flag."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _ambiguous(item, (*at, str(key)), _kind_within(kind, str(key)))
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _ambiguous(item, (*at, position), _kind_within(kind))
    elif isinstance(value, Misread):
        text = kind is not None and is_written_as_text(kind)
        if text or isinstance(_as_all_read_it(value), Misread):
            expected = "a value that every YAML parser reads the same way"
            yield Problem(f"found {show(value)}", expected=expected, remedy="put it in quotes if it is text", at=at)


def _kind_within(kind: DataType | None, field: str = "") -> DataType | None:
    """Return the type of a field, an entry or an item of a type; None where the type has none."""
    if isinstance(kind, StructType):
        return kind[field].dataType if field in kind.names else None
    if isinstance(kind, MapType):
        return kind.valueType
    return kind.elementType if isinstance(kind, ArrayType) else None


def _as_all_read_it(value: object) -> Any:
    """Return a value of a record with numbers such as `1_000` and flags such as `yes` as what they mean."""
    if isinstance(value, Mapping):
        return {key: _as_all_read_it(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_all_read_it(item) for item in value]
    return as_number(as_flag(value))


def _lines(number: int, case: Case, spec: Spec) -> Iterator[dict[str, Any]]:
    arrival = EPOCH
    for seq, (_, record) in enumerate(case.places()):
        arrival = read_instant(record[c.ARRIVAL]) if c.ARRIVAL in record else arrival
        payload = {name: v for name, v in record.items() if name not in (c.ARRIVAL, c.SOURCE, c.SPLIT, c.FILE)}
        yield {
            "__tm_case": number,
            c.SEQ: seq,
            "__tm_record": json.dumps(_as_all_read_it(payload)),
            "__tm_given": [name for name, value in payload.items() if value is not None],
            "__tm_arrival": us_of(arrival),
            "__tm_ticked": max((us_of(clock) for place, clock in case.ticks if place <= seq), default=None),
            c.SOURCE: record.get(c.SOURCE, spec.sources[0].name),
            c.SPLIT: record.get(c.SPLIT),
            c.FILE: record.get(c.FILE),
        }


def _of_source(written: DataFrame, source: Source, spec: Spec, payload: StructType) -> DataFrame:
    """Return the records of one source; `__tm_arrival` is the value of its expression if it has one."""
    time_zone = source.time_zone or spec.time.time_zone
    lines = written.where(F.col(c.SOURCE) == source.name).withColumn(LINE, F.col("__tm_record"))
    # A Connect server takes no call without options.
    read = objects_of(lines, payload, Reading(time_zone, {"columnNameOfCorruptRecord": RAW}))
    records = read.frame.select(*written.columns, *[value.alias(name) for name, value in read.columns.items()])
    if source.split is not None:
        records = records.withColumn(c.SPLIT, F.coalesce(c.SPLIT, split_of(records, source)))
    if source.arrival_time is None:
        return records
    where = f"sources[{source.name}].arrival_time"
    timed = with_instant(records, source.arrival_time, time_zone, where=where)
    return timed.withColumn("__tm_arrival", F.col(US)).drop(US, FAILED, BAD)


def _misfit(name: str) -> Any:
    lost = F.array_contains("__tm_given", name) & F.col(f"`{name}`").isNull()
    return F.when(lost, F.lit(name))


def _items(records: DataFrame, payload: StructType) -> DataFrame:
    earlier = Window.partitionBy("__tm_case").orderBy(c.SEQ).rowsBetween(Window.unboundedPreceding, 0)
    return records.select(
        "__tm_case",
        *[F.col(f"`{name}`") for name in payload.names],
        c.SEQ,
        c.to_instant("__tm_arrival").alias(c.ARRIVAL),
        F.timestamp_micros(F.max(F.greatest("__tm_arrival", "__tm_ticked")).over(earlier)).alias(c.CLOCK),
        c.SOURCE,
        c.SPLIT,
        F.col(c.SEQ).alias(c.POSITION),
        c.FILE,
        F.lit(None).cast("string").alias(c.MALFORMED),
        F.lit(0).cast("bigint").alias(c.BATCH),
    )


LOG = "__tm_of_log"

_LOG_IN_PAYLOAD = rf'^\{{"{LOG}":"[^"]*",?'
_LOG_IN_TIMELINE = r'^\["[^"]*",?'


def rules_for_many_logs(spec: Spec) -> TimeRules:
    """Return the rules of a spec, for frames in which the column `log` distinguishes the logs.

    Timelines are over `log` first, windows are grouped by `log` first.
    """
    key = (LOG, *spec.time.deduplicate_by) if spec.time.deduplicate_by else ()
    time = spec.time.model_copy(update={"over": (LOG, *spec.time.over), "deduplicate_by": key})
    windows = tuple(window.model_copy(update={"group_by": (LOG, *window.group_by)}) for window in spec.windows)
    columns = {name: replace(names, shared=(LOG,)) for name, names in spec.join_columns.items()}
    return replace(TimeRules.of(spec), time=time, windows=windows, join_columns=columns, apart=(LOG,))


def in_one_part(frame: DataFrame) -> DataFrame:
    """Return the same rows, computed now, in one part: unions would double the parts with every segment."""
    return frame.coalesce(1).localCheckpoint()


def state_of(logs: Sequence[str], state: State) -> State:
    """Return the state of some of the logs."""

    def some(frame: DataFrame | None) -> DataFrame | None:
        if frame is None:
            return None
        log = F.col(LOG) if LOG in frame.columns else F.get_json_object(c.TIMELINE, "$[0]")
        return frame.where(log.isin(*logs))

    def of_logs(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return {name: frame for name, all_rows in frames.items() if (frame := some(all_rows)) is not None}

    are_in = [log_of_timeline(name) in logs for name in state.timelines[c.TIMELINE].to_pylist()]
    times = state.first_times
    return State(
        state.timelines.filter(pa.array(are_in, pa.bool_())),
        some(state.held),
        None if times is None else times.where(F.get_json_object("key", "$[0]").isin(*logs)),
        of_logs(state.events),
        of_logs(state.seen_groups),
        of_logs(state.flushed_windows),
        of_logs(state.joins),
    )


def dead_letters_of(outcome: engine.Outcome, payload: Sequence[str]) -> DataFrame:
    """Return dead letters with `log`, which travels in the payload: of a record's columns they have no other."""
    return outcome.dead_letters((LOG, *payload)).withColumns(
        {
            LOG: F.get_json_object("payload", f"$.{LOG}"),
            "payload": F.regexp_replace("payload", _LOG_IN_PAYLOAD, "{"),
        }
    )


def log_of_timeline(timeline: str) -> str:
    """Return the log of a timeline."""
    return str(json.loads(timeline)[0])


def timeline_across(log: str) -> str:
    """Return the name of the timeline that represents all timelines of a log."""
    return json.dumps([log], separators=(",", ":"))


@dataclass(frozen=True)
class LogWatermarks:
    """The watermarks of one log after a segment, microseconds.

    Attributes:
        highest: Of the log as a whole: the highest of its timelines, or the clock's if that is higher.
        by_timeline: Of each timeline, by its name where there is one log.
    """

    highest: int | None
    by_timeline: Mapping[str, int | None]


def log_watermarks(
    outcome: engine.Outcome, clocks: Mapping[str, int | None], time: TimeSpec
) -> dict[str, LogWatermarks]:
    """Return the watermarks of each log after a segment; of `clocks`, the latest that is seen of it, microseconds."""
    by_log: dict[str, dict[str, int | None]] = {log: {} for log in clocks}
    for row in outcome.timelines.select([c.TIMELINE, "watermark"]).to_pylist():
        is_own = not time.over[1:] or row[c.TIMELINE] != timeline_across(log_of_timeline(row[c.TIMELINE]))
        if is_own and (log := log_of_timeline(row[c.TIMELINE])) in by_log:
            by_log[log][re.sub(_LOG_IN_TIMELINE, "[", row[c.TIMELINE])] = row["watermark"]
    marks = {}
    for log, us in clocks.items():
        all_of_log = (arrival_watermark(us, time), *by_log[log].values())
        marks[log] = LogWatermarks(max((mark for mark in all_of_log if mark is not None), default=None), by_log[log])
    return marks


MOST_CUTS = 32
"""Places at which a case is cut; a longer one is cut at the ends of its steps and at so many other places."""

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
        segment_ends: list[End] = []
        for place in sorted({self.cut, min(self.cut + 1, self.records), self.records, *self.ticks}):
            n_before, count = bisect_left(self.ticks, place), self.ticks.count(place)
            if place == self.cut or not count:
                segment_ends.append((place, n_before))
            segment_ends += [(place, n_before + 1 + number) for number in range(count)]
        return segment_ends

    def end(self, segment: int) -> End:
        """Return the end of a segment; if the log has fewer, the end of its last; before the first its beginning."""
        return (0, 0) if segment < 0 else self.ends[min(segment, len(self.ends) - 1)]


def run_cases(
    spark: SparkSession, spec: Spec, cases: Sequence[Case], records: Records, schemas: Mapping[str, StructType]
) -> list[CaseOutcomes]:
    """Run all cases."""
    logs = [log for number, case in enumerate(cases) for log in logs_of(number, case)]
    flushing = [log.name for log in logs if spec.time.flushes(cases[log.case].segments[-1].end_of_input)]
    rules = rules_for_many_logs(spec)
    with told_in_words():
        outcomes = _outcomes_of(spark, records, logs, flushing, rules)
        tables = [_tables(outcome, records.payload.names) for outcome in outcomes]
        rows = _collected_rows(tables, schemas, rules)
    watermarks = [
        log_watermarks(outcome, {log.name: records.seen_us(log, number, rules) for log in logs}, rules.time)
        for number, outcome in enumerate(outcomes)
    ]
    written = _Written(rows, watermarks, _last(logs), frozenset(flushing))
    return [_outcomes(number, case, logs, written, list(schemas)) for number, case in enumerate(cases)]


def logs_of(number: int, case: Case) -> Iterator[Log]:
    """Return the ways in which a case is cut: before each record, at the ends of its steps, and not at all."""
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


def _outcomes_of(
    spark: SparkSession, records: Records, logs: Sequence[Log], flushing: Sequence[str], rules: TimeRules
) -> list[engine.Outcome]:
    """Judge all logs at once, segment by segment."""
    last = _last(logs)
    ends = [(log.case, log.name, json.dumps([log.end(part)[0] for part in range(last)])) for log in logs]
    cut = small_frame(spark, ends, f"__tm_case INT, {LOG} STRING, __tm_ends STRING")
    items = records.frame.join(F.broadcast(cut), "__tm_case")
    passed = F.filter(F.from_json("__tm_ends", "array<bigint>"), lambda end: end <= F.col(c.SEQ))
    items = items.withColumn("__tm_part", F.size(passed))
    execution = Execution(in_one_part, in_one_part, by_row)
    each_log = F.broadcast(small_frame(spark, [(log.name,) for log in logs], f"{LOG} STRING"))
    by_join = {join.name: join for join in rules.joins}
    of_all_logs = {
        name: right_events(in_one_part(rows.crossJoin(each_log)), by_join[name], rules.time.over, (LOG,))
        for name, rows in records.right_rows.items()
    }
    # If all logs are flushed and none has ticks, the last segment of each ends with the flush.
    goes_on = bool(flushing) and (len(flushing) < len(logs) or any(log.ticks for log in logs))

    def step(number: int) -> tuple[Segment, TimeRules]:
        rows = items.where(F.col("__tm_part") == number).drop("__tm_case", "__tm_ends", "__tm_part")
        flushed = bool(flushing) and number == last + goes_on
        places = {log.name: replace(records.place(log, number, rules), flushed=flushed) for log in logs}
        where = LogPlaces(log_of_timeline, places, timeline_across)
        return Segment(rows, where, execution, tables=of_all_logs), rules

    def carry(outcome: engine.Outcome) -> State:
        return outcome.state().materialized(in_one_part)

    outcomes = [*advance_all(map(step, range(last + 1)), State(), carry)]
    if goes_on:
        state = state_of(flushing, outcomes[-1].state()).materialized(in_one_part)
        outcomes += advance_all([step(last + 1)], state, carry)
    return outcomes


def _tables(outcome: engine.Outcome, payload: Sequence[str]) -> dict[str, DataFrame]:
    """Return the rows that a segment of the logs adds to each table."""
    return {
        DEAD_LETTERS: dead_letters_of(outcome, payload),
        **{WINDOWS + window.name: outcome.results(window) for window in outcome.windows},
        **{JOINS + join.name: outcome.answers(join) for join in outcome.joins},
        ORDERED: _released(outcome.released),
        HELD: _unnumbered(outcome.released.held),
    }


def _collected_rows(
    segments: Sequence[Mapping[str, DataFrame]], schemas: Mapping[str, StructType], rules: TimeRules
) -> dict[tuple[int, str, str], list[dict[str, Any]]]:
    """Collect all rows by segment, log and table, in one job."""
    revised = {WINDOWS + window.name: window.key_columns for window in rules.windows if window.revises}
    revised |= {JOINS + join.name: (LOG, *row_keys(join)) for join in rules.joins if join.revises}
    by_table: dict[str, list[DataFrame]] = defaultdict(list)
    for number, segment in enumerate(segments):
        for table, frame in segment.items():
            by_table[table].append(frame.withColumn(_SEGMENT, F.lit(number)))
    frames = []
    for table, columns in schemas.items():
        frames_of_table = by_table[table]
        if table in revised:
            frames_of_table = [with_next_revision(_union(frames_of_table), revised[table], _SEGMENT, _REPLACED)]
        frames += [_as_json(frame, table, columns) for frame in frames_of_table]
    rows: dict[tuple[int, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in _union(frames).collect():
        read = read_row(row["row"], schemas[row["table"]])
        rows[row["segment"], row["log"], row["table"]].append(
            read | {_IN_SEQUENCE: row["in_sequence"], PASSES: row["passes"], _REPLACED: row["replaced"]}
        )
    return rows


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames; by halves, as Spark looks through a whole plan again with each union."""
    if len(frames) == 1:
        return frames[0]
    half = len(frames) // 2
    return _union(frames[:half]).unionByName(_union(frames[half:]))


def _released(released: Released) -> DataFrame:
    in_sequence = released.sequence.withColumn(_IN_SEQUENCE, F.lit(True))
    return _unnumbered(in_sequence.unionByName(released.passed.withColumn(_IN_SEQUENCE, F.lit(False))))


def _unnumbered(events: DataFrame) -> DataFrame:
    return events.withColumn(c.RELEASE_SEQ, F.lit(None).cast("bigint"))


def _as_json(frame: DataFrame, table: str, columns: StructType) -> DataFrame:
    named = frame
    if c.TIMELINE in frame.columns:
        named = frame.withColumn(c.TIMELINE, F.regexp_replace(c.TIMELINE, _LOG_IN_TIMELINE, "["))
    defaults = {_IN_SEQUENCE: "CAST(NULL AS BOOLEAN)", PASSES: "true", _REPLACED: "CAST(NULL AS INT)"}
    in_sequence, passes, replaced = (name if name in frame.columns else other for name, other in defaults.items())
    return named.selectExpr(
        f"{_SEGMENT} AS segment",
        f"{literal(table)} AS table",
        f"{LOG} AS log",
        f"{in_sequence} AS in_sequence",
        f"{as_json(*map(quoted, columns.names))} AS row",
        f"{passes} AS passes",
        f"{replaced} AS replaced",
    )


@dataclass(frozen=True)
class _Written:
    """The rows that the segments wrote, by segment, log and table.

    It also holds the watermarks after each segment, after which segment all items are there, and which logs were
    flushed.
    """

    rows: Mapping[tuple[int, str, str], Sequence[Row]]
    watermarks: Sequence[Mapping[str, LogWatermarks]]
    last: int
    flushed: frozenset[str]

    def final(self, log: str, tables: Sequence[str]) -> Outcome:
        """Return the contents of the tables when all of a log is done."""
        is_flushed = log in self.flushed
        return self.outcome(log, tables, len(self.watermarks) - 1 if is_flushed else self.last, final=is_flushed)

    def outcome(self, log: str, tables: Sequence[str], end: int, *, final: bool = False) -> Outcome:
        """Return the contents of a log's tables after one of the segments; `final` if it was flushed by then."""
        by_table = {table: self._appended(log, table, end) for table in tables if table != HELD}
        if ORDERED in tables:
            by_table[ORDERED] = _numbered(by_table[ORDERED])
            by_table[HELD] = list(self.rows.get((end, log, HELD), ()))
        watermarks = self.watermarks[end][log]
        return Outcome(
            tables={table: _plain(rows) if table == ORDERED else _sorted(rows) for table, rows in by_table.items()},
            watermark=_watermark(watermarks.highest, final=final),
            watermarks={name: _watermark(us, final=final) for name, us in watermarks.by_timeline.items()},
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
    by_cut = {log.cut: log for log in logs if log.case == number}
    ends = _step_ends(case)
    whole_log = by_cut[ends[-1][0]]
    steps = [written.outcome(by_cut[end[0]].name, tables, by_cut[end[0]].ends.index(end)) for end in ends[:-1]]
    final = {cut: written.final(log.name, tables) for cut, log in by_cut.items()}
    return CaseOutcomes(
        steps=(*steps, final[whole_log.cut]),
        cuts={cut: outcome for cut, outcome in final.items() if cut != whole_log.cut},
    )
