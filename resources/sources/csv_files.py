"""CSV: fields by position or by the header of each file, parsed so that no record is lost or guessed.

Here: which records fit the declared columns. Not here: line numbers (lines.py), names after `rename`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from tidemark.resources.sources.fitness import Dialect, Header, dialect, found_columns, read_header
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.lines import (
    GROUP,
    LINE,
    RAW,
    Numbered,
    Part,
    number,
    parser_options,
    read_lines,
    to_records,
)
from tidemark.resources.sources.local_files import LONGEST_LINE, spark_path
from tidemark.resources.sources.typed_texts import Reading, holds, with_texts, with_values
from tidemark.timeops.expressions.text_times import EXACT
from tidemark.timeops.spec import FilesSource, Source
from tidemark.timeops.spec.fields import all_names

_SIGNS = ("sep", "delimiter", "quote", "escape")
_MOST_COLUMNS = 20_480  # Spark's own limit; a line with more fails the job, so it must not reach the parser


@dataclass(frozen=True)
class Layout:
    """The columns of a group of files that have the same header; `names` as in the file."""

    number: int
    names: tuple[str, ...]
    wanted: StructType

    @property
    def shape(self) -> StructType:
        """All columns by position: wanted ones typed, others as text, and the text that cannot be parsed."""
        types = {field.name: with_texts(field.dataType) for field in self.wanted}
        fields = [StructField(f"_c{i}", types.get(name, StringType())) for i, name in enumerate(self.names)]
        return StructType([*fields, StructField(RAW, StringType())])

    @property
    def parsed(self) -> str:
        """The column that holds its parsed lines."""
        return f"__tm_parsed_{self.number}"

    @property
    def ddl(self) -> str:
        """The shape as DDL."""
        return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in self.shape)

    def is_sound(self) -> Column:
        """Return whether a line was parsed with this layout, and fits it."""
        parsed = F.col(self.parsed)
        return parsed.isNotNull() & parsed[RAW].isNull()

    def field_sql(self, name: str) -> str:
        """Return SQL of a wanted column of a parsed line; null if the file lacks it."""
        if name not in self.names:
            return f"CAST(NULL AS {with_texts(self.wanted[name].dataType).simpleString()})"
        return f"{self.parsed}._c{self.names.index(name)}"

    def repeats_header(self, source: FilesSource) -> Column:
        """Return whether a record repeats the header, as happens in files that were concatenated."""
        texts = all(isinstance(field.dataType, StringType) for field in self.shape)
        if not texts or len(self.names) < 2 or not source.options.get("header", False):
            return F.lit(False)  # a name does not fit a column of another type, and a single name may be a value
        parsed = F.col(self.parsed)
        same = [parsed[f"_c{i}"].isin(*all_names(name, source.rename), name) for i, name in enumerate(self.names)]
        return F.coalesce(reduce(Column.__and__, same), F.lit(False))

    def unknown(self) -> Column:
        """Return the other columns that have a value, as JSON text."""
        parsed, wanted = F.col(self.parsed), set(self.wanted.names)
        others = [parsed[f"_c{i}"].alias(name or f"_c{i}") for i, name in enumerate(self.names) if name not in wanted]
        if not others:
            return F.lit(None).cast("string")
        return F.when(parsed.isNotNull(), F.to_json(F.struct(*others)))


def read_csv(
    spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange], time_zone: str
) -> Numbered:
    """Read CSV files: the columns of `schema`, and the columns that every reader adds (see files.py).

    With a header the columns of `schema` are found by name, without one by position. A record is malformed if
    it has too few or too many fields, a value that does not fit its column exactly, or a quote that is not closed.

    Raises:
        InputError: A wanted column is missing from a header.
        SpecError: An option is wrong.
    """
    cut = dialect(source)
    multiline = bool(source.options.get("multiLine", False))
    by_position = Header(tuple(schema.names), 0)
    headers = {file.path: by_position for file in ranges}
    if source.options.get("header", False):
        for path in headers:
            header = read_header(path, cut, multiline=multiline)
            if header.line:  # a file of blank lines has no records
                columns = found_columns(path, source, schema.names, header.names, "the header")
                wanted = {there: name for name, there in columns.items() if there is not None}
                headers[path] = Header(tuple(wanted.get(name, name) for name in header.names), header.line)
    known = {names: i for i, names in enumerate(dict.fromkeys(header.names for header in headers.values()))}
    layouts = [Layout(i, names, schema) for names, i in known.items()]
    parts = [
        Part(
            file,
            # With multiLine the header is the first record, whatever blank lines and comments come before it.
            skip=min(headers[file.path].line, 1) if multiline else max(file.skip_lines, headers[file.path].line),
            group=known[headers[file.path].names],
        )
        for file in ranges
    ]
    reading = Reading(time_zone, parser_options(source))
    return (
        _read_multiline(spark, source, reading, layouts, parts)
        if multiline
        else _read_lines(spark, source, reading, layouts, parts)
    )


def _read_lines(
    spark: SparkSession,
    source: FilesSource,
    reading: Reading,
    layouts: Sequence[Layout],
    parts: Sequence[Part],
) -> Numbered:
    cut = dialect(source)
    numbered = read_lines(spark, parts)
    lines = numbered.records.where(F.trim(LINE) != "")
    if cut.comment:
        lines = lines.where(~F.startswith(LINE, F.lit(cut.comment)))
    most = max(_MOST_COLUMNS, *(len(layout.names) for layout in layouts))
    options = {**reading.options, "maxColumns": str(most + 1)}
    separators = F.length(LINE) - F.length(F.replace(LINE, F.lit(cut.sep)))
    fits = (F.length(LINE) < most) | (separators < most)
    parsed = lines.select(
        "*",
        *(
            F.when((F.col(GROUP) == layout.number) & fits, F.from_csv(LINE, layout.ddl, options)).alias(layout.parsed)
            for layout in layouts
        ),
    )
    sound = reduce(Column.__or__, (layout.is_sound() for layout in layouts)) & ~_has_open_quote(cut)
    return Numbered(_records(parsed, source, reading, layouts, ~sound), numbered.counts)


def _read_multiline(
    spark: SparkSession, source: FilesSource, reading: Reading, layouts: Sequence[Layout], parts: Sequence[Part]
) -> Numbered:
    """Read records that may hold line ends in quotes; only Spark's CSV reader can find their ends."""
    records: list[DataFrame] = []
    counts: dict[str, int] = {}
    longest = {"maxCharsPerColumn": str(LONGEST_LINE)}
    reader = spark.read.options(**reading.options, **longest, multiLine="true", header="false")
    for layout in layouts:
        mine = [part for part in parts if part.group == layout.number]
        scan = reader.schema(layout.shape).csv([spark_path(part.file.path) for part in mine])
        numbered = number(spark, scan, mine)
        parsed = numbered.records.withColumn(layout.parsed, F.struct(*layout.shape.names))
        texts = parsed.withColumn(LINE, F.coalesce(RAW, _as_written(source, layout)))
        records.append(_records(texts, source, reading, [layout], F.col(RAW).isNotNull()))
        counts.update(numbered.counts)
    return Numbered(reduce(DataFrame.union, records), counts)


