"""Many logs in one frame, judged together: how `tidemark test` runs all cases of a spec at once.

Here: how the logs are kept apart. Not here: the engine (timeops/engine.py), the tables of a warehouse (assets/).

The column `log` names the log of a row. It is the first of the columns that timelines go over and that windows group
by.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.engine import Outcome, State, advance
from tidemark.timeops.events.adjustment import LogPlaces
from tidemark.timeops.materialize import Execution
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec, TimeSpec
from tidemark.timeops.watermark.timelines import LogPlace, arrival_watermark

LOG = "__tm_of_log"

_LOG_IN_PAYLOAD = rf'^\{{"{LOG}":"[^"]*",?'


@dataclass(frozen=True)
class Rules:
    """The rules for frames of many logs.

    Attributes:
        time: The rules of time: timelines over `log` first, windows grouped by `log` first.
        payload: Names of the payload columns, without `log`.
    """

    time: TimeRules
    payload: tuple[str, ...]


def rules_for_many_logs(spec: Spec, payload: Sequence[str]) -> Rules:
    """Return the rules of a spec, for frames in which the column `log` distinguishes the logs."""
    key = (LOG, *spec.time.deduplicate_by) if spec.time.deduplicate_by else ()
    time = spec.time.model_copy(update={"over": (LOG, *spec.time.over), "deduplicate_by": key})
    windows = tuple(window.model_copy(update={"group_by": (LOG, *window.group_by)}) for window in spec.windows)
    return Rules(replace(TimeRules.of(spec), time=time, windows=windows), tuple(payload))


def judge_segment(items: DataFrame, rules: Rules, places: Mapping[str, LogPlace], before: State) -> Outcome:
    """Judge the next segment of each log.

    Args:
        items: Records of the arrival log, with `log`; a log may have none.
        rules: The rules.
        places: The place of the segment in each log.
        before: The state after the segment before; before the first one it has no timelines.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    execution = Execution(in_one_part, keeps_records=True)
    return advance(items, before, rules.time, LogPlaces(log_of_timeline(), places), execution)


def in_one_part(frame: DataFrame) -> DataFrame:
    """Return the same rows, computed now, in one part: unions would double the parts with every segment."""
    return frame.coalesce(1).localCheckpoint()


def state_of(logs: Sequence[str], state: State) -> State:
    """Return the state of some of the logs."""

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
    """Return dead letters with `log`, which travels in the payload: of a record's columns they have no other."""
    return outcome.dead_letters((LOG, *rules.payload)).withColumns(
        {
            LOG: F.get_json_object("payload", f"$.{LOG}"),
            "payload": F.regexp_replace("payload", _LOG_IN_PAYLOAD, "{"),
        }
    )


def log_of_timeline() -> Column:
    """Return the log of a timeline."""
    return F.get_json_object(c.TIMELINE, "$[0]")


def timeline_in_log() -> Column:
    """Return `_timeline` as it is called where there is one log."""
    parts = F.from_json(c.TIMELINE, "array<string>")
    return F.to_json(F.slice(parts, F.lit(2), F.greatest(F.size(parts) - 1, F.lit(0))))


def log_watermarks(outcome: Outcome, clocks: Mapping[str, int | None], time: TimeSpec) -> dict[str, int | None]:
    """Return the watermark of each log as a whole: the highest of its timelines, or the clock's if that is higher.

    Args:
        outcome: The outcome of a segment of the logs.
        clocks: The latest clock that is seen of every log, microseconds.
        time: The spec's `time` section.
    """
    found = {log: arrival_watermark(us, time) for log, us in clocks.items()}
    for row in outcome.judged.watermarks.state.select([c.TIMELINE, "watermark"]).to_pylist():
        log, us = json.loads(row[c.TIMELINE])[0], row["watermark"]
        if log in found and us is not None:
            found[log] = max(us, us if found[log] is None else found[log])
    return found
