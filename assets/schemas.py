"""The columns of every table of a pipeline, derived from its spec, and what Spark says of the spec before that.

Here: schemas, the creation of tables that are missing, the columns that expressions may name, and the one error that
lists what is wrong. Not here: judging expressions (timeops/spec_check.py), what is written into tables.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, DateType, LongType, StringType, StructField, StructType, TimestampType

from tidemark.resources import tables
from tidemark.resources.delta.columns import OtherColumnsError
from tidemark.resources.delta.migration import fit, old_columns
from tidemark.resources.sources.records import RESCUED, payload_schema, split_of
from tidemark.resources.spark.frames import empty_frame, small_frame
from tidemark.resources.tables import open_in_column
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.calendar.zones import zone_problems
from tidemark.timeops.computing.materialize import Execution
from tidemark.timeops.dead_letters import time_letters
from tidemark.timeops.errors import SpecError, first_line
from tidemark.timeops.errors.problems import Path, Problem
from tidemark.timeops.events.adjustment import Adjusted, Segment, time_adjustment
from tidemark.timeops.events.duplicates import FIRST_TIMES_SCHEMA
from tidemark.timeops.events.event_time import with_instant
from tidemark.timeops.expressions.column_types import converted, type_of_json
from tidemark.timeops.expressions.refusals import first_sentence
from tidemark.timeops.expressions.text_values import EXACT, value_sql
from tidemark.timeops.expressions.tokens import WORKING, quoted
from tidemark.timeops.joins.gathering import HAS_PARTNER
from tidemark.timeops.joins.rows import answers, shown
from tidemark.timeops.joins.rows import as_events as rows_as_events
from tidemark.timeops.joins.tables import VALID_FROM, right_events
from tidemark.timeops.spec import JoinSpec, Spec, WindowSpec, is_reserved
from tidemark.timeops.spec.changes import is_wider
from tidemark.timeops.spec.window import input_of, result_columns
from tidemark.timeops.spec_check import expression_problems
from tidemark.timeops.watermark.timelines import STATE, LogPlace
from tidemark.timeops.watermark.watermarks import Watermarks
from tidemark.timeops.windows.gap_filling import seen_groups
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.results import window_results
from tidemark.timeops.windows.revisions import LATE_EVENTS, PASSES, changes
from tidemark.timeops.windows.segment import (
    OPEN_IN,
    WindowSegment,
    as_events,
    columns_of,
    group_names,
    with_groups,
    with_results,
)

_LOG_TYPES = {
    c.SEQ: LongType(),
    c.ARRIVAL: TimestampType(),
    c.CLOCK: TimestampType(),
    c.SOURCE: StringType(),
    c.SPLIT: StringType(),
    c.POSITION: LongType(),
    c.FILE: StringType(),
    c.MALFORMED: StringType(),
    c.BATCH: LongType(),
}
_BATCH_FIELD = StructField(c.BATCH, LongType())
RELEASED = "released"  # events of the timeline that have a _release_seq
ENDED_WINDOW = "Ended:"
"""First word of the description of a table whose window is gone."""
TIMELINE_SCHEMA = STATE.append(pa.field(RELEASED, pa.int64()))
"""The state of a timeline between two batches."""
EVENT_COLUMNS = (c.TIMESTAMP, c.EVENT_TIME, c.ARRIVAL, c.SEQ, c.TIMELINE)
_OTHER_NAME = "take the change back, or choose another name for the new column with `rename`"
_NOT_OF_THE_LOG = (c.BATCH, c.MALFORMED)  # the first would make results depend on how the log is cut
_OF_EVENTS = {
    c.TIMESTAMP: "timestamp",
    c.EVENT_TIME: "timestamp",
    c.ARRIVAL: "timestamp",
    c.SEQ: "bigint",
    c.TIMELINE: "string",
    c.ADJUSTED_BY: "array<string>",
    c.SOURCE: "string",
    c.SPLIT: "string",
}


def payload_of(workspace: Workspace) -> StructType:
    """Return the payload columns of the tables: the spec's, and columns kept of earlier specs.

    The latter are null in the records that are read from then on. No expression may name them.

    Raises:
        SpecError: A schema is wrong, or two sources have a column of one name and different types.
    """
    payload = _payload_of_spec(workspace)
    names = {name.lower() for name in payload.names}
    return StructType([*payload, *[field for field in _payload_of_log(workspace) if field.name.lower() not in names]])


def _payload_of_log(workspace: Workspace) -> list[StructField]:
    """Return the payload columns that the log has; none before it exists."""
    log = (workspace.log_of or workspace).lake
    if not log.exists(tables.RAW_EVENTS):
        return []
    schema = StructType.fromJson(json.loads(log.schema(tables.RAW_EVENTS).to_json()))
    return [field for field in schema if field.name == RESCUED or not is_reserved(field.name)]


def _payload_of_spec(workspace: Workspace) -> StructType:
    """Return the payload columns of all sources, and `_rescued` if one keeps unknown columns."""
    sources = workspace.spec.sources
    fields: dict[str, tuple[StructField, str]] = {}
    for source in sources:
        payload = payload_schema(workspace.spark, source)
        for field in payload.fields:
            first, of = fields.setdefault(field.name.lower(), (field, source.name))
            if first != field:
                column, other = (f"`{it.name}` {it.dataType.simpleString().upper()}" for it in (first, field))
                raise SpecError(
                    f"Sources `{of}` and `{source.name}` have columns {column} and {other}.",
                    expected="one spelling and one type for a column that several sources have",
                    remedy="change a `schema`, or choose another name for one of them with `rename`",
                )
    rescued = [StructField(RESCUED, StringType())] if any(source.keep_unknown for source in sources) else []
    return StructType([*[field for field, _ in fields.values()], *rescued])


def log_schema(payload: StructType) -> StructType:
    """Return the columns of `raw_events`."""
    return StructType([*payload.fields, *[StructField(name, kind) for name, kind in _LOG_TYPES.items()]])


def as_declared(records: DataFrame, payload: StructType, zone: str) -> DataFrame:
    """Return records of the log with the columns and types that they have under the spec.

    A value that does not fit its type is null; a column that the log lacks is null too.

    Args:
        records: Records as they were read, maybe by another spec.
        payload: The payload columns of the spec.
        zone: The zone of times that have none.
    """
    kinds = {field.name: field.dataType for field in records.schema}

    def value(field: StructField) -> Column:
        if field.name not in kinds:
            return F.lit(None).cast(field.dataType)
        return value_as(field.name, kinds[field.name], field.dataType, zone)

    marks = [F.col(c.ARRIVED_AHEAD)] if c.ARRIVED_AHEAD in kinds else []
    return records.select(*[value(field).alias(field.name) for field in log_schema(payload)], *marks)


def value_as(name: str, stored_kind: DataType, kind: DataType, zone: str) -> Column:
    """Return the values of a column of the log as another type, null where one does not fit."""
    column, words = F.col(quoted(name)), kind.simpleString()
    if stored_kind == kind:
        return column
    stored_type, wanted_type = (type_of_json(data_type.jsonValue()) for data_type in (stored_kind, kind))
    if is_wider(stored_type.sql, wanted_type.sql):
        return F.expr(converted(quoted(name), stored_type, wanted_type, zone))
    if isinstance(kind, StringType):
        return column.cast(kind)
    if isinstance(stored_kind, StringType):
        return F.expr(value_sql(quoted(name), kind, zone) if isinstance(kind, EXACT) else _tried(name, words))
    fits = F.expr(_tried(name, words))
    return F.when(fits.cast(stored_kind) == column, fits)


def values_hash(fields: Sequence[StructField]) -> Column:
    """Return a hash, BIGINT, of the values of some columns, each as the type of its field."""
    return F.xxhash64(F.lit(0), *map(_hashable, fields))


def _hashable(field: StructField) -> Column:
    """Return a column as Spark can hash it: a map has no order."""
    column = F.col(quoted(field.name)).cast(field.dataType)
    return F.to_json(F.struct(column)) if "map<" in field.dataType.simpleString() else column


def _tried(name: str, words: str) -> str:
    return f"try_cast({quoted(name)} AS {words})"


def ordered_columns(payload: StructType) -> list[str]:
    """Return the columns of `ordered_events` but its batch."""
    return [*payload.names, *EVENT_COLUMNS, c.RELEASE_SEQ, c.ADJUSTED_BY, c.WATERMARK]


def held_columns(payload: StructType) -> list[str]:
    """Return the columns of `held_events` but its batch."""
    return [name for name in ordered_columns(payload) if name != c.RELEASE_SEQ]


def open_columns(payload: StructType) -> list[str]:
    """Return the columns of the events that open windows still need: what a window's expressions may name."""
    return [*payload.names, *EVENT_COLUMNS, c.ADJUSTED_BY, c.SOURCE, c.SPLIT]