def _records(
    parsed: DataFrame,
    source: FilesSource,
    reading: Reading,
    layouts: Sequence[Layout],
    malformed: Column,
) -> DataFrame:
    """Take the columns of each record from the layout of its file; other parsed lines are null.

    Args:
        parsed: Parsed records, with their texts in `__tm_line`.
        source: The source.
        reading: The rules by which texts become values.
        layouts: The layouts of its files.
        malformed: Whether a record could not be parsed.
    """
    wanted = layouts[0].wanted
    written = {name: f"coalesce({', '.join(layout.field_sql(name) for layout in layouts)})" for name in wanted.names}
    own = [field for field in wanted if holds(field.dataType, EXACT)]
    malformed = reduce(Column.__or__, (layout.repeats_header(source) for layout in layouts), malformed)
    typed, values, misfit = with_values(parsed, {field.name: written[field.name] for field in own}, own, reading)
    return to_records(
        typed,
        source,
        columns={name: values.get(name, F.expr(written[name])) for name in wanted.names},
        rescued=F.coalesce(*(layout.unknown() for layout in layouts)),
        malformed=F.when(malformed | misfit, F.col(LINE)),
    )


def text_as_csv(text: Column, kind: DataType, source: Source) -> Column:
    """Read the text of a field as a record does: its value in `_c0`, and the text in `RAW` if it does not fit."""
    signs = {name: str(source.reader_options[name]) for name in _SIGNS if name in source.reader_options}
    ddl = f"_c0 {kind.simpleString()}, `{RAW}` STRING"
    return F.from_csv(F.to_csv(F.struct(text), signs), ddl, parser_options(source))


def _as_written(source: FilesSource, layout: Layout) -> Column:
    """Return the text of a record that Spark's reader could parse but does not return."""
    signs = {name: str(source.options[name]) for name in _SIGNS if name in source.options}
    return F.to_csv(F.col(layout.parsed).dropFields(RAW), signs)


def _has_open_quote(cut: Dialect) -> Column:
    """Return whether a line ends inside a quoted field: Spark's parser would read on for its value.

    Fields are consumed from the left with possessive quantifiers, so the time is linear and the stack flat. As for
    the parser, a quoted field ends at its first quote that is not escaped, and what follows up to the separator
    belongs to it.
    """
    if not cut.quote:
        return F.lit(False)
    quote, sep, escape = re.escape(cut.quote), re.escape(cut.sep), re.escape(cut.escape)
    if cut.escape in {"", cut.quote}:
        pair = f"(?:{quote}{quote}[^{quote}]*+)*+" if cut.escape else ""
        inner, end = f"[^{quote}]*+{pair}", ""
    else:
        inner, end = f"[^{quote}{escape}]*+(?:{escape}.[^{quote}{escape}]*+)*+", f"{escape}?+"
    lead = "[ \\t]*+" if cut.skips_leading_blanks else ""
    quoted, plain = f"{lead}{quote}{inner}{quote}[^{sep}]*+", f"(?!{lead}{quote})[^{sep}]*+"
    pattern = f"(?s)^(?:(?:{quoted}|{plain}){sep})*+{lead}{quote}{inner}{end}$"
    return F.contains(LINE, F.lit(cut.quote)) & F.regexp_like(LINE, F.lit(pattern))
