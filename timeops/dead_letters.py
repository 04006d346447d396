"""The rows of `dead_letters`: one shape for every reason, each with a sentence that says why.

Here: columns and sentences. Not here: the decision that a record is refused (extraction, policies, watermarks,
windows).
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    ARRIVAL,
    EVENT_TIME,
    FILE,
    LATENESS,
    MALFORMED,
    POSITION,
    REASON,
    SEQ,
    SOURCE,
    SPLIT,
    TIMELINE,
    W_BEFORE,
    W_SET_BY,
    WATERMARK,
    T,
    to_instant,
)
from tidemark.timeops.durations import format_duration
from tidemark.timeops.events.duplicates import FIRST
from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.expressions.try_expression import any_fails, as_json, text_of
from tidemark.timeops.reasons import AT_INGESTION, Reason, Stage
from tidemark.timeops.rules import SourceTime, TimeRules
from tidemark.timeops.spec import WindowSpec, is_reserved
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.membership import BY_FLUSH, MISSED, MISSED_FROM, unfit

FLUSH_HAD_CLOSED = "a flush did so before the pipeline was reopened"
"""The end of the sentence of a dead letter whose window a flush closed: no allowed lateness would have let it in."""

LONG_LINE = r"… \(the line has [\d,]+ bytes\)$"
"""The end of the text of a malformed record that is cut off, as its line was too long."""
LARGE_VALUE = r"… \(the value of `(.*)` has [\d,]+ bytes\)$"
"""The end of such a text where a value was too large."""
_IN_ARRAY = " is a JSON array or a part of one, and a line is one JSON object"
_SPANS = "array<struct<start: timestamp, end: timestamp>>"
_MOST_SHOWN = 200  # characters of a value in a sentence; `payload` has all of it


def time_letters(refused: DataFrame, payload: Sequence[str], rules: TimeRules) -> DataFrame:
    """Return the dead letters of the stages `ingest` and `time`.

    Args:
        refused: `Adjusted.refused`.
        payload: Names of the payload columns.
        rules: The rules of time, for the sentences.
    """
    ingest = F.col(REASON).isin(*AT_INGESTION)
    behind = F.col(REASON) == Reason.OUT_OF_ORDER
    told = refused.withColumn(TIMELINE, F.when(~ingest, F.col(TIMELINE)))  # what was not read belongs to none
    return told.select(
        *_where_from(),
        F.when(ingest, Stage.INGEST).otherwise(Stage.TIME).alias("stage"),
        F.col(REASON).alias("reason"),
        _time_detail(rules, refused).alias("detail"),
        F.lit(None).cast("string").alias("window_name"),
        F.lit(None).cast(_SPANS).alias("missed_windows"),
        F.col(EVENT_TIME),
        to_instant(F.when(behind, F.col(W_BEFORE))).alias(WATERMARK),
        F.col(LATENESS).alias("lateness_us"),
        F.when(behind, F.col(W_SET_BY)).alias("watermark_set_by"),
        _payload(payload),
    )


def window_letters(late: DataFrame, payload: Sequence[str], window: WindowSpec) -> DataFrame:
    """Return the dead letters `window_closed` of one window.

    Args:
        late: Rows of `results.late_for_windows`.
        payload: Names of the payload columns.
        window: The window.
    """
    kind = kind_of(window)

    def start(end: Column) -> Column:
        return F.col(MISSED_FROM) if MISSED_FROM in late.columns else kind.start_of(end)

    spans = F.transform(
        MISSED,
        lambda end: F.struct(to_instant(start(end)).alias("start"), to_instant(end).alias("end")),
    )
    which = "the session" if kind.merges else "the last window"
    closed = f"{which} of {window.name} for this event had closed"
    more = f" more than {format_duration(window.allowed_lateness)} would have let it in"
    by_events = F.concat(F.lit(f"{closed}: an allowed lateness of "), _in_seconds(F.col(LATENESS)), F.lit(more))
    by_clock = F.lit(f"{closed}: the clock had raised the watermark past it")
    otherwise = F.when(F.col(BY_FLUSH), F.lit(f"{closed}: {FLUSH_HAD_CLOSED}")).otherwise(by_clock)
    return late.select(
        *_where_from(),
        F.lit(Stage.WINDOW).alias("stage"),
        F.lit(Reason.WINDOW_CLOSED).alias("reason"),
        F.coalesce(by_events, otherwise if BY_FLUSH in late.columns else by_clock).alias("detail"),
        F.lit(window.name).alias("window_name"),
        spans.cast(_SPANS).alias("missed_windows"),
        F.col(EVENT_TIME),
        to_instant(W_BEFORE).alias(WATERMARK),
        F.col(LATENESS).alias("lateness_us"),
        F.col(W_SET_BY).alias("watermark_set_by"),
        _payload(payload),
    )


def unfit_letters(events: DataFrame, payload: Sequence[str], window: WindowSpec) -> DataFrame | None:
    """Return the dead letters `bad_expression` of one window, whose aggregates fail on events; None where none can.

    Args:
        events: Accepted events.
        payload: Names of the payload columns.
        window: The window.
    """
    fails = unfit(events, window)
    if fails is None:
        return None
    record = F.concat(F.lit("record "), F.col(POSITION), F.lit(" of "), F.coalesce(FILE, SOURCE))
    place = record if window.input is None else F.lit(f"a result of {window.input}")
    detail = F.lit(None).cast("string")
    for name, text in window.aggregates.items():
        own = any_fails(events, on_rows([text]))
        if own is not None:
            named = [column for column in payload if mentions(text, column)]
            value = [F.lit(" on "), as_json(*[F.col(f"`{column}`") for column in named])] if named else []
            sentence = F.concat(place, F.lit(f": the aggregate `{name}` of {window.name}, `{text}`, fails"), *value)
            detail = F.coalesce(detail, F.when(own, sentence))
    nothing = F.lit(None)
    return events.where(fails).select(
        *_where_from(),
        F.lit(Stage.WINDOW).alias("stage"),
        F.lit(Reason.BAD_EXPRESSION).alias("reason"),
        detail.alias("detail"),
        F.lit(window.name).alias("window_name"),
        nothing.cast(_SPANS).alias("missed_windows"),
        F.col(EVENT_TIME),
        nothing.cast("timestamp").alias(WATERMARK),
        nothing.cast("bigint").alias("lateness_us"),
        nothing.cast("bigint").alias("watermark_set_by"),
        _payload(payload),
    )


def unfit_results(results: DataFrame, window: WindowSpec) -> DataFrame | None:
    """Return the same for a window over another one: for results on which it fails, which have no place in the log.

    Args:
        results: Rows of `segment.as_events`.
        window: The window.
    """
    payload = [name for name in results.columns if not is_reserved(name)]
    nowhere = {SEQ: "bigint", POSITION: "bigint", ARRIVAL: "timestamp", EVENT_TIME: "timestamp"}
    nowhere |= dict.fromkeys((SOURCE, SPLIT, FILE, MALFORMED), "string")
    known = {name: F.lit(None).cast(kind) for name, kind in nowhere.items()}
    return unfit_letters(results.withColumns(known), payload, window)


def _where_from() -> list[Column]:
    return [F.col(name) for name in (SEQ, ARRIVAL, SOURCE, SPLIT, POSITION, TIMELINE)]


def _payload(payload: Sequence[str]) -> Column:
    return F.coalesce(MALFORMED, as_json(*[F.col(f"`{name}`") for name in payload])).alias("payload")


def _in_seconds(us: Column) -> Column:
    return F.concat((us / F.lit(1_000_000)).cast("decimal(30,6)").cast("string"), F.lit(" s"))


def _time_detail(rules: TimeRules, refused: DataFrame) -> Column:
    time = rules.time
    rule = _by_source(
        rules, lambda source: f"timestamp_by `{source.timestamp_by}`", f"timestamp_by `{time.timestamp_by}`"
    )
    tolerance = _by_source(
        rules, lambda source: _length(source.out_of_orderness_us), _length(time.out_of_orderness_us)
    )
    place = F.concat(F.lit("record "), F.col(POSITION), F.lit(" of "), F.coalesce(FILE, SOURCE))
    by = _in_seconds(F.col(LATENESS))
    whose = F.when(F.col(LATENESS).isNull(), ", which the clock had raised").otherwise("")
    behind = F.concat(
        F.lit("the event is "),
        _in_seconds(F.col(W_BEFORE) - F.col(T)),
        F.lit(" behind the watermark"),
        whose,
        F.lit("; out_of_orderness is "),
        tolerance,
    )
    first = F.col(FIRST) if time.deduplicate_by else F.lit("")
    apart = f": they have one key, and event times at most {_length(time.within_us)} apart"
    early = format_duration(time.early.tolerance) if time.early else ""
    late = format_duration(time.late.tolerance) if time.late else ""
    sentences = {
        Reason.MALFORMED: F.concat(place, _misfit(rules), F.lit(": "), _shortened(F.col(MALFORMED))),
        Reason.NO_ARRIVAL_TIME: F.concat(F.lit("there is no arrival time of the years 0001 to 9999 for "), place),
        Reason.NO_TIMESTAMP: F.concat(rule, F.lit(" is null")),
        Reason.BAD_TIMESTAMP: F.concat(
            rule,
            F.lit(" is '"),
            _shortened(_event_text(rules, refused)),
            F.lit("', which is not a time from year 0001 to 9999"),
        ),
        Reason.BAD_EXPRESSION: F.concat(rule, F.lit(" fails on this record")),
        Reason.DUPLICATE: F.concat(
            F.lit("the event is a duplicate of the one with _arrival_seq "), first, F.lit(apart)
        ),
        Reason.EARLY: F.concat(F.lit("the event is "), by, F.lit(f" more than {early} ahead of its arrival")),
        Reason.LATE_ARRIVAL: F.concat(F.lit("the event arrived "), by, F.lit(f" more than {late} after its time")),
        Reason.OUT_OF_ORDER: behind,
    }
    detail = F.lit(None).cast("string")
    for reason, sentence in sentences.items():
        detail = F.when(F.col(REASON) == reason, sentence).otherwise(detail)
    return detail


def _misfit(rules: TimeRules) -> Column:
    """Return what is wrong with a malformed record, as far as its text says more than that it does not fit."""
    text = F.trim(MALFORMED)
    shape = "array<struct<`__tm_nothing`: int>>"
    apart = F.regexp_replace(text, r"\}\s*[,;]?\s*\{", "},{")
    objects = F.size(F.from_json(F.concat(F.lit("["), apart, F.lit("]")), shape))
    element = F.size(F.from_json(F.concat(F.lit("["), F.rtrim(text, F.lit(",")), F.lit("]")), shape))
    in_array = text.isin("[", "]", "],") | (F.endswith(text, F.lit(",")) & (element == 1))
    fits = [
        (text.rlike(LONG_LINE), F.lit(" is longer than a line may be")),
        (
            text.rlike(LARGE_VALUE),
            F.concat(F.lit(" has too large a `"), F.regexp_extract(text, LARGE_VALUE, 1), F.lit("`")),
        ),
        (
            F.startswith(text, F.lit("{")) & (objects > 1),
            F.lit(" holds several JSON objects, and a line is one record"),
        ),
        (in_array | F.from_json(text, "array<variant>").isNotNull(), F.lit(_IN_ARRAY)),
        (_repeats_header(text, rules), F.lit(" repeats the header of its file")),
    ]
    found = F.lit(" does not fit the schema of the source")
    for is_so, sentence in reversed(fits):
        found = F.when(F.coalesce(is_so, F.lit(False)), sentence).otherwise(found)
    return found


def _repeats_header(text: Column, rules: TimeRules) -> Column:
    """Return whether a line of csv has the names of columns for values."""
    fields = F.transform(F.split(text, r"[,;|\t]"), lambda one: F.trim(one, F.lit(" \"'")))
    found = F.lit(False)
    for source, header in rules.headers.items():
        named = [F.arrays_overlap(fields, F.array(*map(F.lit, names))).cast("int") for names in header]
        is_header = reduce(Column.__add__, named) >= min(2, len(named))
        found = F.when(F.col(SOURCE) == source, is_header).otherwise(found)
    return found


def _event_text(rules: TimeRules, refused: DataFrame) -> Column:
    """Return the text of the value of `timestamp_by`."""
    found = F.lit("")
    for one in rules.event_times:
        if one.timestamp_by is not None:
            is_own = F.col(SOURCE).isin(*one.sources) if one.sources else F.lit(True)
            found = F.when(is_own, text_of(refused, one.timestamp_by)).otherwise(found)
    return F.coalesce(found, F.lit(""))


def _shortened(text: Column) -> Column:
    return F.when(F.length(text) > _MOST_SHOWN, F.concat(F.substring(text, 1, _MOST_SHOWN), F.lit("…"))).otherwise(
        text
    )


def _by_source(rules: TimeRules, text: Callable[[SourceTime], str], default: str) -> Column:
    """Return a text that may differ by source."""
    texts = {source.name: text(source) for source in rules.sources}
    if len(set(texts.values())) <= 1:
        return F.lit(next(iter(texts.values()), default))
    found = F.lit(default)
    for name, one in texts.items():
        found = F.when(F.col(SOURCE) == name, F.lit(one)).otherwise(found)
    return found


def _length(us: int) -> str:
    return format_duration(timedelta(microseconds=us))