def needed_columns(columns: Sequence[str], spec: Spec, payload: StructType, window: WindowSpec) -> list[str]:
    """Return the columns of `tables.needed_table`, but its batch; `columns` are the ones of the needed rows.

    Events that revise results are stored with when they came; where others of its group say if an event is needed,
    with the windows that it is kept for.
    """
    if window.input is not None and window.input in spec.join_columns:
        return [*spec.join_columns[window.input].in_windows, c.TIMESTAMP, c.TIMELINE]
    if window.input is not None:
        return [*result_columns(input_of(window, spec.windows), columns), c.TIMESTAMP, c.TIMELINE]
    clocks = [c.CLOCK, c.WATERMARK] if window.revises else []
    open_in = [open_in_column(payload.names)] if kind_of(window).needs_others else []
    return [*open_columns(payload), *clocks, *open_in]


def joining_events(events: DataFrame, payload: StructType, join: JoinSpec) -> DataFrame:
    """Return events that a join needs with the columns of `tables.joining_table`, but its batch."""
    columns = [*map(quoted, [*open_columns(payload), c.WATERMARK])]
    if join.is_interval:
        columns.append(f"{HAS_PARTNER} AS {quoted(has_partner_column(payload))}")
    return stored_events(events, payload).selectExpr(*columns)


