"""The columns of a pipeline's tables as its spec declares them: names, types, and the columns that each is made of.

Here: what is known before a run, without Spark and without a table. A type that only Spark can derive is left out.
Not here: the columns of an existing table (assets/catalog/display/metadata.py), the keys of assets
(assets/catalog/asset_specs.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.assets.catalog.display.metadata import meanings_of
from tidemark.resources import tables
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.column_types import type_of_ddl
from tidemark.timeops.expressions.tokens import calls, columns_named, part_of, plain_column, tokenize
from tidemark.timeops.spec import JoinSpec, Spec, WindowSpec
from tidemark.timeops.spec.changes import types_in_tables
from tidemark.timeops.spec.fields import all_names
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.spec.window import inputs_first, result_columns

Origin = tuple[str, str]
"""A table of the pipeline, or the name of a source, and a column of it."""

_OF_LOG: Mapping[str, str] = {
    c.SEQ: "bigint",
    c.ARRIVAL: "timestamp",
    c.CLOCK: "timestamp",
    c.SOURCE: "string",
    c.SPLIT: "string",
    c.POSITION: "bigint",
    c.FILE: "string",
    c.MALFORMED: "string",
    c.BATCH: "bigint",
}
_OF_ORDERED: Mapping[str, str] = {
    c.TIMESTAMP: "timestamp",
    c.EVENT_TIME: "timestamp",
    c.ARRIVAL: "timestamp",
    c.SEQ: "bigint",
    c.TIMELINE: "string",
    c.RELEASE_SEQ: "bigint",
    c.ADJUSTED_BY: "array<string>",
    c.WATERMARK: "timestamp",
    c.BATCH: "bigint",
}
_OF_LETTERS: Mapping[str, str] = {
    c.SEQ: "bigint",
    c.ARRIVAL: "timestamp",
    c.SOURCE: "string",
    c.SPLIT: "string",
    c.POSITION: "bigint",
    "stage": "string",
    "reason": "string",
    "detail": "string",
    "window_name": "string",
    "missed_windows": "array<struct<start:timestamp,end:timestamp>>",
    c.EVENT_TIME: "timestamp",
    c.WATERMARK: "timestamp",
    "lateness_us": "bigint",
    "watermark_set_by": "bigint",
    "payload": "string",
    c.BATCH: "bigint",
    "replayed_at": "timestamp",
}
_OF_RESULT: Mapping[str, str] = {
    "_revision": "int",
    "_is_final": "boolean",
    c.WATERMARK: "timestamp",
    c.BATCH: "bigint",
}
_COUNTS = ("count", "count_if", "approx_count_distinct", "regr_count")
_ONE_OF_THEM = ("min", "max", "min_by", "max_by", "mode", "first_value", "last_value")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        kind: Its type in Spark SQL; empty where only Spark can derive it.
        origins: The columns that it is made of.
        about: What it means; of a column that the spec computes, how.
    """

    name: str
    kind: str
    origins: tuple[Origin, ...] = ()
    about: str | None = None


def columns_of_tables(spec: Spec) -> Mapping[str, Sequence[Column]]:
    """Return the columns of the tables that a pipeline writes, by their names such as `windows/by_hour`.

    The payload columns of a log that was begun with an earlier spec may be more.
    """
    spec_columns = _Known(spec)
    by_table = {
        tables.RAW_EVENTS: _described(tables.RAW_EVENTS, spec_columns.of_log()),
        tables.DEAD_LETTERS: _described(tables.DEAD_LETTERS, spec_columns.of_letters()),
    }
    if spec.outputs.ordered_events:
        by_table[tables.ORDERED_EVENTS] = _described(tables.ORDERED_EVENTS, spec_columns.of_ordered())
    results = dict[str | None, Sequence[Column]]({None: [*spec_columns.in_sight()]})
    for join in spec.joins:
        table, columns = tables.join_table(join.name), [*spec_columns.of_join(join)]
        by_table[table] = _described(table, columns)
        nameable = (*spec.join_columns[join.name].in_windows, c.TIMESTAMP)
        results[join.name] = [
            Column(column.name, column.kind, ((table, column.name),)) for column in columns if column.name in nameable
        ]
    for window in inputs_first(spec.windows):
        columns = [*_of_window(window, results[window.input])]
        table = tables.window_table(window.name)
        by_table[table] = _described(table, columns)
        nameable = result_columns(window, [column.name for column in columns])
        results[window.name] = [
            *(
                Column(column.name, column.kind, ((table, column.name),))
                for column in columns
                if column.name in nameable
            ),
            Column(c.TIMESTAMP, "timestamp", ((table, "window_end"),)),
        ]
    return by_table


