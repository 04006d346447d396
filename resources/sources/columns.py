"""The columns of input before it is read: does a file fit its source, and which columns does `schema` not name.

Here: checks that need no Spark and open one file: its first bytes, its header or footer, the first lines of JSON; the
layout of a table; how long an unfinished last line waits. Not here: footers of parquet files
(resources/sources/footers.py), faults that only reading shows (resources/sources/file_records.py), the report of
unknown columns (assets/ingestion/waiting_input.py).
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial, reduce
from itertools import chain
from typing import Any

from tidemark.resources.sources.footers import parquet_looks
from tidemark.resources.sources.local_files import is_compressed, open_bytes
from tidemark.timeops.errors import InputError, SpecError
from tidemark.timeops.errors.problems import did_you_mean, near_name
from tidemark.timeops.expressions.column_types import (
    VOID,
    ColumnType,
    type_of_ddl,
    type_of_json,
    type_of_words,
    unknown_fields,
    with_field,
)
from tidemark.timeops.expressions.tokens import quoted, top_level_names, top_level_parts
from tidemark.timeops.spec import FilesSource, Source
from tidemark.timeops.spec.fields import (
    ILLEGAL_IN_STRUCTS,
    all_names,
    column_name_problems,
    name_in_tables,
    names_in_files,
    suggested_name,
)

Columns = tuple[tuple[str, str], ...]
"""Names in the input, each with a type in DDL. A field inside a column is named by its path, such as `loc.alt` or
`readings.element.unit`. A type that no column can have is empty."""

_OF_JSON: Mapping[type, str] = {bool: "boolean", int: "bigint", float: "double"}
_MOST_LINES = 100
_CODECS_OF_NO_SPARK = ("BROTLI", "LZO")
_TAKEN = frozenset(
    "boolean tinyint smallint int bigint float double string binary date timestamp timestamp_ntz".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class _Wanted:
    """A column of `schema`: its name there, and its type."""

    name: str
    kind: ColumnType


@lru_cache(maxsize=256)
def _wanted(ddl: str, renamed: tuple[tuple[str, str], ...]) -> Mapping[str, _Wanted]:
    """Return the columns of `schema` by each of the names that they may have in the input."""
    rename, columns = dict(renamed), dict[str, _Wanted]()
    for part in top_level_parts(ddl):
        name = part[0].text
        column = _Wanted(name, type_of_words(part[2:] if part[1:2] and part[1].text == ":" else part[1:]))
        columns |= dict.fromkeys((*all_names(name, rename), name, name_in_tables(name, rename)), column)
    return columns


def _wanted_of(source: Source) -> Mapping[str, _Wanted]:
    return _wanted(source.columns, tuple(source.rename.items()))


def unknown_of(source: Source, columns: Iterable[tuple[str, str]]) -> Columns:
    """Return the columns of an input that its source does not name, and such fields inside of its columns."""
    wanted, unknown = _wanted_of(source), list[tuple[str, str]]()
    for name, ddl in columns:
        kind = type_of_ddl(ddl)
        if name in wanted:
            inside = unknown_fields(kind, wanted[name].kind)
            unknown += [(".".join((name, *path)), _may_be_taken(part)) for path, part in inside]
        elif name and kind.word != VOID and (not (place := _place_of(name, wanted)) or place.is_new):
            unknown.append((name, _may_be_taken(kind)))
    return tuple(unknown)


def _may_be_taken(kind: ColumnType) -> str:
    """Return a type in DDL; empty if no column can have it."""
    return kind.ddl if _is_taken(kind) else ""


def _is_taken(kind: ColumnType) -> bool:
    names = [name for name, _ in kind.inside]
    if ILLEGAL_IN_STRUCTS.intersection("".join(names)) or len({name.lower() for name in names}) < len(names):
        return False
    is_known = bool(names) or kind.word in _TAKEN or kind.word.startswith("decimal(")
    return is_known and all(_is_taken(part) for _, part in kind.inside)


@dataclass(frozen=True)
class _Place:
    """The place that a path names inside a column.

    Attributes:
        root: The name of the column in the input.
        steps: The names inside of it.
        is_new: The last one is not in `schema`.
        clash: The field of `schema` that differs from a new one in case only; else empty.
    """

    root: str
    steps: tuple[str, ...]
    is_new: bool
    clash: str = ""


def _place_of(path: str, wanted: Mapping[str, _Wanted]) -> _Place | None:
    """Return the place of a path inside a column of `schema`; None if it is not inside of one."""
    for root, column in wanted.items():
        kind, steps, rest = column.kind, list[str](), path.removeprefix(f"{root}.")
        while rest != path and kind.inside:
            inside = dict(kind.inside)
            step = next((name for name in inside if rest == name or rest.startswith(f"{name}.")), None)
            if step is None:
                clash = next((name for name in inside if name.lower() == rest.lower()), "")
                return _Place(root, (*steps, rest), is_new=True, clash=clash)
            steps.append(step)
            if rest == step:
                return _Place(root, tuple(steps), is_new=False)
            kind, rest = inside[step], rest[len(step) + 1 :]
    return None


def columns_of_json(text: bytes, source: Source) -> Columns:
    """Return the keys of the first objects of JSON lines, each with a type that holds its values."""
    wanted, kinds = _wanted_of(source), dict[str, ColumnType]()
    for line in text.split(b"\n")[:_MOST_LINES]:
        try:
            keys = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for name, value in keys.items() if isinstance(keys, dict) else ():
            kind = _type_in_json(value, wanted[name].kind if name in wanted else ColumnType("string"))
            kinds[name] = _wider(kinds.get(name, kind), kind)
    return tuple((name, kind.ddl) for name, kind in kinds.items() if kind.word != VOID)


def _type_in_json(value: object, wanted: ColumnType) -> ColumnType:
    """Return the type of a value; its fields have types only where the wanted type has some too."""
    if value is None:
        return ColumnType(VOID)
    inside, text = dict(wanted.inside), ColumnType("string")
    if isinstance(value, dict) and wanted.word == "struct":
        fields = ((name, _type_in_json(part, inside.get(name, text))) for name, part in value.items())
        return ColumnType("struct", tuple(fields))
    if isinstance(value, dict) and wanted.word == "map":
        return ColumnType("map", (("key", text), ("value", _type_of_all(value.values(), inside["value"]))))
    if isinstance(value, list) and wanted.word == "array":
        return ColumnType("array", (("element", _type_of_all(value, inside["element"])),))
    return ColumnType(_OF_JSON.get(type(value), "string"))


def _type_of_all(values: Iterable[object], wanted: ColumnType) -> ColumnType:
    return reduce(_wider, (_type_in_json(value, wanted) for value in values), ColumnType(VOID))


def _wider(kind: ColumnType, other: ColumnType) -> ColumnType:
    """Return a type that holds the values of two types."""
    if kind == other or other.word == VOID:
        return kind
    if kind.word == VOID:
        return other
    if kind.word == other.word and kind.inside:
        inside, other_inside = dict(kind.inside), dict(other.inside)
        names = dict.fromkeys((*inside, *other_inside))
        void = ColumnType(VOID)
        return ColumnType(
            kind.word, tuple((name, _wider(inside.get(name, void), other_inside.get(name, void))) for name in names)
        )
    if kind.inside or other.inside:  # one of the lines does not fit its column
        return kind if kind.inside else other
    return ColumnType("double" if {kind.word, other.word} == {"bigint", "double"} else "string")


def columns_of_layout(schema: str) -> Columns:
    """Return the columns of a Delta table, from the schema in its log."""
    fields = json.loads(schema)["fields"]
    return tuple((field["name"], type_of_json(field["type"]).ddl) for field in fields)


def line_to_add(source: Source, columns: Iterable[tuple[str, str]]) -> str:
    """Return the remedy that adds columns to the source: to `schema`, and to `rename` if a name needs it.

    It is empty if none of them can be added, see `not_to_add`.
    """
    wanted = _wanted_of(source)
    taken = [name_in_tables(name, source.rename) for name in top_level_names(source.columns)]
    fields, renamed, grown = [], dict[str, str](), dict[str, ColumnType]()
    for name, ddl in columns:
        place = _place_of(name, wanted)
        if not ddl or (place is not None and place.clash):
            continue
        if place is not None:
            column = wanted[place.root]
            grown[column.name] = with_field(grown.get(column.name, column.kind), place.steps, type_of_ddl(ddl))
            continue
        same = next((other for other in taken if other.lower() == name.lower()), None)
        if same is not None and source.form == "json":  # objects have one name or the other
            renamed |= {name: same} | ({} if same in source.rename.values() else {same: same})
            continue
        new_name = name
        if same is not None or column_name_problems(name, "") or not name.isidentifier():
            new_name = renamed[name] = suggested_name(name, taken)
        taken.append(new_name)
        fields.append(f"{new_name} {ddl}")
    entries = ", ".join(f"{json.dumps(old, ensure_ascii=False)}: {new}" for old, new in renamed.items())
    whole = ", ".join(f"{name if name.isidentifier() else quoted(name)} {kind.ddl}" for name, kind in grown.items())
    steps = [f"add `{', '.join(fields)}` to `schema`"] if fields else []
    steps += [f"write `{whole}` in `schema`"] if grown else []
    steps += [f"{'' if fields else 'add '}`{entries}` to `rename`"] if renamed else []
    return " and ".join(steps)


def not_to_add(source: Source, columns: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for columns whose type no column can have, and one for each field whose name has a double."""
    wanted, columns = _wanted_of(source), tuple(columns)
    untyped = [f"`{name}`" for name, ddl in columns if not ddl]
    sentences = [f"No column of `schema` can have the type of {', '.join(untyped)}: leave it out."] if untyped else []
    for name, ddl in columns:
        place = _place_of(name, wanted)
        if ddl and place is not None and place.clash:
            sentences.append(
                f"`{name}` differs from `{place.clash}` in case only, and a column can have only one of them: "
                "correct the name in the input."
            )
    return sentences


