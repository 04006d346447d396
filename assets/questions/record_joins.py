"""The joins whose sides a record belongs to: what answers it, what it answers, and for how long that may change.

Here: for each join of the spec, what its table and the times of the log say about one record. Not here: the rest of
the answer about a record (assets/questions/record.py), the text (assets/questions/record_answer.py).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.assets.log.retention import gone_of
from tidemark.assets.questions.times import PipelineLog
from tidemark.resources import tables
from tidemark.resources.delta.queries import Row, python_rows
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ


@dataclass(frozen=True)
class RecordJoin:
    """One join that a record belongs to.

    Attributes:
        name: The join of the spec.
        side: `left` or `right`.
        outcome: `answered` (of the left side: its answer is final), `open` (it is not, or the record may still be the
            partner of more events), `closed` (of the right side, and of both in an interval join: it may not),
            `missed`; `removed` where `retention` may have removed its answers.
        right_seq: Of the left side the partner, so far where it is open; None without one.
        answers: Of the right side how many events of the left side have it as their partner now.
        pairs: In an interval join how many pairs it is in now; of an as-of join None.
        closes_us: The last watermark at which it is open.
    """

    name: str
    side: str
    outcome: str
    right_seq: int | None = None
    answers: int = 0
    closes_us: int | None = None
    pairs: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        of_side = {"right_seq": self.right_seq} if self.side == "left" else {"answers": self.answers}
        if self.pairs is not None:
            of_side = {"pairs": self.pairs}
        return {"name": self.name, "side": self.side, "outcome": self.outcome, **of_side}


@dataclass(frozen=True, eq=False)
class JoinsOfRecord:
    """The joins that a record belongs to.

    Attributes:
        log: The log of the pipeline.
        seq: The record.
        source: Its source, as the spec calls it now.
        us: Its timestamp, or its time if it was refused, microseconds.
        timeline: Its timeline.
        is_refused: A rule of time refused it, so no join saw it.
        letters: By join its dead letter of that join.
    """

    log: PipelineLog
    seq: int
    source: str
    us: int
    timeline: str
    is_refused: bool
    letters: Mapping[str, Row]

    def all(self) -> Iterator[RecordJoin]:
        """Yield them in the order of the spec."""
        for join in self.log.workspace.spec.joins:
            if self.source in join.sources:
                side = "left" if self.source == join.left.source else "right"
                if self.is_refused or join.name in self.letters:
                    yield RecordJoin(join.name, side, "missed", pairs=0 if join.is_interval else None)
                elif self._may_be_gone(join, side):
                    yield RecordJoin(join.name, side, "removed")
                else:
                    yield self._paired(join, side) if join.is_interval else self._joined(join, side)

    def _may_be_gone(self, join: JoinSpec, side: str) -> bool:
        """Return whether old answers that name the record are gone; rows have the times of the left side."""
        removed = gone_of(self.log.workspace).get(tables.join_table(join.name))
        reach_us = join.closes_after_us if side == "right" else 0
        return removed is not None and self.us < removed.until_us + reach_us

    def _joined(self, join: JoinSpec, side: str) -> RecordJoin:
        if side == "left":
            closes_us = self.us + join.closes_after_us
            item, by_flush = self.log.passed(self.timeline, closes_us + 1, self.seq)
            right_seq = next((row[RIGHT_SEQ] for row in self._rows(join, LEFT_SEQ)), None)
            outcome = "open" if item is None and not by_flush else "answered"
            return RecordJoin(join.name, side, outcome, right_seq, closes_us=closes_us)
        closes_us, now_us = self.us + join.useful_for_us, self.log.judged.last(self.timeline).us
        # A flush is the last answer to left events; right ones may still serve later ones.
        outcome = "open" if now_us is None or now_us <= closes_us else "closed"
        return RecordJoin(join.name, side, outcome, answers=len(self._rows(join, RIGHT_SEQ)), closes_us=closes_us)

    def _paired(self, join: JoinSpec, side: str) -> RecordJoin:
        """Return what an interval join has of the record; a flush closes it if it gave it a row without a partner."""
        of_side = (LEFT_SEQ, join.closes_after_us, join.keeps_left)
        column, waits_us, is_outer = of_side if side == "left" else (RIGHT_SEQ, join.useful_for_us, join.keeps_right)
        closes_us = self.us + waits_us
        pairs = sum(None not in (row[LEFT_SEQ], row[RIGHT_SEQ]) for row in self._rows(join, column))
        item, by_flush = self.log.passed(self.timeline, closes_us + 1, self.seq)
        is_open = item is None and not (by_flush and is_outer and not pairs)
        return RecordJoin(join.name, side, "open" if is_open else "closed", closes_us=closes_us, pairs=pairs)

    def _rows(self, join: JoinSpec, column: str) -> list[Row]:
        """Return the rows of a join that name the record in a column."""
        workspace, table = self.log.workspace, tables.join_table(join.name)
        if not workspace.lake.exists(table):
            return []
        rows = workspace.lake.rows(table, workspace.base_of(table), filters=[(column, "=", self.seq)])
        return list(python_rows(rows.select([LEFT_SEQ, RIGHT_SEQ]), maps="lossy"))
