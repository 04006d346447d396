"""The events of OpenLineage about a batch: its job and run, what it reads, what it writes, what it refused.

Here: values of OpenLineage's own classes, from the plan, the commit and the logs of tables. Not here: which tables a
batch writes (assets/catalog/batch_tables.py), sending (resources/openlineage.py). This module imports OpenLineage, so
others import it only where events are sent; it runs in the thread that sends them, and touches no table that a stage
has open.

An attempt at a batch is a run of OpenLineage: START when it is planned, COMPLETE when it is committed. FAIL says why
it was not; ABORT is an attempt that was stopped, or that another run took over.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any
from uuid import UUID

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    base_subset_dataset,
    column_lineage_dataset,
    dataset_version_dataset,
    datasource_dataset,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    ownership_job,
    parent_run,
    processing_engine_run,
    schema_dataset,
    storage_dataset,
    tags_job,
)
from openlineage.client.uuid import generate_static_uuid

from tidemark.assets.catalog.batch_tables import BatchTables
from tidemark.resources import tables
from tidemark.resources.batches.plans import BatchEvent, BatchInput, Commit, IngestInput, Plan
from tidemark.resources.batches.position import records_in
from tidemark.resources.delta.log import own_commit
from tidemark.resources.places.place import Place, RemotePath, folder_of_glob
from tidemark.resources.quality.failures import failed_checks
from tidemark.resources.settings import lineage_namespace
from tidemark.resources.sources.reference import ReferenceTable
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import columns_named
from tidemark.timeops.rules.reasons import OF_ACCEPTED
from tidemark.timeops.spec import JoinSpec, Spec, WindowSpec
from tidemark.timeops.spec.changes import types_in_tables
from tidemark.timeops.spec.kafka_source import KafkaSource
from tidemark.timeops.spec.source import Source
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.spec.window import inputs_of, result_columns, root_of

_VERSION = installed_version("tidemark")
PRODUCER = f"pkg:generic/tidemark@{_VERSION}"
FACETS = "urn:uuid:b3fd01ed-b52e-4e59-b422-4d9691fde52c"
"""The schema of our own facets, docs/reference/openlineage-facets.json. Another schema gets another name: facets of
both are then told apart. It is a name and no address, as Tidemark has no site that would serve it."""
_MOST_LOCATIONS = 100

Named = tuple[str, str]
"""Namespace and name of a dataset."""


@attr.define
class TidemarkBatchRunFacet(RunFacet):
    """The attempt at a batch that a run is; `end_seq` is known once an ingestion is committed."""

    batch: int
    kind: str
    attempt: int
    first_seq: int
    end_seq: int | None = None

    @staticmethod
    def _get_schema() -> str:
        return f"{FACETS}#/$defs/TidemarkBatchRunFacet"


@attr.define
class TidemarkRefusalsRunFacet(RunFacet):
    """The records that a batch judged, and how many of them are dead letters, by reason."""

    records: int
    refused: int
    reasons: dict[str, int]
    windows: dict[str, dict[str, int]]

    @staticmethod
    def _get_schema() -> str:
        return f"{FACETS}#/$defs/TidemarkRefusalsRunFacet"


def event_of(about: BatchTables, happened: BatchEvent, job: str | None) -> RunEvent:
    """Return the event about a moment in the life of a batch; `job` is Dagster's job that runs it, if one does."""
    plan, commit = happened.plan, happened.commit
    failed = "\n".join(failed_checks(about.folder, plan.batch_id, since=plan.planned_at)) if happened.ended else ""
    why = happened.why or failed
    state, at = RunState.START, plan.planned_at
    if commit is not None:
        state, at = RunState.COMPLETE, commit.committed_at
    elif happened.ended:
        state, at = RunState.FAIL if why else RunState.ABORT, datetime.now(UTC)
    return RunEvent(
        eventType=state,
        eventTime=at.isoformat(),
        run=Run(str(run_id(about.folder, plan)), _run_facets(happened, why, job, about.file.spec)),
        job=Job(lineage_namespace(), f"{about.file.spec.name}.{plan.kind}", _job_facets(about.file.spec, plan)),
        inputs=[*_inputs(about, plan, commit)],
        outputs=[*_outputs(about, happened)],
        producer=PRODUCER,
    )


