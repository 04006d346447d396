"""The assets upstream of a pipeline in Dagster: what its sources read, and the tables on the right side of its joins.

Here: the key and the description of a place, one for each place, and which place is a table that a
pipeline writes. Not here: the pipeline's own assets (assets/catalog/asset_specs.py), reading (resources/sources/).

Nothing is looked at: the spec and the warehouse say all that is needed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import dagster as dg

from tidemark.assets.catalog.runs import key
from tidemark.resources import tables
from tidemark.resources.places.place import Place, place_of, relative, resolved, uri_of
from tidemark.resources.sources.local_files import fixed_folder
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.spec import DeltaSource, FilesSource, JoinSpec, KafkaSource, Source
from tidemark.timeops.spec.pipeline import digest

GROUP = "sources"
"""The group of all places that sources and joins read."""

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
        keys: The assets that a source reads, by pipeline and source; of a table that a join reads the same, by
            `right.name` of the join, which no source can have.
        places: The assets of places that no pipeline of these writes, by their keys.
    """

    keys: Mapping[tuple[str, str], tuple[dg.AssetKey, ...]]
    places: Mapping[dg.AssetKey, dg.AssetSpec]

    def of(self, file: SpecFile) -> Mapping[str, tuple[dg.AssetKey, ...]]:
        """Return the assets that each source of a pipeline reads, by its name."""
        return {source.name: self.keys[file.spec.name, source.name] for source in file.spec.sources}

    def of_tables(self, file: SpecFile) -> Mapping[str, tuple[dg.AssetKey, ...]]:
        """Return the asset of each table on the right side of a join of a pipeline, by `right.name` of the join."""
        names = [join.right.name for join in file.spec.joins if join.has_table]
        return {name: self.keys[file.spec.name, name] for name in names}


def upstream_of(files: Sequence[SpecFile], warehouse: Place) -> Upstream:
    """Return what is upstream of pipelines that are in one code location, and write into one warehouse.

    A pipeline that reads what it writes, over others or not, has the place upstream: assets have no circles.
    """
    keys = dict[tuple[str, str], tuple[dg.AssetKey, ...]]()
    places = dict[dg.AssetKey, dg.AssetSpec]()
    written, reads = _Written({file.spec.name: file for file in files}, resolved(warehouse)), _Reads()
    for file in sorted(files, key=lambda file: file.spec.name):
        pipeline = file.spec.name
        for name, upstream, folder, shown in _read_by(file):
            if upstream:
                keys[pipeline, name] = tuple(dg.AssetKey(path.split("/")) for path in upstream)
                continue
            table = written.table_of(folder) if folder is not None and folder.is_table else None
            if table is not None and reads.adds_no_circle(pipeline, table.pipeline):
                keys[pipeline, name] = (table.key,)
                places |= {asset.key: asset for asset in table.elsewhere}
                continue
            keys[pipeline, name] = tuple(asset.key for asset in shown)
            for asset in shown:
                places[asset.key] = _with_kinds(places[asset.key], asset) if asset.key in places else asset
    return Upstream(keys, places)


@dataclass(frozen=True)
class _Folder:
    """A folder or file that is read.

    Attributes:
        place: Where it is.
        what: What it is, in words.
        form: The format of its records.
    """

    place: Place
    what: str
    form: str

    @property
    def is_table(self) -> bool:
        return self.form == "delta"


def _read_by(
    file: SpecFile,
) -> Iterator[tuple[str, Sequence[str], _Folder | None, Sequence[dg.AssetSpec]]]:
    """Yield what a pipeline reads: its name, the keys that the spec has for it, its folder, and the assets it is."""
    for source in file.spec.sources:
        folder = None
        if isinstance(source, FilesSource | DeltaSource):
            description = f"A {source.what}" if isinstance(source, DeltaSource) else f"A folder of {source.what}"
            folder = _Folder(place_of_source(source, file), description, source.form)
        yield source.name, source.upstream, folder, [*_places(source, folder)]
    for join in file.spec.joins:
        if join.has_table:
            place, form = place_of_table(join, file), join.right.table_format
            folder = _Folder(place, "A Delta table" if form == "delta" else f"A {form.upper()} file", form)
            yield join.right.name, (), folder, [_of_folder(folder)]


