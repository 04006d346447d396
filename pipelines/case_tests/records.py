"""Records of cases as frames: values of a YAML file as columns of the source's types, with a place in the log.

Here: reading them, and saying which do not fit. Not here: keys (timeops/cases.py), what becomes of the
records.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.resources.sources.files import split_of
from tidemark.resources.sources.json_files import objects_of
from tidemark.resources.sources.lines import LINE, RAW
from tidemark.resources.sources.typed_texts import Reading
from tidemark.timeops import columns as c
from tidemark.timeops.cases import Case, CasesFile, Row, is_written_as_text
from tidemark.timeops.events.event_time import BAD, FAILED, US, with_instant
from tidemark.timeops.materialize import from_driver
from tidemark.timeops.problems import Path, Problem, show
from tidemark.timeops.spec import Source, Spec
from tidemark.timeops.spec.fields import read_instant
from tidemark.timeops.utc import EPOCH, us_of

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
    """

    frame: DataFrame
    payload: StructType
    arrivals: Sequence[Sequence[int | None]]
    ticks: Sequence[Sequence[tuple[int, int]]]

    def clock_us(self, case: int, end: End) -> int | None:
        """Return the clock of a case after so many of its items, microseconds."""
        return max(self._clocks(case, end), default=None)

    def ended_clock_us(self, case: int, end: End, every_us: int) -> int | None:
        """Return the clock of a case after its last item before the period of such a clock, microseconds."""
        clocks = list(accumulate(self._clocks(case, end), max))
        return max((us for us in clocks if us // every_us < clocks[-1] // every_us), default=None)

    def first_clock_us(self, case: int) -> int | None:
        """Return the clock of a case at its first timed item, microseconds."""
        return next(iter(self._clocks(case, (len(self.arrivals[case]), len(self.ticks[case])))), None)

    def _clocks(self, case: int, end: End) -> list[int]:
        """Return arrivals of records and clocks of ticks up to a place, in their order."""
        records, ticks = end
        found: list[int | None] = []
        for position in range(records + 1):
            found += [us for place, us in self.ticks[case][:ticks] if place == position]
            found += self.arrivals[case][position : min(position + 1, records)]
        return [us for us in found if us is not None]


def read_records(spark: SparkSession, spec: Spec, file: CasesFile, payload: StructType) -> Records:
    """Return the records of all cases, as the pipeline would have them in its log.

    Raises:
        SpecError: A value does not fit its column.
    """
    file.complain(list(_unquoted(file.cases, payload)))
    lines = [line for number, case in enumerate(file.cases) for line in _lines(number, case, spec)]
    written = from_driver(spark, pa.Table.from_pylist(lines, schema=_LINES))
    timed = reduce(DataFrame.unionByName, (_of_source(written, source, spec, payload) for source in spec.sources))
    misfits = F.array_compact(F.array(*[_misfit(name) for name in payload.names]))
    known = timed.withColumn("__tm_misfits", misfits).coalesce(1).localCheckpoint()
    arrivals: list[list[int | None]] = [[] for _ in file.cases]
    places = [list(case.places()) for case in file.cases]
    problems = []
    for row in known.select("__tm_case", c.SEQ, "__tm_arrival", "__tm_misfits").orderBy("__tm_case", c.SEQ).collect():
        arrivals[row["__tm_case"]].append(row["__tm_arrival"])
        at, record = places[row["__tm_case"]][row[c.SEQ]]
        for name in row["__tm_misfits"]:
            kind = payload[name].dataType.simpleString().upper()
            place: Path = ("cases", row["__tm_case"], *at, name)
            problems.append(Problem(f"found {show(record[name])}", expected=f"a value of {kind}", at=place))
    file.complain(problems)
    ticks = [[(place, us_of(clock)) for place, clock in case.ticks] for case in file.cases]
    return Records(_items(known, payload), payload, arrivals, ticks)


def _unquoted(cases: Sequence[Case], payload: StructType) -> Iterator[Problem]:
    """Find values of text columns that YAML reads as something else, which may not be what was meant."""
    for number, case in enumerate(cases):
        for at, record in case.places():
            for name, value in record.items():
                is_text = name in payload.names and is_written_as_text(payload[name].dataType)
                if is_text and value is not None and not isinstance(value, str):
                    kind = payload[name].dataType.simpleString().upper()
                    remedy = "put the value in quotes"
                    yield Problem(f"found {show(value)}", f"text, for {kind}", remedy, ("cases", number, *at, name))


def _lines(number: int, case: Case, spec: Spec) -> Iterator[dict[str, Any]]:
    arrival = EPOCH
    for seq, (_, record) in enumerate(case.places()):
        arrival = read_instant(record[c.ARRIVAL]) if c.ARRIVAL in record else arrival
        payload = _payload_of(record)
        yield {
            "__tm_case": number,
            c.SEQ: seq,
            "__tm_record": json.dumps(payload),
            "__tm_given": [name for name, value in payload.items() if value is not None],
            "__tm_arrival": us_of(arrival),
            "__tm_ticked": max((us_of(clock) for place, clock in case.ticks if place <= seq), default=None),
            c.SOURCE: record.get(c.SOURCE, spec.sources[0].name),
            c.SPLIT: record.get(c.SPLIT),
            c.FILE: record.get(c.FILE),
        }


def _payload_of(record: Row) -> Mapping[str, Any]:
    return {name: value for name, value in record.items() if name not in (c.ARRIVAL, c.SOURCE, c.SPLIT, c.FILE)}


def _of_source(written: DataFrame, source: Source, spec: Spec, payload: StructType) -> DataFrame:
    """Return the records of one source; `__tm_arrival` is the value of its expression if it has one."""
    time_zone = source.time_zone or spec.time.time_zone
    lines = written.where(F.col(c.SOURCE) == source.name).withColumn(LINE, F.col("__tm_record"))
    # A Connect server takes no call without options.
    read = objects_of(lines, payload, Reading(time_zone, {"columnNameOfCorruptRecord": RAW}))
    own = read.frame.select(*written.columns, *[value.alias(name) for name, value in read.columns.items()])
    if source.split is not None:
        own = own.withColumn(c.SPLIT, F.coalesce(c.SPLIT, split_of(own, source)))
    if source.arrival_time is None:
        return own
    where = f"sources[{source.name}].arrival_time"
    timed = with_instant(own, source.arrival_time, time_zone, where=where)
    return timed.withColumn("__tm_arrival", F.col(US)).drop(US, FAILED, BAD)


def _misfit(name: str) -> Any:
    lost = F.array_contains("__tm_given", name) & F.col(f"`{name}`").isNull()
    return F.when(lost, F.lit(name))


def _items(known: DataFrame, payload: StructType) -> DataFrame:
    earlier = Window.partitionBy("__tm_case").orderBy(c.SEQ).rowsBetween(Window.unboundedPreceding, 0)
    return known.select(
        "__tm_case",
        *[F.col(f"`{name}`") for name in payload.names],
        c.SEQ,
        c.to_instant("__tm_arrival").alias(c.ARRIVAL),
        c.to_instant(F.max(F.greatest("__tm_arrival", "__tm_ticked")).over(earlier)).alias(c.CLOCK),
        c.SOURCE,
        c.SPLIT,
        F.col(c.SEQ).alias(c.POSITION),
        c.FILE,
        F.lit(None).cast("string").alias(c.MALFORMED),
        F.lit(0).cast("bigint").alias(c.BATCH),
    )