def run_id(folder: Place, plan: Plan) -> UUID:
    """Return the id of an attempt: the same whenever it is asked for, another one for each attempt."""
    return generate_static_uuid(plan.planned_at, f"{folder}:{plan.batch_id}:{plan.attempt}".encode())


def dataset_name(place: Place) -> Named:
    """Return how OpenLineage names a file or a folder: by its file system or bucket, and its path there."""
    if isinstance(place, RemotePath):
        return place.root, f"/{place.key}" if place.root.startswith("hdfs://") else place.key
    return "file", str(place.absolute())


def _job_facets(spec: Spec, plan: Plan) -> dict[str, JobFacet]:
    facets: dict[str, JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet("BATCH", "TIDEMARK", plan.kind.upper(), producer=PRODUCER)
    }
    if spec.owners:
        owners = [ownership_job.Owner(owner) for owner in spec.owners]
        facets["ownership"] = ownership_job.OwnershipJobFacet(owners, producer=PRODUCER)
    if spec.tags:
        tags = [tags_job.TagsJobFacetFields(key, value, "TIDEMARK") for key, value in spec.tags.items()]
        facets["tags"] = tags_job.TagsJobFacet(tags, producer=PRODUCER)
    return facets


def _run_facets(happened: BatchEvent, why: str, job: str | None, spec: Spec) -> dict[str, RunFacet]:
    plan, commit = happened.plan, happened.commit
    end = commit.plan.end_seq if commit is not None else plan.end_seq
    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            installed_version("pyspark"), "spark", _VERSION, producer=PRODUCER
        ),
        "tidemark_batch": TidemarkBatchRunFacet(
            plan.batch_id, plan.kind, plan.attempt, plan.first_seq, end, producer=PRODUCER
        ),
    }
    if job is not None and _is_uuid(plan.owner.id):  # the owner of a batch has the id of Dagster's run
        facets["parent"] = parent_run.ParentRunFacet(
            parent_run.Run(plan.owner.id), parent_run.Job(lineage_namespace(), job), producer=PRODUCER
        )
    if commit is not None and plan.kind == "process":
        facets["tidemark_refusals"] = _refusals(commit, spec.result_names)
    if why:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(why, "PYTHON", producer=PRODUCER)
    return facets


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _refusals(commit: Commit, windows: Sequence[str]) -> TidemarkRefusalsRunFacet:
    by_window: dict[str, dict[str, int]] = {}
    for reason in OF_ACCEPTED:
        for name, n in commit.counts.of_windows(reason, windows).items():
            by_window.setdefault(name, {})[reason] = n
    reasons = dict(commit.counts.refused)
    return TidemarkRefusalsRunFacet(
        commit.counts.records, sum(reasons.values()), reasons, by_window, producer=PRODUCER
    )


def _inputs(about: BatchTables, plan: Plan, commit: Commit | None) -> Iterator[InputDataset]:
    if plan.kind == "ingest":
        for source in about.file.spec.sources:
            yield from _inputs_of_source(about, source, IngestInput.of(plan))
    elif about.written and plan.kind not in ("change", "retention"):
        raw = about.folder / tables.RAW_EVENTS
        statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
        version = commit.table_versions.get(tables.RAW_EVENTS) if commit is not None else None
        yield InputDataset(
            *dataset_name(raw),
            facets=_of_table(raw, version),
            inputFacets={"inputStatistics": statistics(records_in(plan), producer=PRODUCER)},
        )
        for join in about.file.spec.joins:
            if join.has_table and tables.join_table(join.name) in about.written:
                yield _input_of_join(about, plan, join)


def _input_of_join(about: BatchTables, plan: Plan, join: JoinSpec) -> InputDataset:
    """Return the table on the right side of a join, in the version that the batch has; a rebuild has several."""
    place, version = ReferenceTable(join, about.file.folder).place, BatchInput.of(plan).tables.get(join.name)
    facets: dict[str, DatasetFacet] = {"dataSource": _data_source(place)}
    if join.right.table_format == "delta":
        facets = _of_table(place, None)
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version, producer=PRODUCER)
    if join.right.ddl is not None:
        facets["schema"] = _schema(types_in_tables(join.right.ddl, {}))
    return InputDataset(*dataset_name(place), facets=facets)


