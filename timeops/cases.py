"""Cases of a spec: records and what is expected of them, as a YAML file, and values of both to compare.

Here: the keys of a cases file, all that is wrong with it, also against the spec that the cases are of, and one value
by its Spark type. Not here: file access, running a case, rows and tables (pipelines/case_tests).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import accumulate
from math import isclose, isnan
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, ValidationError, model_validator
from pyspark.sql import types as T

from tidemark.timeops.columns import ARRIVAL, FILE, SOURCE, SPLIT
from tidemark.timeops.errors.problems import (
    Misread,
    Path,
    Problem,
    ProblemsError,
    as_flag,
    as_number,
    did_you_mean,
    misfit,
    problems_of,
    raise_any,
    show,
    spec_error,
)
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.spec import Source, Spec
from tidemark.timeops.spec.fields import Instant, SpecModel, Text, read_instant
from tidemark.timeops.spec.pipeline import keys_by_arrival
from tidemark.timeops.spec.text import read_yaml
from tidemark.timeops.values import utc

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FLOATS = (T.FloatType, T.DoubleType)
_TEXTS = (T.StringType, T.DateType, T.TimestampType, T.TimestampNTZType)


def read_row(text: str, columns: T.StructType) -> dict[str, Any]:
    """Return a row that Spark wrote as JSON, see `values.as_json`."""
    row = json.loads(text, parse_float=Decimal)
    return {field.name: read_value(row[field.name], field.dataType) for field in columns}


def read_value(value: object, kind: T.DataType) -> Any:
    """Return a value of a cases file, or of Spark's JSON, as Python's value of a type.

    Instants are aware UTC. Of types that are not known here the value stays as it is.

    Raises:
        ProblemsError: The value does not fit the type.
    """
    if value is None:
        return None
    if isinstance(kind, T.ArrayType):
        items = _of(list, value, "a list")
        return [_at(i, item, kind.elementType) for i, item in enumerate(items)]
    if isinstance(kind, T.StructType):
        types = {field.name: field.dataType for field in kind}
        fields = _of(Mapping, value, f"a mapping of {', '.join(types)}")
        unknown = [name for name in fields if name not in types]
        if unknown:
            raise misfit(value, f"a mapping of {', '.join(types)}, not {unknown[0]}")
        return {name: _at(name, item, types[name]) for name, item in fields.items()}
    if isinstance(kind, T.MapType):
        entries = _of(Mapping, value, "a mapping")
        return {str(key): _at(str(key), item, kind.valueType) for key, item in entries.items()}
    for kinds, read in _READERS:
        if isinstance(kind, kinds):
            return read(value)
    if isinstance(value, Misread):
        raise misfit(value, "a value that every YAML parser reads the same way", "put it in quotes if it is text")
    return value


def equal(expected: Any, actual: Any) -> bool:
    """Return whether two values of one kind are equal: floats to a relative 1e-12, structs as far as written.

    Args:
        expected: What `read_value` returned for the value of a file.
        actual: The same for that of a table.
    """
    if isinstance(expected, float) and isinstance(actual, float):
        return (isnan(expected) and isnan(actual)) or isclose(expected, actual, rel_tol=1e-12)
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(equal, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(name in actual and equal(item, actual[name]) for name, item in expected.items())
    return bool(expected == actual)


def text_of(value: Any) -> str:
    """Return a value as a cases file writes it, instants as short as they can be."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, datetime):
        clock = value.isoformat(timespec="microseconds" if value.microsecond else "seconds")
        return clock.replace("+00:00", "Z")
    if isinstance(value, utc.Instant):
        return f"{value}Z".replace(" ", "T")
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {text_of(item)}' for name, item in value.items())}}}"
    return str(value)


def is_written_as_text(kind: T.DataType) -> bool:
    """Return whether a record writes values of a type as text, which YAML would otherwise read as something else."""
    return isinstance(kind, _TEXTS)


def _at(step: str | int, value: object, kind: T.DataType) -> Any:
    return _within((step,), lambda part: read_value(part, kind), value)


def _within(at: Path, read: Callable[[object], Any], value: object) -> Any:
    """Read a part, so that a problem in it is reported at its place."""
    try:
        return read(value)
    except ProblemsError as error:
        raise ProblemsError(replace(problem, at=at + problem.at) for problem in error.problems) from None


def _of(kind: Any, value: object, expected: str, *, remedy: str = "") -> Any:
    if not isinstance(value, kind):
        raise misfit(value, expected, remedy)
    return value


def _number(value: object, expected: str, *kinds: type) -> Any:
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise misfit(value, expected)
    return value


def _parsed(read: Callable[[str], Any], value: object, expected: str) -> Any:
    try:
        return read(_of(str, value, expected))
    except ValueError:
        raise misfit(value, expected) from None


