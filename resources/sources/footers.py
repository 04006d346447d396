"""Looks at parquet files in a separate process: a file that ends its reader ends no run and no code server.

Here: the process and the questions to it. Not here: the judgement of a footer (columns.py).

The library of parquet files aborts its process at some files, such as encrypted files with a plain footer.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
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


class ParquetLooks:
    """Looks at files, one after the other, from the first to the end of the block; threads may share it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = Lock()

    def __enter__(self) -> "ParquetLooks":
        """Begin the block; the process starts with the first look."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """End the process."""
        self._end()

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
        with self._one_at_a_time:
            process = self._process = self._process or _started()
            asked, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
            try:
                asked.write(json.dumps({"path": path, "what": what}) + "\n")
                asked.flush()
                answer = answers.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                raise _unreadable(path, f"the library that reads such files {self._end()} at it")
        said: Mapping[str, Any] = json.loads(answer)
        if "denied" in said:
            raise PermissionError(13, said["denied"])
        if "wrong" in said:
            raise _unreadable(path, " ".join(said["wrong"].split()))
        return said

    def _end(self) -> str:
        """End the process, if there is one; return how it had ended before."""
        process, self._process = self._process, None
        if process is None:
            return ""
        cast(IO[str], process.stdin).close()
        cast(IO[str], process.stdout).close()
        code = process.wait()
        return "was aborted" if code < 0 else "ended"


_NO_PARQUET = ": this is not a readable parquet file: "


def _unreadable(path: str, why: str) -> InputError:
    return InputError(
        f"{path}{_NO_PARQUET}{why}",
        expected="a complete parquet file, not encrypted",
        remedy="land the whole file again, or correct `format` or `path` of the source",
    )


def _started() -> "subprocess.Popen[str]":
    words = [sys.executable, "-P", "-m", "tidemark.resources.sources.footers"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=null, text=True)


def main() -> None:
    """Answer the questions of the other process, a line each, until there are no more."""
    for line in sys.stdin:
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
    from tidemark.resources.sources.local_files import open_raw  # noqa: PLC0415 - takes a second to import

    return open_raw(path)


if __name__ == "__main__":
    main()
