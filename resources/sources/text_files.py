"""CSV and JSON lines, parsed so that no record is lost or guessed; and columns that `_rescued` kept in these forms.

Here: which records fit the declared columns, fields of csv by position or by the header of each file, objects one a
line, and texts of JSON that Spark's parser changes silently. Not here: lines and their numbers
(resources/sources/lines.py), names after `rename`, the choice of records that are filled
(assets/rebuild/log_columns.py).

To keep the digits of JSON a line is marked: `"a"` becomes `"=a"` and `1.50` becomes `"#1.50"`, except keys. Values
that are parsed from a marked line are distinct by their marks, and are written again as they were.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from tidemark.resources.sources.columns import Dialect, Header, dialect, found_columns, read_header
from tidemark.resources.sources.conversion import types_in
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.lines import read_lines
from tidemark.resources.sources.local_files import LONGEST_LINE, path_of_url, spark_path
from tidemark.resources.sources.records import (
    FILE,
    GROUP,
    LINE,
    MODIFIED,
    POSITION,
    RAW,
    RESCUED,
    SKIP,
    URL,
    Numbered,
    Part,
    Reading,
    parser_options,
    to_records,
    with_files,
    with_texts,
    with_values,
)
from tidemark.resources.spark.frames import frame_of
from tidemark.timeops.expressions.column_types import variant_has_unknown_fields
from tidemark.timeops.expressions.text_values import EXACT
from tidemark.timeops.expressions.tokens import literal, literals, quoted
from tidemark.timeops.expressions.try_expression import holds, holds_floats
from tidemark.timeops.spec import FilesSource, Source
from tidemark.timeops.spec.fields import all_names, name_in_tables

_SIGNS = ("sep", "delimiter", "quote", "escape")
_ID = "__tm_id"
_OF_FILE = StructType().add(FILE, StringType()).add(SKIP, LongType()).add(GROUP, IntegerType())
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
    """Read CSV files: the columns of `schema`, and what every reader adds: resources/sources/reader.py.

    With a header the columns of `schema` are found by name, without one by position. A record is malformed if
    it has too few or too many fields, a value that does not fit its column exactly, or a quote that is not closed.

    Raises:
        InputError: A wanted column is missing from a header.
        SpecError: An option is wrong.
    """
    multiline = bool(source.options.get("multiLine", False))
    by_position = Header(tuple(schema.names), source.skip_lines or 0)
    headers = {file.path: by_position for file in ranges}
    if source.options.get("header", False):
        for path in headers:
            header = read_header(path, source)
            if header.line:  # a file of blank lines has no records
                columns = found_columns(path, source, schema.names, header.names, "the header")
                wanted = {there: name for name, there in columns.items() if there is not None}
                headers[path] = Header(tuple(wanted.get(name, name) for name in header.names), header.line)
    groups = {names: i for i, names in enumerate(dict.fromkeys(header.names for header in headers.values()))}
    layouts = [Layout(i, names, schema) for names, i in groups.items()]
    parts = [
        Part(
            file,
            # With multiLine the header is the first record, whatever blank lines and comments come before it.
            skip=min(headers[file.path].line, 1) if multiline else max(file.skip_lines, headers[file.path].line),
            group=groups[headers[file.path].names],
        )
        for file in ranges
    ]
    read = _read_multiline if multiline else _read_lines
    return read(spark, source, Reading(time_zone, parser_options(source)), layouts, parts)


def _read_lines(
    spark: SparkSession,
    source: FilesSource,
    reading: Reading,
    layouts: Sequence[Layout],
    parts: Sequence[Part],
) -> Numbered:
    cut = dialect(source)
    of_file = frame_of(spark, [(part.file.name, part.skip, part.group) for part in parts], _OF_FILE)
    lines = read_lines(spark, [part.file for part in parts]).join(F.broadcast(of_file), FILE)
    lines = lines.where(f"{POSITION} > {SKIP} AND trim({LINE}) <> ''")
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
    return Numbered(_records(parsed, source, reading, layouts, ~sound), {})


def _read_multiline(
    spark: SparkSession, source: FilesSource, reading: Reading, layouts: Sequence[Layout], parts: Sequence[Part]
) -> Numbered:
    """Read records that may hold line ends in quotes; only Spark's CSV reader can find their ends."""
    records: list[DataFrame] = []
    counts: dict[str, int] = {}
    longest = {"maxCharsPerColumn": str(LONGEST_LINE)}
    reader = spark.read.options(**reading.options, **longest, multiLine="true", header="false")
    for layout in layouts:
        parts_of_layout = [part for part in parts if part.group == layout.number]
        scan = reader.schema(layout.shape).csv([spark_path(part.file.readable) for part in parts_of_layout])
        numbered = _numbered(spark, scan, parts_of_layout)
        parsed = numbered.records.withColumn(layout.parsed, F.struct(*layout.shape.names))
        # Spark's reader does not return the text of a record that it could parse.
        texts = parsed.withColumn(LINE, F.coalesce(RAW, _as_csv(F.col(layout.parsed).dropFields(RAW), source)))
        records.append(_records(texts, source, reading, [layout], F.col(RAW).isNotNull()))
        counts.update(numbered.counts)
    return Numbered(reduce(DataFrame.union, records), counts)