def columns_of_table(join: JoinSpec) -> StructType:
    """Return the columns of the table on the right side of a join, as `right.schema` or the table has them."""
    schema = DataType.fromDDL(join.right.ddl or "")
    assert isinstance(schema, StructType)
    return schema


def right_schema(join: JoinSpec) -> StructType:
    """Return the columns of `tables.right_rows_table`, but its batch: the table's, VALID_FROM, and the version."""
    schema = columns_of_table(join)
    valid_from, version = tables.names_in_right_rows(schema.names)
    return StructType([*schema, StructField(valid_from, TimestampType()), StructField(version, StringType())])


def has_partner_column(payload: StructType) -> str:
    """Return the column that says whether an event of an interval join has had a partner."""
    return tables.free_name("_has_partner", payload.names)


def stored_events(events: DataFrame, payload: StructType) -> DataFrame:
    """Add to events of windows the columns that store what the engine knows of them."""
    watermarks = {c.WATERMARK: c.to_instant(c.W_BEFORE)} if c.W_BEFORE in events.columns else {}
    marks = {open_in_column(payload.names): F.col(OPEN_IN)} if OPEN_IN in events.columns else {}
    return events.withColumns(watermarks | marks) if watermarks or marks else events


def loaded_events(events: DataFrame, payload: StructType) -> DataFrame:
    """Return events of windows as the engine knows them, from a table of `stored_events`."""
    loaded = events.withColumn(c.T_FINAL, c.to_us(c.TIMESTAMP))
    if c.WATERMARK in events.columns:
        loaded = loaded.withColumn(c.W_BEFORE, c.to_us(c.WATERMARK)).drop(c.WATERMARK)
    return loaded.withColumnRenamed(open_in_column(payload.names), OPEN_IN)


