"""The rows of `dead_letters`: one shape for every reason, each with a sentence that says why.

Here: columns and sentences. Not here: the decision that a record is refused (timeops/rules/reasons.py names who
decides each).
"""

from collections.abc import Callable, Sequence
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import instant_of_end
from tidemark.timeops.events.duplicates import FIRST
from tidemark.timeops.events.event_time import is_of
from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.tokens import literal, literals, mentions, quoted
from tidemark.timeops.expressions.try_expression import Columns, as_json
from tidemark.timeops.rules.reasons import AT_INGESTION, Reason, Stage
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import JoinSpec, WindowSpec, is_reserved
from tidemark.timeops.values.durations import format_duration
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.segment import BY_FLUSH, MISSED, unfit

FLUSH_HAD_CLOSED = "a flush did so before the pipeline was reopened"
"""The end of the sentence of a dead letter whose window a flush closed: no allowed lateness would have let it in."""

LONG_LINE = r"… \(the line has [\d,]+ bytes\)$"
"""The end of the text of a malformed record that is cut off, as its line was too long."""
LARGE_VALUE = r"… \(the value of `(.*)` has [\d,]+ bytes\)$"
"""The end of such a text where a value was too large."""
NOT_UTF8 = r" \(the value of `(.*)` is not UTF-8\)$"
"""The end of such a text where a text in the record was none."""
_BETWEEN_OBJECTS = r"\}\s*[,;]?\s*\{"
_BETWEEN_FIELDS, _AROUND_FIELDS = r"[,;|\t]", " \"'"  # of a line of csv
_IN_ARRAY = " is a JSON array or a part of one, and a line is one JSON object"
_SPANS = "array<struct<start: timestamp, end: timestamp>>"
_FROM_LOG = (c.SEQ, c.ARRIVAL, c.SOURCE, c.SPLIT, c.POSITION)
_PLACE = f"concat('record ', {c.POSITION}, ' of ', coalesce({c.FILE}, {c.SOURCE}))"
_MOST_SHOWN = 200  # characters of a value in a sentence; `payload` has all of it


def time_letters(refused: DataFrame, payload: Sequence[str], rules: TimeRules) -> DataFrame:
    """Return the dead letters of the stages `ingest` and `time`, of `Adjusted.refused`."""
    ingest = f"{c.REASON} IN ({literals(AT_INGESTION)})"
    is_behind = f"{c.REASON} = '{Reason.OUT_OF_ORDER}'"
    return refused.selectExpr(
        *_FROM_LOG,
        f"IF({ingest}, NULL, {c.TIMELINE}) AS {c.TIMELINE}",  # what was not read belongs to none
        f"IF({ingest}, '{Stage.INGEST}', '{Stage.TIME}') AS stage",
        f"{c.REASON} AS reason",
        f"{_time_detail(rules, refused)} AS detail",
        "CAST(NULL AS STRING) AS window_name",
        f"CAST(NULL AS {_SPANS}) AS missed_windows",
        c.EVENT_TIME,
        f"timestamp_micros(IF({is_behind}, {c.W_BEFORE}, NULL)) AS {c.WATERMARK}",
        f"{c.LATENESS} AS lateness_us",
        f"IF({is_behind}, {c.W_SET_BY}, NULL) AS watermark_set_by",
        _payload(payload),
    )