def _described(table: str, columns: Iterable[Column]) -> list[Column]:
    meanings = meanings_of(table)
    return [
        column if column.about else Column(column.name, column.kind, column.origins, meanings.get(column.name))
        for column in columns
    ]


@dataclass(frozen=True)
class _Known:
    """A spec, and the columns of its records."""

    spec: Spec
    payload: dict[str, str] = field(default_factory=dict)
    """The payload columns in the tables, with their types."""

    def __post_init__(self) -> None:
        spelled = set[str]()
        for source in self.spec.sources:
            of_source = {**types_in_tables(source.columns, source.rename), **source.added_columns}
            for name, kind in of_source.items():
                if name.lower() not in spelled:  # a column of several sources has one spelling and one type
                    spelled.add(name.lower())
                    self.payload[name] = type_of_ddl(kind).sql
        if any(source.keep_unknown for source in self.spec.sources):
            self.payload["_rescued"] = "string"

    def of_log(self) -> Iterable[Column]:
        for name, kind in self.payload.items():
            yield Column(name, kind, tuple(self._in_input(name)))
        for name, kind in _OF_LOG.items():
            yield Column(name, kind, tuple(self._computed(name)))

    def _in_input(self, name: str) -> Iterable[Origin]:
        """Return the columns of the input that a payload column has the values of, one of each source."""
        for source in self.spec.sources:
            if name in source.columns_in_tables and name not in source.added_columns:
                yield source.name, all_names(name, source.rename)[0]

    def _computed(self, name: str) -> Iterable[Origin]:
        """Return the columns of the input from which ingestion computes a column of the log."""
        for source in self.spec.sources:
            text = {c.ARRIVAL: source.arrival_time, c.SPLIT: source.split}.get(name)
            for column in columns_named(text, source.columns_in_tables) if text else ():
                yield source.name, all_names(column, source.rename)[0]

    def of_ordered(self) -> Iterable[Column]:
        for name, kind in self.payload.items():
            yield Column(name, kind, ((tables.RAW_EVENTS, name),))
        for name, kind in _OF_ORDERED.items():
            yield Column(name, kind, self._of_event(name))

    def _of_event(self, name: str) -> tuple[Origin, ...]:
        """Return the columns of the log from which the rules of time compute a column of an event."""
        time, in_log = self.spec.time, [*self.payload, *_OF_LOG]
        if name in (c.TIMESTAMP, c.EVENT_TIME):
            texts = [source.timestamp_by or time.timestamp_by or c.ARRIVAL for source in self.spec.sources]
        elif name == c.TIMELINE:
            texts = [*time.over]
        else:
            texts = [name] if name in _OF_LOG and name != c.BATCH else []
        named = dict.fromkeys(column for text in texts for column in columns_named(text, in_log))
        return tuple((tables.RAW_EVENTS, column) for column in named)

    def of_join(self, join: JoinSpec) -> Iterable[Column]:
        """Return the columns of a join's rows: of both sources, and its own."""
        columns, in_sight = self.spec.join_columns[join.name], {column.name: column for column in self.in_sight()}
        of_right = () if join.has_table else columns.right
        for name, shown in (*((name, name) for name in columns.left), *of_right):
            yield Column(shown, self.payload.get(name, ""), in_sight[name].origins)
        if join.has_table:
            kinds = types_in_tables(join.right.ddl or "", {})
            table = join.right.name
            yield from (Column(shown, kinds[name], ((table, name),)) for name, shown in columns.right)
        yield Column(c.TIMESTAMP, "timestamp", in_sight[c.TIMESTAMP].origins)
        for name in (LEFT_SEQ, RIGHT_SEQ):
            yield Column(name, "bigint", in_sight[c.SEQ].origins)
        for name, kind in _OF_RESULT.items():
            yield Column(name, kind)

    def of_letters(self) -> Iterable[Column]:
        for name, kind in _OF_LETTERS.items():
            if name == "payload":
                yield Column(
                    name, kind, tuple((tables.RAW_EVENTS, column) for column in (*self.payload, c.MALFORMED))
                )
            else:
                yield Column(name, kind, self._of_event(name))

    def in_sight(self) -> Iterable[Column]:
        """Return the columns that a window of events may name, each where it can be found."""
        is_stored = self.spec.outputs.ordered_events
        for name, kind in {**self.payload, **_OF_LOG, **_OF_ORDERED}.items():
            in_ordered = is_stored and (name in self.payload or name in _OF_ORDERED)
            in_log = ((tables.RAW_EVENTS, name),) if name in self.payload or name in _OF_LOG else self._of_event(name)
            yield Column(name, kind, ((tables.ORDERED_EVENTS, name),) if in_ordered else in_log)


