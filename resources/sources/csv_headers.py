"""CSV headers: which column of a file is which, read on the driver before any Spark work.

Here: options that say how a line is cut, header lines, columns that are missing. Not here: records (csv_files.py).
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from tidemark.resources.sources.local_files import open_bytes
from tidemark.timeops.errors import InputError, SpecError
from tidemark.timeops.problems import did_you_mean
from tidemark.timeops.spec import FilesSource

_NO_HEADER = "give the file a first line with the names of its columns, or leave `header` out if no file has one"
_LONGEST_LINE = 1 << 20  # characters; csv refuses fields far shorter than that


@dataclass(frozen=True)
class Dialect:
    """How a CSV line is cut into fields; each sign is one character, and may be empty but for `sep`."""

    sep: str
    quote: str
    escape: str
    comment: str
    skips_leading_blanks: bool
    skips_trailing_blanks: bool


@dataclass(frozen=True)
class Header:
    """The columns of a file, and the line on which they stand (1-based; 0 if there is none)."""

    names: tuple[str, ...]
    line: int


def dialect(source: FilesSource) -> Dialect:
    r"""The dialect that the options of a source give, with Spark's defaults: `,`, `"` and `\`.

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
                remedy="convert the files, or use a sign of one character",
            )
    return Dialect(
        **signs,
        skips_leading_blanks=bool(options.get("ignoreLeadingWhiteSpace", False)),
        skips_trailing_blanks=bool(options.get("ignoreTrailingWhiteSpace", False)),
    )


def read_header(path: str, cut: Dialect, *, multiline: bool) -> Header:
    """The first line (the first record, with `multiline`) that is neither blank nor a comment.

    Raises:
        InputError: There is a line that is no header.
    """
    with open_bytes(path) as file:
        newline = "" if multiline else None  # None: a line ends as for Spark, at LF, CR or both
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline=newline)
        lines = iter(partial(text.readline, _LONGEST_LINE), "")
        for number, line in enumerate(lines, start=1):
            if not line.strip(" \r\n") or (cut.comment and line.startswith(cut.comment)):
                continue
            return Header(_fields(path, chain([line], lines if multiline else ()), cut), number)
    return Header((), 0)


def check_wanted(path: str, header: Header, wanted: Sequence[str]) -> None:
    """Check that each wanted column stands in a header exactly once.

    Raises:
        InputError: One is missing or stands twice; with the header found.
    """
    seems_data = not set(wanted).intersection(header.names)
    for name in wanted:
        found = header.names.count(name)
        if header.line and found != 1:
            what = "is missing from" if found == 0 else "stands more than once in"
            near = did_you_mean(name, [other for other in header.names if other != name])
            raise InputError(
                f"{path}: column `{name}` {what} the header: {', '.join(header.names)}",
                expected="every column of `schema` once, by its exact name",
                remedy=near or (_NO_HEADER if seems_data else "correct `schema` or the file"),
            )


def _fields(path: str, lines: Iterable[str], cut: Dialect) -> tuple[str, ...]:
    reader = csv.reader(
        lines,
        delimiter=cut.sep,
        quotechar=cut.quote or None,
        quoting=csv.QUOTE_MINIMAL if cut.quote else csv.QUOTE_NONE,
        escapechar=cut.escape if cut.escape not in {"", cut.quote} else None,
    )
    try:
        names = next(reader)
    except csv.Error as error:
        raise InputError(
            f"{path}: the first line is no header: {error}",
            expected="the names of the columns",
            remedy="correct the file, or `options` of the source",
        ) from error
    if cut.skips_leading_blanks:
        names = [name.lstrip(" ") for name in names]
    if cut.skips_trailing_blanks:
        names = [name.rstrip(" ") for name in names]
    return tuple(names)