def _instant(value: object) -> Any:
    """Return an aware UTC datetime; windows may also begin or end where Python's calendar does not reach."""
    year = re.match(r"([+-]?\d{4,6})(?=-)", value) if isinstance(value, str) else None
    if year is None or 1 <= int(year[1]) <= 9999:
        return read_instant(value)
    return utc.Instant.in_year(int(year[1]), lambda shown: read_instant(f"{shown:04}{str(value)[year.end() :]}"))


def _float(value: object) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):  # so Spark writes them
        return float(str(value))
    return float(_number(value, "a number", int, float, Decimal))


def _decimal(value: object) -> Decimal:
    number = _number(value, "a number", int, float, Decimal)
    if isinstance(value, Misread) and isinstance(number, float):  # which has fewer digits than a decimal may have
        return Decimal(value.text)
    return Decimal(str(number))


_READERS: tuple[tuple[Any, Callable[[object], Any]], ...] = (
    (T.StringType, lambda value: _of(str, value, "text", remedy="put the value in quotes")),
    (T.BooleanType, lambda value: _of(bool, as_flag(value), "true or false")),
    (T.TimestampType, _instant),
    (T.TimestampNTZType, lambda v: _parsed(datetime.fromisoformat, v, "a local time such as 2026-01-31T12:00:00")),
    (T.DateType, lambda value: _parsed(date.fromisoformat, value, "a day such as 2026-01-31")),
    (_WHOLE, lambda value: _number(value, "a whole number", int)),
    (T.DecimalType, _decimal),
    (_FLOATS, _float),
)


Row = Mapping[str, Any]

ORDERED, HELD, DEAD_LETTERS = "ordered_events", "held_events", "dead_letters"
WINDOWS, JOINS = "windows/", "joins/"
NONE, FINAL = "none", "final"
"""The words for no watermark yet, and for one that a flush moved past every event."""

_TABLES = f"{ORDERED}, {HELD}, {DEAD_LETTERS}, {WINDOWS}<name>, {JOINS}<name>, watermark or watermarks"
_WATERMARK = f"an instant such as 2026-01-31T12:00:00Z, {NONE} (no event has come), or {FINAL} (flushed)"
_GIVEN_BESIDE_PAYLOAD = (ARRIVAL, SOURCE, SPLIT, FILE)


@dataclass(frozen=True)
class Expected:
    """The rows and watermarks that are expected after a step.

    Attributes:
        tables: Rows by table; of each row only the columns that are written.
        watermark: The pipeline's: an instant, `none` or `final`.
        watermarks: The same by timeline, of all timelines that have one.
    """

    tables: Mapping[str, Sequence[Row]]
    watermark: datetime | str | None = None
    watermarks: Mapping[str, datetime | str] | None = None


def _rows(value: object) -> tuple[Row, ...]:
    if not isinstance(value, list | tuple):
        raise misfit(value, "a list of rows, each {column: value}")
    raise_any(
        Problem(f"found {show(row)}", expected="a row such as {column: value}", at=(position,))
        for position, row in enumerate(value)
        if not isinstance(row, Mapping) or not row or not all(isinstance(name, str) for name in row)
    )
    return tuple(value)


def _watermark(value: object) -> datetime | str:
    if value in (NONE, FINAL):
        return str(value)
    try:
        return read_instant(value)
    except ProblemsError:
        raise misfit(value, _WATERMARK) from None


def _watermarks(value: object) -> dict[str, datetime | str]:
    if not isinstance(value, Mapping):
        raise misfit(value, "a mapping of timelines to watermarks")
    return {str(timeline): _within((timeline,), _watermark, mark) for timeline, mark in value.items()}


def _expected(value: object) -> Expected:
    if not isinstance(value, Mapping) or not value:
        raise misfit(value, f"a mapping of {_TABLES}")
    keys = (ORDERED, HELD, DEAD_LETTERS, "watermark", "watermarks")
    raise_any(
        Problem(
            f"unknown key `{key}`", expected=f"one of {_TABLES}", remedy=did_you_mean(str(key), keys), at=(str(key),)
        )
        for key in value
        if key not in keys and not str(key).startswith((WINDOWS, JOINS))
    )
    rows = {key: item for key, item in value.items() if key not in ("watermark", "watermarks")}
    watermark = _within(("watermark",), _watermark, value["watermark"]) if "watermark" in value else None
    by_timeline = _within(("watermarks",), _watermarks, value["watermarks"]) if "watermarks" in value else None
    return Expected({table: _within((table,), _rows, item) for table, item in rows.items()}, watermark, by_timeline)


