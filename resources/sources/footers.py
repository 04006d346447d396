"""Looks at parquet files in a separate process: a file that ends its reader ends no run and no code server.

Here: the process and the questions to it, and the types of columns in a footer. Not here: the judgement of a footer
(resources/sources/columns.py, resources/sources/parquet_files.py).

The library of parquet files aborts its process at some files, such as encrypted files with a plain footer.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from select import select
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, cast

from tidemark.timeops.errors import InputError
from tidemark.timeops.expressions.column_types import VOID, ColumnType

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


@dataclass(frozen=True)
class Footer:
    """The columns and codecs in the footer of a parquet file.

    Attributes:
        types: Names of its columns, each with its type.
        codecs: The codecs that compress them.
    """

    types: tuple[tuple[str, ColumnType], ...]
    codecs: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its columns."""
        return tuple(name for name, _ in self.types)


@cache
def parquet_looks() -> "ParquetLooks":
    """Return the looks of this process at files."""
    looks = ParquetLooks()
    atexit.register(looks.end)
    return looks


class ParquetLooks:
    """Looks at files, one after the other; the process starts with the first look. Threads may share it.

    To start a process for each batch would take longer than its looks, so it stays for a while.

    Args:
        idle_s: It ends if nothing is asked for so long.
    """

    def __init__(self, idle_s: float = 60.0) -> None:
        self._idle_s = idle_s
        self._process: subprocess.Popen[str] | None = None
        self._environment: Mapping[str, str] = {}
        self._one_at_a_time = Lock()

    def footer(self, path: str) -> Footer:
        """Read the end of a file.

        Raises:
            InputError: The file is not parquet, or the library aborts at it.
            PermissionError: This process may not read it.
        """
        answer = self._ask(path, "footer")
        return Footer(tuple((name, _from_json(kind)) for name, kind in answer["types"]), frozenset(answer["codecs"]))

    def fault(self, path: str) -> str:
        """Read a file to its end; return its fault, empty for none."""
        try:
            self._ask(path, "all")
        except InputError as error:
            return error.found.partition(_NO_PARQUET)[2] or error.found
        return ""

    def _ask(self, path: str, what: str) -> Mapping[str, Any]:
        question = json.dumps({"path": path, "what": what}) + "\n"
        with self._one_at_a_time:
            answer, code = self._answer_to(question)
            if code == 0:  # it ended at this moment, as nothing was asked for long
                answer, code = self._answer_to(question)
            if not answer:
                ended = "was aborted" if code is not None and code < 0 else "ended"
                raise _unreadable(path, f"the library that reads such files {ended} at it")
        parsed: Mapping[str, Any] = json.loads(answer)
        if "denied" in parsed:
            raise PermissionError(13, parsed["denied"])
        if "wrong" in parsed:
            raise _unreadable(path, " ".join(parsed["wrong"].split()))
        return parsed

    def _answer_to(self, question: str) -> tuple[str, int | None]:
        """Ask the process; return its answer, or an empty one and the exit code if it has ended."""
        has_ended = self._process is not None and self._process.poll() is not None
        if has_ended or self._environment != os.environ:  # it has its credentials from there
            self.end()
            self._environment = dict(os.environ)
        process = self._process = self._process or _started(self._idle_s)
        questions, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        try:
            questions.write(question)
            questions.flush()
            answer = answers.readline()
        except BrokenPipeError:
            answer = ""
        return (answer, None) if answer else ("", self.end())

    def end(self) -> int:
        """End the process, if there is one; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with suppress(BrokenPipeError):  # of a question that it did not read
            cast(IO[str], process.stdin).close()
        cast(IO[str], process.stdout).close()
        return process.wait()


_NO_PARQUET = ": this is not a readable parquet file: "


def _unreadable(path: str, why: str) -> InputError:
    return InputError(
        f"{path}{_NO_PARQUET}{why}",
        expected="a complete parquet file, not encrypted",
        remedy="land the whole file again, or correct `format` or `path` of the source",
    )


def _started(idle_s: float) -> "subprocess.Popen[str]":
    words = [sys.executable, "-P", "-m", "tidemark.resources.sources.footers", str(idle_s)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    # In a session of its own: Ctrl-C is for the process that asks.
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=null, text=True, start_new_session=True)


def main() -> None:
    """Answer the questions of the other process, a line each, until there are no more, or none for long."""
    idle_s = float(sys.argv[1])
    while select([sys.stdin], [], [], idle_s)[0] and (line := sys.stdin.readline()):
        question = json.loads(line)
        try:
            answer = _answer(question["path"], question["what"])
        except PermissionError as error:
            answer = {"denied": error.strerror or str(error)}
        except Exception as error:  # any error of the library counts as a fault of that file
            answer = {"wrong": str(error) or type(error).__name__}
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


def _answer(path: str, what: str) -> Mapping[str, Any]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only the separate process needs it

    with _opened(path) as file:
        if what == "all":
            for _ in pq.ParquetFile(file).iter_batches():
                pass
            return {}
        footer = pq.read_metadata(file)
        columns = range(footer.num_columns if footer.num_row_groups else 0)
        codecs = {footer.row_group(0).column(number).compression for number in columns}
        types = [(name, _as_json(kind)) for name, kind in types_of(footer.schema)]
        return {"types": types, "codecs": sorted(codecs)}


def _as_json(kind: ColumnType) -> list[Any]:
    return [kind.word, [[name, _as_json(part)] for name, part in kind.inside], kind.stored]


def _from_json(kind: Sequence[Any]) -> ColumnType:
    return ColumnType(kind[0], tuple((name, _from_json(part)) for name, part in kind[1]), kind[2])


_SIGNED: Mapping[int, str] = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}
_UNSIGNED: Mapping[int, str] = {8: "smallint", 16: "int", 32: "bigint", 64: "decimal(20,0)"}
_UNITS: Mapping[str, str] = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_PHYSICAL: Mapping[str, str] = {
    "BOOLEAN": "boolean",
    "INT32": "int",
    "INT64": "bigint",
    "INT96": "timestamp",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BYTE_ARRAY": "binary",
    "FIXED_LEN_BYTE_ARRAY": "binary",
}
_LOGICAL: Mapping[str, ColumnType] = {
    **dict.fromkeys(("String", "Enum", "JSON"), ColumnType("string")),
    "BSON": ColumnType("binary"),
    "Date": ColumnType("date"),
    "UUID": ColumnType("string", stored="uuid"),
    "Float16": ColumnType("float", stored="float16"),
    **dict.fromkeys(("Null", "Unknown"), ColumnType(VOID, stored="null")),
}
_MOST_DIGITS = 38


def types_of(schema: "pq.ParquetSchema") -> tuple[tuple[str, ColumnType], ...]:
    """Return the columns of a parquet file with their types.

    Arrow's own types only say what is inside what: a program may have noted views, dictionaries and durations, which
    are lists, texts and numbers to any other reader.
    """
    leaves = iter(schema.column(number) for number in range(len(schema)))
    return tuple((field.name, _type(field.type, leaves)) for field in schema.to_arrow_schema())


def _type(kind: "pa.DataType", leaves: "Iterator[pq.ColumnSchema]") -> ColumnType:
    import pyarrow as pa  # noqa: PLC0415 - only the separate process and readers need it

    is_a = pa.types
    if is_a.is_struct(kind):
        return ColumnType("struct", tuple((field.name, _type(field.type, leaves)) for field in kind))
    if is_a.is_map(kind):
        return ColumnType("map", (("key", _type(kind.key_type, leaves)), ("value", _type(kind.item_type, leaves))))
    lists = (is_a.is_list, is_a.is_large_list, is_a.is_fixed_size_list, is_a.is_list_view, is_a.is_large_list_view)
    if any(is_list(kind) for is_list in lists):
        return ColumnType("array", (("element", _type(kind.value_type, leaves)),))
    return _leaf(next(leaves), str(kind))


def _leaf(column: "pq.ColumnSchema", shown: str) -> ColumnType:
    """Return the type of values that are in no other ones, by what the file says of them."""
    about = json.loads(column.logical_type.to_json())
    kind = _LOGICAL.get(about["Type"])
    match about["Type"]:
        case "None" if column.converted_type == "NONE":
            kind = ColumnType(_PHYSICAL[column.physical_type])
        case "Int":
            kind = ColumnType((_SIGNED if about["isSigned"] else _UNSIGNED)[about["bitWidth"]])
        case "Decimal" if column.precision <= _MOST_DIGITS:
            kind = ColumnType(f"decimal({column.precision},{column.scale})")
        case "Time":
            kind = ColumnType("string", stored=f"time[{_UNITS[about['timeUnit']]}]")
        case "Timestamp" if about["timeUnit"] == "nanoseconds":
            kind = ColumnType("string", stored=f"timestamp[ns{', UTC' if about['isAdjustedToUTC'] else ''}]")
        case "Timestamp":
            kind = ColumnType("timestamp" if about["isAdjustedToUTC"] else "timestamp_ntz")
    return kind or ColumnType(shown, stored=shown)


def _opened(path: str) -> IO[bytes]:
    if "://" not in path:
        return open(path, "rb")
    from tidemark.resources.places.place import place_of  # noqa: PLC0415 - takes a second to import

    return place_of(path).open("rb")


if __name__ == "__main__":
    main()
