"""The timelines of the recount between two ranges of the log, and as arrays of the loop within one.

Here: records and timelines as tables go in, timelines come out. Not here: the loop (resources/recount/loop.py), the
query that finds the records (resources/recount/record_sql.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.resources.recount.ends import FIRST_US, NONE, Numbers, close_times, last_close_times
from tidemark.resources.recount.loop import ALLOWS, LAST, SPLIT_COLUMNS, LineRecords, LineState, LoopRules, loop_for
from tidemark.resources.recount.record_sql import gaps_of_records
from tidemark.resources.recount.rules import RecountRules, ints

_Split = tuple[str, str | None]  # source and split

_AFTER = pa.schema(
    [
        ("_timeline", pa.string()),
        *[(name, pa.int64()) for name in ("watermark", "computed", "clock", "last_clock")],
        ("max_close", pa.list_(pa.int64())),
        (
            "splits",
            pa.list_(
                pa.struct(
                    [
                        ("source", pa.string()),
                        ("split", pa.string()),
                        ("max_t", pa.int64()),
                        ("last_clock", pa.int64()),
                    ]
                )
            ),
        ),
    ]
)


def walk(records: pa.Table, timelines: pa.Table, rules: RecountRules) -> tuple[NDArray[np.bool_], pa.Table]:
    """Return whether each record comes below the watermark that it meets, and the timelines after the records.

    Args:
        records: `seq` and `t`, by `seq`; `line`, `source`, `part`, `clock`, `active`, `moves` as the rules ask.
        timelines: See `judge_again`.
        rules: The spec's numbers.
    """
    below = np.zeros(len(records), np.bool_)
    ended, places = _ended(records, rules), np.arange(len(records))
    if "active" in records.column_names:
        places = np.flatnonzero(records["active"].to_numpy())
        records = records.take(places)
    if not len(records):
        return below, timelines
    lines, of_lines = _by_line(records)
    order = np.concatenate(of_lines)
    ready = _records_of(records.take(order) if len(lines) > 1 else records, ended[places][order], rules)
    are_here = pc.is_in(timelines["_timeline"], lines)
    states = {row["_timeline"]: row for row in timelines.filter(are_here).to_pylist()}
    numbers, loop, begin = _numbers_of(rules), loop_for(len(records)), 0
    rows_after = []
    for line, rows in zip(lines.to_pylist(), of_lines, strict=True):
        state, end = states.get(line, {}), begin + len(rows)
        of_line = LineRecords(*(column[begin:end] for column in ready.arrays))
        splits, names, of_line = _with_splits(of_line, ready.pairs, state.get("splits") or (), rules)
        closes = [_or_none(us) for us in state.get("max_close") or ()]
        latest = np.array([*closes, *[NONE] * len(rules.windows)][: len(rules.windows)], np.int64)
        period = (
            state["clock"] // rules.emit_every_us if rules.emit_every_us and state.get("clock") is not None else None
        )
        start = LineState(
            *map(_or_none, (state.get("watermark"), state.get("computed"), period, state.get("last_clock")))
        )
        below[places[rows]], *line_after = loop(of_line, start, splits, latest, numbers)
        rows_after.append(
            _row_after(line, LineState(*map(int, line_after)), zip(names, splits.tolist(), strict=True), rules)
        )
        rows_after[-1]["max_close"] = [us if us != NONE else None for us in latest.tolist()]
        begin = end
    other_lines = timelines.filter(pc.invert(are_here))
    unmoved = [
        other_lines[field.name].cast(field.type)
        if field.name in other_lines.column_names
        else pa.nulls(len(other_lines), field.type)
        for field in _AFTER
    ]
    moved = pa.Table.from_pylist(rows_after, schema=_AFTER)
    return below, pa.concat_tables([pa.table(unmoved, schema=_AFTER), moved])


def _row_after(line: str, state: LineState, splits: Iterator[tuple[_Split, list[int]]], rules: RecountRules) -> Any:
    """Return a timeline after its records, as `walk` takes it."""
    tolerances = {source.name: source.out_of_orderness_us for source in rules.sources}
    published, watermark, period, last = (us if us != NONE else None for us in state)
    return {
        "_timeline": line,
        "watermark": published,
        "computed": watermark,
        "clock": period * rules.emit_every_us if rules.emit_every_us and period is not None else None,
        "last_clock": last,
        "splits": [
            {
                "source": source,
                "split": split,
                "max_t": None if row[ALLOWS] == NONE else row[ALLOWS] + tolerances[source],
                "last_clock": None if row[LAST] == NONE else row[LAST],
            }
            for (source, split), row in splits
        ],
    }


# From tables to the arrays of the loop.


def _or_none(us: int | None) -> int:
    return NONE if us is None else us


def _numbers_of(rules: RecountRules) -> LoopRules:
    return LoopRules(
        every=rules.emit_every_us or 0,
        unit=rules.unit_us,
        clock_tolerance=_or_none(rules.clock_tolerance_us),
        excludes=rules.idle == "exclude_split",
        timeout=(rules.idle_timeout_us or 0) if rules.idle == "window_close" else NONE,
        waited=rules.waited_us,
        waits=rules.waits_since_us is not None,
    )


def _by_line(records: pa.Table) -> tuple[pa.Array, list[Numbers]]:
    """Return the timelines of some records, and of each the places of its records, in their order."""
    if "line" not in records.column_names:
        return pa.array(["[]"]), [np.arange(len(records))]
    lines = records["line"].combine_chunks().dictionary_encode()
    codes = lines.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    return lines.dictionary, np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _ended(records: pa.Table, rules: RecountRules) -> Numbers:
    """Return for each record the clock of the last item before its period of emission; NONE for none."""
    ended, every_us = np.full(len(records), NONE), rules.emit_every_us
    if every_us is None or not len(records):
        return ended
    clock = ints(records["clock"])
    timed = np.flatnonzero(clock != NONE)  # the clock does not go back
    begins = clock[timed] // every_us * every_us
    place = np.searchsorted(clock[timed], begins, "left") - 1
    start_us, start_ended_us = _or_none(rules.start_clock_us), _or_none(rules.start_ended_us)
    ended[timed] = np.where(place >= 0, clock[timed][place], np.where(start_us < begins, start_us, start_ended_us))
    return ended


@dataclass(frozen=True)
class _Ready:
    """The records of all timelines as arrays, and source and split by the number that is in `arrays.split`."""

    arrays: LineRecords
    pairs: Sequence[_Split]


def _records_of(records: pa.Table, ended: Numbers, rules: RecountRules) -> _Ready:
    t = ints(records["t"])
    moving = np.where(records["moves"].to_numpy(), t, NONE) if "moves" in records.column_names else t
    clock = ints(records["clock"]) if "clock" in records.column_names else np.zeros(len(t), np.int64)
    split, pairs = np.zeros(len(t), np.int64), list[_Split]()
    tolerance = np.full(1, rules.sources[0].out_of_orderness_us)
    if rules.uses_splits:
        source, part = (records[name].combine_chunks().dictionary_encode("encode") for name in ("source", "part"))
        parts = len(part.dictionary)
        pairs = [(name, value) for name in source.dictionary.to_pylist() for value in part.dictionary.to_pylist()]
        of_source = {rule.name: rule.out_of_orderness_us for rule in rules.sources}
        tolerance = np.array([of_source[name] for name in source.dictionary.to_pylist()])[source.indices.to_numpy()]
        split = source.indices.to_numpy().astype(np.int64) * parts + part.indices.to_numpy()
    silence_us = 1 + (rules.idle_timeout_us or 0)
    limits = (clock - silence_us, np.where(ended == NONE, clock, ended) - silence_us)
    gaps = {name: ints(records[name]) for name in gaps_of_records(rules)}
    by_silence, ended_by_silence = ([last_close_times(window, limit) for window in rules.windows] for limit in limits)
    arrays = LineRecords(
        t=t,
        allows=np.where(moving == NONE, NONE, np.maximum(np.where(moving == NONE, 0, moving) - tolerance, FIRST_US)),
        clock=clock,
        ended=ended,
        split=split,
        closes=_side_by_side(
            [close_times(window, moving, gaps.get(f"gap{n}")) for n, window in enumerate(rules.windows)], len(t)
        ),
        silence_closes=_side_by_side(by_silence, len(t)),
        ended_silence_closes=_side_by_side(ended_by_silence, len(t)),
    )
    return _Ready(arrays, pairs)


def _side_by_side(columns: Sequence[Numbers], rows: int) -> Numbers:
    return np.column_stack(columns) if columns else np.zeros((rows, 0), np.int64)


def _with_splits(
    records: LineRecords, pairs: Sequence[_Split], carried: Sequence[Mapping[str, Any]], rules: RecountRules
) -> tuple[Numbers, list[_Split], LineRecords]:
    """Return the splits of a timeline, rows of SPLIT, what they are called, and its records with their places."""
    if not rules.uses_splits:
        return np.zeros((0, len(SPLIT_COLUMNS)), np.int64), [], records
    of = {source.name: source for source in rules.sources}
    listed = {(source.name, part) for source in rules.sources for part in source.splits}
    carried_by_split = {(split["source"], split["split"]): (split["max_t"], split["last_clock"]) for split in carried}
    numbers, places = np.unique(records.split, return_inverse=True)
    splits_here = [pairs[number] for number in numbers.tolist()]
    rows, names = [], [*dict.fromkeys([*splits_here, *sorted(listed), *carried_by_split])]
    for name, part in names:
        source, (max_t, last_us) = of[name], carried_by_split.get((name, part), (None, None))
        waited_us, since_us = (0, None) if part is None else source.waits_of_splits.get(part, (0, None))
        is_listed = (name, part) in listed
        row = (
            None if max_t is None else max(max_t - source.out_of_orderness_us, FIRST_US),
            rules.first_clock_us if last_us is None and is_listed else last_us,
            source.idle_timeout_us or 0,
            source.waited_us + waited_us,
            source.waits_since_us if since_us is None else since_us,
            int(is_listed),
        )
        rows.append([_or_none(value) for value in row])
    return np.array(rows, np.int64), names, records._replace(split=places.astype(np.int64))
