"""Data Docs of a pipeline: the results of Great Expectations, a page for each look at an asset of a batch, an index.

Here: writing the pages and forgetting old ones. Not here: the measurements (assets/), the checks (checks.py).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from tidemark.resources.places.place import Place, relative, write_whole
from tidemark.resources.quality.checks import Checked, great_expectations

FOLDER = "_quality"
"""Folder next to a pipeline's tables: `data_docs/index.html`, and the results from which the pages are made."""

KEPT = 10
"""Pages of an asset that are kept: for the index all results are read anew."""

_SHOWN = {"element_count", "unexpected_count", "unexpected_percent"}
_TEMPLATES = Path(__file__).parent / "templates"


def docs_folder(pipeline: Place) -> Place:
    """Return the folder of a pipeline's pages, with their `index.html`."""
    return pipeline / FOLDER / "data_docs"


def address_of(page: Place, pipeline: Place, docs: str) -> str:
    """Return the URL of a page of checks; its path where `docs`, the address of all pages, is empty."""
    return f"{docs}/{pipeline.name}/{relative(page, docs_folder(pipeline))}" if docs else str(page)


def write_page(pipeline: Place, asset: str, batch: int, done: Sequence[Checked], at: datetime) -> Place | None:
    """Write the page of a batch's checks, and the index.

    A batch that is checked again has another page, by the time of the checks. Return the page; None if nothing was
    measured.
    """
    measured = [one for one in done if one.result is not None]
    if not measured:
        return None
    run = {"run_name": f"batch-{batch}", "run_time": at.isoformat()}
    parts = (pipeline.name, asset, run["run_name"], f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}", run["run_name"])
    result = _together(measured, run, pipeline.name, asset).to_json_dict()
    write_whole(_result(pipeline, parts), json.dumps(result, indent=2, sort_keys=True))
    of_asset: list[Place] = [*(pipeline / FOLDER / "results").joinpath(*parts[:2]).glob("*/*/*.json")]
    _forget(pipeline, sorted(of_asset, key=lambda file: file.parent.name)[:-KEPT])
    page = _page_of(pipeline, _result(pipeline, parts))
    about = {"pipeline": pipeline.name, "asset": asset, "batch": batch, "at": at, "checks": measured}
    write_whole(page, _template("checks.html.j2").render(about | {"up": "../" * len(parts)}))
    _write_index(pipeline)
    return page


def forget_pages(pipeline: Place, before: datetime) -> int:
    """Delete the pages of checks before an instant, except the newest of each asset; return how many."""
    made: dict[str, list[tuple[datetime, Place]]] = {}
    for file, result in _stored(pipeline, "*/*/*/*/*.json"):
        at = _time_of(result)
        made.setdefault(_parts(pipeline, file)[1], []).append((at, file))
    old = [file for found in made.values() for at, file in sorted(found, key=itemgetter(0))[:-1] if at < before]
    _forget(pipeline, old)
    if old:
        _write_index(pipeline)
    return len(old)


def _forget(pipeline: Place, results: Sequence[Place]) -> None:
    for file in results:
        file.unlink(missing_ok=True)
        _page_of(pipeline, file).unlink(missing_ok=True)


def _write_index(pipeline: Place) -> None:
    rows = sorted(_index_rows(pipeline), key=lambda row: (row["at"], row["asset"]), reverse=True)
    write_whole(
        docs_folder(pipeline) / "index.html", _template("index.html.j2").render(pipeline=pipeline.name, rows=rows)
    )


@dataclass(frozen=True)
class FailedCheck:
    """A check of a batch that failed.

    Attributes:
        name: The check.
        level: `error` where it blocks or the alert says so, else `warn`.
        sentence: Its name, what was found, and the remedy.
        page: The page of the batch's checks.
    """

    name: str
    level: Literal["warn", "error"]
    sentence: str
    page: Place