def stored_name(working: str) -> str:
    """Return the name of a working column in a stored table that has no payload: `_end` for `__tm_end`."""
    return f"_{working.removeprefix(WORKING)}" if working.startswith(WORKING) else working


def stored_groups(rows: DataFrame) -> DataFrame:
    """Return what is known of groups, as it is stored."""
    return rows.withColumnsRenamed({name: stored_name(name) for name in rows.columns})


def loaded_groups(rows: DataFrame) -> DataFrame:
    """Return what is known of groups, as the engine has it, from a table of `stored_groups`."""
    groups = rows.drop(c.BATCH)
    return groups.withColumnsRenamed({name: WORKING + name[1:] for name in groups.columns if name != c.TIMELINE})


def create_tables(workspace: Workspace) -> None:
    """Create the tables that are missing, all of them before the first batch, so that readers find them.

    This reads every expression of the spec against the columns, so a wrong one fails here.

    Raises:
        SpecError: The schema or an expression of the spec is wrong, or needs columns that differ from the tables'.
    """
    _ensure_zones(workspace)  # also where the tables are there: Java may be another one than in the last run
    if workspace.is_prepared:
        return
    schemas = table_schemas(workspace)
    table_names = {*workspace.tables, tables.BATCHES}
    for table, schema in tables.CONTROL_SCHEMAS.items():
        if table in table_names:
            workspace.lake.create(table, schema, may_grow=table == tables.FILES)  # see assets/state/files.py
    feeds = {tables.window_table(window.name) for window in workspace.spec.windows if window.change_feed}
    for table, schema in schemas.items():
        if table not in table_names or (workspace.lake.exists(table) and old_columns(workspace.lake, table)):
            continue  # the next batch renames the columns
        ensure_fits(workspace, table, schema, change_feed=table in feeds)


def ensure_fits(workspace: Workspace, table: str, schema: StructType, *, change_feed: bool = False) -> None:
    """Create a table unless it exists, and check that an existing one can get the columns of a schema.

    Raises:
        SpecError: It has a column of a type that no earlier row can have.
    """
    try:
        workspace.lake.create(table, schema, may_grow=True, change_feed=change_feed)
    except OtherColumnsError as error:
        raise _made_for_another(workspace, error) from error


def fit_tables(workspace: Workspace) -> None:
    """Add the columns of this spec to tables that were made for an earlier one, see `migration.fit`.

    A batch does so as soon as it has prepared the tables: undoing an unfinished batch also takes back columns
    that came after it.
    """
    if workspace.is_prepared and not _has_log_grown(workspace):
        return
    end_tables(workspace)
    # Of all sources, where dates become instants: see timeops/spec/changes.py.
    zone = workspace.rules.sources[0].time_zone
    for table, schema in table_schemas(workspace).items():
        if fit(workspace.lake, table, schema, zone):
            workspace.tell(f"{table}: its rows were rewritten with the wider types of the spec")


def _has_log_grown(workspace: Workspace) -> bool:
    """Return whether the log has columns that tables with whole events lack: a rebuild at work has added them.

    Until the rebuild switches, runs continue under the old spec, and read these columns of such tables.
    """
    names = {field.name.lower() for field in _payload_of_log(workspace)}
    joining = [tables.joining_table(join.name) for join in workspace.spec.joins]
    for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS, *joining):
        if table in workspace.tables and workspace.lake.exists(table):
            stored = {field.name.lower() for field in workspace.lake.schema(table).fields}
            if not names <= stored:
                return True
    return False


