"""The note of a Dagster home on the last look without work that was reported to Dagster.

Here: the note, and for how long it holds. Not here: what a look finds (assets/ingestion/pending_work.py), what is
reported of it (assets/catalog/held_back.py, assets/catalog/days/partitions.py), who asks
(pipelines/running/instance.py).

A report of other findings removes the note. Where that is impossible (a person deletes days in Dagster's UI, a
machine with another home shares its database) the note is believed for an hour.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tidemark.resources.places.place import write_whole

HOLDS_FOR = timedelta(hours=1)
"""How long looks that find the same may go without a report to Dagster: days also get late as time passes."""
_FOLDER = "tidemark_looks"


@dataclass(frozen=True)
class LastLook:
    """The note on one pipeline.

    Attributes:
        home: Dagster's home; it may be one that cannot be written, where no look is ever noted.
        pipeline: Name of the pipeline.
    """

    home: Path
    pipeline: str

    def was(self, look: str, now: datetime) -> bool:
        """Return whether a look that found the same was reported within the last hour."""
        try:
            noted = json.loads(self._file.read_text(encoding="utf-8"))
            age = now - datetime.fromisoformat(noted["at"])
            return bool(noted["look"] == self._under_settings(look) and timedelta(0) <= age < HOLDS_FOR)
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def note(self, look: str, now: datetime) -> None:
        """Note that a look was reported."""
        with suppress(OSError):
            write_whole(self._file, json.dumps({"look": self._under_settings(look), "at": now.isoformat()}))

    def forget(self) -> None:
        """Remove the note, as something else is reported."""
        with suppress(OSError):
            self._file.unlink()

    @property
    def _file(self) -> Path:
        return self.home / _FOLDER / f"{self.pipeline}.json"

    def _under_settings(self, look: str) -> str:
        """Return a digest that changes with the look and with `dagster.yaml`, which says where the database is."""
        settings = (self.home / "dagster.yaml").read_bytes()
        return hashlib.sha256(settings + look.encode()).hexdigest()
