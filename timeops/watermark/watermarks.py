"""The watermarks of a segment: found by the loop, log by log, and as events and windows look them up.

Here: judging a segment of one log, from its narrow columns through the loop to the state after it; which log a
timeline is of, and the answer of each log put in its rows. Not here: the loop (timeops/watermark/fold.py), its
arrays, the stored table (timeops/watermark/timelines.py), look-ups in one log (timeops/watermark/rises.py), records
with a payload (timeops/events/adjustment.py).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.timeops.columns import SEQ, SOURCE, SPLIT, TIMELINE
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.values.instants import NONE, Array, nulled
from tidemark.timeops.watermark.across import publish, raise_at_start, with_across
from tidemark.timeops.watermark.fold import AHEAD, JUDGED, fold
from tidemark.timeops.watermark.rises import Reached, Rises, Watermark
from tidemark.timeops.watermark.timelines import ACROSS, CLOCK_US, ROLE, STATE, T_US, LogPlace, SegmentArrays

Timelines: TypeAlias = pa.ChunkedArray | pa.DictionaryArray
"""`_timeline` of some rows."""


@dataclass(frozen=True)
class JudgedLog:
    """The loop's judgement of a segment of one log.

    Attributes:
        rises: How the watermarks rose, and which items are behind the watermark they find.
        names: The timelines, in the order of their index.
        splits: The `source` and `split` of each split, in the order of their index; no rows without splits.
        state: STATE after the segment.
        across: The index of the timeline that represents all; None where no window asks for it.
        adjusts: Rule 3 moves what is out of order to the watermark.
    """

    rises: Rises
    names: pa.Array
    splits: pa.Table
    state: pa.Table
    across: int | None = None
    adjusts: bool = False

    @property
    def t(self) -> Array:
        """The time of each item after rule 3; any number where there is none."""
        late = self.rises.findings.out_of_order
        if not (self.adjusts and len(late)):
            return self.rises.items.t
        t = self.rises.items.t.copy()
        t[late["item"]] = late["watermark"]
        return t

    def accepted_of(self, sources: Sequence[str], *, drops: bool) -> Array:
        """Return the items of some sources that the rules accept; of all sources if there are no splits.

        Args:
            sources: The names of the sources.
            drops: Rule 3 drops what is out of order.
        """
        items = self.rises.items
        is_accepted = items.role >= JUDGED
        if drops:
            is_accepted[self.rises.findings.out_of_order["item"]] = False
        item: Array = np.flatnonzero(is_accepted)
        if len(items.split):
            is_of_these = np.asarray(pc.is_in(self.splits["source"], value_set=pa.array(sources, pa.string())))
            item = item[is_of_these[items.split[item]]]
        return item

    @property
    def behind(self) -> pa.Table:
        """`_arrival_seq`, `watermark`, `set_by` of the items that are behind the watermark they find."""
        rows = self.rises.findings.out_of_order
        return self._behind(rows["item"], rows["watermark"], rows["set_by"])

    @property
    def behind_across(self) -> pa.Table:
        """The same of the watermark across timelines; an item that rule 3 drops may be among them."""
        if self.across is None:
            return self._behind(*[np.zeros(0, np.int64)] * 3)
        t, item = self.t, np.flatnonzero(self.rises.items.role >= JUDGED)
        met = self.rises.before(np.full(len(item), self.across), item)
        is_late = met.value > t[item]
        return self._behind(item[is_late], met.value[is_late], met.set_by[is_late])

    def _behind(self, item: Array, watermark: Array, set_by: Array) -> pa.Table:
        return pa.table({SEQ: self.rises.items.seq[item], "watermark": watermark, "set_by": nulled(set_by)})


def judge_log(
    items: pa.Table,
    before: pa.Table,
    rules: TimeRules,
    place: LogPlace,
    *,
    measures: bool = False,
    across: str = ACROSS,
) -> JudgedLog:
    """Judge a segment of one log.

    Args:
        items: The items: `_arrival_seq`, `t`, `clock`, `role`, and as far as the rules ask for them `_timeline`,
            `_source`, `_split`, `close0` and so on; in the order of the log.
        before: STATE before the segment.
        rules: The rules of time.
        place: Where the segment is in the log.
        measures: Whether the loop finds how far each item is behind the watermark.
        across: The name of the timeline that represents all, where windows ask for it.

    Raises:
        InputError: A timeline has too many splits.
    """
    arrays = SegmentArrays.of(items, before, rules, place, across)
    start, across_index = arrays.start, pc.index(arrays.names, across).as_py() if rules.has_across else -1
    if across_index >= 0:
        raise_at_start(start, across_index)
    state = start.copied()
    findings = fold(arrays.items, state, measures=measures)
    if across_index >= 0:
        findings = with_across(arrays.items, start, findings, across_index)
        publish(arrays.items, start, findings, state, across_index)
    return JudgedLog(
        Rises(arrays.items, start, findings),
        arrays.names,
        arrays.source_of_split,
        arrays.state_after(state),
        across=None if across_index < 0 else across_index,
        adjusts=rules.time.out_of_order == "adjust",
    )


_NO_ITEMS = pa.schema(
    [
        *[(name, pa.int64()) for name in (SEQ, T_US, CLOCK_US, ROLE)],
        *[(name, pa.string()) for name in (TIMELINE, SOURCE, SPLIT)],
    ]
).empty_table()


def settled(state: pa.Table, rules: TimeRules, place: LogPlace) -> pa.Table:
    """Return the timelines when the clock has come to `before_us`, without an event since their rows were written.

    The rows of `state`, which is STATE, may be of different clocks.
    """
    return judge_log(_NO_ITEMS, state, rules, place).state


@dataclass(frozen=True)
class Watermarks:
    """The watermarks of all timelines of a segment, of one log or of several.

    Attributes:
        logs: What the loop says of each log.
    """

    logs: tuple[JudgedLog, ...]

    @property
    def has_items(self) -> bool:
        """True if there is any item, so that a watermark may have risen."""
        return any(len(log.rises.clock) for log in self.logs)

    @cached_property
    def state(self) -> pa.Table:
        """STATE after the segment."""
        return pa.concat_tables([log.state for log in self.logs]) if self.logs else STATE.empty_table()

    @cached_property
    def behind(self) -> pa.Table:
        """`_arrival_seq`, `watermark`, `set_by` of the items that are behind the watermark they find.

        Of several logs, which number their records each by itself, also `_timeline`.
        """
        return self._of_logs([log.behind for log in self.logs])

    @cached_property
    def behind_across(self) -> pa.Table:
        """The same of the watermark across timelines, see `JudgedLog.behind_across`."""
        return self._of_logs([log.behind_across for log in self.logs])

    def _of_logs(self, tables: Sequence[pa.Table]) -> pa.Table:
        if len(tables) == 1:
            return tables[0]
        named = []
        for log, rows in zip(self.logs, tables, strict=True):
            timeline = log.rises.items.timeline[log.rises.place_of(rows[SEQ].to_numpy())]
            named.append(rows.append_column(TIMELINE, log.names.take(pa.array(timeline))))
        return pa.concat_tables(named)

    def first_seq_from(self, us: int) -> int | None:
        """Return the first record whose t comes to an instant; None where none does."""
        seqs = []
        for log in self.logs:
            items = log.rises.items
            reaches = (items.role >= JUDGED) & (items.t >= us)
            if reaches.any():
                seqs.append(int(items.seq[np.argmax(reaches)]))
        return min(seqs, default=None)

    @property
    def kept_until_us(self) -> int | None:
        """The latest t of the events that were kept though they are early; None without any."""
        ahead = [log.rises.items.t[log.rises.items.role == AHEAD] for log in self.logs]
        return max((int(t.max()) for t in ahead if len(t)), default=None)

    def after(self, timeline: Timelines, seq: Array) -> Watermark:
        """Return the watermark after an item of the segment, or before all of them, by `_arrival_seq`."""
        return self._at(timeline, seq, Rises.after)

    def before(self, timeline: Timelines, seq: Array) -> Watermark:
        """Return the watermark that events of the segment find, by `_arrival_seq`."""
        return self._at(timeline, seq, Rises.before)

    def _at(self, timeline: Timelines, seq: Array, ask: Callable[[Rises, Array, Array], Watermark]) -> Watermark:
        watermark = Watermark(np.full(len(seq), NONE), np.full(len(seq), NONE))
        for rows, log, numbers in self._by_log(timeline):
            answer = ask(log.rises, numbers, log.rises.place_of(seq[rows]))
            watermark.value[rows], watermark.set_by[rows] = answer.value, answer.set_by
        return watermark

    def around(self, timeline: Timelines, clock_us: Array) -> tuple[Array, Array, Array]:
        """Return whether an item comes to a clock, and the watermarks before and after the first one that does."""
        answer = (np.zeros(len(clock_us), bool), np.full(len(clock_us), NONE), np.full(len(clock_us), NONE))
        for rows, log, numbers in self._by_log(timeline):
            place = log.rises.first_at(clock_us[rows])
            comes = place < len(log.rises.clock)
            at = np.where(comes, place, 0)
            answer[0][rows] = comes
            if comes.any():
                answer[1][rows] = log.rises.after(numbers, at - 1).value
                answer[2][rows] = log.rises.after(numbers, at).value
        return answer

    def reaching(self, timeline: Timelines, wanted_us: Array) -> Reached:
        """Find when watermarks came to values that they did not have before the segment."""
        watermarks = Reached(np.full(len(wanted_us), NONE), np.full(len(wanted_us), NONE))
        for rows, log, numbers in self._by_log(timeline):
            answer = log.rises.reaching(numbers, wanted_us[rows])
            watermarks.watermark[rows], watermarks.first_watermark[rows] = answer.watermark, answer.first_watermark
        return watermarks

    def _by_log(self, timeline: Timelines) -> Iterator[tuple[Array | slice, JudgedLog, Array]]:
        """Return the rows of each log that has items, the log, and the index of their timelines in it."""
        sizes = [len(log.names) for log in self.logs]
        names = pa.concat_arrays([log.names for log in self.logs]) if self.logs else pa.array([], pa.string())
        texts = timeline.dictionary if isinstance(timeline, pa.DictionaryArray) else timeline
        place = np.array(pc.fill_null(pc.index_in(texts, value_set=names), -1).to_numpy(), np.int64)
        if isinstance(timeline, pa.DictionaryArray):
            place = place[timeline.indices.to_numpy()]
        if len(self.logs) == 1 and (place >= 0).all():  # all rows as they are: copies of millions take seconds
            if len(place) and self.has_items:
                yield slice(None), self.logs[0], place
            return
        firsts = np.cumsum([0, *sizes])
        of_log = np.where(place < 0, -1, np.searchsorted(firsts, place, "right") - 1)
        order = np.argsort(of_log, kind="stable")
        begins = np.searchsorted(of_log[order], np.arange(len(self.logs) + 1))
        for number, log in enumerate(self.logs):
            rows = order[begins[number] : begins[number + 1]]
            if len(rows) and len(log.rises.clock):
                yield rows, log, place[rows] - firsts[number]
