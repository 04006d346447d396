"""Folders: the paths that a glob with `**` means, each folder entered once, so that links that lead back end.

Here: the walk. Not here: which of the paths are read (local_files.py, discovery.py).
"""

import glob
import os
from collections.abc import Iterator
from itertools import dropwhile

_ANY_DEPTH = "**"
_HIDDEN = (".", "_")


def expanded(pattern: str) -> Iterator[str]:
    """The paths that an absolute glob means, some of them perhaps twice.

    `**` stands for any number of folders, as in `glob` of the standard library, which however follows links that lead
    back, forty levels deep; with two such links that takes for ever. Here a folder is entered once, whatever leads to
    it: what lies in it is found all the same. Hidden folders are not entered.
    """
    parts = pattern.split(os.sep)
    if _ANY_DEPTH not in parts:
        yield from glob.iglob(pattern, include_hidden=True)
        return
    at = parts.index(_ANY_DEPTH)
    before, behind = parts[:at], list(dropwhile(lambda part: part == _ANY_DEPTH, parts[at:]))
    for root in glob.iglob(os.sep.join(before) or os.sep, include_hidden=True):
        for folder in _folders_under(root):
            yield from expanded(os.path.join(glob.escape(folder), *(behind or ["*"])))


def _folders_under(root: str) -> Iterator[str]:
    """A folder and all below it: those that no link leads to first, so that they keep their own path."""
    entered: set[str] = set()
    waiting = [root]
    while waiting:
        links: list[str] = []
        for start in waiting:
            for folder, below, _ in os.walk(start):
                real = os.path.realpath(folder)
                if real in entered:
                    below.clear()
                    continue
                entered.add(real)
                yield folder
                below[:] = sorted(name for name in below if not name.startswith(_HIDDEN))
                links += [path for name in below if os.path.islink(path := os.path.join(folder, name))]
        waiting = links
