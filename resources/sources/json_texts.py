"""JSON as written: the digits of its numbers, and texts that hold half of a character.

Here: texts that Spark's parser changes silently. It writes a number that becomes a text with the digits of a DOUBLE,
and half of a surrogate pair as `?`. Not here: which lines are objects of the declared shape (json_files.py).

To keep the digits a line is marked: `"a"` becomes `"=a"` and `1.50` becomes `"#1.50"`, except keys. Values that are
parsed from a marked line are distinct by their marks, and are written again as they were.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.resources.sources.lines import LINE

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


def unmarked_json(text: Column) -> Column:
    """Return JSON that Spark has written from a marked line, with the texts and numbers of the line."""
    return F.regexp_replace(F.regexp_replace(text, _MARKED_NUMBER, "$1"), _MARKED_TEXT, '"')


def has_half_a_character() -> Column:
    """Return whether a text of the line has half of a surrogate pair, which is not a character and has no UTF-8."""
    line = F.col(LINE)
    return line.rlike(_HALF) & line.rlike(f"^{_WHOLE}{_HALF}")


def with_whole_characters() -> Column:
    """Return the line with another character in place of each half."""
    return F.regexp_replace(LINE, F.lit(rf"\G({_WHOLE}){_HALF}"), F.lit(r"$1\\uFFFD"))
