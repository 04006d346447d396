"""Input that cannot be taken, as a check of `raw_events`: a file, a version of a table, a partition.

Here: the check, in a run and of a look that launches none. Not here: what cannot be taken and why
(assets/ingestion/waiting_input.py).

Such input makes no work for a run. So a look also reports it to Dagster, as soon as it has changed.
"""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.runs import key
from tidemark.assets.ingestion.waiting_input import HELD_BACK
from tidemark.resources import tables
from tidemark.resources.last_look import LastLook
from tidemark.resources.workspace import SpecFile

_HOLDS = "All input that has arrived can be read"
_REMEDY = (
    "mend, replace or remove what is named; the next run takes what can be read. `tidemark status` names all of it"
)


def held_back_check(file: SpecFile) -> dg.AssetCheckSpec:
    """Return the check of a pipeline."""
    return dg.AssetCheckSpec(HELD_BACK, asset=key(file, tables.RAW_EVENTS), description=f"{_HOLDS}.", blocking=False)


def forget_last_look(instance: dg.DagsterInstance, file: SpecFile) -> None:
    """Have the next look without work report again: something else is reported now."""
    LastLook(Path(instance.root_directory), file.spec.name).forget()


def held_back_result(file: SpecFile, sentences: Sequence[str]) -> dg.AssetCheckResult:
    """Return its result in a run, from a sentence or two for each input that cannot be taken."""
    ending = f" And {len(sentences) - 1:,} more." if len(sentences) > 1 else ""
    sentence = (
        f"{len(sentences):,} held back: {sentences[0]}{ending} To do: {_REMEDY}." if sentences else f"{_HOLDS}."
    )
    return dg.AssetCheckResult(
        asset_key=key(file, tables.RAW_EVENTS),
        check_name=HELD_BACK,
        passed=not sentences,
        severity=dg.AssetCheckSeverity.ERROR,
        description=sentence,
        metadata={
            "held_back": dg.MetadataValue.int(len(sentences)),
            **({"inputs": show.sentences(sentences, of="input")} if sentences else {}),
        },
    )


def tell_dagster(instance: dg.DagsterInstance, file: SpecFile, sentences: Sequence[str]) -> None:
    """Report what a look has found, unless the last result of the check says the same."""
    result = held_back_result(file, sentences)
    check = dg.AssetCheckKey(key(file, tables.RAW_EVENTS), HELD_BACK)
    last = instance.event_log_storage.get_latest_asset_check_execution_by_key([check]).get(check)
    event = last.event.dagster_event if last is not None and last.event is not None else None
    # A planned check has no result yet.
    has_result = event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    shown = event.asset_check_evaluation_data.description if event is not None and has_result else f"{_HOLDS}."
    if shown != result.description:
        forget_last_look(instance, file)
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=check.asset_key,
                check_name=HELD_BACK,
                passed=result.passed,
                severity=result.severity,
                description=result.description,
                metadata=result.metadata,
            )
        )
