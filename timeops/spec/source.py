"""Sources of a spec: the keys that all kinds share, the ones of files and of Delta tables.

Here: columns, times, splits, how far a source may run ahead of others (F), formats, limits of one ingestion, which
versions of a table are read. Not here: the keys of Kafka (timeops/spec/kafka_source.py), rules between sources
(timeops/spec/pipeline.py), reading (resources/sources/), who waits for whom (timeops/watermark/alignment.py).
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from tidemark.timeops.errors.problems import (
    Misread,
    Problem,
    ProblemsError,
    as_flag,
    as_number,
    did_you_mean,
    misfit,
    raise_any,
    show,
)
from tidemark.timeops.expressions.tokens import mentions, top_level_names
from tidemark.timeops.spec.fields import (
    AssetPath,
    ByteSize,
    Duration,
    Expression,
    Flag,
    Frozen,
    Instant,
    InstantExpression,
    Location,
    Name,
    PositiveDuration,
    SpecModel,
    Text,
    TimeZone,
    WholeNumber,
    all_names,
    columns_in_tables,
    one_of,
    read_duration,
    rename_problems,
    schema_problems,
)
from tidemark.timeops.values.durations import DURATION_PATTERN, format_duration, micros
from tidemark.timeops.values.utc import us_of

SOURCE_KINDS = ("files", "delta", "kafka")


class Alignment(SpecModel):
    """How far a source, or a partition of Kafka, may run ahead of its group (F, scan.watermark.alignment.*)."""

    group: Name = Field(description="Sources of one group wait for each other; with Kafka, so does each partition.")
    max_drift: Duration = Field(
        description="A source, or a Kafka partition, whose watermark is more than this above the lowest in the "
        "group is not read."
    )
    update_interval: PositiveDuration = Field(
        default=timedelta(seconds=1),
        description="How much of the source, by the times of its files, commits or Kafka records, is read before it "
        "is judged again; at least one of them.",
    )

    @property
    def max_drift_us(self) -> int:
        """The largest drift in microseconds."""
        return micros(self.max_drift)

    @property
    def update_interval_us(self) -> int:
        """The interval in microseconds."""
        return micros(self.update_interval)


class SourceIdle(SpecModel):
    """When the splits of one source are idle."""

    timeout: PositiveDuration = Field(
        description="How long without an event, by the clock of the log; overrides time.idle.timeout."
    )

    @property
    def timeout_us(self) -> int:
        """The timeout in microseconds."""
        return micros(self.timeout)


def distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return a list in which no value occurs twice.

    Raises:
        ProblemsError: A value does.
    """
    twice = [Problem(f"{show(v)} occurs twice", at=(i,)) for i, v in enumerate(values) if v in values[:i]]
    raise_any(twice)
    return values


def _read_bound(value: object) -> timedelta | Literal["off"]:
    """Return a duration, or `off`, which YAML reads as a flag."""
    return "off" if (value.text if isinstance(value, Misread) else value) == "off" else read_duration(value)


