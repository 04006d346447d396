"""The watermarks of a segment, of one log or of several side by side, as events and windows look them up.

Here: which log a timeline is of, and the answer of each log put in its rows. Not here: judging the segment of one log
(timelines.py), its look-ups (rises.py).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.timeops.columns import SEQ, TIMELINE
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.watermark.rises import Reached, Rises, Watermark
from tidemark.timeops.watermark.roles import AHEAD, JUDGED
from tidemark.timeops.watermark.timelines import STATE, JudgedLog

Timelines: TypeAlias = pa.ChunkedArray | pa.DictionaryArray
"""`_timeline` of some rows."""


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