def _numbered(spark: SparkSession, scan: DataFrame, parts: Sequence[Part]) -> Numbered:
    """Number the records of whole files, without the ones that are left out; one job counts them.

    One task reads such a file from its start to its end, so that the ids of its rows rise, whatever else it reads.
    """
    url, by_path = "_metadata.file_path", {part.file.readable: part for part in parts}
    counts = {row[URL]: row["count"] for row in scan.groupBy(F.col(url).alias(URL)).count().collect()}
    by_url = {url: by_path[path_of_url(url)] for url in counts}
    number = f"row_number() OVER (PARTITION BY {URL} ORDER BY {_ID})"
    tagged = scan.selectExpr("*", f"{url} AS {URL}", f"monotonically_increasing_id() AS {_ID}")
    numbered = tagged.withColumn(POSITION, F.expr(number).cast("bigint"))
    records = (
        with_files(spark, numbered, by_url)
        .where(f"{POSITION} > {SKIP}")
        .selectExpr(*map(quoted, scan.columns), FILE, POSITION, MODIFIED)
    )
    return Numbered(records, {part.file.path: counts[url] for url, part in by_url.items()})


def _records(
    parsed: DataFrame,
    source: FilesSource,
    reading: Reading,
    layouts: Sequence[Layout],
    malformed: Column,
) -> DataFrame:
    """Take the columns of each record from the layout of its file; `parsed` has the texts in `__tm_line`."""
    wanted = layouts[0].wanted
    written = {name: f"coalesce({', '.join(layout.field_sql(name) for layout in layouts)})" for name in wanted.names}
    exact = [field for field in wanted if holds(field.dataType, EXACT)]
    malformed = reduce(Column.__or__, (layout.repeats_header(source) for layout in layouts), malformed)
    typed, values, misfit = with_values(parsed, {field.name: written[field.name] for field in exact}, exact, reading)
    return to_records(
        typed,
        source,
        columns={name: values.get(name, F.expr(written[name])) for name in wanted.names},
        rescued=F.coalesce(*(layout.unknown() for layout in layouts)),
        malformed=F.when(malformed | misfit, F.col(LINE)),
    )


def _as_csv(fields: Column, source: Source) -> Column:
    """Return the fields of a struct as a line of the source's csv."""
    signs = {name: str(source.reader_options[name]) for name in _SIGNS if name in source.reader_options}
    return F.to_csv(fields, signs)


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


# The pattern takes parts without backtracking, so the time is linear and the stack flat.
_IN_QUOTES = r"""(?:"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')"""
_COMMENT = r"/\*(?:[^*]++|\*(?!/))*+\*/|//[^\n]*+"
_COLON = rf"(?:\s++|{_COMMENT})*+:"
_VALUE_TEXT = (
    rf"""\G((?:[^"'/]++|{_IN_QUOTES}{_COLON}|{_COMMENT}|/)*+)"""
    r"""(["'])((?<=")(?:[^"\\]++|\\.)*+"|(?<=')(?:[^'\\]++|\\.)*+')"""
)
_VALUE_NUMBER = (
    rf"""(?s)\G((?:[^"'/\w$-]++|{_IN_QUOTES}|{_COMMENT}|/|[A-Za-z_$][\w$]*+|-(?!\d)|-?\d[\w.+-]*+{_COLON})*+)"""
    r"(-?\d[\d.eE+-]*+)"
)
_MARKED_NUMBER = r'(?<=[:,\[])"#([-+0-9.eE]*+)"'
_MARKED_TEXT = r'(?<=[:,\[])"='

