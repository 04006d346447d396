"""Texts in messages that a terminal or a log shows: names of files and payloads, which others wrote, and counts.

Here: letters that a terminal obeys or that turn the text around, written out; a count with its noun. Not here: the
messages.
"""

import json
import unicodedata
from collections.abc import Callable


def printable(text: str, *, keep: str = "", write: Callable[[str], str] | None = None) -> str:
    r"""Return a text with everything written out that a terminal would not show, such as `\x1b` or `\u202e`.

    Control characters, which a terminal obeys, directions, which put a text in another order, line separators and
    bytes that are not text become visible. Letters, signs and blanks of all languages stay as they are.

    Args:
        text: Any text.
        keep: Letters to leave alone: a message of several lines keeps its line feeds.
        write: How a letter is written out; by default as in a text of Python.
    """
    if text.isprintable():
        return text
    written = write or (lambda letter: letter.encode("unicode_escape").decode())
    return "".join(
        letter if letter.isprintable() or letter in keep or _is_blank(letter) else written(letter) for letter in text
    )


def json_line(value: object) -> str:
    """Return a value of JSON in one line; what a terminal would not show is escaped as JSON has it."""
    return printable(json.dumps(value, ensure_ascii=False), write=_in_json)


def _is_blank(letter: str) -> bool:
    return unicodedata.category(letter) == "Zs"


def _in_json(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
