"""Great Expectations' Data Docs of a pipeline: a page for each look at an asset of a batch, and an index.

Here: writing them, and reading back what failed. Not here: what was checked (quality.py), where Dagster links them
(assets/asset_checks.py), who serves them (docs_server.py).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import Any

from resources.quality import Checked, great_expectations

FOLDER = "_quality"
"""Folder beside a pipeline's tables: `data_docs/index.html`, and what the pages are made of."""

KEPT = 10
"""Pages of an asset that are kept: each has 30 KB, and for the index all results are read anew."""

_SHOWN = {"element_count", "unexpected_count", "unexpected_percent"}


def docs_folder(pipeline: Path) -> Path:
    """The folder of a pipeline's pages, with their `index.html`."""
    return pipeline / FOLDER / "data_docs"


def write_page(pipeline: Path, asset: str, batch: int, done: Sequence[Checked], at: datetime) -> Path | None:
    """Writes the page of a batch's checks, and the index.

    Args:
        pipeline: Folder of the pipeline's tables.
        asset: Name of the asset that was checked.
        batch: Number of the batch.
        done: The results.
        at: When the batch was checked. A batch that is checked again has another page.

    Returns:
        The page; None when nothing was measured.
    """
    measured = [one for one in done if one.result is not None]
    if not measured:
        return None
    # Two parts: pages of results look for their pictures as many folders above.
    site, key = _site(pipeline), _key(f"{pipeline.name}.{asset}", batch, at)
    context, suite = site.data_context, key.expectation_suite_identifier
    expected = [one.result.expectation_config.to_domain_obj() for one in measured]
    context.suites.add_or_update(great_expectations().ExpectationSuite(suite.name, expectations=expected))
    store = context.validation_results_store
    store.set(key, _together(measured, key, f"{pipeline.name}/{asset}"))
    of_asset = [one for one in store.list_keys() if one.expectation_suite_identifier == suite]
    for old in sorted(of_asset, key=lambda one: one.run_id.run_time)[:-KEPT]:
        store.remove_key(old)  # its page goes as the index is written
    for section in site.site_section_builders.values():
        section.build(resource_identifiers=[key, suite])
    site.site_index_builder.build()
    return docs_folder(pipeline).joinpath("validations", *key.to_tuple()[:-1], f"{key.batch_identifier}.html")


def failed_checks(pipeline: Path, batch: int, *, since: datetime) -> list[str]:
    """What failed of a batch: the name of each check, what was found, what to do. The library is not imported.

    Args:
        pipeline: Folder of the pipeline's tables.
        batch: Number of the batch.
        since: Results from before, which are of earlier attempts at it, do not count.
    """
    found = []
    for result in _stored(pipeline, batch):
        if datetime.fromisoformat(result["meta"]["run_id"]["run_time"]) >= since:
            failed = [one["expectation_config"] for one in result["results"] if not one["success"]]
            found += [f"check {unescape(config['description'])}" for config in failed]
    return found


def _stored(pipeline: Path, batch: int) -> Iterator[Mapping[str, Any]]:
    """The results of a batch; a process that is killed as it writes leaves half a file, which says nothing."""
    for file in sorted((pipeline / FOLDER / "results").glob(f"*/*/batch-{batch}/*/*.json")):
        try:
            yield json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue


@cache
def _site(pipeline: Path) -> Any:
    """The builder of a pipeline's pages. Its templates take longer to compile than to fill, so it is kept."""
    great_expectations()
    from great_expectations.data_context import EphemeralDataContext  # noqa: PLC0415
    from great_expectations.render.renderer.site_builder import SiteBuilder  # noqa: PLC0415

    def files(folder: str) -> dict[str, str]:
        return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(pipeline / FOLDER / folder)}

    # A process that is killed as it writes leaves half a file. Of a result that spoils no other page; half a suite,
    # which is read before it is written, would spoil all later ones. So suites are made anew by each process.
    memory = {"class_name": "InMemoryStoreBackend"}
    context = EphemeralDataContext(
        {
            "config_version": 4,
            "analytics_enabled": False,
            "stores": {
                "suites": {"class_name": "ExpectationsStore", "store_backend": memory},
                "results": {"class_name": "ValidationResultsStore", "store_backend": files("results")},
                "checkpoints": {"class_name": "CheckpointStore", "store_backend": memory},
                "validation_definition_store": {"class_name": "ValidationDefinitionStore", "store_backend": memory},
            },
            "expectations_store_name": "suites",
            "validation_results_store_name": "results",
            "checkpoint_store_name": "checkpoints",
        }
    )
    site = SiteBuilder(
        context,
        files("data_docs"),
        site_name=pipeline.name,
        show_how_to_buttons=False,
        site_section_builders={"profiling": "None"},
        runtime_environment={"root_directory": str(pipeline)},
    )
    if not (docs_folder(pipeline) / "static").exists():
        site.target_store.copy_static_assets()
    return site


def _key(suite: str, batch: int, at: datetime) -> Any:
    from great_expectations.core.run_identifier import RunIdentifier  # noqa: PLC0415
    from great_expectations.data_context.types.resource_identifiers import (  # noqa: PLC0415
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    run = RunIdentifier(run_name=f"batch-{batch}", run_time=at)
    return ValidationResultIdentifier(ExpectationSuiteIdentifier(suite), run, f"batch-{batch}")


def _together(measured: Sequence[Checked], key: Any, asset: str) -> Any:
    """The results as one, as a run of all expectations would give it."""
    from great_expectations.core import ExpectationSuiteValidationResult  # noqa: PLC0415

    passed = sum(one.passed for one in measured)
    return ExpectationSuiteValidationResult(
        success=passed == len(measured),
        results=[_in_words(one) for one in measured],
        suite_name=key.expectation_suite_identifier.name,
        statistics={
            "evaluated_expectations": len(measured),
            "successful_expectations": passed,
            "unsuccessful_expectations": len(measured) - passed,
            "success_percent": 100 * passed / len(measured),
        },
        meta={
            "great_expectations_version": great_expectations().__version__,
            "run_id": key.run_id,
            "batch_kwargs": {"data_asset_name": asset},
        },
    )


def _in_words(checked: Checked) -> Any:
    """A result that says what Tidemark says of it. Of the table of counts it keeps how many differ."""
    shown = copy(checked.result)
    shown.expectation_config = copy(checked.result.expectation_config)
    # The page takes it for markup, and rows that break an expectation are users' data.
    shown.expectation_config.description = escape(f"{checked.expectation.name}: {checked.message}")
    shown.result = {name: n for name, n in checked.result.result.items() if name in _SHOWN}
    return shown
