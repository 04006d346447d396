"""Values that are too large for a record: it becomes a dead letter that shows the beginning of the largest.

Here: the sizes of values in a record, for formats whose records are not lines. Not here: lines (long_lines.py).

Several steps copy such a value, and so could fill the memory of the Spark that all pipelines share.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from tidemark.resources.sources.local_files import LONGEST_LINE

_KEPT_CHARACTERS = 1_000
_ITEM_BYTES = 8  # of a number


def too_large(values: Mapping[str, tuple[Column, DataType]]) -> Column:
    """Return STRING, null unless a record takes more than a line may: the begin of the largest value, and its size.

    Args:
        values: The values of a record and their types, by their names in the input.
    """
    sizes = {name: _bytes(value, kind) for name, (value, kind) in values.items() if _varies(kind)}
    if not sizes:
        return F.lit(None).cast("string")
    each = [
        F.struct(size.alias("bytes"), F.lit(name).alias("name"), _beginning(*values[name]).alias("beginning"))
        for name, size in sizes.items()
    ]
    largest = F.array_max(F.array(*each))
    size = F.format_number(largest["bytes"], 0)
    said = F.concat(largest["beginning"], F.lit("… (the value of `"), largest["name"], F.lit("` has "), size)
    total = reduce(Column.__add__, sizes.values())
    return F.when(total > LONGEST_LINE, F.concat(said, F.lit(" bytes)")))


def _varies(kind: DataType) -> bool:
    """Return whether values of a type may be of any size."""
    if isinstance(kind, StructType):
        return any(_varies(field.dataType) for field in kind)
    return isinstance(kind, StringType | BinaryType | ArrayType | MapType)


def _bytes(value: Column, kind: DataType) -> Column:
    """Return BIGINT, never null: about how many bytes a value takes."""
    if isinstance(kind, StringType | BinaryType):
        return F.coalesce(F.octet_length(value).cast("bigint"), F.lit(0).cast("bigint"))
    if isinstance(kind, StructType):
        parts = [_bytes(value[field.name], field.dataType) for field in kind if _varies(field.dataType)]
        return reduce(Column.__add__, parts, F.lit(0).cast("bigint"))
    if isinstance(kind, MapType):
        keys, items = ArrayType(kind.keyType), ArrayType(kind.valueType)
        return _bytes(F.map_keys(value), keys) + _bytes(F.map_values(value), items)
    assert isinstance(kind, ArrayType)
    items_bytes = F.coalesce(F.array_size(value).cast("bigint"), F.lit(0).cast("bigint")) * _ITEM_BYTES
    of_item = kind.elementType
    if not _varies(of_item):
        return items_bytes
    summed = F.aggregate(value, F.lit(0).cast("bigint"), lambda sum_, item: sum_ + _bytes(item, of_item))
    return items_bytes + F.coalesce(summed, F.lit(0).cast("bigint"))


def _beginning(value: Column, kind: DataType) -> Column:
    """Return STRING, never null: the beginning of a value, if it can be read without a copy of the value."""
    if isinstance(kind, StringType):
        text = F.make_valid_utf8(F.substring(value, 1, _KEPT_CHARACTERS))
    elif isinstance(kind, BinaryType):
        text = F.concat(F.lit("X'"), F.hex(F.substring(value, 1, _KEPT_CHARACTERS // 2)))
    else:
        text = F.lit(None).cast("string")
    return F.coalesce(text, F.lit(""))