Records = Annotated[tuple[Row, ...], PlainValidator(_rows)]
Expect = Annotated[Expected, PlainValidator(_expected)]
EndOfInput = Literal["hold", "flush"]


class Step(SpecModel):
    """A segment of a case's log, and what is expected after it."""

    records: Records = Field(default=(), description="a list of records, each a mapping of columns to values")
    tick: Instant | None = Field(default=None, description="the clock of a tick after the records, an instant")
    expect: Expect | None = Field(default=None, description="what the tables should hold after this step")
    end_of_input: EndOfInput | None = Field(default=None, description="flush or hold, after the last step")


class Case(SpecModel):
    """One transcript."""

    name: Text = Field(description="a sentence that says what the case shows")
    records: Records | None = Field(default=None, description="a list of records, in the order of the log")
    steps: tuple[Step, ...] | None = Field(default=None, description="a list of steps, each with records")
    expect: Expect | None = Field(default=None, description="what the tables should hold at the end")
    end_of_input: EndOfInput | None = Field(default=None, description="flush or hold, after the last record")
    error: Text | None = Field(default=None, description="part of the message that this case must fail with")

    @model_validator(mode="after")
    def _together(self) -> "Case":
        problems = []
        steps = self.steps or ()
        if (self.records is None) == (self.steps is None):
            problems.append(
                Problem("found both" if steps else "found neither", expected="either `records` or `steps`")
            )
        for position, step in enumerate(steps[:-1]):
            if step.end_of_input is not None:
                at: Path = ("steps", position, "end_of_input")
                problems.append(Problem("this is not the last step", remedy="write it on the last step", at=at))
        for key in ("expect", "end_of_input"):
            if steps and getattr(self, key) is not None and getattr(steps[-1], key) is not None:
                fault = f"`{key}` is on the last step as well"
                problems.append(Problem(fault, expected="only one of them", at=(key,)))
        if self.expect is None and all(step.expect is None for step in steps):
            expected = "`expect` on the case or on a step, with tables or watermarks"
            problems.append(Problem("the case expects nothing", expected=expected))
        raise_any(problems)
        return self

    @property
    def segments(self) -> tuple[Step, ...]:
        """The steps; a case without steps has one, its records."""
        *steps, last = self.steps or (Step(records=self.records or ()),)
        update = {"expect": self.expect or last.expect, "end_of_input": self.end_of_input or last.end_of_input}
        return (*steps, last.model_copy(update=update))

    @property
    def ticks(self) -> tuple[tuple[int, datetime], ...]:
        """The ticks in their order: after how many of the case's records each comes, and its clock."""
        ends = accumulate(len(step.records) for step in self.segments)
        return tuple((end, step.tick) for end, step in zip(ends, self.segments, strict=True) if step.tick is not None)

    def places(self) -> Iterator[tuple[Path, Row]]:
        """Return each record with the keys that lead to it from the case."""
        yield from ((("records", i), record) for i, record in enumerate(self.records or ()))
        for s, step in enumerate(self.steps or ()):
            yield from ((("steps", s, "records", i), record) for i, record in enumerate(step.records))

    def expectations(self) -> Iterator[tuple[Path, Expected]]:
        """Return each `expect` with the keys that lead to it from the case."""
        for s, step in enumerate(self.steps or ()):
            if step.expect is not None:
                yield ("steps", s, "expect"), step.expect
        if self.expect is not None:
            yield ("expect",), self.expect


class _File(SpecModel):
    cases: tuple[Case, ...] = Field(description="a list of cases")


_MODELS: Mapping[Path, type[BaseModel]] = {(): _File, ("cases",): Case, ("cases", "steps"): Step}


@dataclass(frozen=True)
class CasesFile:
    """A cases file that was read.

    Attributes:
        file: Its name.
        cases: Its cases; their names differ.
        lines: Line of each path, for messages.
    """

    file: str
    cases: tuple[Case, ...]
    lines: Mapping[Path, int] = field(repr=False)

    def complain(self, problems: Sequence[Problem]) -> None:
        """Raise SpecError with the problems that were found in the file later on, if there are any."""
        if problems:
            raise spec_error(self.file, problems, self.lines)


def parse_cases(text: str, spec: Spec, *, file: str) -> CasesFile:
    """Read a cases file.

    Raises:
        SpecError: All that is wrong with the file, each with line, key path, what was found and expected.
    """
    of_rows = frozenset({"records", "expect"})  # whose values may be null
    document = read_yaml(text, expected="a mapping with `cases`", nullable=lambda at: not of_rows.isdisjoint(at[:-1]))
    problems = list(document.problems)
    cases: tuple[Case, ...] = ()
    if document.is_readable:
        try:
            cases = _File.model_validate(document.data).cases
        except ValidationError as error:
            problems.extend(problems_of(error, _MODELS))
        else:
            problems.extend(_case_problems(cases, spec))
    read = CasesFile(file, cases, document.lines)
    read.complain(problems)
    return read


