"""A pipeline's tables as assets of Dagster: their keys and all that its catalog shows of them before a run.

Here: one `AssetSpec` for each, and the keys that a project gives them instead. Not here: what materializes them
(live.py, backfill/partitions.py), what a run says of them (display/metadata.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import dagster as dg

from tidemark.assets.day_partitions import days_of
from tidemark.assets.runs import key
from tidemark.resources import tables
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.spec import Spec, WindowSpec

Translate = Callable[[dg.AssetSpec], dg.AssetSpec]
"""Changes what the catalog shows of an asset, also its key."""

_ABOUT: Mapping[str, str] = MappingProxyType(
    {
        tables.RAW_EVENTS: "The arrival log: every record that came in, in the order that everything downstream is a "
        "function of.",
        tables.ORDERED_EVENTS: "Accepted events in event-time order, released once the watermark has passed them.",
        "window_results": "Closes windows: writes the rows of `windows/<name>` whose windows the watermark "
        "has passed.",
        tables.DEAD_LETTERS: "Every record that was refused, with the reason, how late it was, and the "
        "record itself.",
        tables.BATCHES: "The log of batches. Its newest row is the commit: the version of every table that belongs "
        "together.",
    }
)


def asset_specs(file: SpecFile, translate: Translate | None = None) -> tuple[SpecFile, Mapping[str, dg.AssetSpec]]:
    """Return the assets of a pipeline by their names, such as `raw_events` and `windows/by_hour`.

    Returns:
        The file with the keys that `translate` gives, by which runs report, and the assets with these keys.
    """
    if translate is None:
        return file, _asset_specs(file)
    shown = {name: translate(spec) for name, spec in _asset_specs(file).items()}
    keys = {key(file, name): spec.key for name, spec in shown.items()}
    named = replace(file, asset_keys={name: tuple(spec.key.path) for name, spec in shown.items()})
    return named, {name: _with_keys(spec, keys) for name, spec in shown.items()}


def _with_keys(spec: dg.AssetSpec, keys: Mapping[dg.AssetKey, dg.AssetKey]) -> dg.AssetSpec:
    """Return a spec whose upstream assets have the keys that they were given."""
    deps = [
        dg.AssetDep(keys.get(dep.asset_key, dep.asset_key), partition_mapping=dep.partition_mapping)
        for dep in spec.deps
    ]
    return spec.replace_attributes(deps=deps)


def _asset_specs(file: SpecFile) -> dict[str, dg.AssetSpec]:
    spec = file.spec
    time_stages = [tables.ORDERED_EVENTS, *(["window_results"] if spec.windows else [])]
    inputs = {
        tables.RAW_EVENTS: [],
        tables.ORDERED_EVENTS: [tables.RAW_EVENTS],
        **({"window_results": [tables.ORDERED_EVENTS]} if spec.windows else {}),
        tables.DEAD_LETTERS: time_stages,
        tables.BATCHES: [*time_stages, tables.DEAD_LETTERS],
    }
    stages = {name: _stage(file, name, of) for name, of in inputs.items()}
    windows = {tables.window_table(window.name): _window(file, window) for window in spec.windows}
    return stages | windows


def _stage(file: SpecFile, name: str, inputs: list[str]) -> dg.AssetSpec:
    """Return a table of live runs. Without a batch a run yields no rows of it, so that no empty run is shown."""
    spec = file.spec
    return dg.AssetSpec(
        key(file, name),
        group_name=spec.name,
        description=_ABOUT[name],
        deps=[key(file, of) for of in inputs],
        kinds={"pyspark", "delta"},
        owners=list(spec.owners),
        tags=dict(spec.tags),
        skippable=True,
        freshness_policy=_freshness(spec) if name == tables.BATCHES else None,
    )


def _freshness(spec: Spec) -> dg.FreshnessPolicy | None:
    """Return how old the last batch may be, as Dagster's daemon watches it; an age beyond that is an error."""
    levels = spec.alerts.freshness
    if levels is None or levels.error is None:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=levels.error, warn_window=levels.warn)


def _window(file: SpecFile, window: WindowSpec) -> dg.AssetSpec:
    spec = file.spec
    inputs = [] if window.input is None else [key(file, tables.window_table(window.input))]
    return dg.AssetSpec(
        key(file, tables.window_table(window.name)),
        group_name=spec.name,
        description=f"Final results of the {window.kind} window `{window.name}`. A partition is the day of "
        f"window_start ({spec.partitions.time_zone}). Live runs write it; materializing days computes them anew from "
        "the arrival log.",
        # A window may take results of other days than the one on which it starts.
        deps=[
            key(file, "window_results"),
            *(dg.AssetDep(each, partition_mapping=dg.AllPartitionMapping()) for each in inputs),
        ],
        kinds={"pyspark", "delta"},
        owners=list(spec.owners),
        tags=dict(spec.tags),
        partitions_def=days_of(spec, window.name),
    )