def end_tables(workspace: Workspace) -> None:
    """Mark tables of windows that the spec no longer has as ended, and take the mark back from others."""
    last = workspace.batches.last_commit()
    for table in last.table_versions if last else ():
        folder, _, name = table.partition("/")
        if folder not in ("windows", "history", "joins") or not workspace.lake.exists(table):
            continue
        heir = next((window.name for window in workspace.spec.windows if window.was == name), None)
        if table in workspace.result_tables:
            description = ""
        elif heir is not None:
            description = f"{ENDED_WINDOW} it continues as {folder}/{heir}"
        else:
            part = "join" if folder == "joins" else "window"
            description = f"{ENDED_WINDOW} {workspace.spec.name} has no {part} {name} any more"
        workspace.lake.describe(table, description)


def _made_for_another(workspace: Workspace, error: OtherColumnsError) -> SpecError:
    """Return the error for columns whose type a permitted change alters, or whose spec no batch has recorded."""
    of_window = (tables.window_table, tables.history_table)
    windows = {table(window.name): n for n, window in enumerate(workspace.spec.windows) for table in of_window}
    of_sources = {name for source in workspace.spec.sources for name in payload_schema(workspace.spark, source).names}
    problems = []
    for column in error.columns:
        is_result = error.table in windows
        at: Path = ("windows", windows[error.table], "aggregates", column.name) if is_result else ()
        if not is_result and (column.name in of_sources or error.table == tables.RAW_EVENTS):
            at = ("sources", 0, "schema") if len(workspace.spec.sources) == 1 else ("sources",)
        stored_type = column.stored_type.upper() or "no such column"
        needed_type = column.wanted_type.upper() or "no such column"
        has = f"calls it `{column.spelled}`" if column.spelled else f"has {stored_type}"
        mismatch = f"`{column.name}` is {needed_type} now, and the table {workspace.lake.path(error.table)} {has}"
        remedy = "rebuild the tables with `tidemark rebuild SPEC`" if is_result else _OTHER_NAME
        problems.append(
            Problem(mismatch, expected="the columns of the spec that the tables were made for", remedy=remedy, at=at)
        )
    return workspace.file.error(problems)


def table_schemas(workspace: Workspace) -> Mapping[str, StructType]:
    """Return the schema of every table that depends on the spec.

    Raises:
        SpecError: The schema or an expression of the spec is wrong; all of them are named, with file, line and key.
    """
    schemas, fingerprint = workspace.memory.schemas, workspace.spec.fingerprint()
    try:
        if fingerprint not in schemas:
            schemas[fingerprint] = _table_schemas(workspace)
        return schemas[fingerprint]
    except AnalysisException as error:  # faults that no single expression shows
        refusal = f"Spark refuses what the spec asks for: {first_sentence(error)}"
        raise workspace.file.error([Problem(refusal, remedy="see which key these words are of")]) from error