_WHOLE = r"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
"""Half of a surrogate pair after whole characters: it is not a character and has no UTF-8."""
ROUNDED = r"^(-?\d+[.E]|[{\[])"
"""A text that Spark's parser may have made of a number, or of an object or array with numbers."""
HAS_FRACTION = r"[:\[,]\s*-?\d+([.]\d|[eE])"
"""A line that may have a number whose digits Spark's parser changes."""


def marked() -> Column:
    """Return the line with `=` before each text value, and each number as a text with `#` before its digits."""
    texts = F.regexp_replace(LINE, F.lit(_VALUE_TEXT), F.lit("$1$2=$3"))
    return F.regexp_replace(texts, F.lit(_VALUE_NUMBER), F.lit('$1"#$2"'))


def unmarked_sql(text: str) -> str:
    """Return SQL of a text from a marked line, as the line has it: a text, a number, or JSON."""
    numbers = f"regexp_replace({text}, r'{_MARKED_NUMBER}', '$1')"
    return f"IF({text} RLIKE '^[=#]', substr({text}, 2), regexp_replace({numbers}, r'{_MARKED_TEXT}', '\"'))"


_PARSED, _EXACT, _KEYS = "__tm_parsed", "__tm_exact", "__tm_keys"
_OWN_TYPES = (StringType, *EXACT)
_INFINITIES = ("Infinity", "+Infinity", "-Infinity", "+INF", "-INF")
_BARE_INFINITIES = ('"Infinity"', '"-Infinity"')  # as Spark shows an infinite number, whatever was written
_BARE = r"[:\[,]\s*[+-]?Infinity\b"


def read_json(
    spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange], time_zone: str
) -> Numbered:
    """Read JSON lines: the columns of `schema`, and what every reader adds: resources/sources/reader.py.

    A missing key is null. A line is malformed if it is not one JSON object, or has a key twice or two names of one
    column. So it is if a value does not fit its column exactly, such as a number that is too large.
    """
    lines = read_lines(spark, ranges).where(F.btrim(LINE, F.lit(" \t")) != "")
    reading = Reading(time_zone, parser_options(source))
    read = renamed_objects_of(lines, schema, source, reading, keep_unknown=source.keep_unknown)
    return Numbered(to_records(read.frame, source, read.columns, read.rescued, read.malformed), {})


def renamed_objects_of(
    lines: DataFrame, schema: StructType, source: Source, reading: Reading, *, keep_unknown: bool
) -> "Objects":
    """Read texts as `objects_of` does, each column by the one of its names, see `rename`, that the record has."""
    named = [(name, field.dataType) for field in schema for name in all_names(field.name, source.rename)]
    shape = StructType([StructField(name, kind) for name, kind in named])
    read = objects_of(lines, shape, reading, keep_unknown=keep_unknown)
    columns, malformed = dict[str, Column](), read.malformed
    for field in schema:
        values = [read.columns[name] for name in all_names(field.name, source.rename)]
        columns[field.name] = F.coalesce(*values)
        if len(values) > 1:
            present = reduce(Column.__add__, [value.isNotNull().cast("int") for value in values])
            malformed = F.coalesce(malformed, F.when(present > 1, F.col(LINE)))
    return Objects(read.frame, columns, read.rescued, malformed)


@dataclass(frozen=True)
class Objects:
    """Texts that were read as JSON objects.

    Attributes:
        frame: The rows, each with its object.
        columns: The values of the objects by name.
        rescued: The keys without a column, as JSON text with the digits of the line.
        malformed: The text if it is not an object of that shape, else null.
    """

    frame: DataFrame
    columns: Mapping[str, Column]
    rescued: Column
    malformed: Column