def _inputs_of_source(about: BatchTables, source: Source, batch_input: IngestInput) -> Iterator[InputDataset]:
    statistics = partial(input_statistics_input_dataset.InputStatisticsInputDatasetFacet, producer=PRODUCER)
    facets: dict[str, DatasetFacet] = {"schema": _schema(_types_of_source(source))}
    if isinstance(source, KafkaSource):
        offsets = batch_input.offsets.get(source.name, {})
        for topic in _topics(source, batch_input):
            n = sum(end - first for split, (first, end) in offsets.items() if split.rpartition("-")[0] == topic)
            yield InputDataset(*_topic(source, topic), facets=facets, inputFacets={"inputStatistics": statistics(n)})
        return
    place = _place(about, source)
    if source.kind == "delta":
        read = batch_input.versions.get(source.name)
        facets |= _of_table(place, int(read[2]) if read else None)
        yield InputDataset(*dataset_name(place), facets=facets)
        return
    files = batch_input.files.get(source.name, ())
    counted = statistics(size=sum(int(size) for _, _, size in files), fileCount=len(files))
    input_facets: dict[str, Any] = {"inputStatistics": counted}
    if 0 < len(files) <= _MOST_LOCATIONS:
        condition = base_subset_dataset.LocationSubsetCondition([str(path) for path, _, _ in files])
        input_facets["subset"] = base_subset_dataset.InputSubsetInputDatasetFacet(condition, producer=PRODUCER)
    yield InputDataset(
        *dataset_name(place), facets=facets | {"dataSource": _data_source(place)}, inputFacets=input_facets
    )


def _place(about: BatchTables, source: Source) -> Place:
    """Return the folder that a source is read from: of a glob the one above its first wildcard."""
    return folder_of_glob(source.folder or "", about.file.folder)


def _topic(source: KafkaSource, topic: str) -> Named:
    return f"kafka://{source.bootstrap_servers.partition(',')[0]}", topic


def _topics(source: KafkaSource, batch_input: IngestInput) -> Sequence[str]:
    read = [split.rpartition("-")[0] for split in batch_input.offsets.get(source.name, {})]
    return [*dict.fromkeys([*source.topics, *read])]


def _outputs(about: BatchTables, happened: BatchEvent) -> Iterator[OutputDataset]:
    commit = happened.commit
    for table, columns in about.written.items():
        place, version = about.folder / table, commit.table_versions.get(table) if commit is not None else None
        facets = _of_table(place, version) | {"schema": _schema(columns)}
        lineage = _column_lineage(about, happened.plan, table, columns)
        if lineage is not None:
            facets["columnLineage"] = lineage
        output_facets: dict[str, Any] = {}
        if version is not None:
            output_facets["outputStatistics"] = _written(place, happened.earlier_versions.get(table, 0), version)
        yield OutputDataset(*dataset_name(place), facets=facets, outputFacets=output_facets)
    for table in about.dropped:
        change = lifecycle_state_change_dataset
        dropped = change.LifecycleStateChangeDatasetFacet(change.LifecycleStateChange.DROP, producer=PRODUCER)
        yield OutputDataset(*dataset_name(about.folder / table), facets={"lifecycleStateChange": dropped})


def _written(
    folder: Place, version_before: int, version: int
) -> output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet:
    """Count what the commits of a table since the version before the batch have added; maintenance adds nothing."""
    commits = [own_commit(folder, number) for number in range(version_before + 1, version + 1)]
    made = [commit for commit in commits if commit.writes_for]
    files = [file for commit in made for file in commit.added]
    rows = sum(commit.rows or sum(file.rows for file in commit.added) for commit in made)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    return statistics(rows, sum(file.size for file in files), len(files), producer=PRODUCER)


