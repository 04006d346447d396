"""The `sources` of a spec: where records come from, how they are read, and how far one may run ahead of others (F).

Here: the keys of a source, reader options, names of columns. Not here: reading (resources/sources/), rules between
sources (consistency.py), who waits for whom (watermark/alignment.py).
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from tidemark.timeops.durations import format_duration, micros
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.problems import Problem, ProblemsError, did_you_mean, raise_any, show
from tidemark.timeops.spec.expressions import (
    Expression,
    InstantExpression,
    columns_in_tables,
    rename_problems,
    schema_problems,
)
from tidemark.timeops.spec.fields import (
    ByteSize,
    Duration,
    Flag,
    Frozen,
    Name,
    PositiveDuration,
    SpecModel,
    Text,
    TimeZone,
    WholeNumber,
    one_of,
)

_TEMPORAL = ("dateFormat", "timestampFormat", "timestampNTZFormat", "locale")
_CSV_FLAGS = ("header", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "multiLine")
_JSON_FLAGS = (
    "allowComments",
    "allowSingleQuotes",
    "allowUnquotedFieldNames",
    "allowNumericLeadingZeros",
    "allowNonNumericNumbers",
    "primitivesAsString",
)
_FLAGS = frozenset((*_CSV_FLAGS, *_JSON_FLAGS))
_CSV_TEXTS = ("sep", "delimiter", "quote", "escape", "nullValue", "nanValue", "emptyValue", "comment")
READER_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "csv": ("header", *_CSV_TEXTS, *_CSV_FLAGS[1:], *_TEMPORAL),
    "json": (*_JSON_FLAGS, *_TEMPORAL),
    "parquet": (),
}
"""The options of Spark's readers that may be set, by format."""
_SET_BY_PRODUCT = frozenset(("mode", "columnNameOfCorruptRecord", "inferSchema", "enforceSchema"))
FORMAT_ALIASES = dict.fromkeys(("json lines", "json_lines", "jsonl", "ndjson"), "json")
LATER_SOURCE_KINDS = ("delta", "kafka")
_LONGEST_SETTLE = timedelta(days=30)


class Alignment(SpecModel):
    """How far one source may run ahead of the others of its group (F, scan.watermark.alignment.*)."""

    group: Name = Field(description="Sources of one group wait for each other.")
    max_drift: Duration = Field(
        description="A source whose watermark is further than this above the lowest of the group is not read."
    )
    update_interval: PositiveDuration = Field(
        default=timedelta(seconds=1),
        description="How much of the source, by the times of its files, is read before it is judged again; at least "
        "one file.",
    )

    @property
    def max_drift_us(self) -> int:
        """The largest drift in microseconds."""
        return micros(self.max_drift)

    @property
    def update_interval_us(self) -> int:
        """The interval in microseconds."""
        return micros(self.update_interval)


OptionValue = str | bool | int


