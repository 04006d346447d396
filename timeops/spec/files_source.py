"""Files as a source: the keys that say which files are read, and how.

Here: format, reader options, limits of one ingestion. Not here: the keys that every source has (source.py), reading
(resources/sources/).
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from tidemark.timeops.durations import format_duration
from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.problems import Problem, ProblemsError, did_you_mean, raise_any, show
from tidemark.timeops.spec.fields import Duration, Frozen, Location, WholeNumber, all_names, one_of
from tidemark.timeops.spec.source import ORDERS, SOURCE_KINDS, StoredSource

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


def _text_of_null(value: object) -> object:
    """Take what YAML reads as nothing for the word."""
    return "null" if value is None else value


def _not_for_ever(settle: timedelta) -> timedelta:
    if settle > _LONGEST_SETTLE:
        found = f"found {format_duration(settle)}: no file would be read for that long"
        raise ProblemsError([Problem(found, expected=f"at most {format_duration(_LONGEST_SETTLE)}")])
    return settle


class FilesSource(StoredSource):
    """Files that arrive in a folder."""

    PART: ClassVar[str] = "file"
    ARRIVALS: ClassVar[str] = "file times"
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
    order: Annotated[Literal["arrival_time", "position"], one_of(*ORDERS)] = Field(
        default="arrival_time",
        description="Order of the records of one ingestion: by arrival time, then path and position; or "
        "position: files by name, records as they lie, so that any pick-up leads to the same log.",
    )
    settle: Annotated[Duration, AfterValidator(_not_for_ever)] = Field(
        default=timedelta(seconds=5),
        description="A file younger than this waits for the next run; at most 30 days.",
    )
    max_files: WholeNumber = Field(default=10_000, description="Most files in one ingestion.")
    missing: Annotated[Literal["hold", "null"], one_of("hold", "null"), BeforeValidator(_text_of_null)] = Field(
        default="hold",
        description="A column of `schema` that a csv or parquet file lacks: hold keeps the file back, null reads it "
        "with nulls.",
    )
    on_rewrite: Annotated[Literal["hold", "read"], one_of("hold", "read")] = Field(
        default="hold",
        description="A file whose bytes changed after they were read: hold keeps it back, read reads it whole, as "
        "new records.",
    )

    @property
    def header(self) -> tuple[tuple[str, ...], ...]:
        """The names that the header of a csv file may have for each column of `schema`; nothing without headers."""
        if self.format != "csv" or not self.options.get("header", False):
            return ()
        return tuple(all_names(name, self.rename) for name in top_level_names(self.columns))

    def _own_problems(self) -> Iterator[Problem]:
        known = READER_OPTIONS[self.format]
        expected = f"for {self.format} " + (f"one of {', '.join(known)}" if known else "no options")
        for name in self.options:
            at = ("options", name)
            if name in _SET_BY_PRODUCT:
                found = f"the option `{name}` is set by Tidemark, so that no record is lost or guessed"
                yield Problem(found, remedy="leave it out", at=at)
            elif name not in known:
                remedy = did_you_mean(name, known)
                yield Problem(f"unknown option `{name}`", expected, remedy, at)
        if self.missing == "null" and self.format == "json":
            found = "`missing` has no effect with `format: json`: a key that a record lacks is null"
            yield Problem(found, remedy="leave it out", at=("missing",))
        if self.missing == "null" and self.format == "csv" and not self.options.get("header", False):
            found = "`missing` has no effect without `header: true`: the columns of a file are those of `schema`"
            yield Problem(found, remedy="leave it out, or set `header` in `options`", at=("missing",))
        if {"sep", "delimiter"} <= set(self.options):
            found = "`sep` and `delimiter` are the same option"
            yield Problem(found, expected="one of them", at=("options", "delimiter"))
