"""An outcome that is asked for the results of several spans has the rows of each."""

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from tidemark.timeops.engine import State, advance
from tidemark.timeops.events.adjustment import Segment
from tidemark.timeops.library import arrival_log
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.timelines import LogPlace


def at(minute: int) -> int:
    return us_of(datetime(2026, 1, 1, 12, minute, tzinfo=UTC))


def test_minutes_without_an_event_are_the_ones_of_the_span_that_is_asked_for(spark: SparkSession) -> None:
    minutes = WindowSpec(name="m", kind="tumbling", size="1 minute", empty=True, aggregates={"n": "count(*)"})
    time = TimeSpec(timestamp_by="at", end_of_input="flush")
    events = spark.createDataFrame([("2026-01-01 12:00:00",), ("2026-01-01 12:09:00",)], "at STRING")
    segment = Segment(arrival_log(events, time, "at"), LogPlace(flushed=True))
    outcome = advance(segment, State(), TimeRules(time, windows=(minutes,)))

    def empty_minutes(first: int, last: int) -> list[int]:
        rows = outcome.results(minutes, only=(at(first), at(last))).where("n = 0")
        return sorted(row["m"] for row in rows.selectExpr("minute(window_start) AS m").collect())

    early, late = empty_minutes(2, 3), empty_minutes(6, 7)
    assert early
    assert late
    assert max(early) < min(late)
    assert empty_minutes(2, 3) == early
