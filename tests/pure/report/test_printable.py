"""Control characters in names and values of others are written out; texts of all languages are not changed."""

import json

import pytest

from tidemark.timeops.errors import InputError, LakeError
from tidemark.timeops.printable import json_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),  # sets the title of a terminal
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),  # the same in one letter
        ("fdp.\u202excs", "fdp.\\u202excs"),  # shows a name from right to left
        ("a\u2066b\u200b\ufeff\U000e0001", "a\\u2066b\\u200b\\ufeff\\U000e0001"),
        ("a\r\n\tb\u2028c", "a\\r\\n\\tb\\u2028c"),
        ("caf\udce9", "caf\\udce9"),  # a byte that is no text
        ("朝　夕 é ß \xa0 🌊 שלום", "朝　夕 é ß \xa0 🌊 שלום"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_json_stays_the_same_value() -> None:
    value = {"a\x9b": ["\x7f\u202e\U000e0001", "夕\n"]}
    assert json_line(value) == '{"a\\u009b": ["\\u007f\\u202e\\udb40\\udc01", "夕\\n"]}'
    assert json.loads(json_line(value)) == value


def test_errors_keep_their_lines_and_a_name_of_a_file_makes_no_new_one() -> None:
    assert str(LakeError("two\nlines\x1b", remedy="r\u202e")) == "two\nlines\\x1b\nTo do: r\\u202e"
    error = InputError("in/x\nTo do: delete it.csv: bad", remedy="r")
    assert str(error) == "in/x\\nTo do: delete it.csv: bad\nTo do: r"