def objects_of(lines: DataFrame, schema: StructType, reading: Reading, *, keep_unknown: bool = False) -> Objects:
    """Read texts in `__tm_line` as objects of a shape.

    Args:
        lines: The texts.
        schema: Names and types of the wanted values.
        reading: The rules by which texts become values; its options are for Spark's parser.
        keep_unknown: Whether `rescued` is wanted.
    """
    options = dict(reading.options)
    shape = StructType([StructField(field.name, with_texts(field.dataType)) for field in schema]).add(
        RAW, StringType()
    )
    parsed, object_ = lines.withColumn(_PARSED, F.from_json(LINE, shape, options)), F.col(_PARSED)
    malformed = object_.isNull() | object_[RAW].isNotNull() | ~_stands_alone(schema, options)
    malformed = malformed | _is_too_large(object_, schema, options)
    line = F.col(LINE)
    has_half = line.rlike(_HALF) & line.rlike(f"^{_WHOLE}{_HALF}")
    if not keep_unknown:  # an unwanted key may have one
        whole = F.regexp_replace(LINE, F.lit(rf"\G({_WHOLE}){_HALF}"), F.lit(r"$1\\uFFFD"))
        other = F.to_json(F.from_json(whole, shape, options))
        has_half = F.when(has_half, F.coalesce(F.to_json(object_) != other, F.lit(True))).otherwise(F.lit(False))
    frame, columns, misfit = _typed(parsed, schema, reading)
    rescued = F.lit(None).cast("string")
    if keep_unknown:
        frame = frame.withColumn(_KEYS, F.from_json(marked(), "map<string, variant>", options))
        rescued = _unknown_keys(schema)
    return Objects(frame, columns, rescued, F.when(malformed | has_half | misfit, F.col(LINE)))


def _typed(parsed: DataFrame, schema: StructType, reading: Reading) -> tuple[DataFrame, Mapping[str, Column], Column]:
    """Add the values of columns with texts, dates, times or decimals; also return whether one does not fit.

    If Spark's parser may have changed the digits of such a number, the line is parsed again.
    """
    columns = {name: F.col(_PARSED)[name] for name in schema.names}
    fields = [field for field in schema if holds(field.dataType, _OWN_TYPES)]
    if not fields:
        return parsed, columns, F.lit(False)
    shape = StructType([StructField(field.name, with_texts(field.dataType, (AtomicType,))) for field in fields])
    parsed_again = F.from_json(marked(), shape, {**reading.options, "columnNameOfCorruptRecord": ""})
    loses = " OR ".join(_may_lose_digits(field) for field in fields)
    exact = parsed.withColumn(_EXACT, F.when(F.expr(loses), parsed_again))
    frame, values, misfit = with_values(exact, {field.name: _text_of(field) for field in fields}, fields, reading)
    return frame, {**columns, **values}, misfit


def _may_lose_digits(field: StructField) -> str:
    """Return SQL: may the text of a value have other digits than the line?"""
    text = f"{_PARSED}.{quoted(field.name)}"
    if isinstance(field.dataType, StringType | DecimalType):
        return f"coalesce({text} RLIKE r'{ROUNDED}', false)"
    if not holds(field.dataType, (StringType, DecimalType)):
        return "false"
    return f"({text} IS NOT NULL AND {LINE} RLIKE r'{HAS_FRACTION}')"


def _text_of(field: StructField) -> str:
    """Return SQL of a value with texts in place of dates, times and decimals, with the digits of the line."""
    first, again = (f"{of}.{quoted(field.name)}" for of in (_PARSED, _EXACT))
    return f"IF({_EXACT} IS NULL, {first}, {_merged(first, again, field.dataType)})"


def _merged(first: str, again: str, kind: DataType, depth: int = 0) -> str:
    """Return SQL of a value whose texts are from the second parse."""
    if not holds(kind, _OWN_TYPES):
        return first
    left, right = f"a{depth}", f"b{depth}"
    if isinstance(kind, ArrayType):
        item = _merged(left, right, kind.elementType, depth + 1)
        return f"zip_with({first}, {again}, ({left}, {right}) -> {item})"
    if isinstance(kind, MapType):
        item = _merged(left, right, kind.valueType, depth + 1)
        return f"map_zip_with({first}, {again}, (k{depth}, {left}, {right}) -> {item})"
    if isinstance(kind, StructType):
        parts = []
        for part in kind:
            inner, of_again = (f"{of}.{quoted(part.name)}" for of in (first, again))
            parts.append(f"{literal(part.name)}, {_merged(inner, of_again, part.dataType, depth)}")
        return f"IF({first} IS NULL, NULL, named_struct({', '.join(parts)}))"
    return unmarked_sql(again)


