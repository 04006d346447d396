"""A pipeline's tables as assets of Dagster: their keys and all that its catalog shows of them before a run.

Here: one `AssetSpec` for each, and the keys under which a project shows them instead. Not here: what materializes
them (live.py, backfill/partitions.py), what a run says of them (display/metadata.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import dagster as dg

from tidemark.assets.day_partitions import days_of
from tidemark.assets.runs import key
from tidemark.resources import tables
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import did_you_mean
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


def asset_key(pipeline: str, table: str, *, key_prefix: str | Sequence[str] = ()) -> dg.AssetKey:
    """Return the key of a pipeline's table in Dagster, for assets downstream of it.

    Args:
        pipeline: The name of the pipeline.
        table: Such as `windows/by_hour`, `ordered_events` or `dead_letters`.
        key_prefix: The prefix that its code location puts before its keys, if it does. Where it changes
            keys otherwise, ask the component: `TidemarkPipelines.asset_key`.

    Raises:
        SpecError: No pipeline shows such a table.

    Examples:
        >>> tm.asset_key("quakes", "windows/by_hour")
        AssetKey(['quakes', 'windows', 'by_hour'])
    """
    if table not in _ABOUT and not table.startswith(tables.window_table("")):
        near = did_you_mean(table, [*_ABOUT])
        known = f"{', '.join(_ABOUT)} or windows/<name>"
        raise SpecError(f"No pipeline shows a table `{table}`", expected=f"one of {known}", remedy=near)
    found = dg.AssetKey([pipeline, *table.split("/")])
    return found.with_prefix(key_prefix) if key_prefix else found


def asset_specs(file: SpecFile, translate: Translate | None = None) -> tuple[SpecFile, Mapping[str, dg.AssetSpec]]:
    """Return the assets of a pipeline by their names, such as `raw_events` and `windows/by_hour`.

    Returns:
        The file with the keys of `translate`, by which runs report, and the assets with these keys.

    Raises:
        SpecError: `translate` changes what runs rely on: the days of a window, or that a run without input is none.
    """
    if translate is None:
        return file, _asset_specs(file)
    plain = _asset_specs(file)
    shown = {name: translate(spec) for name, spec in plain.items()}
    keys = {plain[name].key: spec.key for name, spec in shown.items()}
    others = {name: tuple(spec.key.path) for name, spec in shown.items() if spec.key != plain[name].key}
    return replace(file, asset_keys=others), {
        name: _fit_to_run(f"{file.spec.name}: {name}", plain[name], spec, keys) for name, spec in shown.items()
    }


def _fit_to_run(
    here: str, plain: dg.AssetSpec, shown: dg.AssetSpec, keys: Mapping[dg.AssetKey, dg.AssetKey]
) -> dg.AssetSpec:
    """Return a translated spec with all its upstream assets, by their new keys.

    They are the order in which a run works: without one of them a batch could be committed before it is whole. So
    a translation adds to them.
    """
    for name in ("partitions_def", "skippable"):
        if getattr(shown, name) != getattr(plain, name):
            raise SpecError(
                f"{here}: the translation changes `{name}`",
                expected="one that leaves it alone, as runs go by it",
                remedy="leave it out; the spec says the days of windows, under `partitions`",
            )
    deps = {dep.asset_key: dep for dep in (*shown.deps, *plain.deps)}
    return shown.replace_attributes(
        deps=[
            dg.AssetDep(keys.get(asset, asset), partition_mapping=dep.partition_mapping)
            for asset, dep in deps.items()
        ]
    )


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