def window_letters(late: DataFrame, payload: Sequence[str], window: WindowSpec) -> DataFrame:
    """Return the dead letters `window_closed` of one window, of rows of `results.late_for_windows`."""
    kind = kind_of(window)
    start, end = kind.start_of("__tm_e"), instant_of_end("__tm_e", window)
    span = f"struct(timestamp_micros({start}) AS start, timestamp_micros({end}) AS `end`)"
    which = "the session" if kind.merges else "the last window"
    closed = f"{which} of {window.name} for this event had closed"
    ending = f" more than {format_duration(window.allowed_lateness)} would have let it in"
    by_events = f"{literal(f'{closed}: an allowed lateness of ')}, {_in_seconds(c.LATENESS)}, {literal(ending)}"
    otherwise = literal(f"{closed}: the clock had raised the watermark past it")
    if BY_FLUSH in late.columns:
        otherwise = f"IF({BY_FLUSH}, {literal(f'{closed}: {FLUSH_HAD_CLOSED}')}, {otherwise})"
    return late.selectExpr(
        *_FROM_LOG,
        c.TIMELINE,
        f"'{Stage.WINDOW}' AS stage",
        f"'{Reason.WINDOW_CLOSED}' AS reason",
        f"coalesce(concat({by_events}), {otherwise}) AS detail",
        f"{literal(window.name)} AS window_name",
        f"CAST(transform({MISSED}, __tm_e -> {span}) AS {_SPANS}) AS missed_windows",
        c.EVENT_TIME,
        f"timestamp_micros({c.W_BEFORE}) AS {c.WATERMARK}",
        f"{c.LATENESS} AS lateness_us",
        f"{c.W_SET_BY} AS watermark_set_by",
        _payload(payload),
    )


def join_letters(late: DataFrame, payload: Sequence[str], join: JoinSpec) -> DataFrame:
    """Return the dead letters `join_closed` of one join, of rows of `sides.late_events`."""
    closed = f"all answers of {join.name} that the event could change were final"
    if join.is_interval:
        closed = f"the time for partners of the event in {join.name} was over"
    ending = f" more than {format_duration(join.allowed_lateness)} would have let it in"
    by_events = f"{literal(f'{closed}: an allowed lateness of ')}, {_in_seconds(c.LATENESS)}, {literal(ending)}"
    by_clock = literal(f"{closed}: the clock had raised the watermark past {'it' if join.is_interval else 'them'}")
    return late.selectExpr(
        *_FROM_LOG,
        c.TIMELINE,
        f"'{Stage.JOIN}' AS stage",
        f"'{Reason.JOIN_CLOSED}' AS reason",
        f"coalesce(concat({by_events}), {by_clock}) AS detail",
        f"{literal(join.name)} AS window_name",
        f"CAST(NULL AS {_SPANS}) AS missed_windows",
        c.EVENT_TIME,
        f"timestamp_micros({c.W_BEFORE}) AS {c.WATERMARK}",
        f"{c.LATENESS} AS lateness_us",
        f"{c.W_SET_BY} AS watermark_set_by",
        _payload(payload),
    )


def unfit_letters(events: DataFrame, payload: Sequence[str], window: WindowSpec) -> DataFrame | None:
    """Return the dead letters `bad_expression` of one window: what it evaluates fails on them; None if none can."""
    columns = Columns.of(events)
    fails = unfit(columns, window)
    if fails is None:
        return None
    place = _PLACE if window.input is None else literal(f"a result of {window.input}")
    details = []
    parts = [(f"aggregate `{name}`", text, on_rows([text])) for name, text in window.aggregates.items()]
    for what, text, evaluated in (*parts, *(("order of `top`", text, (text,)) for text in window.order)):
        condition = columns.any_fails(evaluated)
        if condition is not None:
            named = [column for column in payload if mentions(text, column)]
            value = ["' on '", as_json(*map(quoted, named))] if named else []
            sentence = literal(f": the {what} of {window.name}, `{text}`, fails")
            details.append(f"WHEN {condition} THEN concat({', '.join([place, sentence, *value])})")
    otherwise = "NULL"
    if window.gap_by is not None:
        otherwise = f"concat({', '.join([place, *_unfit_gap(columns, payload, window.gap_by, window)])})"
    detail = f"CASE {' '.join(details)} ELSE {otherwise} END" if details else otherwise
    return events.where(fails).selectExpr(
        *_FROM_LOG,
        c.TIMELINE,
        f"'{Stage.WINDOW}' AS stage",
        f"'{Reason.BAD_EXPRESSION}' AS reason",
        f"{detail} AS detail",
        f"{literal(window.name)} AS window_name",
        f"CAST(NULL AS {_SPANS}) AS missed_windows",
        c.EVENT_TIME,
        f"CAST(NULL AS TIMESTAMP) AS {c.WATERMARK}",
        "CAST(NULL AS BIGINT) AS lateness_us",
        "CAST(NULL AS BIGINT) AS watermark_set_by",
        _payload(payload),
    )