def _table_schemas(workspace: Workspace) -> dict[str, StructType]:
    _ensure_zones(workspace)
    _ensure_schemas(workspace)
    of_spec = _payload_of_spec(workspace)
    _ensure_expressions(workspace, small_frame(workspace.spark, [], log_schema(of_spec)), open_columns(of_spec))
    payload = payload_of(workspace)
    log = small_frame(workspace.spark, [], log_schema(payload))
    rules = workspace.rules
    for source, its_rules in zip(workspace.spec.sources, rules.sources, strict=True):
        source_log = log.select(*payload_schema(workspace.spark, source).names)
        if source.arrival_time is not None:
            located = source_log.withColumn(c.FILE, F.lit("").cast("string"))
            with_instant(
                located, source.arrival_time, its_rules.time_zone, where=f"sources[{source.name}].arrival_time"
            )
        split_of(source_log, source)

    def emptied(frame: DataFrame) -> DataFrame:
        return empty_frame(workspace.spark, frame.schema)

    segment = Segment(log, LogPlace(), Execution(emptied, emptied))
    judged = time_adjustment(segment, STATE.empty_table(), rules, watermarks=Watermarks(()))
    # Without the expressions of these columns, which Spark would plan with at every step.
    refused = emptied(judged.refused)
    adjusted = replace(judged, accepted=emptied(judged.accepted), find_refused=lambda: refused)
    columns = {c.WATERMARK: c.to_instant(c.W_BEFORE), c.RELEASE_SEQ: F.col(c.SEQ)}
    released = adjusted.accepted.withColumns(columns)
    letters = time_letters(adjusted.refused, payload.names, adjusted.rules).schema.add(_BATCH_FIELD)
    schemas = {
        tables.RAW_EVENTS: log.schema,
        tables.DEAD_LETTERS: letters.add("replayed_at", TimestampType()),
    }
    if workspace.spec.outputs.ordered_events:
        schemas[tables.ORDERED_EVENTS] = released.select(*ordered_columns(payload)).schema.add(_BATCH_FIELD)
        schemas[tables.HELD_EVENTS] = released.select(*held_columns(payload)).schema.add(_BATCH_FIELD)
    return schemas | _kept_schemas(workspace, adjusted, payload) | _result_schemas(workspace, adjusted)


def _kept_schemas(workspace: Workspace, adjusted: Adjusted, payload: StructType) -> dict[str, StructType]:
    schemas: dict[str, StructType] = {}
    events = stored_events(adjusted.accepted.withColumn(OPEN_IN, F.array().cast("array<string>")), payload)
    for table, window in {tables.needed_table(window): window for window in workspace.spec.event_windows}.items():
        needed = events.selectExpr(*map(quoted, needed_columns(events.columns, workspace.spec, payload, window)))
        schemas[table] = needed.schema.add(_BATCH_FIELD)
    for join in workspace.spec.joins:
        of_join = adjusted.accepted.withColumn(HAS_PARTNER, F.lit(None).cast("boolean"))
        joining = joining_events(of_join, payload, join)
        schemas[tables.joining_table(join.name)] = joining.schema.add(_BATCH_FIELD)
        if join.has_table:
            schemas[tables.right_rows_table(join.name)] = _checked_right_schema(join, payload)
    for window in workspace.spec.windows:
        if window.empty:
            groups = stored_groups(seen_groups(adjusted.accepted, window))
            schemas[tables.seen_groups_table(window.name)] = groups.schema.add(_BATCH_FIELD)
    if workspace.spec.keeps_timelines:
        schemas[tables.TIMELINES] = StructType([*from_arrow_schema(TIMELINE_SCHEMA).fields, _BATCH_FIELD])
    if workspace.spec.time.deduplicate_by:
        schemas[tables.FIRST_TIMES] = StructType([*FIRST_TIMES_SCHEMA.fields, _BATCH_FIELD])
    return schemas


def _checked_right_schema(join: JoinSpec, payload: StructType) -> StructType:
    """Return the columns of the rows that are kept of a table.

    Raises:
        SpecError: Its schema is wrong, or a column of `on` has another type than on the left side.
    """
    try:
        schema = right_schema(join)
    except PySparkException as error:
        raise SpecError(
            f"Join {join.name}: the columns of its table cannot be read: {first_line(error)}",
            expected='in `right.schema` Spark DDL, such as "symbol STRING, since TIMESTAMP"',
        ) from error
    for name in join.on:
        if payload[name].dataType != schema[name].dataType:
            table_type, here = (of[name].dataType.simpleString().upper() for of in (schema, payload))
            raise SpecError(
                f"Join {join.name}: column `{name}` is {here} in `{join.left.source}` and {table_type} in the table",
                expected="one type for a column of `on`",
                remedy="change one `schema`",
            )
    kind = schema[join.right.valid_from or ""].dataType
    if not isinstance(kind, TimestampType | DateType | StringType):
        raise SpecError(
            f"Join {join.name}: `valid_from` is the column `{join.right.valid_from}` of type {kind.simpleString()}",
            expected="a TIMESTAMP, a DATE, or a STRING in ISO 8601",
        )
    return schema.add(_BATCH_FIELD)


