"""A pipeline's tables as assets of Dagster: their keys and all that its catalog shows of them before a run.

Here: one `AssetSpec` for each, and the keys under which a project shows them instead. Not here: what is upstream of
them (assets/catalog/upstream.py), their columns (assets/catalog/columns.py), what materializes them (assets/live.py,
assets/rebuild/day_assets.py), what a run says of them (assets/catalog/display/metadata.py).
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import dagster as dg

from tidemark.assets.catalog.columns import Column, columns_of_tables
from tidemark.assets.catalog.days.partitions import day_partitions
from tidemark.assets.catalog.days.versions import UPSTREAM_OF_DAYS, versions_of
from tidemark.assets.catalog.runs import key
from tidemark.assets.catalog.upstream import Upstream, upstream_of
from tidemark.resources import tables
from tidemark.resources.catalog import full_name
from tidemark.resources.places.place import Place, uri_of
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import Path as KeyPath
from tidemark.timeops.errors.problems import did_you_mean
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
    if table not in _ABOUT and not table.startswith((tables.window_table(""), tables.join_table(""))):
        near = did_you_mean(table, [*_ABOUT])
        choices = f"{', '.join(_ABOUT)}, windows/<name> or joins/<name>"
        raise SpecError(f"No pipeline shows a table `{table}`", expected=f"one of {choices}", remedy=near)
    plain_key = dg.AssetKey([pipeline, *table.split("/")])
    return plain_key.with_prefix(key_prefix) if key_prefix else plain_key


_LINEAGE = "dagster/column_lineage"

_Condition = dg.AutomationCondition[Any]


def _once(happened: _Condition, label: str) -> _Condition:
    """Return the condition that something has happened since the last request, and no run is at work.

    What happens while a run is at work is requested when it has ended. So is what happens in the evaluation of a
    request, which `eager()` and `on_missing()` of Dagster forget.
    """
    asked_before = dg.AutomationCondition.newly_requested() & ~happened
    is_due = happened.since(asked_before) & ~dg.AutomationCondition.in_progress()
    return is_due.with_label(label)


_UPDATED = "an asset upstream was updated"
_ON_UPDATE = _once(dg.AutomationCondition.any_deps_updated(), _UPDATED)
_CONDITIONS: Mapping[str, _Condition] = MappingProxyType(
    {
        "code_version_changed": _once(dg.AutomationCondition.code_version_changed(), "the spec changed"),
        "on_missing": _once(dg.AutomationCondition.missing().newly_true(), "the day was never computed"),
    }
)


@dataclass(frozen=True)
class Shown:
    """The pipelines of a code location as the catalog shows them.

    Attributes:
        pipelines: Each pipeline with the keys by which its runs report, and its assets by their names, such as
            `raw_events` and `windows/by_hour`.
        places: The places upstream of them.
    """

    pipelines: Sequence[tuple[SpecFile, Mapping[str, dg.AssetSpec]]]
    places: Sequence[dg.AssetSpec]


def asset_specs(files: Sequence[SpecFile], warehouse: Place, translate: Translate | None = None) -> Shown:
    """Return what the catalog shows of the pipelines of a code location.

    Args:
        files: The pipelines.
        warehouse: The folder of all tables, by which a pipeline that reads tables of another one is known.
        translate: Changes what is shown of a table, also its key: what is downstream of it goes by the new key.
            Places upstream stay as they are.

    Raises:
        SpecError: `translate` changes what runs rely on: the days of a window, or that a run without input is none.
    """
    upstream = upstream_of(files, warehouse)
    pipelines = [(file, _asset_specs(file, warehouse, upstream)) for file in files]
    places = [*upstream.places.values()]
    if translate is None:
        return Shown(pipelines, places)
    shown = [(file, specs, {name: translate(spec) for name, spec in specs.items()}) for file, specs in pipelines]
    keys = {plain[name].key: spec.key for _, plain, specs in shown for name, spec in specs.items()}
    return Shown([_translated(*pipeline, keys) for pipeline in shown], places)


def _translated(
    file: SpecFile,
    plain: Mapping[str, dg.AssetSpec],
    specs: Mapping[str, dg.AssetSpec],
    keys: Mapping[dg.AssetKey, dg.AssetKey],
) -> tuple[SpecFile, Mapping[str, dg.AssetSpec]]:
    """Return a pipeline under the keys of a translation; `keys` has the keys of all pipelines."""
    other_keys = {name: tuple(spec.key.path) for name, spec in specs.items() if spec.key != plain[name].key}
    return replace(file, asset_keys=other_keys), {
        name: _fit_to_run(f"{file.spec.name}: {name}", plain[name], spec, keys) for name, spec in specs.items()
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
                expected="one that leaves it alone, because runs depend on it",
                remedy="leave it out; the spec says the days of windows, under `partitions`",
            )
    deps = {dep.asset_key: dep for dep in (*shown.deps, *plain.deps)}
    metadata = dict(shown.metadata)
    if isinstance(lineage := metadata.get(_LINEAGE), dg.TableColumnLineage):
        metadata[_LINEAGE] = _with_keys(lineage, keys)
    return shown.replace_attributes(
        deps=[
            dg.AssetDep(keys.get(asset, asset), partition_mapping=dep.partition_mapping)
            for asset, dep in deps.items()
        ],
        metadata=metadata,
    )


def _with_keys(lineage: dg.TableColumnLineage, keys: Mapping[dg.AssetKey, dg.AssetKey]) -> dg.TableColumnLineage:
    return dg.TableColumnLineage(
        {
            column: [
                dg.TableColumnDep(keys.get(origin.asset_key, origin.asset_key), origin.column_name)
                for origin in origins
            ]
            for column, origins in lineage.deps_by_column.items()
        }
    )


def _asset_specs(file: SpecFile, warehouse: Place, upstream: Upstream) -> dict[str, dg.AssetSpec]:
    spec, read, tables_read = file.spec, upstream.of(file), upstream.of_tables(file)
    joins = [tables.join_table(join.name) for join in spec.joins]
    time_stages = [tables.ORDERED_EVENTS, *(["window_results"] if spec.windows else []), *joins]
    inputs = {
        tables.RAW_EVENTS: [],
        tables.ORDERED_EVENTS: [tables.RAW_EVENTS],
        **({"window_results": [tables.ORDERED_EVENTS]} if spec.windows else {}),
        **{name: [tables.ORDERED_EVENTS] for name in joins},
        tables.DEAD_LETTERS: time_stages,
        tables.BATCHES: [*time_stages, tables.DEAD_LETTERS],
    }
    stages = {name: _stage(file, name, of) for name, of in inputs.items()}
    stages[tables.RAW_EVENTS] = stages[tables.RAW_EVENTS].replace_attributes(deps=_of_all_days(read.values()))
    for join in spec.joins:
        if join.has_table:
            asset, table = tables.join_table(join.name), tables_read[join.right.name]
            stages[asset] = _with_table(stages[asset], table)
    windows = {tables.window_table(window.name): _window(file, window) for window in spec.windows}
    columns = columns_of_tables(spec)
    return {
        name: asset.replace_attributes(
            code_version=_code_version(spec, name),
            metadata={
                **_about_table(file, name, warehouse),
                **_about_columns(file, columns.get(name, ()), read if name == tables.RAW_EVENTS else tables_read),
                **_code(file, name),
            },
        )
        for name, asset in (stages | windows).items()
    }


def _of_all_days(upstream: Iterable[tuple[dg.AssetKey, ...]]) -> list[dg.AssetDep]:
    """Return what is upstream: a record of the log, or a row of a join, may come from any day of it."""
    assets = dict.fromkeys(asset for some in upstream for asset in some)
    return [dg.AssetDep(asset, partition_mapping=dg.AllPartitionMapping()) for asset in assets]


def _with_table(asset: dg.AssetSpec, table: tuple[dg.AssetKey, ...]) -> dg.AssetSpec:
    """Return the asset of a join with the table on its right side upstream; a new version of that starts no run."""
    with_table = asset.replace_attributes(deps=[*asset.deps, *_of_all_days([table])])
    if asset.automation_condition is None:
        return with_table
    updated = dg.AutomationCondition.any_deps_updated().ignore(dg.AssetSelection.assets(*table))
    return with_table.replace_attributes(automation_condition=_once(updated, _UPDATED))


def _code_version(spec: Spec, name: str) -> str:
    """Return the version of the part of the spec that the rows of an asset depend on."""
    versions = versions_of(spec)
    by_table = {tables.RAW_EVENTS: versions.log, tables.ORDERED_EVENTS: versions.events}
    by_table |= {tables.window_table(window): version for window, version in versions.windows.items()}
    by_table |= {tables.join_table(join): version for join, version in versions.joins.items()}
    return by_table.get(name, versions.results)


def _about_table(file: SpecFile, name: str, warehouse: Place) -> dict[str, Any]:
    """Return where a table is, and what SQL calls it; of a stage that writes no table of its name, nothing."""
    spec = file.spec
    if name == "window_results" or (name == tables.ORDERED_EVENTS and not spec.outputs.ordered_events):
        return {}
    table_name = full_name(spec, name)
    return {
        "dagster/uri": uri_of(warehouse / spec.name / name),
        **({"dagster/table_name": table_name} if table_name is not None else {}),
    }


def _about_columns(
    file: SpecFile, columns: Iterable[Column], upstream: Mapping[str, tuple[dg.AssetKey, ...]]
) -> dict[str, Any]:
    """Return the columns of a table, and the columns upstream that each is made of.

    `upstream` has the assets outside of the pipeline: of the log the sources, of others the tables that joins read.
    """
    schema, lineage = list[dg.TableColumn](), dict[str, list[dg.TableColumnDep]]()
    for column in columns:
        schema.append(dg.TableColumn(column.name, column.kind, description=column.about))
        origins = dict.fromkeys(  # two sources may read one place
            (asset, name) for of, name in column.origins for asset in upstream.get(of) or (key(file, of),)
        )
        if origins:
            lineage[column.name] = [dg.TableColumnDep(asset, name) for asset, name in origins]
    if not schema:
        return {}
    return {"dagster/column_schema": dg.TableSchema(columns=schema), _LINEAGE: dg.TableColumnLineage(lineage)}


def _code(file: SpecFile, name: str) -> dict[str, Any]:
    """Return where the spec says what a table holds: the sources of the log, a window, the rules of time."""
    spec, places = file.spec, dict[str, KeyPath]()
    for number, window in enumerate(spec.windows):
        if name in (tables.window_table(window.name), "window_results"):
            places[f"window {window.name}"] = ("windows", number)
    for number, join in enumerate(spec.joins):
        if name == tables.join_table(join.name):
            places[f"join {join.name}"] = ("joins", number)
    if name == tables.RAW_EVENTS:
        places = {f"source {source.name}": ("sources", number) for number, source in enumerate(spec.sources)}
    elif not places:
        places = {"time": ("time",)} if file.line_of(("time",)) else {spec.name: ()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of code references, which are used on purpose
        references = [
            dg.LocalFileCodeReference(file_path=str(file.path), line_number=file.line_of(at), label=label)
            for label, at in places.items()
        ]
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=references)}


def _stage(file: SpecFile, name: str, inputs: list[str]) -> dg.AssetSpec:
    """Return a table of live runs. Without a batch a run yields no rows of it, so that no empty run is shown."""
    spec = file.spec
    return dg.AssetSpec(
        key(file, name),
        group_name=spec.name,
        description=_ABOUT.get(name) or _about_join(spec, name),
        deps=[key(file, of) for of in inputs],
        kinds={"pyspark", "delta"},
        owners=list(spec.owners),
        tags=dict(spec.tags),
        skippable=True,
        automation_condition=_ON_UPDATE if spec.automation_condition == "eager" else None,
        freshness_policy=_freshness(spec) if name == tables.BATCHES else None,
    )


def _about_join(spec: Spec, name: str) -> str:
    join = next(join for join in spec.joins if tables.join_table(join.name) == name)
    if join.is_interval:
        sides = {"inner": "", "left": " of the first", "right": " of the second", "full": " of both"}[join.how]
        alone = f", and the events{sides} that have no partner" if sides else ""
        return (
            f"Each pair of accepted events of `{join.left.source}` and `{join.right.source}` that are near in "
            f"time{alone}. Live runs write it; a rebuild recomputes it from the arrival log."
        )
    if join.has_table:
        return (
            f"Each accepted event of `{join.left.source}` with the row of {join.right.table} that held at its time. "
            "Live runs write it; a rebuild recomputes it from the arrival log, with the rows that each batch had."
        )
    where = {"backward": "last at or before", "forward": "first at or after", "nearest": "nearest to"}[join.direction]
    return (
        f"Each accepted event of `{join.left.source}` with the event of `{join.right.source}` that is the {where} "
        "its time. Live runs write it; a rebuild recomputes it from the arrival log."
    )


def _freshness(spec: Spec) -> dg.FreshnessPolicy | None:
    """Return how old the last batch may be, as Dagster's daemon watches it; an age beyond that is an error."""
    levels = spec.alerts.freshness
    if levels is None or levels.error is None:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=levels.error, warn_window=levels.warn)


def _window(file: SpecFile, window: WindowSpec) -> dg.AssetSpec:
    spec = file.spec
    inputs = [] if window.input is None else [key(file, tables.result_table(window.input, spec))]
    return dg.AssetSpec(
        key(file, tables.window_table(window.name)),
        group_name=spec.name,
        description=f"Final results of the {window.kind} window `{window.name}`. A partition is the day of "
        f"window_start ({spec.partitions.time_zone}). Live runs write it; materializing days recomputes them "
        "from the arrival log.",
        # A window may take results of other days than the one on which it starts.
        deps=[
            *(key(file, stage) for stage in UPSTREAM_OF_DAYS),
            *(dg.AssetDep(upstream_key, partition_mapping=dg.AllPartitionMapping()) for upstream_key in inputs),
        ],
        kinds={"pyspark", "delta"},
        owners=list(spec.owners),
        tags=dict(spec.tags),
        skippable=True,  # its days are reported one by one
        automation_condition=_CONDITIONS.get(window.automation_condition or ""),
        partitions_def=day_partitions(spec, window.name),
    )
