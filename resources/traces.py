"""Values that must no longer be anywhere, and the files that still hold one.

Here: which texts are sought, and reading files of any kind for them: bytes, columns of Parquet, cells of SQLite. Not
here: whose values these are, and which files are read (assets/rebuild/decisions/erasing.py,
pipelines/operators/forgetting.py).

Bytes alone do not show what a Parquet file holds: values are compressed, and many share a dictionary or a beginning.
So each of its columns is decoded and compared, in addition to its bytes, which have bounds and names as they are. A
row of SQLite may be spread over pages, so its cells are read too.
"""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark.resources.places.place import Place

LEAST_BYTES = 4
"""Shorter texts are in nearly every file: they are only compared with whole values."""
LEAST_NUMBER = 100_000
"""Smaller whole numbers are also counts: they are not sought."""
_MOST_CHARACTERS = 200  # of a text that are sought
_PIECE_BYTES = 8_000_000
_PIECE_ROWS = 16_384
_GRAM = 4
_SLOTS = 20  # bits of a hash of four bytes
_WORDS = re.compile(r"[^\s,;|\"'{}\[\]]{6,}")
_LIKE_OTHERS = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?|[-+.\d]{1,9}")
"""A time, or a short number: bounds, sizes and versions look like it, and times stay."""
_SQLITE = b"SQLite format 3\x00"
_PARQUET = b"PAR1"


class Texts:
    """Some texts as bytes, which are found in other bytes in one pass."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = [text for text in {*texts} if len(text) >= _GRAM]
        common = Counter(gram for text in self._texts for gram in _grams(text))
        # A text is looked for by the four bytes of it that the fewest others have, not by `https://`.
        self._by_gram: dict[bytes, list[tuple[int, bytes]]] = {}
        for text in self._texts:
            at, gram = min(enumerate(_grams(text)), key=lambda place: (common[place[1]], -place[0]))
            self._by_gram.setdefault(gram, []).append((at, text))
        self._slots = np.zeros(1 << _SLOTS, bool)
        for gram in self._by_gram:
            self._slots[_hashes(np.frombuffer(gram, np.uint8))] = True

    @property
    def longest(self) -> int:
        """The number of bytes of the longest."""
        return max(map(len, self._texts), default=0)

    def texts_in(self, data: bytes) -> set[bytes]:
        """Return which of them some bytes hold."""
        held: set[bytes] = set()
        if len(data) < _GRAM or not self._texts:
            return held
        for place in np.flatnonzero(self._slots[_hashes(np.frombuffer(data, np.uint8))]).tolist():
            for at, text in self._by_gram.get(data[place : place + _GRAM], ()):
                begin = place - at
                if text not in held and begin >= 0 and data[begin : begin + len(text)] == text:
                    held.add(text)
        return held


def _grams(text: bytes) -> list[bytes]:
    return [text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1)]


def _hashes(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return a hash of each four bytes that follow each other."""
    numbers = data.astype(np.uint32)
    grams = numbers[:-3] | numbers[1:-2] << 8 | numbers[2:-1] << 16 | numbers[3:] << 24
    # Knuth's multiplicative hash: 2654435761 is a prime near 2**32 divided by the golden ratio.
    hashes: NDArray[np.uint32] = np.right_shift(grams * np.uint32(2654435761), 32 - _SLOTS, dtype=np.uint32)
    return hashes