WITH_A_WHOLE = timedelta(minutes=1)
"""How long a whole last line without a line end waits: many writers do not end their last line."""
WITH_A_HALF = timedelta(days=1)
"""How long half a line waits: a writer that flushes its buffer only when it is full may take hours."""
_NO_HEADER = "add a first line with the names of its columns, or leave `header` out if no file has one"
_LONGEST_LINE = 1 << 20  # characters; csv refuses fields far shorter than that
_HEAD_BYTES = 1 << 16
_MARKS = (  # a mark of four bytes comes before one of two that begins it
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_MAGIC = (
    (b"PAR1", "a parquet file"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"BZh", "compressed with bzip2"),
    (b"PK\x03\x04", "a zip archive or an Excel file"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\xfd7zXZ\x00", "compressed with xz"),
    (b"\x04\x22\x4d\x18", "compressed with lz4"),
    (b"Obj\x01", "an avro file"),
    (b"%PDF-", "a PDF file"),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MOST_CONTROLS = 0.02  # of the bytes: text has hardly any, random bytes have a tenth


@dataclass(frozen=True)
class Dialect:
    """The signs that cut a CSV line into fields; each is one character, and may be empty except `sep`."""

    sep: str
    quote: str
    escape: str
    comment: str
    skips_leading_blanks: bool
    skips_trailing_blanks: bool


@dataclass(frozen=True)
class Header:
    """The columns of a file, and the line that holds them (1-based; 0 if there is none)."""

    names: tuple[str, ...]
    line: int


def dialect(source: FilesSource) -> Dialect:
    r"""Return the dialect that the options of a source set, with Spark's defaults: `,`, `"` and `\`.

    Raises:
        SpecError: A sign is longer than one character.
    """
    options = source.options
    signs = {
        "sep": str(options.get("sep", options.get("delimiter", ","))).replace("\\t", "\t"),
        "quote": str(options.get("quote", '"')),
        "escape": str(options.get("escape", "\\")),
        "comment": str(options.get("comment", "")),
    }
    for name, sign in signs.items():
        if len(sign) > 1 or (name == "sep" and not sign):
            raise SpecError(
                f"Source {source.name!r}: option `{name}`: found {sign!r}",
                expected="one character",
                remedy="convert the files, or use a single character",
            )
    return Dialect(
        **signs,
        skips_leading_blanks=bool(options.get("ignoreLeadingWhiteSpace", False)),
        skips_trailing_blanks=bool(options.get("ignoreTrailingWhiteSpace", False)),
    )


def read_header(path: str, source: FilesSource) -> Header:
    """Return the first line after `skip_lines` that is neither blank nor a comment; with `multiLine` the record.

    Raises:
        InputError: That line is not a header.
        SpecError: An option is wrong.
    """
    cut, multiline = dialect(source), bool(source.options.get("multiLine", False))
    with open_bytes(path) as file:
        newline = "" if multiline else None  # None: a line ends as for Spark, at LF, CR or both
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline=newline)
        lines = iter(partial(text.readline, _LONGEST_LINE), "")
        for number, line in enumerate(lines, start=1):
            is_comment = cut.comment and line.startswith(cut.comment)
            if number <= (source.skip_lines or 0) or not line.strip(" \r\n") or is_comment:
                continue
            return Header(_fields(path, chain([line], lines if multiline else ()), cut), number)
    return Header((), 0)


def found_columns(
    path: str, source: FilesSource, wanted: Sequence[str], present: Sequence[str], where: str
) -> dict[str, str | None]:
    """Return the names of columns in a file that has each of them once; None for a column that it may lack.

    Args:
        path: The file.
        source: Its source: `rename` has the names that a column may have, `missing` says whether it may lack one.
        wanted: The columns, by the first of their names in files.
        present: The names in the file.
        where: Where they are, in words.

    Raises:
        InputError: A column is missing, or is there twice, by one name or by several.
    """
    names = {name: all_names(name, source.rename) for name in wanted}
    every = {alias for several in names.values() for alias in several}
    columns: dict[str, str | None] = {}
    for name, several in names.items():
        there = [alias for alias in several if alias in present]
        if len(there) > 1 or any(present.count(alias) > 1 for alias in there):
            what = (
                f"column `{name}` occurs more than once in"
                if len(there) == 1
                else f"`{'` and `'.join(there)}` are the same column, and both are in"
            )
            raise InputError(
                f"{path}: {what} {where}: {', '.join(present)}",
                expected="every column of `schema` once, by its exact name",
                remedy="correct the file, or `rename`" if len(there) > 1 else "correct `schema` or the file",
            )
        if not there and not _may_lack(source, several, present, every):
            raise InputError(
                f"{path}: column `{name}` is missing from {where}: {', '.join(present)}",
                expected="every column of `schema` once, by its exact name",
                remedy=_lines_to_skip(path, source, names) or _remedy_of_missing(source, name, present, every),
            )
        columns[name] = there[0] if there else None
    return columns


def _lines_to_skip(path: str, source: FilesSource, wanted: Mapping[str, Sequence[str]]) -> str:
    """Return the remedy for a csv file whose header is in another line than the one that was read; else nothing."""
    if source.format != "csv" or source.options.get("multiLine", False):
        return ""
    with open_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")
        lines = [text.readline(_LONGEST_LINE) for _ in range(_MOST_LINES)]
    for number, line in enumerate(lines):
        with suppress(InputError):
            fields = _fields(path, [line], dialect(source)) if line.strip() else ()
            there = [sum(fields.count(alias) for alias in several) == 1 for several in wanted.values()]
            if all(there) or (source.missing == "null" and any(there)):
                remedy = f"write `skip_lines: {number}` in" if number else "leave `skip_lines` out of"
                return f"{remedy} the source: line {number + 1} is the header"
    return ""


def _may_lack(source: FilesSource, names: Sequence[str], present: Sequence[str], every: Set[str]) -> bool:
    """Return whether a file may lack a column: a file without any column is of another kind, or has no header."""
    lowered = {name.lower() for name in present}
    return (
        source.missing == "null"
        and not every.isdisjoint(present)
        and not any(name.lower() in lowered for name in names)
    )


def _remedy_of_missing(source: FilesSource, name: str, present: Sequence[str], every: Set[str]) -> str:
    """Return the remedy for a column that a file lacks; the right name cannot be one that another column has."""
    others = [other for other in present if other not in every]
    same = next((other for other in others if other.lower() == name.lower()), None)
    if same is not None:
        return f"did you mean `{same}`?"
    if every.isdisjoint(present) and source.format == "csv":
        return _NO_HEADER
    near, new = near_name(name, others), name_in_tables(name, source.rename)
    renamed = f"add `rename: {{{near}: {new}}}` to the source if that is `{new}` in this file, or " if near else ""
    return f'{renamed}correct `schema` or the file, or set `missing: "null"` in the source if files may lack it'


def _fields(path: str, lines: Iterable[str], cut: Dialect) -> tuple[str, ...]:
    reader = csv.reader(lines, **_csv_words(cut))
    try:
        names = next(reader)
    except csv.Error as error:
        raise InputError(
            f"{path}: the first line is not a header: {error}",
            expected="the names of the columns",
            remedy="correct the file, or `options` of the source",
        ) from error
    if cut.skips_leading_blanks:
        names = [name.lstrip(" ") for name in names]
    if cut.skips_trailing_blanks:
        names = [name.rstrip(" ") for name in names]
    return tuple(names)


def _csv_words(cut: Dialect) -> dict[str, Any]:
    """Return a dialect as options of Python's reader."""
    return {
        "delimiter": cut.sep,
        "quotechar": cut.quote or None,
        "quoting": csv.QUOTE_MINIMAL if cut.quote else csv.QUOTE_NONE,
        "escapechar": cut.escape if cut.escape not in {"", cut.quote} else None,
    }


def check_json(path: str, source: FilesSource, known_bytes: int) -> Columns:
    """Check a file of JSON lines, see `Check` in resources/sources/known_files.py."""
    _check_text(path, "json")
    with open_bytes(path) as file:
        file.seek(0 if is_compressed(path) else known_bytes)
        return unknown_of(source, columns_of_json(file.read(_HEAD_BYTES), source))


def check_csv(path: str, source: FilesSource, known_bytes: int) -> Columns:  # noqa: ARG001
    """Check a file of CSV, see `Check` in resources/sources/known_files.py: only a header names its columns."""
    _check_text(path, "csv")
    if not source.options.get("header", False):
        return ()
    header = read_header(path, source)
    if not header.line:
        return ()
    found_columns(path, source, wanted_columns(source), header.names, "the header")
    return unknown_of(source, [(name, "STRING") for name in header.names])


def check_parquet(path: str, source: FilesSource, known_bytes: int) -> Columns:  # noqa: ARG001
    """Check a parquet file by its footer, see `Check` in resources/sources/known_files.py."""
    footer = parquet_looks().footer(path)
    columns_in_file(path, source, wanted_columns(source), footer.names)
    for codec in sorted(footer.codecs.intersection(_CODECS_OF_NO_SPARK)):
        raise InputError(
            f"{path}: columns are compressed with {codec.lower()}, which Spark cannot read",
            expected="snappy, zstd, gzip, lz4 or no compression",
            remedy="rewrite the file with one of these",
        )
    return unknown_of(source, [(name, kind.ddl) for name, kind in footer.types])


def wanted_columns(source: Source) -> list[str]:
    """Return the names in the input of the columns of `schema`: of each the first."""
    return list(names_in_files(top_level_names(source.columns), source.rename).values())


def columns_in_file(
    path: str, source: FilesSource, wanted: Sequence[str], present: Sequence[str]
) -> dict[str, str | None]:
    """Return `found_columns` of a parquet file, in which Spark ignores the case of names.

    Raises:
        InputError: A column is missing, or one that is read, also for `_rescued`, is there twice.
    """
    columns = found_columns(path, source, wanted, present, "the file, which has")
    check_names(path, [*filter(None, columns.values()), *(present if source.keep_unknown else ())], present)
    return columns


def names_there(
    path: str, source: Source, wanted: Sequence[str], present: Sequence[str], *, of: str
) -> dict[str, str]:
    """Return the names of columns that each have one of their names; for a missing column the first of them.

    `of` is the word for what has the columns.

    Raises:
        InputError: A column is there under several names.
    """
    columns: dict[str, str] = {}
    for name in wanted:
        there = [alias for alias in all_names(name, source.rename) if alias in present]
        if len(there) > 1:
            raise InputError(
                f"{path}: `{'` and `'.join(there)}` are the same column, and both are in the {of}",
                expected="every column of `schema` once",
                remedy="correct `rename`",
            )
        columns[name] = there[0] if there else name
    return columns


def check_names(path: str, wanted: Sequence[str], present: Sequence[str], *, of: str = "file") -> None:
    """Check that a file, or another input, has each wanted column once.

    Raises:
        InputError: A column is missing, or another one differs from it in case only.
    """
    lowered = [name.lower() for name in present]
    for name in wanted:
        if name in present and lowered.count(name.lower()) == 1:
            continue
        missing = name not in present
        raise InputError(
            f"{path}: column `{name}` {'is missing from' if missing else 'occurs more than once (in any case) in'} "
            f"the {of}, which has: {', '.join(present)}",
            expected="each column once, whatever its case, and every column of `schema` by its exact name",
            remedy=(missing and did_you_mean(name, present)) or f"correct `schema` or the {of}",
        )


def patience_with(path: str, source: FilesSource, line: bytes) -> timedelta:
    """Return how long a last line without a line end waits for the rest of it.

    A whole object is a finished line. Of a csv line it is unknown whether its last field continues.
    """
    text = line.decode("utf-8", errors="replace").strip()
    if source.format == "json":
        return timedelta(0) if _is_object(text) else WITH_A_WHOLE if text.endswith("}") else WITH_A_HALF
    if len(line) > csv.field_size_limit():
        return WITH_A_WHOLE
    cut = dialect(source)
    columns = top_level_names(source.columns)
    if source.options.get("header", False):
        columns = list(read_header(path, source).names)
    try:
        fields = next(csv.reader([text], strict=True, **_csv_words(cut)), [])
    except csv.Error:
        return WITH_A_HALF
    return WITH_A_WHOLE if not text or len(fields) >= len(columns) else WITH_A_HALF


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _check_text(path: str, file_format: str) -> None:
    with open_bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), _zeros_of(head))
    if encoding:
        raise InputError(
            f"{path}: this is text in {encoding}",
            expected="text in UTF-8",
            remedy=f"convert it, for example with `iconv -f {encoding} -t UTF-8`, and land it again",
        )
    kind = next((name for magic, name in _MAGIC if head.startswith(magic)), "")
    if kind or len(_CONTROL.findall(head)) > _MOST_CONTROLS * len(head):
        raise InputError(
            f"{path}: this is {kind or 'binary'}, not text" + (" with the name of a text file" if kind else ""),
            expected=f"{file_format} as text in UTF-8, plain or with the ending .gz or .bz2",
            remedy="land the text, or correct `format` or `path` of the source",
        )


def _zeros_of(head: bytes) -> str:
    """Return UTF-16 for text without a mark: most of its characters have a zero byte, all on the same side."""
    sides = [head[side::2] for side in (0, 1)]
    shares = sorted(side.count(0) / len(side) for side in sides if side)
    return "UTF-16" if len(shares) == 2 and shares[0] < 0.05 and shares[1] > 0.4 else ""
