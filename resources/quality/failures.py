"""The failed checks of batches, as messages and `status` read them after the run.

Here: writing, reading and deleting them, in files next to a pipeline's tables. Not here: the checks
(resources/quality/checks.py), what Dagster shows of them (assets/catalog/display/evaluations.py).

The files have the places and keys that Great Expectations gave to its results: earlier versions left these, and they
can be read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Literal

from tidemark.resources.places.place import Place, remove_tree, write_whole
from tidemark.resources.quality.checks import Checked

FOLDER = "_quality"
"""Folder next to a pipeline's tables."""

KEPT_FILES = 10
"""Files of an asset that stay when a further one is written."""


@dataclass(frozen=True)
class FailedCheck:
    """A check of a batch that failed.

    Attributes:
        name: The check.
        level: `error` where it blocks or the alert says so, else `warn`.
        sentence: Its name, what was found, and the remedy.
    """

    name: str
    level: Literal["warn", "error"]
    sentence: str


def write_failures(pipeline: Place, asset: str, batch: int, checks: Sequence[Checked], at: datetime) -> None:
    """Write the checks of an asset that failed, of one attempt at a batch; nothing if all passed."""
    failed = [_as_json(checked) for checked in checks if not checked.passed]
    if not failed:
        return
    name = f"batch-{batch}"
    of_asset = _results(pipeline).joinpath(pipeline.name, asset)
    written = {"meta": {"run_id": {"run_name": name, "run_time": at.isoformat()}}, "results": failed}
    write_whole(
        of_asset.joinpath(name, f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}", f"{name}.json"),
        json.dumps(written, indent=2),
    )
    files: list[Place] = [*of_asset.glob("*/*/*.json")]
    for file in sorted(files, key=lambda file: file.parent.name)[:-KEPT_FILES]:  # the folder is the instant, as text
        file.unlink(missing_ok=True)


def failed_results(pipeline: Place, batch: int, *, since: datetime) -> list[FailedCheck]:
    """Return the failed checks of a batch.

    Earlier ones than `since` do not count: they belong to earlier attempts at the batch.
    """
    failed = []
    for _, at, results in _stored(pipeline, f"*/*/batch-{batch}/*/*.json"):
        if at < since:
            continue
        for result in results:
            if not result["success"]:
                config = result["expectation_config"]
                sentence, meta = config["description"], config.get("meta") or {}
                level: Literal["warn", "error"] = "error" if meta.get("level") == "error" else "warn"
                failed.append(FailedCheck(sentence.partition(":")[0], level, sentence))
    return failed


def failed_checks(pipeline: Place, batch: int, *, since: datetime) -> list[str]:
    """Return the failed checks of a batch in words, see `failed_results`."""
    return [f"check {failed.sentence}" for failed in failed_results(pipeline, batch, since=since)]


def forget_failures(pipeline: Place, limit: datetime) -> int:
    """Delete the failed checks before an instant, except the newest of each asset; return how many files went.

    Pages that an earlier version wrote from such files go as well; they are not counted.
    """
    by_asset: dict[str, list[tuple[datetime, Place]]] = {}
    for file, at, _ in _stored(pipeline, "*/*/*/*/*.json"):
        by_asset.setdefault(file.parents[2].name, []).append((at, file))
    old = [file for files in by_asset.values() for at, file in sorted(files, key=itemgetter(0))[:-1] if at < limit]
    for file in old:
        file.unlink(missing_ok=True)
    remove_tree(pipeline / FOLDER / "data_docs")
    return len(old)


def _as_json(checked: Checked) -> dict[str, Any]:
    level = "error" if checked.is_an_error else "warn"
    description = f"{checked.expectation.name}: {checked.message}"
    return {"success": False, "expectation_config": {"description": description, "meta": {"level": level}}}


def _results(pipeline: Place) -> Place:
    return pipeline / FOLDER / "results"


def _stored(pipeline: Place, which: str) -> Iterator[tuple[Place, datetime, Sequence[Mapping[str, Any]]]]:
    """Yield the files, when their checks were made, and the results; half a file, of a killed process, is skipped."""
    files: list[Place] = [*_results(pipeline).glob(which)]
    for file in sorted(files, key=str):
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        yield file, datetime.fromisoformat(stored["meta"]["run_id"]["run_time"]), stored["results"]