def _of_table(place: Place, version: int | None) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {
        "dataSource": _data_source(place),
        "storage": storage_dataset.StorageDatasetFacet("delta", "parquet", producer=PRODUCER),
    }
    if version is not None:
        facet = dataset_version_dataset.DatasetVersionDatasetFacet(str(version), producer=PRODUCER)
        facets["version"] = facet
    return facets


def _data_source(place: Place) -> datasource_dataset.DatasourceDatasetFacet:
    namespace, name = dataset_name(place)
    uri = f"file://{name}" if namespace == "file" else str(place)
    return datasource_dataset.DatasourceDatasetFacet(namespace, uri, producer=PRODUCER)


def _schema(columns: Mapping[str, str]) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in columns.items()]
    return schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)


class _Fields:
    """The lineage of the columns of one output, as it is put together: each from columns of one or more inputs."""

    def __init__(self, inputs: Sequence[Named]) -> None:
        self._inputs = inputs
        self.fields: dict[str, column_lineage_dataset.Fields] = {}
        self.whole: list[column_lineage_dataset.InputField] = []

    def column(self, name: str, sources: Iterable[str], subtype: str, described: str = "") -> None:
        """Add an output column that is computed from columns of the input."""
        if inputs := self._of(sources, "DIRECT", subtype, described):
            self.fields[name] = column_lineage_dataset.Fields(inputs)

    def rows(self, sources: Iterable[str], subtype: str, described: str) -> None:
        """Add columns of the input that decide which rows there are."""
        self.whole += self._of(sources, "INDIRECT", subtype, described)

    def _of(
        self, sources: Iterable[str], kind: str, subtype: str, described: str
    ) -> list[column_lineage_dataset.InputField]:
        how = column_lineage_dataset.Transformation(kind, subtype, described or None, masking=False)
        names = dict.fromkeys(sources)
        return [
            column_lineage_dataset.InputField(*dataset, name, [how]) for dataset in self._inputs for name in names
        ]

    def facet(self) -> column_lineage_dataset.ColumnLineageDatasetFacet | None:
        """Return what was put together; None for nothing."""
        if not self.fields and not self.whole:
            return None
        return column_lineage_dataset.ColumnLineageDatasetFacet(self.fields, self.whole, producer=PRODUCER)


def _column_lineage(
    about: BatchTables, plan: Plan, table: str, columns: Mapping[str, str]
) -> column_lineage_dataset.ColumnLineageDatasetFacet | None:
    spec, raw = about.file.spec, dataset_name(about.folder / tables.RAW_EVENTS)
    payload = [*dict.fromkeys(name for source in spec.sources for name in source.columns_in_tables)]
    if table == tables.RAW_EVENTS:
        return _of_log(about, plan, columns)
    if table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS):
        fields = _Fields([raw])
        for name in columns:
            if name in payload:
                fields.column(name, [name], "IDENTITY")
        for name in (c.TIMESTAMP, c.EVENT_TIME):
            fields.column(name, _of_time(spec, payload), "TRANSFORMATION", _time_texts(spec))
        return fields.facet()
    for window in spec.windows:
        if table in (tables.window_table(window.name), tables.history_table(window.name)):
            return _of_window(about, window, raw, payload)
    for join in spec.joins:
        if table == tables.join_table(join.name):
            return _of_join(about, join, raw, payload)
    return None


def _of_join(
    about: BatchTables, join: JoinSpec, raw: Named, payload: Sequence[str]
) -> column_lineage_dataset.ColumnLineageDatasetFacet | None:
    spec = about.file.spec
    fields, columns = _Fields([raw]), spec.join_columns[join.name]
    of_table = _Fields([dataset_name(ReferenceTable(join, about.file.folder).place)]) if join.has_table else fields
    for name in columns.left:
        fields.column(name, [name], "IDENTITY")
    for name, shown in columns.right:
        of_table.column(shown, [name], "IDENTITY")
    fields.fields |= of_table.fields
    fields.column(c.TIMESTAMP, _of_time(spec, payload), "TRANSFORMATION", _time_texts(spec))
    return fields.facet()