def _of_window(window: WindowSpec, inputs: Sequence[Column]) -> Iterable[Column]:
    """Return the columns of a window's results; `inputs` are the columns that its expressions may name."""
    by_name = {column.name: column for column in inputs}
    for name in ("window_start", "window_end"):
        origins = (*by_name[c.TIMESTAMP].origins, *_origins_of(window.gap_by or "", by_name))
        yield Column(name, "timestamp", tuple(dict.fromkeys(origins)))
    yield from _computed(window.group_expressions, by_name)
    if window.top is not None:
        order = ", ".join(window.order)
        yield Column(
            TOP_RANK, "int", _origins_of(order, by_name), f"Place by `{' '.join(window.top.by.split())}`, from 1."
        )
    for name in window.event_columns(by_name):
        yield by_name[name]
    yield from _computed(window.aggregates.items(), by_name)
    for name, kind in _OF_RESULT.items():
        yield Column(name, kind)


def _computed(expressions: Iterable[tuple[str, str]], inputs: Mapping[str, Column]) -> Iterable[Column]:
    for name, text in expressions:
        about = None if plain_column(text) == name else f"`{' '.join(text.split())}`"
        yield Column(name, _kind_of(text, inputs), _origins_of(text, inputs), about)


def _origins_of(text: str, inputs: Mapping[str, Column]) -> tuple[Origin, ...]:
    named = (origin for name in columns_named(text, inputs) for origin in inputs[name].origins)
    return tuple(dict.fromkeys(named))


def _kind_of(text: str, inputs: Mapping[str, Column]) -> str:
    """Return the type of a column, a count, one value of a column, or its sum or average."""
    lowered = {name.lower(): column.kind for name, column in inputs.items()}
    column, tokens = plain_column(text), tokenize(text)
    if column is not None:
        return lowered.get(column.lower(), "")
    outer = next(iter(calls(tokens)), None)
    if outer is None or outer.position != 0 or (outer.end != len(tokens) and tokens[outer.end].lower != "filter"):
        return ""
    if outer.name in _COUNTS:
        return "bigint"
    values = part_of(text, outer.arguments[0]) if outer.arguments else ""
    kind = lowered.get((plain_column(values) or "").lower(), "")
    if outer.name in _ONE_OF_THEM:
        return kind
    if outer.name == "sum" and kind in _INTEGERS:
        return "bigint"
    return "double" if outer.name in ("sum", "avg", "mean") and kind in ("float", "double", *_INTEGERS) else ""
