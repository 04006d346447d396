"""Hashes of rows of Arrow: equal rows have equal ones, in whatever order, files and batches they were written.

Here: one number for each row, which sums make one number of many rows. Not here: which rows
(assets/catalog/days/versions.py).

A column without a value adds nothing, so a column that a table gets later changes no hash of earlier rows. Floats
count by ten significant digits: sums of floats differ in their last bits with the order in which they were added up.
"""

import json
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_DIGITS = 10
_TINIEST = 1e-290  # smaller ones are 0: their ten digits are beyond the exponents of floats
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def row_hashes(rows: pa.RecordBatch) -> Hashes:
    """Return a number for each row, of all its columns."""
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        hashes += _mixed(_values(column) + _of_text(name)) * _is_there(column)
    return _mixed(hashes)


def _is_there(column: pa.Array) -> Hashes:
    return np.asarray(pc.is_valid(column)).astype(np.uint64)


def _mixed(values: Hashes) -> Hashes:
    """Spread numbers over all of 64 bits, as splitmix64 does."""
    first, second = _MULTIPLIERS
    values = (values ^ (values >> np.uint64(30))) * first
    values = (values ^ (values >> np.uint64(27))) * second
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def _of_text(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big"))


def _values(column: pa.Array) -> Hashes:
    """Return a number for each value of a column; of no value, any number."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _of_floats(np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return _of_integers(column)
    if pa.types.is_temporal(kind):
        return _of_integers(column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_decimal(kind):
        return _of_distinct(column.cast(pa.string()) if pa.types.is_decimal(kind) else column)
    texts = [json.dumps(_plain(value), default=str, sort_keys=True) for value in column.to_pylist()]
    return np.fromiter(map(_of_text, texts), np.uint64, len(texts))


def _of_integers(column: pa.Array) -> Hashes:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0)).view(np.uint64)


def _of_distinct(column: pa.Array) -> Hashes:
    """Hash each distinct text once: groups and names come again and again."""
    encoded = column.dictionary_encode()
    hashes = np.fromiter(map(_of_text, (text or "" for text in encoded.dictionary.to_pylist())), np.uint64)
    places = np.asarray(pc.fill_null(encoded.indices, 0))
    return hashes[places] if hashes.size else np.zeros(len(column), dtype=np.uint64)


def _of_floats(values: NDArray[np.float64]) -> Hashes:
    """Return numbers that are equal for floats of the same ten digits; 0 and -0, and all NaN, are equal."""
    is_number = np.isfinite(values) & (np.abs(values) > _TINIEST)
    plain = np.where(is_number, values, 1.0)
    exponents = np.floor(np.log10(np.abs(plain)))
    half = np.floor((_DIGITS - 1 - exponents) / 2)  # in two steps: 10 to the power of 309 is beyond floats
    digits = np.rint(plain * 10.0**half * 10.0 ** (_DIGITS - 1 - exponents - half))
    is_next = np.abs(digits) >= 10.0**_DIGITS
    digits, exponents = np.where(is_next, digits / 10, digits), exponents + is_next
    hashes = _mixed(digits.astype(np.int64).view(np.uint64)) + exponents.astype(np.int64).view(np.uint64)
    odd = np.select([np.isnan(values), values == np.inf, values == -np.inf], [1, 2, 3], 0).astype(np.uint64)
    numbers: Hashes = np.where(is_number, hashes, odd)
    return numbers


def _plain(value: Any) -> Any:
    """Return a value within lists and structs as JSON can say it, floats by their digits."""
    if isinstance(value, float):
        return f"{value:.{_DIGITS - 1}e}" if value else "0"
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
