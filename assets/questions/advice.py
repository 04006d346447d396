"""Which out-of-orderness a pipeline should have: how late its events really are, and what every tolerance would lose.

Here: one pass over the whole log, judged by the spec as it is. Not here: the numbers (timeops/figures/advice.py), why
records are lost, in words (assets/alarms/losses/sentences.py), what is printed (assets/questions/advice_answer.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.alarms.losses.causes import Around, Cause, around_of, cause_of_loss
from tidemark.assets.alarms.losses.log_tables import LogTables
from tidemark.assets.alarms.losses.sentences import advice, in_two_lines
from tidemark.assets.questions.advice_answer import Advice, Leap, Loser
from tidemark.assets.questions.times import known_log
from tidemark.assets.questions.words import percent
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.figures.advice import (
    MOST_TOLERANCES,
    Delay,
    Gathered,
    LogNeeds,
    delays,
    delays_by_hour,
    targets,
    tolerances,
    tried,
)
from tidemark.timeops.figures.log_times import JudgedTimes, LogTimes
from tidemark.timeops.figures.losses import EVENT, LETTERS, Habit, Integers, Loss, habit_of, trait_of
from tidemark.timeops.rules.reasons import REASONS, Reason
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.between_parts import has_event_time
from tidemark.timeops.values.durations import round_lengths
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.watermark.tolerances import Tolerances
from tidemark.timeops.watermark.watermarks import JudgedLog

_FATE = {
    "adjust": "`adjust` moves them to it",
    "keep": "`keep` lets them pass, and the windows decide",
}
_MOST_LOSERS = 10
_MOST_COLUMNS = 3
_MOST_LEAPS, _MOST_NOTED = 3, 10
_MOST_HABITS = 5


def advice_of(workspace: Workspace) -> Advice:
    """Judge every processed record of the log, and return how late they are. Nothing is written.

    Spark starts only if SQL of the spec has to be computed. Memory: about 100 bytes for each record of the log.

    Raises:
        SpecError: The spec has no event time, so that nothing comes late.
        TidemarkError: Nothing was processed yet.
    """
    _check(workspace)
    return advice_on(workspace, known_log(workspace).times)


def advice_on(workspace: Workspace, times: LogTimes) -> Advice:
    """Return how late the records of a log are.

    Args:
        workspace: The pipeline; its tables say who the records are.
        times: The times of its log.
    """
    judged = times.judged(workspace.rules.of_timelines(), measures=True)
    spec, end_seq, idle = workspace.spec, workspace.progress.processed_end(), workspace.spec.time.idle_advance
    varied, today_us = _varied(spec), _today(workspace)
    grid = [] if varied is None else _all_round(spec, today_us)
    passed = Tolerances(None if varied is None else frozenset(varied), grid)
    tally = _Seen(judged, Gathered(end_seq, adjusts=spec.time.out_of_order == "adjust"))
    for _, log in judged.logs:
        tally.add(log, passed)
    needs, letters = tally.gathered.all(), pa.concat_tables([LETTERS.empty_table(), *tally.letters])
    by_clock = idle in ("arrival_clock", "window_close")
    holds = varied is None and not (by_clock and spec.time.out_of_order == "adjust")
    same_us = {today_us[name] for name in varied or today_us}
    one_us = same_us.pop() if len(same_us) == 1 else None
    list_us = grid or tried(needs, [] if one_us is None else [one_us], spec.time.unit_us)
    records = LogTables(workspace, workspace.base_of, end_seq)
    around = around_of(records, letters, partial(_accepted, judged)) if len(letters) else None
    cause = None if around is None else cause_of_loss(records, letters, around)
    every_delay = tuple(_delays(needs, tally, spec))
    losers = [_as_loser(delay) for delay in every_delay if delay.by not in ("", "hour") and delay.lost]
    losers += [] if around is None else _by_column(records, needs, letters, around)
    return Advice(
        name=spec.name,
        policy=spec.time.out_of_order,
        records=needs.records,
        judged=len(needs.ordered_us),
        refused=tally.refused,
        lost=len(letters),
        today_us={name: today_us[name] for name in varied or today_us},
        varied=tuple(varied or ()),
        lines=_lines(needs.records, len(letters), cause, spec),
        tolerances=tolerances(needs, list_us, one_us, holds=holds),
        targets=targets(needs, spec.time.unit_us),
        losers=tuple(_with_habits(losers, around, spec)),
        delays=every_delay,
        leaps=tuple(_leaps(tally, letters)),
    )


def _accepted(judged: JudgedTimes, first_seq: int, end_seq: int) -> pa.Table:
    """Return `_arrival_seq` and EVENT of the records of a stretch that rules 0 to 2 let pass."""
    times = judged.times
    rows = slice(*np.searchsorted(times.seq, (first_seq, end_seq)))
    passed = judged.why[rows] == 0
    return pa.table({c.SEQ: times.seq[rows][passed], EVENT: times.event_us[rows][passed]})


def _check(workspace: Workspace) -> None:
    spec = workspace.spec
    if not has_event_time(spec.sources, spec.time):
        raise SpecError(
            f"{workspace.file.name}: {spec.name} has no `timestamp_by`, so event time is arrival time",
            expected="events with a time of their own: only these can come late, and `out_of_orderness` is for them",
            remedy="write `time.timestamp_by`, or ask about another pipeline",
        )
    if not workspace.exists or not workspace.progress.processed_end():
        raise TidemarkError(
            f"{spec.name} has no processed records in {workspace.warehouse}.",
            expected="tables of a pipeline that has run: advice is about the records of its log",
            remedy="run it first with `tidemark run`, or name another --warehouse",
        )


def _varied(spec: Spec) -> list[str] | None:
    """Return the sources that have no out-of-orderness of their own; None where all have one, or none has."""
    without = [source.name for source in spec.sources if source.out_of_orderness_us is None]
    return without if 0 < len(without) < len(spec.sources) else None


def _today(workspace: Workspace) -> dict[str, int]:
    return {source.name: source.out_of_orderness_us for source in workspace.rules.sources}


def _all_round(spec: Spec, today_us: Mapping[str, int]) -> list[int]:
    """Return the tolerances to try where they have to be chosen before the log is looked at."""
    unit_us = spec.time.unit_us
    lengths_us = [us for us in round_lengths(3_650 * 86_400_000_000) if us % unit_us == 0]
    own_us = {today_us[source.name] for source in spec.sources if source.out_of_orderness_us is None}
    return sorted({0, *own_us, *lengths_us[2 - MOST_TOLERANCES :]})  # two places are for 0 and for today's


class _Seen:
    """The findings of one pass over the log."""

    def __init__(self, judged: JudgedTimes, gathered: Gathered) -> None:
        self.judged, self.gathered = judged, gathered
        names = [source.name for source in judged.rules.sources]
        self.sources = [*judged.times.sources] if judged.rules.uses_splits else names[:1]
        counts = np.bincount(judged.why[judged.why != 0])
        self.refused = {str(REASONS[place - 1]): count for place, count in enumerate(counts.tolist()) if count}
        self.letters: list[pa.Table] = []
        self.leaps: dict[int, Leap] = {}
        self.timelines: list[str] = []
        self.splits: dict[tuple[str, str | None], int] = {}

    def add(self, log: JudgedLog, passed: Tolerances) -> None:
        """Add a stretch of the log; `passed` says what its records need."""
        items, late = log.rises.items, log.rises.findings.out_of_order
        self.timelines = log.names.to_pylist()
        source = self.judged.times.source[self._rows(log)] if len(self.sources) > 1 else None
        self.gathered.add(items, passed.needed(log), late["item"], source, self._splits_of(log))
        self.letters.append(self._letters(log))
        self._note_leaps(log)

    def _rows(self, log: JudgedLog) -> slice:
        """Return the place of a stretch in the arrays of the whole log."""
        seq = log.rises.items.seq
        begin = int(np.searchsorted(self.judged.times.seq, seq[0])) if len(seq) else 0
        return slice(begin, begin + len(seq))

    def _splits_of(self, log: JudgedLog) -> Array:
        """Return the split of each item by an index that holds for all segments."""
        if not len(log.splits):
            return log.rises.items.split
        names = zip(log.splits["source"].to_pylist(), log.splits["split"].to_pylist(), strict=True)
        places = [self.splits.setdefault(split, len(self.splits)) for split in names]
        return np.array(places, np.int32)[log.rises.items.split]

    def _note_leaps(self, log: JudgedLog) -> None:
        """Remember the records of the stretch whose watermarks shut out most, and the one that set the last."""
        rows, times = self._rows(log), self.judged.times
        rises, setters = log.rises.findings.rises, log.rises.findings.out_of_order["set_by"]
        seqs, counts = np.unique(setters[setters != NONE], return_counts=True)
        chosen = {*seqs[np.argsort(-counts, kind="stable")[:_MOST_NOTED]].tolist()}
        if len(log.names) == 1 and len(rises):  # it may shut out records of later segments
            chosen.add(int(rises["set_by"][-1]))
        for seq in sorted(chosen - {NONE} - {*self.leaps}):
            item = int(log.rises.place_of(np.array([seq]))[0])
            row = int(np.searchsorted(rises["item"], item))
            if item < 0 or row == len(rises) or rises["set_by"][row] != seq:
                continue  # it came in an earlier segment
            timeline = rises["timeline"][row]
            earlier_rows = np.flatnonzero(rises["timeline"][:row] == timeline)
            of_start = log.rises.start.timelines["computed"][timeline]
            was = int(rises["computed"][earlier_rows[-1]] if len(earlier_rows) else of_start)
            raised = None if was == NONE else int(rises["computed"][row]) - was
            event, arrival = (int(us[rows][item]) for us in (times.event_us, times.arrival_us))
            self.leaps[seq] = Leap(seq, _none(event), _none(arrival), raised, 0)

    def _letters(self, log: JudgedLog) -> pa.Table:
        """Return the records behind the watermark as LETTERS, whatever the policy."""
        events, items, rows = log.rises.findings.out_of_order, log.rises.items, self._rows(log)
        at, times = events["item"], self.judged.times
        place = times.source[rows][at] if len(self.sources) > 1 else np.zeros(len(at), np.int64)
        event, arrival = (us[rows][at] for us in (times.event_us, times.arrival_us))
        by_clock = events["set_by"] == NONE
        columns = [
            items.seq[at],
            pa.array(self.sources, pa.string()).take(pa.array(place.astype(np.int64))),
            log.names.take(pa.array(items.timeline[at].astype(np.int64))),
            pa.repeat("time", len(at)),
            pa.repeat(str(Reason.OUT_OF_ORDER), len(at)),
            pa.nulls(len(at), pa.string()),
            pa.array(event, mask=event == NONE),
            pa.array(arrival, mask=arrival == NONE),
            events["watermark"],
            pa.array(events["watermark"] - items.t[at], mask=by_clock),
            pa.array(events["set_by"], mask=by_clock),
        ]
        return pa.table(columns, schema=LETTERS)


def _none(us: int) -> int | None:
    return None if us == NONE else us


def _lines(records: int, lost: int, cause: Cause | None, spec: Spec) -> tuple[str, ...]:
    """Say what the log loses, why, and what to do about it."""
    if cause is None:
        return (f"none of the {records:,} records came behind the watermark",)
    if spec.time.out_of_order == "drop":
        return in_two_lines(
            Loss("", "", True, "so far", records, {("", str(Reason.OUT_OF_ORDER)): lost}), cause, spec
        )
    fate = _FATE[spec.time.out_of_order]
    first = f"{percent(lost / records)} of the records come behind the watermark ({lost:,} of {records:,}): {fate}"
    return (first, advice(cause, spec))


def _delays(needs: LogNeeds, tally: _Seen, spec: Spec) -> Iterator[Delay]:
    yield from delays(needs, "", needs.source, [""])
    yield from delays(needs, "source", needs.source, tally.sources)
    if tally.splits:
        names = [source if value is None else f"{source}/{value}" for source, value in tally.splits]
        yield from delays(needs, "split", needs.split, names)
    if spec.time.over:
        yield from delays(needs, "over", needs.timeline, tally.timelines)
    yield from delays_by_hour(needs)


def _as_loser(delay: Delay) -> Loser:
    return Loser(delay.by, delay.value, delay.lost, delay.records)


def _by_column(log: LogTables, needs: LogNeeds, letters: pa.Table, around: Around) -> Iterator[Loser]:
    """Yield who loses most by columns of the log: by groups, and by values that most lost records have."""
    lost = np.asarray(letters[c.SEQ].to_numpy(), np.int64)
    spec, ones = log.workspace.spec, np.ones(len(letters), np.int64)
    named = [name for window in spec.event_windows for name in window.group_columns]
    payload = [name for name in around.columns if name not in (c.SOURCE, c.SPLIT)]
    telling = [name for name in payload if trait_of(lost, ones, around.records, [name]) is not None]
    chosen = dict.fromkeys([name for name in (*named, *telling) if name in payload and [name] != [*spec.time.over]])
    for name in [*chosen][:_MOST_COLUMNS]:
        yield from sorted(_losers_in(log, name, needs, lost), key=lambda row: (-row.lost, row.value))[:_MOST_LOSERS]


def _losers_in(log: LogTables, name: str, needs: LogNeeds, lost: Integers) -> Iterator[Loser]:
    """Yield the values of a column with records that are lost."""
    marks = np.zeros(log.end_seq, np.int8)  # 1: rule 3 judges the record; 2: it is lost too
    marks[needs.seq] = needs.least_us >= 0
    marks[lost] = 2
    log_pieces = log.pieces(tables.RAW_EVENTS, [c.SEQ, name], [(c.SEQ, "<", log.end_seq)])
    rows = [pa.table({"value": piece[name], "mark": marks[piece[c.SEQ].to_numpy()]}) for piece in log_pieces]
    counted = pa.concat_tables(rows).group_by(["value", "mark"]).aggregate([([], "count_all")])
    of_lost, of_others = (counted.filter(pc.equal(counted["mark"], mark)) for mark in (2, 1))
    place = pc.index_in(of_lost["value"], value_set=of_others["value"].combine_chunks())
    n_others = pc.fill_null(of_others["count_all"].take(place), 0)
    for value, n, n_other in zip(
        of_lost["value"].cast(pa.string()).to_pylist(),
        of_lost["count_all"].to_pylist(),
        n_others.to_pylist(),
        strict=True,
    ):
        if value is not None:
            yield Loser(name, value, n, n + n_other)


def _with_habits(losers: Sequence[Loser], around: Around | None, spec: Spec) -> Iterator[Loser]:
    """Yield the losers of each kind, the largest first; to these add what their times are like."""
    by_kind: dict[str, list[Loser]] = {}
    for loser in sorted(losers, key=lambda loser: (-loser.lost, loser.value)):
        by_kind.setdefault(loser.by, []).append(loser)
    for losers_of_kind in by_kind.values():
        for number, loser in enumerate(losers_of_kind[:_MOST_LOSERS]):
            habit = _habit(loser, around.records, spec) if around is not None and number < _MOST_HABITS else None
            yield replace(loser, habit=habit)


def _habit(loser: Loser, around: pa.Table, spec: Spec) -> Habit | None:
    """Return what the times of a loser are like, as far as the records around show."""
    column, value = loser.by, loser.value
    if loser.by == "source":
        column = c.SOURCE
    elif loser.by == "split":
        column, value = c.SPLIT, value.partition("/")[2]
    elif loser.by == "over":
        if len(spec.time.over) > 1:
            return None
        column, value = spec.time.over[0].strip("`"), value.removeprefix('["').removesuffix('"]')
    if column not in around.column_names:
        return habit_of(around, None) if loser.by == "source" else None
    is_own = pc.fill_null(pc.equal(around[column].cast(pa.string()), value), fill_value=False)
    return habit_of(around.filter(is_own), around.filter(pc.invert(is_own)))


def _leaps(tally: _Seen, letters: pa.Table) -> Iterator[Leap]:
    """Yield the records whose watermarks shut out most."""
    set_by = letters.filter(pc.is_valid(letters["watermark_set_by"]))
    counted = set_by.group_by("watermark_set_by").aggregate([([], "count_all")])
    rows = sorted(counted.to_pylist(), key=lambda row: (-row["count_all"], row["watermark_set_by"]))
    leaps = [row for row in rows if row["watermark_set_by"] in tally.leaps]
    for row in leaps[:_MOST_LEAPS]:
        yield replace(tally.leaps[row["watermark_set_by"]], cost=row["count_all"])
