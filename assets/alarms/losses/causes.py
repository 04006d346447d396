"""Why records were lost: who pulled the watermark, or by how much tolerances were missed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.alarms.losses.log_tables import LogTables
from tidemark.resources import tables
from tidemark.resources.delta.versions import Filters
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.figures.losses import (
    ARRIVAL,
    EVENT,
    Pull,
    Shortfall,
    Trait,
    over_of,
    pull_of,
    pulls_of,
    shortfalls_of,
)
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import Spec

_AROUND = 20_000
"""Of so many records around the newest letters it is looked up who they are."""
_PULLS = 20
"""So many records that set watermarks are looked up wherever they are."""


@dataclass(frozen=True)
class Cause:
    """Why records were lost.

    Attributes:
        pull: Who pulled the watermark ahead of most of them; None if no record did.
        over: The column for whose values a watermark each would have let them in; None if there is none.
        shortfalls: By how much they missed tolerances, by reason and window.
    """

    pull: Pull | None
    over: str | None
    shortfalls: tuple[Shortfall, ...]


def cause_of_loss(log: LogTables, letters: pa.Table, around: "Around") -> Cause:
    """Return why the records of some letters were lost, which are LETTERS."""
    behind = letters.filter(pc.is_valid(letters["watermark_set_by"]))
    pulls, pull, over, out_of_orderness_us = pulls_of(behind), None, None, tolerance_us(log.workspace.spec)
    records, columns = around.records, around.columns
    shortfalls = shortfalls_of(letters, records, columns)
    if 2 * len(behind) >= len(letters):
        pull = pull_of(behind, pulls, records, columns, out_of_orderness_us)
        traits = [why.trait for why in (pull, *shortfalls) if why is not None and why.trait is not None]
        likely = dict.fromkeys([*(trait.column for trait in traits), *columns])
        measures = _measures(log.workspace.spec)
        senders = [name for name in likely if name not in (c.SOURCE, c.SPLIT) and not mentions(measures, name)]
        over = over_of(behind, records, senders, out_of_orderness_us)
    if pull is not None and pull.trait is not None:
        pull = replace(pull, letters=_letters_behind(log, pulls, pull.trait))
    return Cause(pull, over, tuple(shortfalls))


def _measures(spec: Spec) -> str:
    """Return SQL of times and aggregates: a watermark for each value of what is in it would let in anything."""
    times = [source.timestamp_by for source in TimeRules.of(spec).sources]
    arrivals = [source.arrival_time for source in spec.sources]
    aggregates = [text for window in spec.event_windows for text in (*window.aggregates.values(), *window.order)]
    return ", ".join(text for text in (*times, *arrivals, *aggregates) if text)


def tolerance_us(spec: Spec) -> int:
    """Return the largest out-of-orderness of a spec's sources."""
    return max(source.out_of_orderness_us for source in TimeRules.of(spec).sources)


@dataclass(frozen=True)
class Around:
    """The newest records up to the last of some letters, and the ones that set most of their watermarks.

    Attributes:
        records: `_arrival_seq`, in order, EVENT and ARRIVAL (null where unknown), and `columns`.
        columns: The columns that may say who they are, the ones of the spec first.
    """

    records: pa.Table
    columns: tuple[str, ...]


def around_of(log: LogTables, letters: pa.Table, events: Callable[[int, int], pa.Table] | None = None) -> Around:
    """Return the records around some letters, which are LETTERS.

    `events` returns `_arrival_seq` and EVENT of the accepted events from one number on and before another; by default
    they are read from their tables.
    """
    columns, pulls = _telling_columns(log), pulls_of(letters)
    end = int(pc.max(letters[c.SEQ]).as_py()) + 1
    first = max(end - _AROUND, 0)
    some: Filters = [(c.SEQ, ">=", first), (c.SEQ, "<", end)]
    earlier = [seq for seq in pulls[c.SEQ][:_PULLS].to_pylist() if seq < first]
    names = [c.SEQ, c.ARRIVAL, *columns]
    rows = [
        *log.pieces(tables.RAW_EVENTS, names, some),
        *(log.pieces(tables.RAW_EVENTS, names, [(c.SEQ, "in", earlier)]) if earlier else ()),
    ]
    times = [letters.select([c.SEQ, EVENT])]
    if events is not None:
        times.append(events(first, end))
    elif log.workspace.spec.outputs.ordered_events:
        for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS):
            for piece in log.pieces(table, [c.SEQ, c.EVENT_TIME], some):
                event = piece[c.EVENT_TIME].cast(pa.int64())
                times.append(pa.table([piece[c.SEQ], event], names=[c.SEQ, EVENT]))
    timed = pa.concat_tables(times).group_by(c.SEQ).aggregate([(EVENT, "max")])
    records = pa.Table.from_batches(rows).sort_by(c.SEQ)
    place = pc.index_in(records[c.SEQ], value_set=timed[c.SEQ].combine_chunks())
    event = timed[f"{EVENT}_max"].combine_chunks().take(place.combine_chunks())
    arrival = records[c.ARRIVAL].cast(pa.int64())
    records = records.drop_columns([c.ARRIVAL]).append_column(ARRIVAL, arrival).append_column(EVENT, event)
    return Around(records, tuple(columns))


def _telling_columns(log: LogTables) -> list[str]:
    """Return the columns of the log that may say who sent a record, first the ones that the spec names."""
    spec, schema = (
        log.workspace.spec,
        log.workspace.lake.dataset(tables.RAW_EVENTS, log.version(tables.RAW_EVENTS)).schema,
    )
    named = [*spec.time.over, *(name for window in spec.event_windows for name in window.group_columns)]
    origin = [c.SPLIT] if spec.uses_splits else []
    origin += [c.SOURCE] if len(spec.sources) > 1 else []
    payload = [
        field.name
        for field in schema
        if field.name not in c.LOG_COLUMNS
        and (pa.types.is_string(field.type) or pa.types.is_integer(field.type) or pa.types.is_boolean(field.type))
    ]
    return [
        *dict.fromkeys([name for name in named if name in payload]),
        *origin,
        *(n for n in payload if n not in named),
    ]


def _letters_behind(log: LogTables, pulls: pa.Table, trait: Trait) -> int:
    """Count the letters that came after watermarks that records with a trait set."""
    seqs, letters = pulls.sort_by(c.SEQ), 0
    bounds: Filters = [(c.SEQ, ">=", seqs[c.SEQ][0].as_py()), (c.SEQ, "<=", seqs[c.SEQ][-1].as_py())]
    for piece in log.pieces(tables.RAW_EVENTS, [c.SEQ, trait.column], bounds):
        with_trait = piece[c.SEQ].filter(pc.equal(piece[trait.column], trait.value))
        letters += pc.sum(seqs.filter(pc.is_in(seqs[c.SEQ], with_trait))["letters"]).as_py() or 0
    return int(letters)