def _stands_alone(schema: StructType, options: dict[str, str]) -> Column:
    """Return whether nothing follows the first JSON value of the line, and no key occurs in it twice.

    Spark's parser stops after that value. If the only closing brace ends the line, nothing can follow. Any other line
    is parsed again as the first of two elements of an array; the line end closes a comment. The schema has one field
    with an unlikely name, so no value is copied. Of two equal keys Spark takes the last one. A variant refuses them
    at any depth, but takes longer than reading only the keys of the object.
    """
    pair = F.concat(F.lit("["), F.col(LINE), F.lit("\n,{}]"))
    has_depth = any(isinstance(field.dataType, ArrayType | MapType | StructType | VariantType) for field in schema)
    element = "variant" if has_depth else f"struct<`{RAW}`: int>"
    elements = F.from_json(pair, f"array<{element}>", {**options, "columnNameOfCorruptRecord": ""})
    alone = F.coalesce(F.size(elements) == 2, F.lit(False))
    keys = F.json_object_keys(LINE)
    each_once = F.coalesce(F.size(keys) == F.size(F.array_distinct(keys)), F.lit(True))
    ends = F.instr(LINE, "}") == F.length(LINE)
    return F.when(ends, each_once).otherwise(alone if has_depth else alone & each_once)


def _is_too_large(parsed: Column, schema: StructType, options: dict[str, str]) -> Column:
    """Return whether a number became infinite because it does not fit its column, such as `1e400`.

    The written text decides: it is read only if a value is infinite.
    """
    kinds = {field.name: field.dataType for field in schema if holds_floats(field.dataType)}
    if not kinds:
        return F.lit(False)
    as_texts = StructType([StructField(name, with_texts(kind, (AtomicType,))) for name, kind in kinds.items()])
    written = F.from_json(LINE, as_texts, {**options, "columnNameOfCorruptRecord": ""})
    is_infinite = reduce(or_, [_is_infinite(parsed[name], kind) for name, kind in kinds.items()])
    is_wrong = reduce(or_, [_is_infinite(parsed[name], kind, written[name]) for name, kind in kinds.items()])
    return F.when(is_infinite, is_wrong).otherwise(F.lit(False))


def _is_infinite(value: Column, kind: DataType, written: Column | None = None) -> Column:
    """Return BOOLEAN, never null: a number in a value is infinite, and was not written so."""
    if isinstance(kind, DoubleType | FloatType):
        infinite = F.coalesce(F.abs(value.cast("double")) == F.lit(float("inf")), F.lit(False))
        return infinite if written is None else infinite & ~F.coalesce(_is_infinity(written), F.lit(False))
    if isinstance(kind, MapType):
        texts = None if written is None else F.map_values(written)
        return _is_infinite(F.map_values(value), ArrayType(kind.valueType), texts)
    if isinstance(kind, ArrayType):
        items = kind.elementType
        each = F.transform(
            value, lambda item, i: _is_infinite(item, items, None if written is None else F.get(written, i))
        )
        return F.coalesce(F.exists(each, lambda item: item), F.lit(False))
    assert isinstance(kind, StructType)
    fields = [field for field in kind if holds_floats(field.dataType)]
    return reduce(
        or_,
        [
            _is_infinite(value[field.name], field.dataType, None if written is None else written[field.name])
            for field in fields
        ],
    )


def _is_infinity(written: Column) -> Column:
    """Return whether the text of a number is a word for infinity, in quotes or, if the line has it so, without."""
    return written.isin(*_INFINITIES) | (written.isin(*_BARE_INFINITIES) & F.col(LINE).rlike(_BARE))