@dataclass(frozen=True)
class Sought:
    """Values of a payload.

    Attributes:
        texts: Texts, each at most a part of a value long. They are sought anywhere.
        whole_values: Texts that are too short, or too common, for that, and times. They are compared with whole
            values in columns.
        numbers: Numbers, which are compared with numbers in columns that users name.
    """

    texts: frozenset[str] = frozenset()
    whole_values: frozenset[str] = frozenset()
    numbers: frozenset[float] = frozenset()

    @classmethod
    def of(cls, rows: Iterable[pa.RecordBatch]) -> "Sought":
        """Return the values of columns that are sought."""
        texts: set[str] = set()
        numbers: set[float] = set()
        for batch in rows:
            for column in batch.columns:
                for leaf in _leaves(column):
                    if _is_text(leaf.type):
                        texts.update(filter(None, map(_decoded, pc.unique(leaf).to_pylist())))
                    elif _is_number(leaf.type):
                        numbers.update(filter(_is_sought, leaf.cast(pa.float64(), safe=False).to_pylist()))
        parts = {part for text in texts for part in _parts(text)}
        long = {text for text in parts if len(text.encode()) >= LEAST_BYTES and not _LIKE_OTHERS.fullmatch(text)}
        return cls(frozenset(long), frozenset(parts - long), frozenset(numbers))

    def __len__(self) -> int:
        """Return how many values are sought."""
        return len(self.texts) + len(self.whole_values) + len(self.numbers)

    def __bool__(self) -> bool:
        """Return whether anything is sought."""
        return bool(self.texts or self.whole_values or self.numbers)

    def without(self, held: "Sought") -> "Sought":
        """Return the values that are not among others."""
        return Sought(self.texts - held.texts, self.whole_values - held.whole_values, self.numbers - held.numbers)

    def with_common(self, texts: Iterable[str]) -> "Sought":
        """Return the same, but only compare texts that are common elsewhere with whole values."""
        common = self.texts & {*texts}
        return Sought(self.texts - common, self.whole_values | common, self.numbers)

    @cached_property
    def spellings(self) -> Mapping[bytes, str]:
        """The texts, by the bytes with which files have them: as they are, in JSON, and in JSON that is in JSON."""
        held: dict[bytes, str] = {}
        for text in self.texts:
            spelled = {text}
            for _ in range(2):
                for ascii_alone in (True, False):
                    spelled |= {json.dumps(spelling, ensure_ascii=ascii_alone)[1:-1] for spelling in spelled}
            held |= {spelling.encode("utf-8", "surrogatepass"): text for spelling in spelled}
        return held

    @cached_property
    def _in_bytes(self) -> Texts:
        return Texts(self.spellings)

    @cached_property
    def _number_values(self) -> pa.Array:
        return pa.array(sorted(self.numbers), pa.float64())

    def in_bytes(self, data: bytes) -> "Sought":
        """Return what some bytes hold."""
        return Sought(frozenset(self.spellings[held] for held in self._in_bytes.texts_in(data)))

    def in_stream(self, stream: IO[bytes]) -> "Sought":
        """Return what a file holds, read piece by piece."""
        held, tail = Sought(), b""
        while piece := stream.read(_PIECE_BYTES):
            data = tail + piece
            held = held.and_also(self.in_bytes(data))
            # A text may lie across two pieces.
            tail = data[-max(self._in_bytes.longest - 1, 0) :] if self._in_bytes.longest > 1 else b""
        return held

    def in_column(self, column: pa.Array, *, of_user: bool) -> "Sought":
        """Return what a column holds, and columns in it.

        Args:
            column: The column.
            of_user: A user has named it, so that its numbers may be ones of a payload.
        """
        held = Sought()
        for leaf in _leaves(column):
            if _is_text(leaf.type):
                held = held.and_also(self._in_texts(leaf))
            elif of_user and self.numbers and _is_number(leaf.type):
                values = leaf.cast(pa.float64(), safe=False)
                common = values.filter(pc.is_in(values, value_set=self._number_values))
                held = held.and_also(Sought(numbers=frozenset(common.to_pylist())))
        return held

    def _in_texts(self, column: pa.Array) -> "Sought":
        values: list[bytes] = column.cast(pa.large_binary()).to_pylist()
        whole_values = frozenset(map(_decoded, values)) & self.whole_values if self.whole_values else frozenset[str]()
        # All values at once: no text that is sought begins in one of them and ends in the next.
        return self.in_bytes(b"\x00".join(values)).and_also(Sought(whole_values=whole_values))

    def and_also(self, other: "Sought") -> "Sought":
        """Return what is in either."""
        if not other:
            return self
        return Sought(self.texts | other.texts, self.whole_values | other.whole_values, self.numbers | other.numbers)


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the columns of plain values that a column consists of, without nulls."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_dictionary(kind):
        yield from _leaves(column.dictionary_decode())
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            yield from _leaves(part)
    elif pa.types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(column.flatten())
    else:
        yield column.drop_null()


def _is_text(kind: pa.DataType) -> bool:
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_bytes or pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_sought(number: float | None) -> bool:
    if number is None or number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        return False
    return not number.is_integer() or abs(number) >= LEAST_NUMBER


def _decoded(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts of a text to look for: itself, or its middle, and the values inside of JSON or a raw line."""
    middle = max(len(text) - _MOST_CHARACTERS, 0) // 2
    yield text[middle : middle + _MOST_CHARACTERS]
    if text[:1] in "{[":
        with suppress(ValueError):
            yield from {value for value in _values_in(json.loads(text)) if value}


def _values_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:_MOST_CHARACTERS]
    elif isinstance(value, dict):
        for part in value.values():
            yield from _values_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from _values_in(part)


def words_of(line: str) -> Iterator[str]:
    """Yield the words of a line that could not be read, as far as they are long enough to be sought."""
    yield from (word[:_MOST_CHARACTERS] for word in _WORDS.findall(line))


@dataclass(frozen=True)
class Trace:
    """A file that holds something of what is sought.

    Attributes:
        file: The file.
        held: What it holds.
        where: Where in the file, in words.
    """

    file: Place
    held: Sought = field(repr=False)
    where: str


def trace_in(file: Place, sought: Sought) -> Trace | None:
    """Look for values in a file of any kind; return None if it holds none of them, or is no longer there."""
    try:
        with file.open("rb") as stream:
            begins = stream.read(len(_SQLITE))
            stream.seek(0)
            held = sought.in_stream(stream)
            if held:
                return Trace(file, held, "its bytes")
            if begins.startswith(_PARQUET):
                stream.seek(0)
                return _trace_in_parquet(file, stream, sought)
        if begins == _SQLITE and isinstance(file, Path):
            return _trace_in_sqlite(file, sought)
    except FileNotFoundError:  # a program at work has removed it
        return None
    except OSError as error:
        return Trace(file, Sought(), f"it cannot be read: {error.strerror}")
    return None


def _trace_in_parquet(file: Place, stream: IO[bytes], sought: Sought) -> Trace | None:
    try:
        with pq.ParquetFile(stream) as opened:
            for batch in opened.iter_batches(batch_size=_PIECE_ROWS):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if held := sought.in_column(column, of_user=not name.startswith("_")):
                        return Trace(file, held, f"column `{name}`")
    except pa.ArrowException as error:
        return Trace(file, Sought(), f"it cannot be read: {error}")
    return None


def _trace_in_sqlite(file: Path, sought: Sought) -> Trace | None:
    uri = f"{file.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as base:
            names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                quoted = '"' + name.replace('"', '""') + '"'
                for row in base.execute(f"SELECT * FROM {quoted}"):
                    cells = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in row if cell]
                    if held := sought.in_bytes(b"\x00".join(cells)):
                        return Trace(file, held, f"table {name}")
    except sqlite3.Error as error:
        return Trace(file, Sought(), f"it cannot be read: {error}")
    return None
