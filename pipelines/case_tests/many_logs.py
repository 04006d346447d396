"""Many logs in one frame, judged together: how `tidemark test` runs all cases of a spec at once.

Here: what tells the logs apart. Not here: the engine (timeops/engine.py), the tables of a warehouse (assets/).

The column `log` names the log that a row is of. It is the first of the columns that timelines go over and that
windows group by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.resources.spark.frames import count_splits
from tidemark.timeops import columns as c
from tidemark.timeops.engine import Outcome, State, advance
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec, TimeSpec
from tidemark.timeops.watermark.clock_rules import clock_watermark
from tidemark.timeops.watermark.log_clock import LogClock, Ticks

LOG = "__tm_of_log"

_LOG_IN_PAYLOAD = rf'^\{{"{LOG}":"[^"]*",?'


@dataclass(frozen=True)
class Rules:
    """What is judged by, for frames of many logs.

    Attributes:
        time: The rules of time: timelines over `log` first, windows grouped by `log` first.
        payload: Names of the payload columns, without `log`.
    """

    time: TimeRules
    payload: tuple[str, ...]


def rules_for_many_logs(spec: Spec, payload: Sequence[str]) -> Rules:
    """The rules of a spec, for frames in which the column `log` tells the logs apart."""
    key = (LOG, *spec.time.deduplicate_by) if spec.time.deduplicate_by else ()
    time = spec.time.model_copy(update={"over": (LOG, *spec.time.over), "deduplicate_by": key})
    windows = tuple(window.model_copy(update={"group_by": (LOG, *window.group_by)}) for window in spec.windows)
    return Rules(replace(TimeRules.of(spec), time=time, windows=windows), tuple(payload))


@dataclass(frozen=True)
class Clocks:
    """The clocks of many logs around a segment: MAP<STRING, BIGINT> by log, microseconds.

    Attributes:
        after: Behind the segment.
        first: At the first timed record of each log.
        ended: Of the last record before the period of emission in which `after` lies; only asked for where periods
            publish what the clock gave.
        before: The same three before the segment; None at the beginning of the logs.
        ticks: The ticks with which the segment ends, `_timeline` one that `log_of_timeline` knows; None for none.
    """

    after: Column
    first: Column
    ended: Column
    before: "Clocks | None" = None
    ticks: Ticks | None = None

    def of(self, log: Column) -> LogClock:
        """The clock of the log that `log` names."""
        clock = LogClock(self.after[log], self.first[log], log, self.ended[log], ticks=self.ticks)
        if self.before is None:
            return clock
        return replace(clock, start=self.before.after[log], start_ended=self.before.ended[log])


def judge_segment(items: DataFrame, rules: Rules, clocks: Clocks, before: State, *, flushed: bool = False) -> Outcome:
    """Judges the next segment of each log.

    Args:
        items: Records of the arrival log, with `log`; of a log there may be none.
        rules: What they are judged by.
        clocks: The logs' clocks.
        before: The state behind the segment before; before the first one of no timelines.
        flushed: The segment ends with a flushing end of input.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    timelines = F.broadcast(before.timelines)
    items = items.withColumn(c.TIMELINE, timeline(items, rules.time.time.over))  # which log a record is of
    outcome = advance(
        items,
        replace(before, timelines=timelines),
        rules.time,
        clocks.of(log_of_timeline()),
        flush=flushed,
        splits=count_splits(items, timelines, rules.time),
        strategy="in_order",
        materialize=in_one_part,
    )
    return outcome.with_timelines(F.broadcast(in_one_part(outcome.timelines)))


def in_one_part(frame: DataFrame) -> DataFrame:
    """The same rows, computed now, in one part: unions would double the parts with every segment."""
    return frame.coalesce(1).localCheckpoint()


def state_of(logs: Sequence[str], state: State) -> State:
    """The state of some of the logs."""

    def some(frame: DataFrame | None) -> DataFrame | None:
        if frame is None:
            return None
        log = F.col(LOG) if LOG in frame.columns else log_of_timeline()
        return frame.where(log.isin(*logs))

    def each(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return {name: frame for name, known in frames.items() if (frame := some(known)) is not None}

    timelines = some(state.timelines)
    times = state.first_times
    assert timelines is not None
    return State(
        timelines,
        some(state.held),
        None if times is None else times.where(F.get_json_object("key", "$[0]").isin(*logs)),
        each(state.events),
        each(state.seen_groups),
        each(state.drained),
    )


def dead_letters_of(outcome: Outcome, rules: Rules) -> DataFrame:
    """Dead letters with `log`, which travels in the payload: of the columns of a record they have nothing else."""
    return outcome.dead_letters((LOG, *rules.payload)).withColumns(
        {
            LOG: F.get_json_object("payload", f"$.{LOG}"),
            "payload": F.regexp_replace("payload", _LOG_IN_PAYLOAD, "{"),
        }
    )


def log_of_timeline() -> Column:
    """The log that a timeline is of."""
    return F.get_json_object(c.TIMELINE, "$[0]")


def timeline_in_log() -> Column:
    """`_timeline` as it is called where there is one log."""
    parts = F.from_json(c.TIMELINE, "array<string>")
    return F.to_json(F.slice(parts, F.lit(2), F.greatest(F.size(parts) - 1, F.lit(0))))


def log_watermarks(state: DataFrame, clocks: DataFrame, time: TimeSpec) -> DataFrame:
    """The watermark of each log as a whole: of its timelines the highest, or what the clock gives if that is more.

    Args:
        state: The timelines.
        clocks: `log` and `clock_us` of every log: the latest clock that is seen.
        time: The spec's `time` section.

    Returns:
        `log` and `watermark`, microseconds; null where there is none yet.
    """
    highest = state.groupBy(log_of_timeline().alias(LOG)).agg(F.max("watermark").alias("__tm_highest"))
    by_clock = clock_watermark(F.col("clock_us"), time)
    return clocks.join(highest, LOG, "left").select(LOG, F.greatest("__tm_highest", by_clock).alias("watermark"))