def option_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one reader option."""
    return {"type": "boolean"} if name in _FLAGS else {"type": ["string", "integer"]}


def _options(value: object) -> Mapping[str, OptionValue]:
    """Check the values; which options a format has is checked where the format is known."""
    if not isinstance(value, Mapping):
        raise ProblemsError([Problem(f"found {show(value)}", expected="a mapping of reader options")])
    problems = []
    known = {name for options in READER_OPTIONS.values() for name in options}
    for name, option in value.items():
        is_flag = isinstance(option, bool)
        if name in _FLAGS and not is_flag:
            problems.append(Problem(f"found {show(option)}", expected="true or false", at=(name,)))
        elif name in known - _FLAGS and (is_flag or not isinstance(option, str | int)):
            remedy = "put the value in quotes"
            problems.append(Problem(f"found {show(option)}", expected="text", remedy=remedy, at=(name,)))
    raise_any(problems)
    return dict(value)


class SourceIdle(SpecModel):
    """When the splits of one source are idle."""

    timeout: PositiveDuration = Field(
        description="How long without an event, by the clock of the log; overrides time.idle.timeout."
    )

    @property
    def timeout_us(self) -> int:
        """The timeout in microseconds."""
        return micros(self.timeout)


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = [Problem(f"{show(v)} stands twice", at=(i,)) for i, v in enumerate(values) if v in values[:i]]
    raise_any(twice)
    return values


def _not_for_ever(settle: timedelta) -> timedelta:
    if settle > _LONGEST_SETTLE:
        found = f"found {format_duration(settle)}: no file would be read for that long"
        raise ProblemsError([Problem(found, expected=f"at most {format_duration(_LONGEST_SETTLE)}")])
    return settle


class FilesSource(SpecModel):
    """Files that arrive in a folder."""

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {"unaligned": "every source of files can stop between two files"}

    name: Name = Field(description="Name of the source; it stands in `_source`.")
    kind: Annotated[Literal["files"], one_of("files", later=LATER_SOURCE_KINDS)] = Field(
        description="Kind of source: files."
    )
    path: Text = Field(description="Files as a glob, relative to the spec file, such as data/*.csv.")
    format: Annotated[
        Literal["csv", "json", "parquet"],
        one_of("csv", "json", "parquet", aliases=FORMAT_ALIASES),
        WithJsonSchema({"enum": ["csv", "json", "parquet", *FORMAT_ALIASES]}),
    ] = Field(description="Format of the files: csv, json (one object a line) or parquet.")
    options: Annotated[
        Mapping[str, OptionValue],
        PlainValidator(_options),
        Frozen,
        PlainSerializer(dict),
        WithJsonSchema({"type": "object"}),
    ] = Field(default={}, description="Options of Spark's reader for this format, such as {header: true}.")
    columns: Text = Field(
        alias="schema", description="Columns as Spark DDL; other columns of the files are left out."
    )
    rename: Annotated[Mapping[Text, Text], Frozen, PlainSerializer(dict)] = Field(
        default={},
        description="New names for columns: {name in the file: name in the tables}; `schema` has one of the two.",
    )
    keep_unknown: Flag = Field(
        default=False, description="Keep columns that `schema` does not name, as JSON text in `_rescued`."
    )
    arrival_time: InstantExpression | None = Field(
        default=None, description="When a record arrived, a Spark SQL expression; default: the file's time."
    )
    live: Flag = Field(
        default=False,
        description="With arrival_time: it is the machine's time, so a live run may continue it by the clock.",
    )
    order: Annotated[Literal["arrival_time", "position"], one_of("arrival_time", "position")] = Field(
        default="arrival_time",
        description="Order of the records of one ingestion: by arrival time, then path and position; or "
        "position: files by name, records as they lie, so that any pick-up gives the same log.",
    )
    split: Expression | None = Field(
        default=None,
        description="Divides the source into splits, such as a partition; the watermark is that of the slowest "
        "of the splits. A source without it is one split beside the other sources.",
    )
    splits: Annotated[tuple[Text, ...], AfterValidator(_distinct)] = Field(
        default=(), description="Values of `split` that hold back the watermark before their first event."
    )
    timestamp_by: InstantExpression | None = Field(
        default=None, description="Event time of this source; overrides time.timestamp_by."
    )
    time_zone: TimeZone | None = Field(
        default=None, description="Zone of this source's times without one; overrides time.time_zone."
    )
    out_of_orderness: Duration | None = Field(
        default=None, description="Out-of-orderness of this source's splits; overrides time.out_of_orderness."
    )
    idle: SourceIdle | None = Field(default=None, description="When this source's splits are idle.")
    alignment: Alignment | None = Field(
        default=None, description="Wait for sources of a group that are behind: {group: g, max_drift: 1 minute}."
    )
    settle: Annotated[Duration, AfterValidator(_not_for_ever)] = Field(
        default=timedelta(seconds=5),
        description="A file younger than this waits for the next run; at most 30 days.",
    )
    max_files: WholeNumber = Field(default=10_000, description="Most files in one ingestion.")
    max_bytes: ByteSize = Field(
        default=10 * 1024**3,
        description="Most bytes in one ingestion: a number, or text such as 1 GiB; at least one file is read.",
    )

    @property
    def columns_in_tables(self) -> list[str]:
        """Names of the payload columns as they stand in the tables, in the order of `schema`."""
        return columns_in_tables(self.columns, self.rename)

    @property
    def out_of_orderness_us(self) -> int | None:
        """The out-of-orderness in microseconds; None where `time` says it."""
        return None if self.out_of_orderness is None else micros(self.out_of_orderness)

    @property
    def follows_wall_clock(self) -> bool:
        """Whether its arrival times are the machine's, so that they go on while nothing comes."""
        return self.arrival_time is None or self.live

    @model_validator(mode="before")
    @classmethod
    def _kind_first(cls, data: Any) -> Any:
        """Say that a kind is not supported yet before its keys are judged as those of files."""
        if isinstance(data, Mapping) and data.get("kind") in LATER_SOURCE_KINDS:
            found = f"found {show(data['kind'])}: sources of this kind are not supported yet"
            raise ProblemsError([Problem(found, expected="files", at=("kind",))])
        return data

    @model_validator(mode="after")
    def _together(self) -> "FilesSource":
        problems = [*self._option_problems(), *self._name_problems()]
        if self.arrival_time is not None and mentions(self.arrival_time, "_arrival_time"):
            found = "`_arrival_time` is what this expression defines"
            expected = "an expression over columns of the record"
            problems.append(Problem(found, expected=expected, at=("arrival_time",)))
        given = self.alignment.model_fields_set if self.alignment is not None else ()
        if self.arrival_time is not None and "update_interval" in given:
            found = "`update_interval` has no effect with `arrival_time`: a file's span is known only after reading"
            remedy = "leave it out: one file is read at a time"
            problems.append(Problem(found, remedy=remedy, at=("alignment", "update_interval")))
        if self.live and self.arrival_time is None:
            found = "`live: true` has no effect without `arrival_time`: file times are the machine's already"
            problems.append(Problem(found, remedy="leave it out", at=("live",)))
        raise_any(problems)
        return self

    def _name_problems(self) -> list[Problem]:
        return rename_problems(self.rename) or schema_problems(self.columns, self.rename)

    def _option_problems(self) -> list[Problem]:
        known = READER_OPTIONS[self.format]
        expected = f"for {self.format} " + (f"one of {', '.join(known)}" if known else "no options")
        problems = []
        for name in self.options:
            at = ("options", name)
            if name in _SET_BY_PRODUCT:
                found = f"the option `{name}` is set by Tidemark, so that no record is lost or guessed"
                problems.append(Problem(found, remedy="leave it out", at=at))
            elif name not in known:
                remedy = did_you_mean(name, known)
                problems.append(Problem(f"unknown option `{name}`", expected, remedy, at))
        if {"sep", "delimiter"} <= set(self.options):
            found = "`sep` and `delimiter` are the same option"
            problems.append(Problem(found, expected="one of them", at=("options", "delimiter")))
        return problems
