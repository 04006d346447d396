"""Looks at parquet files in a separate process: a file that ends its reader ends no run and no code server.

Here: the process and the questions to it. Not here: the judgement of a footer (columns.py).

The library of parquet files aborts its process at some files, such as encrypted files with a plain footer.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from select import select
from threading import Lock
from typing import IO, Any, cast

from tidemark.timeops.errors import InputError


@dataclass(frozen=True)
class Footer:
    """The columns and codecs in the footer of a parquet file.

    Attributes:
        types: Names of its columns, each with its type as DDL writes it.
        codecs: The codecs that compress them.
    """

    types: tuple[tuple[str, str], ...]
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
        said = self._ask(path, "footer")
        return Footer(tuple((name, kind) for name, kind in said["types"]), frozenset(said["codecs"]))

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
        said: Mapping[str, Any] = json.loads(answer)
        if "denied" in said:
            raise PermissionError(13, said["denied"])
        if "wrong" in said:
            raise _unreadable(path, " ".join(said["wrong"].split()))
        return said

    def _answer_to(self, question: str) -> tuple[str, int | None]:
        """Ask the process; return its answer, or an empty one and the exit code if it has ended."""
        has_ended = self._process is not None and self._process.poll() is not None
        if has_ended or self._environment != os.environ:  # it has its credentials from there
            self.end()
            self._environment = dict(os.environ)
        process = self._process = self._process or _started(self._idle_s)
        asked, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        try:
            asked.write(question)
            asked.flush()
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
        asked = json.loads(line)
        try:
            answer = _answer(asked["path"], asked["what"])
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
        types = [(field.name, _in_ddl(field.type)) for field in footer.schema.to_arrow_schema()]
        return {"types": types, "codecs": sorted(codecs)}


_IN_DDL = {
    "bool": "BOOLEAN",
    "float": "FLOAT",
    "halffloat": "FLOAT",
    "double": "DOUBLE",
    "date32[day]": "DATE",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "uint8": "SMALLINT",
    "uint16": "INT",
    "uint32": "BIGINT",
    "uint64": "DECIMAL(20,0)",
    "binary": "BINARY",
    "large_binary": "BINARY",
}


def _in_ddl(kind: Any) -> str:
    """Return the type of a column in DDL; STRING for types that DDL does not know."""
    text = str(kind)
    if text.startswith("decimal"):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if text.startswith("timestamp"):
        return "TIMESTAMP"
    return _IN_DDL.get(text) or _nested_in_ddl(kind) or "STRING"


def _nested_in_ddl(kind: Any) -> str | None:
    import pyarrow as pa  # noqa: PLC0415 - see above

    if pa.types.is_dictionary(kind):
        return _in_ddl(kind.value_type)
    if pa.types.is_map(kind):
        return f"MAP<{_in_ddl(kind.key_type)}, {_in_ddl(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{_in_ddl(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {_in_ddl(field.type)}' for field in kind)}>"
    return None


def _opened(path: str) -> IO[bytes]:
    if "://" not in path:
        return open(path, "rb")
    from tidemark.resources.places.place import place_of  # noqa: PLC0415 - takes a second to import

    return place_of(path).open("rb")


if __name__ == "__main__":
    main()
