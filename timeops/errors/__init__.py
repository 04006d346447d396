"""The tree of errors that a user may meet.

Here: what went wrong, in the words of the field. Not here: exit codes, tracebacks, logging (see
pipelines/command_line.py).
"""

from collections.abc import Mapping
from types import MappingProxyType

from tidemark.timeops.errors.printable import printable


class TidemarkError(Exception):
    """A failure with a remedy; what a terminal would obey in names and values is written out.

    Args:
        found: What was found, naming the file, key, table or record.
        expected: What would have been right.
        remedy: What the reader can do now.
    """

    def __init__(self, found: str, *, expected: str = "", remedy: str = "") -> None:
        self.found, self.expected, self.remedy = (printable(text, keep="\n\t") for text in (found, expected, remedy))
        parts = [self.found]
        if expected:
            parts.append(f"Expected: {self.expected}")
        if remedy:
            parts.append(f"To do: {self.remedy}")
        super().__init__("\n".join(parts))


def first_line(message: object) -> str:
    """Return the first line of what a library says; only a line feed ends it, as a text may quote any other sign."""
    return str(message).strip().partition("\n")[0].rstrip("\r")


class SpecError(TidemarkError):
    """The spec file, an expression in it or the command line is wrong; nothing was written."""


class InputError(TidemarkError):
    """A source cannot be read as the spec says: wrong path, missing column, unreadable or rewritten file.

    Names of files may hold line feeds too, and what is found and expected is one line each.
    """

    def __init__(self, found: str, *, expected: str = "", remedy: str = "") -> None:
        super().__init__(printable(found), expected=printable(expected), remedy=printable(remedy))


class UnfitFilesError(InputError):
    """Some of the files that one read should take cannot be read; the others may be good.

    Args:
        found: What was found, for a reader who does not go by the files.
        errors: What is wrong with each file, by its absolute path.
    """

    def __init__(self, found: str, *, errors: Mapping[str, InputError] = MappingProxyType({})) -> None:
        self.errors = errors
        TidemarkError.__init__(self, found)  # of several lines


class UnexpectedError(TidemarkError):
    """A stage or a command failed with an error that is none of the others here.

    Args:
        name: The class of the error.
        said: Its message.
        stack: Where it happened, as a traceback.
    """

    def __init__(self, name: str, message: str, stack: str) -> None:
        self.stack = printable(stack, keep="\n\t")
        super().__init__(
            f"Unexpected {name}{': ' if message else ''}{message}",
            expected="no error in the program itself; readers still see the last commit",
            remedy="Run again. If it fails again, report it with the output of `--verbose`.",
        )


class MachineError(TidemarkError):
    """This machine lacks what every pipeline needs, such as Java, Spark, or room on the disk."""


class LakeError(TidemarkError):
    """The lake is not in a state from which this program can continue."""


class BusyError(LakeError):
    """Another run is at work on the same pipeline; nothing was changed."""


class FencedError(LakeError):
    """This run was taken for dead and another one finished its batch; its late commit was refused."""