def _unknown_keys(schema: StructType) -> Column:
    """Return the keys of the object that `schema` does not name, as JSON text with the values of the line.

    A column that has a field which `schema` does not name is among them, with its whole value.
    """
    conditions = [f"NOT key IN ({literals(schema.names)})"]
    for name, kind in types_in(schema).items():
        if (has_more := variant_has_unknown_fields("value", kind)) is not None:
            conditions.append(f"(key = {literal(name)} AND coalesce({has_more}, false))")
    unknown = F.to_json(F.expr(f"map_filter({_KEYS}, (key, value) -> {' OR '.join(conditions)})"))
    return F.regexp_replace(F.regexp_replace(unknown, _MARKED_NUMBER, "$1"), _MARKED_TEXT, '"')


HAS, FITS = "__tm_has", "__tm_fits"
"""BOOLEAN columns of `with_column`: whether `_rescued` had a value for the column, and whether it fits the type."""
_TEXT, _LEFT, _VALUE = "__tm_text", "__tm_left", "__tm_value"


def with_column(records: DataFrame, source: Source, field: StructField, which: Column, time_zone: str) -> DataFrame:
    """Move the value of a column from `_rescued` into the column, for records of a source.

    A value that does not fit the type of the column stays in `_rescued`, and the column stays null.

    Args:
        records: Records of the log, with the column.
        source: The source.
        field: The column, by a name that it has in the input.
        which: BOOLEAN, whether a record is of this source.
        time_zone: Zone of the pipeline's times without one.

    Returns:
        The records, with HAS and FITS.
    """
    names, column = all_names(field.name, source.rename), name_in_tables(field.name, source.rename)
    lines = records.withColumn(LINE, F.when(which, F.col(RESCUED)))
    reading = Reading(source.time_zone or time_zone, parser_options(source))
    if source.form == "csv":
        read = _of_csv(lines, source, field, reading)
    else:
        read = renamed_objects_of(lines, StructType([field]), source, reading, keep_unknown=True)
    has = F.coalesce(F.arrays_overlap(F.json_object_keys(LINE), F.array(*map(F.lit, names))), F.lit(False))
    frame = read.frame.withColumns(
        {_VALUE: read.columns[field.name], _LEFT: read.rescued, FITS: read.malformed.isNull()}
    )
    if isinstance(field.dataType, ArrayType | MapType | StructType):  # kept whole for a field that is still unknown
        values = [F.to_json(F.struct(F.col(name).alias("v"))) for name in (_VALUE, quoted(column))]
        has &= ~F.col(FITS) | ~F.equal_null(_LEFT, LINE) | ~F.equal_null(*values)
    frame = frame.withColumns({HAS: has, FITS: has & F.col(FITS)})
    others = [F.col(f"`{name}`") for name in records.columns if name not in (column, RESCUED, HAS, FITS)]
    return frame.select(
        *others,
        F.when(F.col(FITS), F.col(_VALUE)).otherwise(F.col(f"`{column}`")).alias(column),
        F.when(F.col(FITS), F.nullif(_LEFT, F.lit("{}"))).otherwise(F.col(RESCUED)).alias(RESCUED),
        HAS,
        FITS,
    )


def _of_csv(lines: DataFrame, source: Source, field: StructField, reading: Reading) -> Objects:
    names = all_names(field.name, source.rename)
    texts = F.from_json(LINE, "map<string, string>")
    frame = lines.withColumn(_TEXT, F.coalesce(*[texts[name] for name in names]))
    left = F.to_json(F.map_filter(texts, lambda key, _: ~key.isin(*names)))
    value, misfit = F.col(_TEXT), F.lit(False)
    if holds(field.dataType, EXACT):
        frame, values, misfit = with_values(frame, {field.name: _TEXT}, [field], reading)
        value = values[field.name]
    elif not isinstance(field.dataType, StringType):
        ddl = f"_c0 {field.dataType.simpleString()}, `{RAW}` STRING"
        parsed = F.from_csv(_as_csv(F.struct(F.col(_TEXT)), source), ddl, parser_options(source))
        value, misfit = parsed["_c0"], parsed[RAW].isNotNull()
    return Objects(frame, {field.name: value}, left, F.when(misfit, F.col(LINE)))