def _unfit_gap(columns: Columns, payload: Sequence[str], gap: str, window: WindowSpec) -> list[str]:
    """Return SQL of the parts of a sentence that says why the gap of an event is none."""
    value, condition = columns.read(gap).sql, columns.any_fails([gap]) or "false"
    most = format_duration(timedelta(microseconds=window.reach_us))
    bounds = literal(f"; a gap is above zero and at most {most}")
    why = f"CASE WHEN {condition} THEN 'fails' WHEN {value} IS NULL THEN 'is null'"
    why = f"{why} ELSE concat('is ', CAST({value} AS STRING), {bounds}) END"
    named = [column for column in payload if mentions(gap, column)]
    on = ["' on '", as_json(*map(quoted, named))] if named else []
    return [literal(f": the gap of {window.name}, `{gap}`, "), why, *on]


def unfit_results(results: DataFrame, window: WindowSpec) -> DataFrame | None:
    """Return the same for a window over another one: rows of `segment.as_events`, which have no place in the log."""
    payload = [name for name in results.columns if not is_reserved(name)]
    nowhere = {c.SEQ: "bigint", c.POSITION: "bigint", c.ARRIVAL: "timestamp", c.EVENT_TIME: "timestamp"}
    nowhere |= dict.fromkeys((c.SOURCE, c.SPLIT, c.FILE, c.MALFORMED), "string")
    nulls = {name: F.lit(None).cast(kind) for name, kind in nowhere.items()}
    return unfit_letters(results.withColumns(nulls), payload, window)


def _payload(payload: Sequence[str]) -> str:
    return f"coalesce({c.MALFORMED}, {as_json(*map(quoted, payload))}) AS payload"


def _in_seconds(us: str) -> str:
    return f"CAST({us} / 1000000 AS DECIMAL(30, 6)), ' s'"


def _time_detail(rules: TimeRules, refused: DataFrame) -> str:
    """Return SQL of the sentence that says why a record was refused."""
    time = rules.time
    rule = _by_source(
        rules, lambda source: f"timestamp_by `{source.timestamp_by}`", f"timestamp_by `{time.timestamp_by}`"
    )
    tolerance = _by_source(
        rules, lambda source: _length(source.out_of_orderness_us), _length(time.out_of_orderness_us)
    )
    by, below = _in_seconds(c.LATENESS), _in_seconds(f"({c.W_BEFORE} - {c.T})")
    whose = f"IF({c.LATENESS} IS NULL, ', which the clock had raised', '')"
    first = FIRST if time.deduplicate_by else "''"
    apart = literal(f": they have one key, and event times at most {_length(time.within_us)} apart")
    early = literal(f" more than {format_duration(time.early.tolerance) if time.early else ''} ahead of its arrival")
    late = literal(f" more than {format_duration(time.late.tolerance) if time.late else ''} after its time")
    is_text, no_time = literal(" is '"), literal("', which is not a time from year 0001 to 9999")
    parts = {
        Reason.MALFORMED: f"{_PLACE}, {_misfit(rules)}, ': ', {_shortened(c.MALFORMED)}",
        Reason.NO_ARRIVAL_TIME: f"'there is no arrival time of the years 0001 to 9999 for ', {_PLACE}",
        Reason.NO_TIMESTAMP: f"{rule}, ' is null'",
        Reason.BAD_TIMESTAMP: f"{rule}, {is_text}, {_shortened(_event_text(rules, refused))}, {no_time}",
        Reason.BAD_EXPRESSION: f"{rule}, ' fails on this record'",
        Reason.DUPLICATE: f"'the event is a duplicate of the one with _arrival_seq ', {first}, {apart}",
        Reason.EARLY: f"'the event is ', {by}, {early}",
        Reason.LATE_ARRIVAL: f"'the event arrived ', {by}, {late}",
        Reason.OUT_OF_ORDER: f"'the event is ', {below}, ' behind the watermark', {whose}, "
        f"'; out_of_orderness is ', {tolerance}",
    }
    cases = " ".join(f"WHEN '{reason}' THEN concat({sentence})" for reason, sentence in parts.items())
    return f"CASE {c.REASON} {cases} END"


