"""Every expression of a spec against the columns that it may name, before any table is made.

Here: the places of expressions, what each may name and return. Not here: the words for what Spark refuses
(timeops/expressions/refusals.py), what can be told without Spark (timeops/spec/fields.py,
timeops/expressions/determinism.py).

All expressions of one place are read by Spark at once, which takes milliseconds; one by one only where that fails, to
know which it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.timeops.columns import FILE, TIMELINE, TIMESTAMP
from tidemark.timeops.errors.problems import Path, Problem
from tidemark.timeops.events.event_time import instant_problem, length_problem
from tidemark.timeops.expressions.aggregate_calls import aggregate_calls
from tidemark.timeops.expressions.aggregates import cut
from tidemark.timeops.expressions.refusals import REFUSALS, Asked, faults_of, functions_of, problem_of
from tidemark.timeops.expressions.text_times import constant_time_problem, hidden_time_problem, local_time_problem
from tidemark.timeops.expressions.tokens import columns_named, quoted
from tidemark.timeops.expressions.try_expression import Columns, is_collated, is_storable, text_problem
from tidemark.timeops.spec import JoinSpec, Spec, WindowSpec
from tidemark.timeops.spec.changes import types_in_tables
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ, JoinColumns
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.spec.window import result_columns
from tidemark.timeops.windows.aggregates import has_order

_KEY = "__tm_key"
_COUNTS = frozenset({"count", "approx_count_distinct"})
_RANKED = frozenset({"min_by", "max_by"})

Judge = Callable[[T.DataType, str], Problem | None]
Query = Callable[[Sequence[Column]], DataFrame]


@dataclass(frozen=True)
class Place:
    """An expression of the spec: the judge says what is wrong with its type.

    It becomes a column with the name, or none if that is empty. For hints see `Asked`.
    """

    at: Path
    text: str
    judge: Judge
    name: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)


def expression_problems(
    spec: Spec, sources: Sequence[DataFrame], log: DataFrame, of_events: DataFrame
) -> list[Problem]:
    """Return what is wrong with the expressions of a spec; Spark reads them, and tries them on made-up records.

    The frames have the columns that expressions may name, and no row of them matters.

    Args:
        spec: The spec.
        sources: The payload of each source, in their order.
        log: The records of the log.
        of_events: The events of windows.
    """
    zones = (spec.time.time_zone, *(source.time_zone for source in spec.sources))
    check = _Check(log, next((zone for zone in zones if zone not in (None, "UTC")), None) or "UTC")
    for number, (source, records) in enumerate(zip(spec.sources, sources, strict=True)):
        at: Path = ("sources", number)
        with_file = records.withColumn(FILE, F.lit("").cast("string"))
        check.rows(with_file, _places_with_text([((*at, "arrival_time"), source.arrival_time)], instant_problem))
        check.rows(records, _places_with_text([((*at, "split"), source.split)], _text_problem))
        check.rows(log, _places_with_text([((*at, "timestamp_by"), source.timestamp_by)], instant_problem))
    time = spec.time
    timelines = [(("time", "over", i), text) for i, text in enumerate(time.over)]
    keys = [(("time", "deduplicate_by", i), text) for i, text in enumerate(time.deduplicate_by)]
    check.rows(
        log,
        [
            *_places_with_text([(("time", "timestamp_by"), time.timestamp_by)], instant_problem),
            *_places_with_text(timelines, _text_problem),
            *_places_with_text(keys, lambda kind, text: _plain_problem(kind, text) or text_problem(kind, text)),
        ],
    )
    results = {join.name: _joined(join, spec.join_columns[join.name], of_events) for join in spec.joins}
    places = {window.name: position for position, window in enumerate(spec.windows)}
    for window in (*spec.event_windows, *spec.chained_windows):
        events = of_events if window.input is None else results[window.input]
        of_window: Path = ("windows", places[window.name])
        if window.gap_by is not None:  # the clock asks for it before the event has a place on its timeline
            columns = [*map(quoted, events.columns)] if window.input is not None else _in_both(of_events, log)
            check.gap(events.select(*columns), Place((*of_window, "gap"), window.gap_by, length_problem))
        results[window.name] = check.window(events, window, of_window)
    return check.problems


def _in_both(events: DataFrame, log: DataFrame) -> list[str]:
    """Return the columns that events of windows have in the log too, quoted."""
    return [quoted(name) for name in events.columns if name in log.columns]


def _joined(join: JoinSpec, columns: JoinColumns, events: DataFrame) -> DataFrame:
    """Return the columns that windows over the rows of a join may name."""
    if join.has_table:
        kinds = types_in_tables(join.right.ddl or "", {})
        nulls = {columns.right_prefix + name: F.lit(None).cast(kinds[name]) for name, _ in columns.right}
        events = events.withColumns(nulls)
    of_right = [f"{quoted(columns.right_prefix + name)} AS {quoted(shown)}" for name, shown in columns.right]
    seqs = [f"CAST(NULL AS BIGINT) AS {name}" for name in (LEFT_SEQ, RIGHT_SEQ)]
    return events.selectExpr(*map(quoted, columns.left), *of_right, TIMESTAMP, *seqs)


def _places_with_text(texts: Iterable[tuple[Path, str | None]], judge: Judge) -> list[Place]:
    return [Place(at, text, judge) for at, text in texts if text is not None]


class _Check:
    """The problems of a spec, as they are gathered."""

    def __init__(self, any_frame: DataFrame, time_zone: str) -> None:
        self.problems: list[Problem] = []
        self._any = any_frame
        self._time_zone = time_zone

    @cached_property
    def _functions(self) -> frozenset[str]:
        return functions_of(self._any.sparkSession)

    def rows(self, frame: DataFrame, places: Sequence[Place]) -> dict[Path, T.DataType]:
        """Judge expressions over one row each; return the types of the expressions that have one."""
        beside = F.col(quoted(frame.columns[0]))  # an aggregate cannot be next to a column
        alone = [replace(place, name="") for place in places]  # none of them may name another
        kinds = self._types(frame, alone, lambda columns: frame.select(beside, *columns))
        self._try_out(frame, {place.text: place for place in places if place.at in kinds})
        return kinds

    def aggregates(self, frame: DataFrame, places: Sequence[Place]) -> dict[Path, T.DataType]:
        """Judge expressions over all rows of a group; each may name the earlier ones."""
        grouped = frame.withColumn(_KEY, F.lit(0)).groupBy(_KEY)
        kinds = self._types(frame, places, lambda columns: grouped.agg(*columns))
        cuts = [(place, cut(place.text)) for place in places if place.at in kinds]
        self._try_out(frame, {text: place for place, pieces in cuts for text in pieces.on_rows})
        for place, pieces in cuts:
            if not pieces.sums:
                fault = f"`{place.text}` has the same value in every result"
                remedy = f"leave it out, or write `max({place.text})`"
                self._note(Problem(fault, expected="an aggregate, such as `count(*)`", remedy=remedy), place)
            elif pieces.result is not None:
                sums = [F.expr(text).alias(name) for name, text in pieces.sums.items()]
                self._try_out(grouped.agg(*sums), {pieces.result: place})
        return kinds

    def _try_out(self, frame: DataFrame, places: Mapping[str, Place]) -> None:
        """Note the expressions that fail on every made-up record."""
        for text, sentence in faults_of(Columns.of(frame), places).items():
            fault = f"`{places[text].text}` fails on every record: {sentence}"
            remedy = "correct the pattern, the format or the name in it"
            self._note(
                Problem(fault, expected="an expression that has a value on some record", remedy=remedy), places[text]
            )

    def window(self, events: DataFrame, window: WindowSpec, at: Path) -> DataFrame:
        """Judge the expressions of a window; return the columns of its results, as events of another window."""
        outer = {name.lower(): f"`{name}` is a result: filter results with `having`" for name in window.aggregates}
        as_having = "write it among `aggregates`, and its name here"
        only_where: Mapping[str, str] = {**outer, "": "filter results with `having`"}
        groups = [
            Place((*at, "group_by", i), text, _result_problem, name)
            for i, (name, text) in enumerate(window.group_expressions)
        ]
        where = [Place((*at, "where"), window.where, _truth_problem, hints=only_where)] if window.where else []
        judged = self.rows(events, [*where, *groups])
        for text in window.order:
            as_result = {
                name.lower(): f"`{name}` is a result: `by` puts events in order" for name in window.aggregates
            }
            self._order(events, Place((*at, "top", "by"), text, _ordered, hints=as_result))
        for place in groups if window.top is not None else ():  # of each of them the first events are looked for
            if place.at in judged and (problem := _ordered(judged[place.at], place.text)) is not None:
                self._note(problem, place)
        stands = "is a group column, which every result has: leave this out"
        of_groups = {name.lower(): f"`{name}` {stands}" for name in window.group_columns}
        named = [
            Place((*at, "aggregates", name), text, _result_problem, name, of_groups)
            for name, text in window.aggregates.items()
        ]
        judged |= self.aggregates(events, named)
        for place in named:
            if not is_collated(judged.get(place.at, T.NullType())):  # otherwise it has been said
                for text in _kept_by(place.text):
                    self._types(
                        events, [Place(place.at, text, _plain_problem)], lambda columns: events.select(*columns)
                    )
        times: dict[str, T.DataType] = {"window_start": T.TimestampType(), "window_end": T.TimestampType()}
        of_window = {place.name: judged.get(place.at, T.NullType()) for place in (*groups, *named)}
        of_events = {name: events.schema[name].dataType for name in window.event_columns(events.columns)}
        place_of = {TOP_RANK: T.IntegerType()} if window.top is not None else {}
        kinds = times | of_window | place_of | of_events
        results = _empty(events, kinds)
        if window.having is not None:
            inner = {
                name.lower(): f"`{name}` is a column of the events: filter events with `where`, or {as_having}"
                for name in events.columns
            }
            hints = {**inner, "": as_having}
            self.rows(results, [Place((*at, "having"), window.having, _truth_problem, hints=hints)])
        shown = result_columns(window, results.columns)
        of_results = {name: kind for name, kind in kinds.items() if name in shown}
        return _empty(events, {**of_results, TIMELINE: T.StringType(), TIMESTAMP: T.TimestampType()})

    def gap(self, events: DataFrame, place: Place) -> None:
        """Judge an expression that says how long each event keeps its session open."""
        if not self.rows(events, [place]) or columns_named(place.text, events.columns) or "*" in place.text:
            return
        fault = f"`{place.text}` has the same value for every event"
        remedy = "write it as a duration, such as `30 minutes`, and leave `max_gap` out"
        self._note(Problem(fault, expected="an expression over columns of the events", remedy=remedy), place)

    def _order(self, events: DataFrame, place: Place) -> None:
        """Judge an expression by which events are put in order."""
        if not self.rows(events, [place]) or columns_named(place.text, events.columns) or "*" in place.text:
            return
        fault = f"`{place.text}` has the same value for every event, so it puts none before another"
        self._note(Problem(fault, expected="an expression over columns of the events"), place)

    def _types(self, frame: DataFrame, places: Sequence[Place], query: Query) -> dict[Path, T.DataType]:
        if not places:
            return {}
        try:
            fields = query([_column(place) for place in places]).schema.fields[-len(places) :]
            kinds = {place.at: field.dataType for place, field in zip(places, fields, strict=True)}
        except REFUSALS:
            kinds = self._one_by_one(frame, places, query)
        for place in places:
            if place.at not in kinds:
                continue
            problem = place.judge(kinds[place.at], place.text) or self._text_time_problem(frame, place)
            if problem is not None:
                self._note(problem, place)
        return kinds

    def _text_time_problem(self, frame: DataFrame, place: Place) -> Problem | None:
        """Return what is wrong with the way in which an expression takes texts for times."""
        columns = Columns.of(frame)
        session, types = columns.session, columns.sql_types
        problem = constant_time_problem(session, place.text, types) or hidden_time_problem(session, place.text, types)
        if problem is not None or place.judge is instant_problem:  # its local times are in `time_zone`
            return problem
        return local_time_problem(place.text, self._time_zone, lambda part: _is_text(columns, part))

    def _one_by_one(self, frame: DataFrame, places: Sequence[Place], query: Query) -> dict[Path, T.DataType]:
        kinds: dict[Path, T.DataType] = {}
        good: list[Column] = []
        for place in places:
            try:
                column = _column(place)
                kinds[place.at] = query([*good, column]).schema.fields[-1].dataType
            except REFUSALS as error:
                expression = Asked(place.text, frame.columns, place.hints, lambda: self._functions)
                self._note(_problem(error, expression, frame), place)
            else:
                good.append(column)
        return kinds

    def _note(self, problem: Problem, place: Place) -> None:
        self.problems.append(replace(problem, at=place.at))


def _is_text(columns: Columns, part: str) -> bool:
    try:
        return isinstance(columns.ask(part), T.StringType)
    except REFUSALS:  # it names a parameter of a lambda function
        return True


def _column(place: Place) -> Column:
    # In brackets `n total`, a name without AS, is not an expression; the line end closes a comment.
    return F.expr(f"({place.text}\n)").alias(place.name or "__tm_e")


def _problem(error: Exception, expression: Asked, frame: DataFrame) -> Problem:
    """Return the problem, in words that do not speak of the brackets that were put around the expression."""
    problem = problem_of(error, expression)
    if "`)`" not in problem.found:
        return problem
    try:
        _ = frame.select(F.expr(expression.text)).schema
    except ParseException as plainly:
        return problem_of(plainly, expression)
    except AnalysisException:
        pass  # it can be read, which is all that was asked
    fault = f"`{expression.text}` ends in a word that only names it"
    return Problem(fault, expected="one expression, with an operator or brackets between its words")


def _empty(frame: DataFrame, kinds: Mapping[str, T.DataType]) -> DataFrame:
    """Return a frame with other columns, of any types."""
    return frame.select(*[F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()])


def _sql_of(kind: T.DataType) -> str:
    return kind.simpleString().upper()


def _kept_by(aggregate: str) -> list[str]:
    """Return the arguments of an aggregate for which it may keep one of several equal values.

    A rank may be collated: what settles its ties is asked for elsewhere. No column is collated, so an aggregate that
    does not speak of collations has no such argument.
    """
    if "collat" not in aggregate.lower():
        return []
    calls = [call for call in aggregate_calls(aggregate) if call.function not in _COUNTS]
    return [
        text for call in calls for text in (*call.arguments[: 1 if call.function in _RANKED else None], *call.order)
    ]


def _plain_problem(kind: T.DataType, text: str) -> Problem | None:
    if not is_collated(kind):
        return None
    fault = (
        f"`{text}` is {_sql_of(kind)}: of texts that it treats as equal, the order of rows decides which one is kept"
    )
    return Problem(
        fault, expected="text that is equal only if it is identical", remedy="write `lower(x)` or `rtrim(x)` instead"
    )


def _truth_problem(kind: T.DataType, text: str) -> Problem | None:
    if isinstance(kind, T.BooleanType):
        return None
    remedy = ""
    if isinstance(kind, T.NumericType):
        remedy = f"compare it, such as `{text} > 0`"
    elif isinstance(kind, T.StringType):
        remedy = f"compare it, such as `{text} = 'a'` or `{text} IS NOT NULL`"
    elif isinstance(kind, T.StructType):
        remedy = "put AND or OR between several conditions"
    return Problem(
        f"`{text}` has the type {_sql_of(kind)}, which is neither true nor false",
        expected="a condition",
        remedy=remedy,
    )


def _text_problem(kind: T.DataType, text: str) -> Problem | None:
    return text_problem(kind, text) or _result_problem(kind, text)


def _ordered(kind: T.DataType, text: str) -> Problem | None:
    if has_order(kind):
        return None
    fault = f"`{text}` has the type {_sql_of(kind)}, of whose values none is the lower one"
    return Problem(fault, expected="a type that has an order", remedy="name a part of it, such as `m['key']`")


def _result_problem(kind: T.DataType, text: str) -> Problem | None:
    if is_storable(kind):
        return None
    if is_collated(kind):
        return _plain_problem(kind, text)
    shown = _sql_of(kind)
    remedy = "write it as text or a number"
    if "INTERVAL" in shown:
        remedy = "write it as a number: of two instants `timestampdiff(SECOND, first, last)` makes one"
    elif isinstance(kind, T.NullType):
        remedy = "add a type, such as `cast(null AS BIGINT)`"
    return Problem(
        f"`{text}` has the type {shown}, which no table can hold", expected="a type of Delta tables", remedy=remedy
    )
