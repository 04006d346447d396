"""Specs of the folder that make no pipeline, as assets in Dagster whose check has failed.

Here: the asset, the check and the sensor that records the failure without a run. Not here: finding the
fault (spec_files.py).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    AssetSpec,
    DefaultSensorStatus,
    Definitions,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    asset_check,
    sensor,
)

from tidemark.pipelines.spec_files import WrongSpec

CHECK = "is_a_pipeline"
_HOLDS = "The file is a valid spec and the only one of its name; else no asset of its pipeline is here."
_MENDED = "It is right now: reload the code location, and its pipeline is there."
_LOOK_EVERY_S = 30

Look = Callable[[], Sequence[WrongSpec]]
"""Finds what is wrong now."""


def definitions_of(wrong: Sequence[WrongSpec], look: Look) -> Definitions:
    """Build an asset for each wrong file, in the group of its pipeline, with a check that says what is wrong.

    Args:
        wrong: The specs that were wrong when the code location was loaded.
        look: Looks again, so that checks and sensor report the files as they are.
    """
    keys = _keys(wrong)
    pipelines = dict.fromkeys(one.pipeline for one in wrong)
    return Definitions(
        assets=[_asset(one, keys[one.path]) for one in wrong],
        asset_checks=[_check(one, keys[one.path], look) for one in wrong],
        sensors=[
            _sensor(name, {path: key for path, key in keys.items() if key.path[0] == name}, look)
            for name in pipelines
        ],
    )


def _keys(wrong: Sequence[WrongSpec]) -> dict[Path, AssetKey]:
    """Return a key for each, of letters that Dagster takes: the pipeline and the file, such as `shop/shop_yaml`."""
    keys: dict[Path, AssetKey] = {}
    for one in wrong:
        name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in one.path.name)
        taken = sum(key.path[:2] == [one.pipeline, name] for key in keys.values())
        keys[one.path] = AssetKey([one.pipeline, name, str(taken + 1)] if taken else [one.pipeline, name])
    return keys


def _asset(one: WrongSpec, key: AssetKey) -> AssetSpec:
    about = (
        f"This spec makes no pipeline.\n\n```text\n{one.message}\n```\n\nWhen it is mended, reload the code location."
    )
    return AssetSpec(
        key, group_name=one.pipeline, description=about, kinds={"yaml"}, metadata={"file": str(one.path)}
    )


def _check(one: WrongSpec, key: AssetKey, look: Look) -> AssetChecksDefinition:
    @asset_check(asset=key, name=CHECK, description=_HOLDS)
    def is_a_pipeline() -> AssetCheckResult:
        message = _now(look).get(one.path)
        return AssetCheckResult(
            passed=message is None, severity=AssetCheckSeverity.ERROR, description=message or _MENDED
        )

    return is_a_pipeline


def _sensor(pipeline: str, keys: dict[Path, AssetKey], look: Look) -> SensorDefinition:
    """Record the failed checks of the files about a pipeline, once for each state of them.

    Without it a check that has never run would stay unknown.
    """

    @sensor(
        name=f"{pipeline}_wrong_spec",
        minimum_interval_seconds=_LOOK_EVERY_S,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Says at the assets of wrong specs of {pipeline} what is wrong with them.",
    )
    def wrong_specs(context: SensorEvaluationContext) -> SensorResult:
        now = {path: message for path, message in _now(look).items() if path in keys}
        found = {"/".join(key.path): now.get(path) for path, key in keys.items()}
        told = json.loads(context.cursor) if context.cursor else {}
        new = [
            AssetCheckEvaluation(
                asset_key=key,
                check_name=CHECK,
                passed=path not in now,
                severity=AssetCheckSeverity.ERROR,
                description=now.get(path, _MENDED),
            )
            for path, key in keys.items()
            if told.get("/".join(key.path), "") != now.get(path)
        ]
        why = f"{len(now)} of {len(keys)} still wrong; {len(new)} told anew"
        return SensorResult(skip_reason=why, asset_events=new, cursor=json.dumps(found))

    return wrong_specs


def _now(look: Look) -> dict[Path, str]:
    return {one.path: one.message.replace("\n", "  \n") for one in look()}  # as Markdown, line by line
