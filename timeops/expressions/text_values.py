"""Texts as dates, times and decimals: the one rule by which the input's texts become such values.

Here: SQL of the value that a text has, null where it has none exactly. `timestamp_by`, columns of csv and json, and
casts in expressions go by it. Not here: what an event time is (timeops/events/event_time.py), which parts of a record
are texts (resources/sources/).

Spark's own casts complete a time of day with the date of the machine's clock and a year with 1 January, round
decimals, and cut dates off times.
"""

from pyspark.sql.types import DataType, DateType, DecimalType, TimestampNTZType, TimestampType

from tidemark.timeops.columns import MAX_US, MIN_US

# ISO 8601 calendar dates and times; the fraction may have more digits than a microsecond holds (cut off).
_LOCAL = r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d([.,]\d+)?)?"
_ISO = rf"^{_LOCAL}( ?([Zz]|[+-]\d\d(:?\d\d)?))?)?$"
_WITHOUT_OFFSET = rf"^{_LOCAL})?$"
_DATE = r"^\d{4}-\d\d-\d\d$"
_PLAIN_TIME = r"^.{10}([T ]\d\d:\d\d:\d\d([.]\d+)?( ?(Z|[+-].*))?)?$"  # what Spark's cast reads as it is
_NO_SECONDS = r"^(.{16})(?=$| |[Z+-])"
_NUMBER = r"^[+-]?(\d+[.]?\d*|[.]\d+)([eE][+-]?\d{1,9})?$"
_MOST_ZEROS = 1_000  # of a decimal with an exponent; no type holds a value that needs more

EXACT = (DateType, TimestampType, TimestampNTZType, DecimalType)
"""The types whose values a text has exactly, or not at all."""


def value_sql(text: str, kind: DataType, time_zone: str) -> str:
    """Return SQL of the value of a text, null where the text has none.

    Args:
        text: SQL of a STRING. It is named several times, so it has to be cheap: a column, or a lambda's parameter.
        kind: One of `EXACT`.
        time_zone: IANA name of the zone of a TIMESTAMP whose text has no offset.
    """
    if isinstance(kind, TimestampType):
        return instant_sql(text, time_zone)
    if isinstance(kind, TimestampNTZType):
        return f"IF({_fits(text, _WITHOUT_OFFSET)}, try_cast({_tidy(text)} AS TIMESTAMP_NTZ), NULL)"
    if isinstance(kind, DateType):
        return f"IF({_fits(text, _DATE)}, try_cast({text} AS DATE), NULL)"
    assert isinstance(kind, DecimalType)
    return _decimal_sql(text, kind.precision, kind.scale)


def instant_sql(text: str, time_zone: str) -> str:
    """Return SQL of the TIMESTAMP that a text in ISO 8601 has, null for any other text and outside 0001 to 9999.

    Without an offset the text is a local time in `time_zone`: in an overlap of the earlier offset, in a gap moved
    forward by its length.
    """
    read = f"try_cast({_tidy(text)} AS TIMESTAMP)"
    if time_zone != "UTC":
        read = f"IF(substr({text}, 11) RLIKE '[Zz+-]', {read}, to_utc_timestamp({read}, '{time_zone}'))"
    is_extreme = f"NOT {text} BETWEEN '0001-01-03' AND '9999-12-30'"
    bounded = inside_sql(read, TimestampType())
    return f"CASE WHEN NOT {text} RLIKE r'{_ISO}' THEN NULL WHEN {is_extreme} THEN {bounded} ELSE {read} END"


def inside_sql(value: str, kind: DataType) -> str:
    """Return SQL of a date or time, null outside of the years 0001 to 9999."""
    name = kind.simpleString()
    first, last = (f"CAST(timestamp_micros({us}) AS {name})" for us in (MIN_US, MAX_US))
    return f"get(filter(array({value}), t -> t BETWEEN {first} AND {last}), 0)"


def _fits(text: str, pattern: str) -> str:
    return f"{text} RLIKE r'{pattern}' AND {text} >= '0001'"


def _tidy(text: str) -> str:
    """Return SQL of a text in ISO 8601 as Spark's cast reads it."""
    spelled = f"regexp_replace(replace(upper({text}), ',', '.'), r'{_NO_SECONDS}', '$1:00')"
    return f"IF({text} RLIKE r'{_PLAIN_TIME}', {text}, {spelled})"


def _decimal_sql(text: str, precision: int, scale: int) -> str:
    fits = rf"^[+-]?0*\d{{0,{precision - scale}}}([.]\d{{0,{scale}}}0*)?$"
    kind = f"DECIMAL({precision}, {scale})"
    written_out = f"IF({text} RLIKE '[eE]', {_without_exponent(text)}, {text})"
    return (
        f"get(transform(filter(array({written_out}), n -> {text} RLIKE r'{_NUMBER}' AND n RLIKE r'{fits}'), "
        f"n -> try_cast(n AS {kind})), 0)"
    )


def _without_exponent(text: str) -> str:
    """Return SQL of a number such as `1.5e3` with all its digits written out; null where there are too many."""
    mantissa = f"regexp_extract({text}, r'^[+-]?([0-9.]*)', 1)"
    exponent = rf"try_cast(regexp_extract({text}, r'[eE]([+-]?\d+)$', 1) AS INT)"
    parts = f"named_struct('whole', split_part({mantissa}, '.', 1), 'part', split_part({mantissa}, '.', 2))"
    digits = f"named_struct('all', concat(x.whole, x.part), 'point', length(x.whole) + {exponent})"
    number = (
        "CASE WHEN d.all RLIKE '^0*$' THEN '0' "
        f"WHEN abs(d.point) > {_MOST_ZEROS} THEN NULL "
        "WHEN d.point <= 0 THEN concat('0.', repeat('0', -d.point), d.all) "
        "WHEN d.point >= length(d.all) THEN rpad(d.all, d.point, '0') "
        "ELSE concat(left(d.all, d.point), '.', substr(d.all, d.point + 1)) END"
    )
    written = f"get(transform(transform(array({parts}), x -> {digits}), d -> {number}), 0)"
    return f"concat(IF({text} LIKE '-%', '-', ''), {written})"