def _of_log(
    about: BatchTables, plan: Plan, columns: Mapping[str, str]
) -> column_lineage_dataset.ColumnLineageDatasetFacet | None:
    fields: dict[str, column_lineage_dataset.Fields] = {}
    for source in about.file.spec.sources:
        inputs = [dataset_name(_place(about, source))]
        if isinstance(source, KafkaSource):
            inputs = [_topic(source, topic) for topic in _topics(source, IngestInput.of(plan))]
        source_fields, original = _Fields(inputs), {now: stored_name for stored_name, now in source.rename.items()}
        for name in source.columns_in_tables:
            if name in columns and name not in source.added_columns:
                source_fields.column(name, [original.get(name, name)], "IDENTITY")
        for name, field in source_fields.fields.items():
            merged = fields.setdefault(name, column_lineage_dataset.Fields([]))
            merged.inputFields = [*merged.inputFields, *field.inputFields]
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields, [], producer=PRODUCER) if fields else None


def _of_window(
    about: BatchTables, window: WindowSpec, raw: Named, payload: Sequence[str]
) -> column_lineage_dataset.ColumnLineageDatasetFacet | None:
    spec = about.file.spec
    inputs = inputs_of(window, spec.windows)
    below = window.input and tables.result_table(window.input, spec)
    fields = _Fields([raw] if below is None else [dataset_name(about.folder / below)])
    of_log = [*payload, c.ARRIVAL, c.SOURCE, c.SPLIT, c.SEQ]
    root = root_of(window, spec.windows)
    columns = [*(of_log if root is None else spec.join_columns[root].in_windows)]
    for link in inputs:
        columns = [*result_columns(link, columns)]
    time_of_row = "window_end" if inputs else c.TIMESTAMP
    times = _of_time(spec, payload) if below is None else [time_of_row]
    described = _time_texts(spec) if below is None else time_of_row
    by_gap = window.gap_by or ""
    bounds, of_bounds = [*times, *columns_named(by_gap, columns)], ", ".join(filter(None, [described, by_gap]))
    for name in ("window_start", "window_end"):
        fields.column(name, bounds, "TRANSFORMATION", of_bounds)
    for name, text in window.group_expressions:
        read = columns_named(text, columns)
        fields.column(name, read, "IDENTITY" if text.strip("` ") in columns else "TRANSFORMATION", text)
        fields.rows(read, "GROUP_BY", text)
    if window.top is not None:
        ordering = [name for text in window.order for name in columns_named(text, columns)]
        fields.column(TOP_RANK, ordering, "TRANSFORMATION", window.top.by)
        fields.rows(ordering, "SORT", window.top.by)
    for name in window.event_columns(columns):
        is_time = name == c.TIMESTAMP
        fields.column(name, times if is_time else [name], "TRANSFORMATION" if is_time else "IDENTITY")
    for name, text in window.aggregates.items():
        fields.column(name, columns_named(text, columns), "AGGREGATION", text)
    fields.rows(bounds, "WINDOW", of_bounds)
    if window.where:
        fields.rows(columns_named(window.where, columns), "FILTER", window.where)
    if window.having:
        made = {name: name for name in window.event_columns(columns) if name in columns}
        made |= {TOP_RANK: ", ".join(window.order)} if window.top is not None else {}
        made |= dict(window.group_expressions) | window.aggregates
        texts = [made[name] for name in columns_named(window.having, made)]
        fields.rows([name for text in texts for name in columns_named(text, columns)], "FILTER", window.having)
    return fields.facet()


def _of_time(spec: Spec, payload: Sequence[str]) -> list[str]:
    """Return the columns of the log that event time is computed from."""
    texts = [source.timestamp_by or spec.time.timestamp_by or c.ARRIVAL for source in spec.sources]
    return [*dict.fromkeys(name for text in texts for name in columns_named(text, [*payload, c.ARRIVAL]))]


def _time_texts(spec: Spec) -> str:
    texts = [source.timestamp_by or spec.time.timestamp_by or c.ARRIVAL for source in spec.sources]
    return "; ".join(dict.fromkeys(texts))


def _types_of_source(source: Source) -> dict[str, str]:
    """Return the columns of a source as its input has them."""
    types = types_in_tables(source.columns, {})
    original = {now: stored_name for stored_name, now in source.rename.items()}
    return {original.get(name, name): kind for name, kind in types.items()}