def _case_problems(cases: Sequence[Case], spec: Spec) -> Iterator[Problem]:
    if not cases:
        yield Problem("found no case", expected="at least one", at=("cases",))
    names: set[str] = set()
    for number, case in enumerate(cases):
        at: Path = ("cases", number)
        if case.name in names:
            yield Problem(
                f"found a second case called {show(case.name)}", expected="distinct names", at=(*at, "name")
            )
        names.add(case.name)
        for problem in (*_record_problems(case, spec), *_tick_problems(case, spec), *_table_problems(case, spec)):
            yield replace(problem, at=at + problem.at)


def payload_names(source: Source) -> list[str]:
    """Return the payload columns of a source as they are called in the tables."""
    return [*source.columns_in_tables, *(["_rescued"] if source.keep_unknown else [])]


def _record_problems(case: Case, spec: Spec) -> Iterator[Problem]:
    sources = {source.name: source for source in spec.sources}
    has_arrival = False
    for at, record in case.places():
        named = record.get(SOURCE, next(iter(sources)) if len(sources) == 1 else None)
        source = sources.get(str(named))
        if source is None:
            fault = f"found {show(named)}" if SOURCE in record else "the key is missing: there are several sources"
            yield Problem(fault, expected=f"one of {', '.join(sources)}", at=(*at, SOURCE))
            continue
        columns = payload_names(source)
        for name in record:
            if name not in (*columns, *_GIVEN_BESIDE_PAYLOAD):
                expected = f"columns of the source: {', '.join(columns)}; or {', '.join(_GIVEN_BESIDE_PAYLOAD)}"
                yield Problem(
                    f"unknown column `{name}`", expected=expected, remedy=did_you_mean(name, columns), at=(*at, name)
                )
        if record.get(SPLIT) is not None and not isinstance(record[SPLIT], str):
            yield Problem(
                f"found {show(record[SPLIT])}", expected="text", remedy="put the value in quotes", at=(*at, SPLIT)
            )
        if FILE in record and not mentions(source.arrival_time or "", FILE):
            fault = f"`{FILE}` has no effect: the source's arrival_time does not name it"
            yield Problem(fault, remedy="leave it out", at=(*at, FILE))
        yield from _arrival_problems(record, source, at, spec, is_known=has_arrival)
        has_arrival = has_arrival or ARRIVAL in record


def _arrival_problems(record: Row, source: Source, at: Path, spec: Spec, *, is_known: bool) -> Iterator[Problem]:
    if source.arrival_time is not None:
        if ARRIVAL in record:
            fault = f"`{ARRIVAL}` has no effect: the source's arrival_time `{source.arrival_time}` says it"
            yield Problem(fault, remedy="leave it out", at=(*at, ARRIVAL))
    elif ARRIVAL in record:
        try:
            read_instant(record[ARRIVAL])
        except ProblemsError as error:
            yield from (Problem(p.found, expected=p.expected, at=(*at, ARRIVAL)) for p in error.problems)
    elif not is_known and (keys := keys_by_arrival(spec.time, spec.windows, spec.sources)):
        fault = f"the key is missing: {', '.join(keys)} depends on when a record arrived"
        expected = "an instant; a record without one arrives together with the one before it"
        yield Problem(fault, expected=expected, at=(*at, ARRIVAL))


def _tick_problems(case: Case, spec: Spec) -> Iterator[Problem]:
    for number, step in enumerate(case.steps or ()):
        if step.tick is not None and not spec.heeds_ticks:
            fault = "`tick` has no effect: no rule of the spec depends on the clock alone"
            yield Problem(fault, remedy="leave it out", at=("steps", number, "tick"))


def _table_problems(case: Case, spec: Spec) -> Iterator[Problem]:
    made = {WINDOWS: [window.name for window in spec.windows], JOINS: [join.name for join in spec.joins]}
    results = sorted(folder + name for folder, names in made.items() for name in names)
    one_of_them = f"one of {', '.join(results)}" if results else "none: the spec has no windows or joins"
    for at, expected in case.expectations():
        for table in expected.tables:
            if table.startswith((WINDOWS, JOINS)) and table not in results:
                yield Problem(
                    f"the spec has no `{table}`",
                    expected=one_of_them,
                    remedy=did_you_mean(table, results),
                    at=(*at, table),
                )
            elif table in (ORDERED, HELD) and not spec.outputs.ordered_events:
                fault = f"the spec does not write `{table}`: outputs.ordered_events is false"
                yield Problem(fault, remedy="leave it out", at=(*at, table))