def failed_results(pipeline: Place, batch: int, *, since: datetime) -> list[FailedCheck]:
    """Return the failed checks of a batch. The library is not imported.

    Results before `since` do not count: they belong to earlier attempts at the batch.
    """
    found = []
    for file, result in _stored(pipeline, f"*/*/batch-{batch}/*/*.json"):
        if _time_of(result) < since:
            continue
        for one in result["results"]:
            if not one["success"]:
                config = one["expectation_config"]
                said, meta = config["description"], config.get("meta") or {}
                level: Literal["warn", "error"] = "error" if meta.get("level") == "error" else "warn"
                found.append(FailedCheck(said.partition(":")[0], level, said, _page_of(pipeline, file)))
    return found


def failed_checks(pipeline: Place, batch: int, *, since: datetime) -> list[str]:
    """Return the failed checks of a batch in words, see `failed_results`."""
    return [f"check {one.sentence}" for one in failed_results(pipeline, batch, since=since)]


def _stored(pipeline: Place, which: str) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield results and their files; half a file, left by a killed process, is skipped."""
    found: list[Place] = [*(pipeline / FOLDER / "results").glob(which)]
    for file in sorted(found, key=str):
        try:
            yield file, _read_result(file)
        except (OSError, ValueError):
            continue


@lru_cache(maxsize=100)  # a result never changes: the time of the checks is in its name
def _read_result(file: Place) -> Mapping[str, Any]:
    result: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def _time_of(result: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(result["meta"]["run_id"]["run_time"])


def _index_rows(pipeline: Place) -> Iterator[dict[str, Any]]:
    for file, result in _stored(pipeline, "*/*/*/*/*.json"):
        parts = _parts(pipeline, file)
        failed = [one["expectation_config"]["description"] for one in result["results"] if not one["success"]]
        yield {
            "page": relative(_page_of(pipeline, file), docs_folder(pipeline)),
            "asset": parts[1],
            "batch": result["meta"]["run_id"]["run_name"],
            "at": _time_of(result),
            "checks": len(result["results"]),
            "failed": [said.partition(":")[0] for said in failed],
        }


def _result(pipeline: Place, key: Sequence[str]) -> Place:
    """Return the file of a result: pipeline, asset, batch, time and again the batch."""
    return (pipeline / FOLDER / "results").joinpath(*key[:-1], f"{key[-1]}.json")


def _parts(pipeline: Place, result: Place) -> list[str]:
    return relative(result, pipeline / FOLDER / "results").split("/")


def _page_of(pipeline: Place, result: Place) -> Place:
    page = docs_folder(pipeline).joinpath("validations", *_parts(pipeline, result))
    return page.with_name(f"{page.stem}.html")


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,  # rows that break an expectation are users' data
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _together(measured: Sequence[Checked], run: Mapping[str, str], pipeline: str, asset: str) -> Any:
    """Return the results as one, like the result of a run of all expectations."""
    from great_expectations.core import ExpectationSuiteValidationResult  # noqa: PLC0415

    passed = sum(one.passed for one in measured)
    return ExpectationSuiteValidationResult(
        success=passed == len(measured),
        results=[_in_words(one) for one in measured],
        suite_name=f"{pipeline}.{asset}",
        statistics={
            "evaluated_expectations": len(measured),
            "successful_expectations": passed,
            "unsuccessful_expectations": len(measured) - passed,
            "success_percent": 100 * passed / len(measured),
        },
        meta={
            "great_expectations_version": great_expectations().__version__,
            "run_id": run,
            "batch_kwargs": {"data_asset_name": f"{pipeline}/{asset}"},
        },
    )


def _in_words(checked: Checked) -> Any:
    """Return a result with Tidemark's words, which keeps of the table of counts only how many differ."""
    shown = copy(checked.result)
    shown.expectation_config = copy(checked.result.expectation_config)
    shown.expectation_config.description = f"{checked.expectation.name}: {checked.message}"
    shown.expectation_config.meta = {"level": "error" if checked.is_an_error else "warn"}
    shown.result = {name: n for name, n in checked.result.result.items() if name in _SHOWN}
    return shown