DurationOrOff = Annotated[
    timedelta | Literal["off"],
    PlainValidator(_read_bound),
    PlainSerializer(lambda bound: bound if bound == "off" else format_duration(bound), return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": DURATION_PATTERN}, {"const": "off"}]}),
]


class Source(SpecModel):
    """A source of records, whatever kind it is."""

    ARRIVALS: ClassVar[str]
    """The arrival times that its records have by themselves."""
    ARRIVAL: ClassVar[str]
    """The same of one record."""

    name: Name = Field(description="Name of the source, the value of `_source`.")
    was: Name | None = Field(
        default=None,
        description="The source's former name: what was read from it is kept under the new one. The key may stay in "
        "the spec.",
        json_schema_extra={"since": "0.2.0"},
    )
    kind: str
    columns: Text = Field(alias="schema", description="Columns as Spark DDL; other columns are left out.")
    rename: Annotated[Mapping[Text, Text], Frozen, PlainSerializer(dict)] = Field(
        default={},
        description="New names for columns: {name in the input: name in the tables}; `schema` has one of the two.",
    )
    keep_unknown: Flag = Field(
        default=False, description="Keep columns that `schema` does not name, as JSON text in `_rescued`."
    )
    arrival_time: InstantExpression | None = Field(
        default=None,
        description="When a record arrived, a Spark SQL expression; default: the time of its file, of the commit "
        "that added it, or the timestamp of a Kafka record.",
    )
    future_arrival: DurationOrOff = Field(
        default=timedelta(hours=1),
        description="A record that arrived further ahead of the machine's clock than this arrives when it is read, "
        "so that a wrong clock moves no watermark and no idle rule; `off` for no bound.",
        json_schema_extra={"since": "0.2.0"},
    )
    live: Flag = Field(
        default=False,
        description="With arrival_time: it is the machine's time, so a live run may continue it by the clock.",
    )
    split: Expression | None = Field(
        default=None,
        description="Divides the source into splits, such as a partition; the watermark is that of the slowest "
        "split. A source without it is one split next to the other sources.",
    )
    splits: Annotated[tuple[Text, ...], AfterValidator(distinct)] = Field(
        default=(), description="Values of `split` that hold back the watermark before their first event."
    )
    timestamp_by: InstantExpression | None = Field(
        default=None, description="Event time of this source; overrides time.timestamp_by."
    )
    time_zone: TimeZone | None = Field(
        default=None,
        description="Zone of this source's times that are written without one; overrides time.time_zone.",
    )
    out_of_orderness: Duration | None = Field(
        default=None, description="Out-of-orderness of this source's splits; overrides time.out_of_orderness."
    )
    idle: SourceIdle | None = Field(default=None, description="When this source's splits are idle.")
    alignment: Alignment | None = Field(
        default=None,
        description="Wait for sources of a group, and partitions, that are slower: {group: g, max_drift: 1 minute}.",
    )
    upstream: Annotated[tuple[AssetPath, ...], AfterValidator(distinct)] = Field(
        default=(),
        description="Keys of the Dagster assets that write what the source reads, such as raw/orders; default: the "
        "table's asset where a pipeline writes it, else an asset for the folder, topic or table.",
        json_schema_extra={"since": "0.2.0"},
    )

    @property
    def place(self) -> str:
        """The name of the source in messages: the path, or the topics."""
        raise NotImplementedError

    @property
    def what(self) -> str:
        """The kind of its input, in words."""
        raise NotImplementedError

    @property
    def form(self) -> str:
        """The format of its records; `delta` for records of a Delta table."""
        return self.kind

    @property
    def is_text(self) -> bool:
        """True if its records are parsed from text each time that they are read."""
        return False

    @property
    def reader_options(self) -> Mapping[str, bool | int | str]:
        """Options of Spark's reader of its format."""
        return {}

    @property
    def header(self) -> tuple[tuple[str, ...], ...]:
        """The names that the header of a csv file may have for each column of `schema`; nothing without headers."""
        return ()

    @property
    def folder(self) -> str | None:
        """Path or URL of what is read; None if it is not stored in a folder."""
        return None

    @property
    def settles_in(self) -> timedelta:
        """How old input has to be before it is read."""
        return timedelta(0)

    @property
    def record_order(self) -> str | None:
        """How the records of an ingestion are ordered; None for rows of a table: by the times of their commits."""
        return None

    @property
    def notes_losses(self) -> bool:
        """True if reading continues after records that are gone, and `log_control` says which these are."""
        return False

    @property
    def has_splits(self) -> bool:
        """True if its records are of several splits."""
        return self.split is not None

    @property
    def is_read_by_split(self) -> bool:
        """True if each of its splits can be read by itself, so that one may wait while others are read on."""
        return False

    @property
    def columns_in_tables(self) -> list[str]:
        """Names of the payload columns as they are in the tables, in the order of `schema`."""
        return [*columns_in_tables(self.columns, self.rename), *self.added_columns]

    @property
    def added_columns(self) -> Mapping[str, str]:
        """Payload columns that are not of `schema`, and the type of each as DDL."""
        return {}

    @property
    def out_of_orderness_us(self) -> int | None:
        """The out-of-orderness in microseconds; None where `time` says it."""
        return None if self.out_of_orderness is None else micros(self.out_of_orderness)

    @property
    def future_arrival_us(self) -> int | None:
        """How far ahead of the machine's clock an arrival may be, in microseconds; None for no bound."""
        return None if self.future_arrival == "off" else micros(self.future_arrival)

    @property
    def follows_wall_clock(self) -> bool:
        """True if its arrival times are the machine's, so that time passes while nothing comes."""
        return self.arrival_time is None or self.live

    @model_validator(mode="after")
    def _shared_keys(self) -> "Source":
        names = rename_problems(self.rename) or schema_problems(self.columns, self.rename)
        raise_any([*self._own_problems(), *names, *self._arrival_problems()])
        return self

    def _own_problems(self) -> Iterator[Problem]:
        """Find what is wrong with the keys of one kind."""
        yield from ()

    def _arrival_problems(self) -> Iterator[Problem]:
        if self.arrival_time is not None and mentions(self.arrival_time, "_arrival_time"):
            fault = "`_arrival_time` is what this expression defines"
            expected = "an expression over columns of the record"
            yield Problem(fault, expected=expected, at=("arrival_time",))
        if self.live and self.arrival_time is None:
            fault = f"`live: true` has no effect without `arrival_time`: {self.ARRIVALS} are the machine's already"
            yield Problem(fault, remedy="leave it out", at=("live",))


class StoredSource(Source):
    """A source that lies in a folder and is read part by part."""

    PART: ClassVar[str]
    """The name of one part of it."""

    path: Text
    max_bytes: ByteSize = Field(
        default=10 * 1024**3,
        description="Most bytes in one ingestion: a number, or text such as 1 GiB; at least one file or version is "
        "read.",
    )

    @property
    def place(self) -> str:
        """The path."""
        return self.path

    @property
    def folder(self) -> str:
        """The path."""
        return self.path

    def _arrival_problems(self) -> Iterator[Problem]:
        yield from super()._arrival_problems()
        keys = self.alignment.model_fields_set if self.alignment is not None else ()
        if self.arrival_time is not None and "update_interval" in keys:
            why = f"a {self.PART}'s span is known only after reading"
            remedy = f"leave it out: one {self.PART} is read at a time"
            fault = f"`update_interval` has no effect with `arrival_time`: {why}"
            yield Problem(fault, remedy=remedy, at=("alignment", "update_interval"))


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
_LONGEST_SETTLE = timedelta(days=30)


OptionValue = str | bool | int


def option_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one reader option."""
    return {"type": "boolean"} if name in _FLAGS else {"type": ["string", "integer"]}


def _options(value: object) -> Mapping[str, OptionValue]:
    """Check the values; which options a format has is checked where the format is known."""
    if not isinstance(value, Mapping):
        raise misfit(value, "a mapping of reader options")
    problems = []
    allowed = {name for options in READER_OPTIONS.values() for name in options}
    options: dict[str, Any] = {name: as_flag(option) if name in _FLAGS else option for name, option in value.items()}
    for name, option in options.items():
        is_flag = isinstance(option, bool)
        if name in _FLAGS and not is_flag:
            problems.append(Problem(f"found {show(option)}", expected="true or false", at=(name,)))
        elif name in allowed - _FLAGS and (is_flag or not isinstance(option, str | int)):
            remedy = "put the value in quotes"
            problems.append(Problem(f"found {show(option)}", expected="text", remedy=remedy, at=(name,)))
    raise_any(problems)
    return options


_WORD_NULL = BeforeValidator(lambda value: "null" if value is None else value)
"""Takes what YAML reads as nothing for the word."""


def _not_for_ever(settle: timedelta) -> timedelta:
    if settle > _LONGEST_SETTLE:
        fault = f"found {format_duration(settle)}: no file would be read for that long"
        raise ProblemsError([Problem(fault, expected=f"at most {format_duration(_LONGEST_SETTLE)}")])
    return settle


class FilesSource(StoredSource):
    """Files that arrive in a folder."""

    PART: ClassVar[str] = "file"
    ARRIVALS: ClassVar[str] = "file times"
    ARRIVAL: ClassVar[str] = "the time of its file"
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {"unaligned": "every source of files can stop between two files"}

    kind: Annotated[Literal["files"], one_of(*SOURCE_KINDS)] = Field(
        description="Kind of source: files, delta or kafka."
    )
    path: Location = Field(
        description="Files as a glob, relative to the spec file, such as data/*.csv, or a URL with wildcards, "
        "such as s3://bucket/landing/*.csv."
    )
    format: Annotated[
        Literal["csv", "json", "parquet"],
        one_of(*READER_OPTIONS, aliases=FORMAT_ALIASES),
        WithJsonSchema({"enum": [*READER_OPTIONS, *FORMAT_ALIASES]}),
    ] = Field(description="Format of the files: csv, json (one object a line) or parquet.")
    options: Annotated[
        Mapping[str, OptionValue],
        PlainValidator(_options),
        Frozen,
        PlainSerializer(dict),
        WithJsonSchema({"type": "object"}),
    ] = Field(default={}, description="Options of Spark's reader for this format, such as {header: true}.")
    order: Literal["arrival_time", "position"] = Field(
        default="arrival_time",
        description="Order of the records of one ingestion: by arrival time, then path and position; or "
        "position: files by name, records in file order, so that the log is the same whenever files are picked up.",
    )
    settle: Annotated[Duration, AfterValidator(_not_for_ever)] = Field(
        default=timedelta(seconds=5),
        description="A file younger than this waits for the next run; at most 30 days.",
    )
    max_files: WholeNumber = Field(default=10_000, description="Most files in one ingestion.")
    skip_lines: WholeNumber | None = Field(
        default=None,
        description="csv only: lines at the beginning of each file that are not read, such as a title above the "
        "header; not with multiLine.",
        json_schema_extra={"since": "0.2.0"},
    )
    missing: Annotated[Literal["hold", "null"], _WORD_NULL] = Field(
        default="hold",
        description="A column of `schema` that a csv or parquet file lacks: hold keeps the file back, null reads it "
        "with nulls.",
    )
    on_rewrite: Literal["hold", "read"] = Field(
        default="hold",
        description="A file whose bytes changed after they were read: hold keeps it back, read reads it whole, as "
        "new records.",
    )

    @property
    def what(self) -> str:
        """Files of a format."""
        return f"{self.format.upper()} files"

    @property
    def form(self) -> str:
        """The format of the files."""
        return self.format

    @property
    def is_text(self) -> bool:
        """True if the files are text: their records are found by reading them."""
        return self.format in {"csv", "json"}

    @property
    def reader_options(self) -> Mapping[str, bool | int | str]:
        """The options of the spec."""
        return self.options

    @property
    def settles_in(self) -> timedelta:
        """The age of the spec."""
        return self.settle

    @property
    def record_order(self) -> str:
        """The order of the spec."""
        return self.order

    @property
    def header(self) -> tuple[tuple[str, ...], ...]:
        """The names that the header of a csv file may have for each column of `schema`; nothing without headers."""
        if self.format != "csv" or not self.options.get("header", False):
            return ()
        return tuple(all_names(name, self.rename) for name in top_level_names(self.columns))

    def _own_problems(self) -> Iterator[Problem]:
        allowed = READER_OPTIONS[self.format]
        expected = f"for {self.format} " + (f"one of {', '.join(allowed)}" if allowed else "no options")
        for name in self.options:
            at = ("options", name)
            if name in _SET_BY_PRODUCT:
                fault = f"the option `{name}` is set by Tidemark, so that no record is lost or guessed"
                yield Problem(fault, remedy="leave it out", at=at)
            elif name not in allowed:
                remedy = did_you_mean(name, allowed)
                yield Problem(f"unknown option `{name}`", expected=expected, remedy=remedy, at=at)
        if self.missing == "null" and self.format == "json":
            fault = "`missing` has no effect with `format: json`: a key that a record lacks is null"
            yield Problem(fault, remedy="leave it out", at=("missing",))
        if self.missing == "null" and self.format == "csv" and not self.options.get("header", False):
            fault = "`missing` has no effect without `header: true`: the columns of a file are the ones in `schema`"
            yield Problem(fault, remedy="leave it out, or set `header` in `options`", at=("missing",))
        if self.skip_lines is not None and (self.format != "csv" or self.options.get("multiLine", False)):
            what = "`multiLine: true`" if self.format == "csv" else f"`format: {self.format}`"
            fault = f"`skip_lines` has no effect with {what}, which does not read line by line"
            yield Problem(fault, remedy="leave it out", at=("skip_lines",))
        if {"sep", "delimiter"} <= set(self.options):
            fault = "`sep` and `delimiter` are the same option"
            yield Problem(fault, expected="only one of them", at=("options", "delimiter"))


CHANGE_TYPE = "_change_type"
"""With `changes: rows`, the column of what a record does: insert, delete, update_preimage or update_postimage."""


def _folder(path: str) -> str:
    wild = [sign for sign in "*?[" if sign in path]
    if wild:
        fault = f"found {show(path)}, which holds {wild[0]!r}"
        raise ProblemsError([Problem(fault, expected="the folder of one Delta table", remedy="name the table")])
    return path


def _version(value: object) -> int:
    value = as_number(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise misfit(value, "a version of the table, from 0")
    return value


class DeltaSource(StoredSource):
    """A Delta table, read version by version."""

    PART: ClassVar[str] = "version"
    ARRIVALS: ClassVar[str] = "times of commits"
    ARRIVAL: ClassVar[str] = "the time of the commit that added it"

    kind: Annotated[Literal["delta"], one_of(*SOURCE_KINDS)] = Field(
        description="Kind of source: files, delta or kafka."
    )
    path: Annotated[Location, AfterValidator(_folder)] = Field(
        description="Folder of the table, relative to the spec file, such as ../bronze/orders, or its URL in a "
        "store, such as s3://bucket/bronze/orders."
    )
    changes: Literal["fail", "follow", "ignore", "rows"] = Field(
        default="fail",
        description="A commit that updates or deletes rows: fail (nothing after it is read), follow (the log is "
        "corrected, and what was computed from it is recomputed; best for results of another pipeline), ignore "
        "(it is skipped entirely), or rows (the table's change data feed is read, with `_change_type` as a "
        "column).",
    )
    start_version: (
        Annotated[
            int,
            BeforeValidator(_version),
            WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}),
        ]
        | None
    ) = Field(
        default=None,
        description="Read what this version and later ones add; default: first the whole table as it is. In a "
        "pipeline that has read earlier versions: skip the ones before it.",
    )
    start_timestamp: Instant | None = Field(
        default=None, description="Read what is added by versions that were committed at this instant or later. UTC."
    )
    max_versions: WholeNumber = Field(default=1_000, description="Most versions in one ingestion.")

    @property
    def what(self) -> str:
        """A table."""
        return "Delta table"

    @property
    def added_columns(self) -> Mapping[str, str]:
        """The column that says with `changes: rows` what was done to a row."""
        return {CHANGE_TYPE: "STRING"} if self.changes == "rows" else {}

    @property
    def start_us(self) -> int | None:
        """`start_timestamp` in microseconds since the epoch."""
        return None if self.start_timestamp is None else us_of(self.start_timestamp)

    def _own_problems(self) -> Iterator[Problem]:
        if self.start_version is not None and self.start_timestamp is not None:
            fault = "`start_version` and `start_timestamp` both say where to start"
            yield Problem(fault, expected="only one of them", at=("start_timestamp",))
        names = {*top_level_names(self.columns), *self.rename.values()}
        if self.changes == "rows" and CHANGE_TYPE in {name.lower() for name in names}:
            fault = f"`{CHANGE_TYPE}` is the column that `changes: rows` adds"
            yield Problem(fault, remedy="leave it out", at=("schema",))