def place_of_source(source: FilesSource | DeltaSource, file: SpecFile) -> Place:
    """Return the folder that a source reads, or the folder of the table."""
    if isinstance(source, FilesSource):
        return resolved(fixed_folder(source.path, file.folder))
    place = place_of(source.path)
    return resolved(file.folder / place) if isinstance(place, Path) else place


def place_of_table(join: JoinSpec, file: SpecFile) -> Place:
    """Return where the table on the right side of a join is."""
    place = place_of(join.right.table or "")
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

    def table_of(self, read: _Folder) -> _Table | None:
        """Return the table of a pipeline that is read; None where it is another one.

        A pipeline of another code location is known by the place of its tables; there the table has its usual key.
        """
        try:
            pipeline, _, table = relative(read.place, self.warehouse).partition("/")
        except ValueError:
            return None
        folder, _, name = table.partition("/")
        asset = _ASSET_OF.get(table)
        if folder in ("windows", "history", "joins") and name and "/" not in name:
            asset = tables.join_table(name) if folder == "joins" else tables.window_table(name)
        other = self.files.get(pipeline)
        if asset is None or (other is not None and not _has(other, asset)):
            return None
        if other is not None:
            return _Table(pipeline, key(other, asset))
        usual = dg.AssetKey([pipeline, *asset.split("/")])
        return _Table(pipeline, usual, (_spec(usual, read),))


def _has(file: SpecFile, asset: str) -> bool:
    """Return whether a pipeline has an asset: the table of a window, or a join, that is gone has none."""
    windows = [tables.window_table(window.name) for window in file.spec.windows]
    return asset in (*_ASSET_OF.values(), *windows, *(tables.join_table(join.name) for join in file.spec.joins))


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
        pipelines, left = set[str](), [name]
        while left:
            pipeline = left.pop()
            if pipeline not in pipelines:
                pipelines.add(pipeline)
                left += self._read.get(pipeline, ())
        return pipelines


def _places(source: Source, folder: _Folder | None) -> Iterator[dg.AssetSpec]:
    """Yield the assets of the places that a source reads: its folder, or of topics one each."""
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
    elif folder is not None:
        yield _of_folder(folder)


def _of_folder(read: _Folder) -> dg.AssetSpec:
    """Return the asset of a folder or file that no pipeline writes."""
    place = read.place
    scheme, _, path = uri_of(place).partition("://")
    parts = place.parts[1:] if isinstance(place, Path) else path.split("/")
    return _spec(_key(scheme, *filter(None, parts)), read)


def _spec(asset: dg.AssetKey, read: _Folder) -> dg.AssetSpec:
    """Return the asset of a folder. Only the place and the format say what it shows: others may read it, too."""
    store = _STORES.get(uri_of(read.place).partition("://")[0])
    return dg.AssetSpec(
        asset,
        group_name=GROUP,
        description=f"{read.what}: `{read.place}`.",
        kinds={read.form, *([store] if store else [])},
        metadata={"dagster/uri": uri_of(read.place)},
    )


def _with_kinds(asset: dg.AssetSpec, other: dg.AssetSpec) -> dg.AssetSpec:
    """Return the asset of a place that is read several times, with the formats of all; Dagster shows three kinds."""
    kinds = asset.kinds | dict.fromkeys(sorted(other.kinds - asset.kinds)).keys()
    return asset.replace_attributes(kinds={*sorted(kinds)[:3]})


def _key(*parts: str) -> dg.AssetKey:
    return dg.AssetKey([*_in_keys(parts)])


def _in_keys(parts: Iterable[str]) -> Iterator[str]:
    """Yield parts of a place as parts of a key: one with letters that Dagster does not take gets another name."""
    for part in parts:
        plain = _NOT_IN_KEYS.sub("_", part)
        yield plain if plain == part else f"{plain}_{digest(part)[:6]}"