def _result_schemas(workspace: Workspace, adjusted: Adjusted) -> dict[str, StructType]:
    schemas: dict[str, StructType] = {}
    spec = workspace.spec
    events: dict[str | None, Adjusted] = {None: adjusted}
    for join in spec.joins:
        columns_of_join = spec.join_columns[join.name]
        table = None
        if join.has_table:
            nothing = StructType([*columns_of_table(join), StructField(VALID_FROM, TimestampType())])
            table = right_events(empty_frame(workspace.spark, nothing), join, spec.time.over)
        answered = answers(adjusted, join, columns_of_join, table)
        answered = empty_frame(workspace.spark, answered.schema)
        schemas[tables.join_table(join.name)] = shown(answered).schema.add(_BATCH_FIELD)
        events[join.name] = with_results(adjusted, rows_as_events(answered, columns_of_join))
    for window in (*spec.event_windows, *spec.chained_windows):
        segment = events[window.input]
        results = empty_frame(workspace.spark, window_results(WindowSegment(segment), window).schema)
        events[window.name] = with_results(adjusted, as_events(results, window, spec.windows, spec.time.over))
        if window.input is not None:
            columns = needed_columns(segment.accepted.columns, spec, StructType(), window)
            needed = segment.accepted.selectExpr(*map(quoted, columns))
            schemas[tables.needed_table(window)] = needed.schema.add(_BATCH_FIELD)
        groups = with_groups(segment.accepted, window).select(*group_names(window)).schema.fields
        kinds = {**{field.name: field.dataType for field in groups}, c.TIMELINE: StringType()}
        flushed = [StructField(stored_name(name), kinds.get(name, LongType())) for name in columns_of(window)]
        schemas[tables.flushed_table(window.name)] = StructType([*flushed, _BATCH_FIELD])
        current = results.drop(LATE_EVENTS, PASSES)
        if window.history:
            schemas[tables.history_table(window.name)] = changes(results, current, window).schema.add(_BATCH_FIELD)
        schemas[tables.window_table(window.name)] = current.schema.add(_BATCH_FIELD)
    return schemas


def _ensure_zones(workspace: Workspace) -> None:
    """Check that Java has each time zone of the spec, with Python's rules.

    Raises:
        SpecError: It lacks one, or has other rules for it.
    """
    if problems := zone_problems(workspace.spec, lambda: workspace.spark):
        raise workspace.file.error(problems)


def _ensure_schemas(workspace: Workspace) -> None:
    problems = []
    for number, source in enumerate(workspace.spec.sources):
        try:
            payload_schema(workspace.spark, source)
        except SpecError as error:
            fault = error.found.removeprefix(f"`sources[{source.name}].schema`: ")
            problems.append(
                Problem(fault, expected=error.expected, remedy=error.remedy, at=("sources", number, "schema"))
            )
    if problems:
        raise workspace.file.error(problems)


def _ensure_expressions(workspace: Workspace, log: DataFrame, of_events: Sequence[str]) -> None:
    """Check that every expression of the spec fits the columns that it may name; name all that do not."""
    sources = [
        log.select(*map(quoted, payload_schema(workspace.spark, source).names)) for source in workspace.spec.sources
    ]
    columns = [
        f"CAST(NULL AS {_OF_EVENTS[name]}) AS {name}" if name in _OF_EVENTS else quoted(name) for name in of_events
    ]
    events = log.selectExpr(*columns)
    problems = expression_problems(workspace.spec, sources, log.drop(*_NOT_OF_THE_LOG), events)
    if problems:
        raise workspace.file.error(problems)