def _misfit(rules: TimeRules) -> str:
    """Return what is wrong with a malformed record, as far as its text says more than that it does not fit."""
    text = f"trim({c.MALFORMED})"
    shape = "'array<struct<`__tm_nothing`: int>>'"
    apart = f"regexp_replace({text}, {literal(_BETWEEN_OBJECTS)}, '}},{{')"
    objects = f"size(from_json(concat('[', {apart}, ']'), {shape}))"
    element = f"size(from_json(concat('[', trim(TRAILING ',' FROM {text}), ']'), {shape}))"
    in_array = f"{text} IN ('[', ']', '],') OR (endswith({text}, ',') AND {element} = 1)"
    large, bytes_ = (f"regexp_extract({text}, {literal(end)}, 1)" for end in (LARGE_VALUE, NOT_UTF8))
    return (
        f"CASE WHEN {text} RLIKE {literal(LONG_LINE)} THEN ' is longer than a line may be' "
        f"WHEN {text} RLIKE {literal(LARGE_VALUE)} THEN concat(' has too large a `', {large}, '`') "
        f"WHEN {text} RLIKE {literal(NOT_UTF8)} THEN concat(' has bytes in `', {bytes_}, '` that are not UTF-8') "
        f"WHEN startswith({text}, '{{') AND {objects} > 1 "
        "THEN ' holds several JSON objects, and a line is one record' "
        f"WHEN {in_array} OR from_json({text}, 'array<variant>') IS NOT NULL THEN {literal(_IN_ARRAY)} "
        f"WHEN {_repeats_header(text, rules)} THEN ' repeats the header of its file' "
        "ELSE ' does not fit the schema of the source' END"
    )


def _repeats_header(text: str, rules: TimeRules) -> str:
    """Return SQL of a BOOLEAN: a line of csv has the names of columns for values."""
    bare = f"trim(BOTH {literal(_AROUND_FIELDS)} FROM __tm_v)"
    fields = f"transform(split({text}, {literal(_BETWEEN_FIELDS)}), __tm_v -> {bare})"
    condition = "false"
    for source, header in rules.headers.items():
        named = [f"CAST(arrays_overlap({fields}, array({literals(names)})) AS INT)" for names in header]
        is_header = f"{' + '.join(named)} >= {min(2, len(named))}"
        condition = f"IF({c.SOURCE} = {literal(source)}, {is_header}, {condition})"
    return condition


def _event_text(rules: TimeRules, refused: DataFrame) -> str:
    """Return the text of the value of `timestamp_by`."""
    columns, text = Columns.of(refused), "''"
    for expression in rules.event_times:
        if expression.timestamp_by is not None:
            is_own = is_of(expression.sources) if expression.sources else "true"
            text = f"IF({is_own}, {columns.read(expression.timestamp_by).value_text}, {text})"
    return f"coalesce({text}, '')"


def _shortened(text: str) -> str:
    return f"IF(length({text}) > {_MOST_SHOWN}, concat(substring({text}, 1, {_MOST_SHOWN}), '…'), {text})"


def _by_source(rules: TimeRules, text: Callable[[SourceTime], str], default: str) -> str:
    """Return a text that may differ by source."""
    texts = {source.name: text(source) for source in rules.sources}
    if len(set(texts.values())) <= 1:
        return literal(next(iter(texts.values()), default))
    cases = " ".join(f"WHEN {literal(name)} THEN {literal(value)}" for name, value in texts.items())
    return f"CASE {c.SOURCE} {cases} ELSE {literal(default)} END"


def _length(us: int) -> str:
    return format_duration(timedelta(microseconds=us))
