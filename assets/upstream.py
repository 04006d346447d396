"""The assets upstream of a pipeline in Dagster: the folders, topics and tables that its sources read.

Here: the key and the description of a place, one for each place, and which place is a table that a
pipeline writes. Not here: the pipeline's own assets (asset_specs.py), reading (resources/sources/).

Nothing is looked at: the spec and the warehouse say all that is needed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import dagster as dg

from tidemark.assets.runs import key
from tidemark.resources import tables
from tidemark.resources.places.place import Place, place_of, relative, resolved, uri_of
from tidemark.resources.sources.local_files import fixed_folder
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.spec import DeltaSource, FilesSource, KafkaSource, Source
from tidemark.timeops.spec.pipeline import digest

GROUP = "sources"
"""The group of all places that sources read."""

_ASSET_OF: Mapping[str, str] = MappingProxyType(
    {
        tables.LOG_CONTROL: tables.RAW_EVENTS,
        tables.HELD_EVENTS: tables.ORDERED_EVENTS,
        tables.WATERMARKS: tables.BATCHES,
        **{name: name for name in (tables.RAW_EVENTS, tables.ORDERED_EVENTS, tables.DEAD_LETTERS, tables.BATCHES)},
    }
)
"""The asset that writes a table; the history of a window is written with the window."""

_STORES: Mapping[str, str] = MappingProxyType({"s3": "s3", "gs": "googlecloud", "abfss": "azure", "hdfs": "hadoop"})
"""The kind that Dagster has an icon for, by the scheme of a URL."""

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.-]")  # of these Dagster makes names of inputs


@dataclass(frozen=True)
class Upstream:
    """The assets upstream of several pipelines.

    Attributes:
        keys: The assets that a source reads, by pipeline and source.
        places: The assets of places that no pipeline of these writes, by their keys.
    """

    keys: Mapping[tuple[str, str], tuple[dg.AssetKey, ...]]
    places: Mapping[dg.AssetKey, dg.AssetSpec]

    def of(self, file: SpecFile) -> Mapping[str, tuple[dg.AssetKey, ...]]:
        """Return the assets that each source of a pipeline reads, by its name."""
        return {source.name: self.keys[file.spec.name, source.name] for source in file.spec.sources}


def upstream_of(files: Sequence[SpecFile], warehouse: Place) -> Upstream:
    """Return what is upstream of pipelines that are in one code location, and write into one warehouse.

    A pipeline that reads what it writes, over others or not, has the place upstream: assets have no circles.
    """
    keys = dict[tuple[str, str], tuple[dg.AssetKey, ...]]()
    places = dict[dg.AssetKey, dg.AssetSpec]()
    written, reads = _Written({file.spec.name: file for file in files}, resolved(warehouse)), _Reads()
    for file in sorted(files, key=lambda file: file.spec.name):
        for source in file.spec.sources:
            at = file.spec.name, source.name
            if source.upstream:
                keys[at] = tuple(dg.AssetKey(path.split("/")) for path in source.upstream)
                continue
            table = written.table_of(source, file) if isinstance(source, DeltaSource) else None
            if table is not None and reads.adds_no_circle(file.spec.name, table.pipeline):
                keys[at] = (table.key,)
                places |= {asset.key: asset for asset in table.elsewhere}
                continue
            shown = [*_places(source, file)]
            keys[at] = tuple(asset.key for asset in shown)
            for asset in shown:
                places[asset.key] = _with_kinds(places[asset.key], asset) if asset.key in places else asset
    return Upstream(keys, places)


def place_of_source(source: FilesSource | DeltaSource, file: SpecFile) -> Place:
    """Return the folder that a source reads, or the folder of the table."""
    if isinstance(source, FilesSource):
        return resolved(fixed_folder(source.path, file.folder))
    place = place_of(source.path)
    return resolved(file.folder / place) if isinstance(place, Path) else place


@dataclass(frozen=True)
class _Table:
    """A table of a pipeline.

    Attributes:
        pipeline: The pipeline.
        key: The asset that writes it.
        elsewhere: The asset, where the pipeline is not of this code location; else nothing.
    """

    pipeline: str
    key: dg.AssetKey
    elsewhere: tuple[dg.AssetSpec, ...] = ()


@dataclass(frozen=True)
class _Written:
    """The tables in a warehouse, and the pipelines of this code location that write some of them."""

    files: Mapping[str, SpecFile]
    warehouse: Place

    def table_of(self, source: DeltaSource, file: SpecFile) -> _Table | None:
        """Return the table that a source reads; None where it reads something else.

        A pipeline of another code location is known by the place of its tables; there the table has its usual key.
        """
        place = place_of_source(source, file)
        try:
            pipeline, _, table = relative(place, self.warehouse).partition("/")
        except ValueError:
            return None
        folder, _, window = table.partition("/")
        asset = _ASSET_OF.get(table)
        if folder in ("windows", "history") and window and "/" not in window:
            asset = tables.window_table(window)
        other = self.files.get(pipeline)
        if asset is None or (other is not None and not _has(other, asset)):
            return None
        if other is not None:
            return _Table(pipeline, key(other, asset))
        usual = dg.AssetKey([pipeline, *asset.split("/")])
        return _Table(pipeline, usual, (_spec(usual, place, source),))


def _has(file: SpecFile, asset: str) -> bool:
    """Return whether a pipeline has an asset: the table of a window that is gone has none."""
    return asset in _ASSET_OF.values() or asset in (tables.window_table(window.name) for window in file.spec.windows)


class _Reads:
    """The pipelines that read tables of others."""

    def __init__(self) -> None:
        self._read = dict[str, set[str]]()

    def adds_no_circle(self, reader: str, writer: str) -> bool:
        """Note that a pipeline reads a table of another, unless that one reads its tables, over others or not."""
        if reader in self._leads_to(writer):
            return False
        self._read.setdefault(reader, set()).add(writer)
        return True

    def _leads_to(self, name: str) -> set[str]:
        reached, left = set[str](), [name]
        while left:
            pipeline = left.pop()
            if pipeline not in reached:
                reached.add(pipeline)
                left += self._read.get(pipeline, ())
        return reached


def _places(source: Source, file: SpecFile) -> Iterator[dg.AssetSpec]:
    """Yield the assets of the places that a source reads: of topics one each."""
    if isinstance(source, KafkaSource):
        servers = sorted(source.bootstrap_servers.split(","))
        for topic in source.topics or (source.topic_pattern or "",):
            yield dg.AssetSpec(
                _key("kafka", *servers[0].rsplit(":", 1), topic),
                group_name=GROUP,
                description=f"The topic `{topic}` of Kafka." if source.topics else f"Topics of Kafka like `{topic}`.",
                kinds={"kafka", source.format} - {"raw"},
                metadata={"dagster/uri": f"kafka://{servers[0]}/{topic}"},
            )
    elif isinstance(source, FilesSource | DeltaSource):
        place = place_of_source(source, file)
        scheme, _, rest = uri_of(place).partition("://")
        parts = place.parts[1:] if isinstance(place, Path) else rest.split("/")
        yield _spec(_key(scheme, *filter(None, parts)), place, source)


def _spec(asset: dg.AssetKey, place: Place, source: FilesSource | DeltaSource) -> dg.AssetSpec:
    """Return the asset of a folder. Only the place and the format say what it shows: others may read it, too."""
    store = _STORES.get(uri_of(place).partition("://")[0])
    return dg.AssetSpec(
        asset,
        group_name=GROUP,
        description=f"{'A' if isinstance(source, DeltaSource) else 'A folder of'} {source.what}: `{place}`.",
        kinds={source.form, *([store] if store else [])},
        metadata={"dagster/uri": uri_of(place)},
    )


def _with_kinds(asset: dg.AssetSpec, other: dg.AssetSpec) -> dg.AssetSpec:
    """Return the asset of a place that several sources read, with the formats of all; Dagster shows three kinds."""
    kinds = asset.kinds | dict.fromkeys(sorted(other.kinds - asset.kinds)).keys()
    return asset.replace_attributes(kinds={*sorted(kinds)[:3]})


def _key(*parts: str) -> dg.AssetKey:
    return dg.AssetKey([*_in_keys(parts)])


def _in_keys(parts: Iterable[str]) -> Iterator[str]:
    """Yield parts of a place as parts of a key: one with letters that Dagster does not take gets another name."""
    for part in parts:
        plain = _NOT_IN_KEYS.sub("_", part)
        yield plain if plain == part else f"{plain}_{digest(part)[:6]}"
