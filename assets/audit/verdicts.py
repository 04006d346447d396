"""Audit of verdicts: where each record of the log ended, against a second opinion on all of it.

Here: the log judged again from its beginning, piece by piece, and each record's place, reason and time compared. Not
here: the second opinion, which shares no code with the rules (resources/recount/).

The second opinion keeps its own watermarks from piece to piece: it believes no state that the pipeline has stored.
Only where the spec has changed on the way, the timelines begin with what is stored there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.audit.bookmark import Bookmarks
from tidemark.assets.audit.findings import Finding, some, wrong_rows
from tidemark.assets.log.admissions import admitted
from tidemark.assets.log.control import waits_up_to
from tidemark.assets.log.exclusions import records_between
from tidemark.assets.log.retention import before_seq_of, log_begins_at
from tidemark.assets.log.spec_changes import spec_of_batch
from tidemark.assets.planning import segment_of
from tidemark.assets.recount.records import rules_at
from tidemark.assets.state.checkpoints import START, Checkpoint, checkpoints_of, has_state, state_at
from tidemark.assets.state.dedup import known_first_times, spans_of
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, Plan
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.memory import release_memory
from tidemark.resources.recount.ends import NONE
from tidemark.resources.recount.recount import Recounted, judge_again
from tidemark.resources.recount.rules import RecountRules
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.rules.reasons import UNTIMED, Reason, Stage
from tidemark.timeops.rules.time_rules import Waits
from tidemark.timeops.values.utc import Instant

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
MOST_JUDGED = 1_000_000
"""Records that are judged again at once."""
_MOST_NAMED = 1_000
_RECORDS_GONE = "`retention` has removed these records"
_DUPLICATES_GONE = "`retention` has removed the dead letters that say which records are duplicates"
_ACCEPTED, _UNTIMED, _DUPLICATE, _EARLY, _LATE, _OUT_OF_ORDER, _NOWHERE = range(7)
_WORDS = (
    "accepted",
    "without a time",
    *(reason.value for reason in (Reason.DUPLICATE, Reason.EARLY, Reason.LATE_ARRIVAL, Reason.OUT_OF_ORDER)),
    "nowhere",
)
_BY_OUTCOME = {"late_arrival": _LATE, "early": _EARLY, "duplicate": _DUPLICATE, "untimed": _UNTIMED}
_CODES: Mapping[str, int] = {
    **dict.fromkeys((reason.value for reason in UNTIMED), _UNTIMED),
    Reason.DUPLICATE.value: _DUPLICATE,
    Reason.EARLY.value: _EARLY,
    Reason.LATE_ARRIVAL.value: _LATE,
    Reason.OUT_OF_ORDER.value: _OUT_OF_ORDER,
}


def audit_verdicts(
    workspace: Workspace, bookmarks: Bookmarks, readable: Callable[[str], bool], note: Callable[[str], None]
) -> Iterator[Finding]:
    """Judge the whole log again, and compare where each record is, why, and with which time.

    Args:
        workspace: The pipeline.
        bookmarks: What an audit before this one has judged; notes each batch that is compared.
        readable: Says of a table whether its rows can be compared.
        note: Is told what could not be audited.
    """
    spec = workspace.spec
    needed = [tables.DEAD_LETTERS, tables.WATERMARKS]
    needed += [tables.ORDERED_EVENTS, tables.HELD_EVENTS] if spec.outputs.ordered_events else []
    if not all(map(readable, needed)):
        note("verdicts were not recounted: tables that say where records are cannot be read")
        return
    try:
        of_batches = {checkpoint.batch_id: checkpoint for checkpoint in checkpoints_of(workspace)}
    except KeyError:
        note(f"verdicts were not recounted: `{tables.WATERMARKS}` lacks a batch")
        return
    compared = _Comparison(workspace, _Faults.of_dict(bookmarks.bookmark.faults))
    _judge_all(workspace, of_batches, compared, bookmarks, note)
    yield from compared.findings()


def _judge_all(
    workspace: Workspace,
    of_batches: Mapping[int, Checkpoint],
    compared: "_Comparison",
    bookmarks: Bookmarks,
    note: Callable[[str], None],
) -> None:
    """Judge the log again, and compare each part with where the tables have its records.

    Which records are duplicates is read from the dead letters: where some of these, or of the records, are gone, the
    log is judged again from the first batch on that has all.
    """
    first_known, why = log_begins_at(workspace), _RECORDS_GONE
    if workspace.spec.time.deduplicate_by and (letters_from := before_seq_of(workspace, tables.DEAD_LETTERS)):
        first_known, why = max((first_known, why), (letters_from, _DUPLICATES_GONE))
    is_begun = first_known == 0
    checkpoint, judged, timelines = START, bookmarks.bookmark.judged, bookmarks.bookmark.timelines
    rules_before: RecountRules | None = None
    for commit in workspace.batches.history("process"):
        under = workspace.under(spec_of_batch(workspace, commit))
        if not is_begun and commit.plan.first_seq >= first_known and has_state(under, checkpoint):
            is_begun = True
            timelines = state_at(under, checkpoint) if commit.batch_id > judged else timelines
            note(f"verdicts before record {commit.plan.first_seq:,} were not recounted: {why}")
        # The rules of the last judged one show a change of the spec.
        if is_begun and records_in(commit.plan) and commit.batch_id >= judged:
            log = records_between(under, commit.plan.first_seq, plan_end(commit.plan))
            rules = _rules_of(under, log, checkpoint, commit.plan)
            if rules_before is not None and not _are_alike(rules, rules_before):
                if not has_state(under, checkpoint):
                    first = f"verdicts from record {commit.plan.first_seq:,} on"
                    note(f"{first} were not recounted: the state at a change of the spec is gone")
                    return
                timelines = state_at(under, checkpoint)
            rules_before = rules
            if commit.batch_id > judged:
                timelines = _compare(compared, _judged_again(under, log, rules, timelines, commit), rules, timelines)
                if not rules.follows_clock:  # a clock may have raised it after the last record
                    compared.compare_watermark(of_batches[commit.batch_id], pc.max(timelines["computed"]).as_py())
                bookmarks.note(judged=commit.batch_id, timelines=timelines, faults=compared.faults.to_dict())
        checkpoint = of_batches[commit.batch_id]
    if not is_begun:
        note(f"verdicts were not recounted: {why}")


def _compare(
    compared: "_Comparison", parts: Iterable[Recounted], rules: RecountRules, timelines: pa.Table
) -> pa.Table:
    """Compare the records of a batch with where the tables have them; return the timelines after them."""
    for part in parts:
        timelines = part.timelines
        if len(part.seqs):
            seqs = range(int(part.seqs[0]), int(part.seqs[-1]) + 1)
            compared.compare(part, _Places.of(compared.workspace, seqs, rules))
            release_memory()  # to compile the loop of the recount takes more than a part of the log
            compared.workspace.tell(f"{seqs.stop:,} of {compared.total:,} records judged again")
    return timelines


def _rules_of(workspace: Workspace, log: DataFrame, checkpoint: Checkpoint, plan: Plan) -> RecountRules:
    waits = waits_up_to(workspace, checkpoint.batch_id) if checkpoint.batch_id >= 0 else Waits()
    waits = waits.from_here(checkpoint.position.clock_us, segment_of(plan).waits)
    return rules_at(workspace, log, checkpoint.position, waits)


def _are_alike(rules: RecountRules, earlier_rules: RecountRules) -> bool:
    """Return whether two batches were judged by the same rules, wherever they are in the log."""

    def settings(of: RecountRules) -> tuple[Any, ...]:
        sources = [(s.name, s.time_zone, s.out_of_orderness_us, s.idle_timeout_us) for s in of.sources]
        return (sources, of.over, of.uses_splits, of.emit_every_us, of.unit_us, of.idle, of.windows)

    return settings(rules) == settings(earlier_rules)


def _judged_again(
    workspace: Workspace, log: DataFrame, rules: RecountRules, timelines: pa.Table, commit: Commit
) -> Iterator[Recounted]:
    seqs = range(commit.plan.first_seq, plan_end(commit.plan))
    duplicates = first_times = None
    if rules.deduplicate_by:
        letters = workspace.read_base(tables.DEAD_LETTERS, filters=_within(seqs))
        duplicates = letters.where(F.col("reason") == Reason.DUPLICATE).select(c.SEQ)
        first_times = known_first_times(workspace, spans_of(workspace, log), up_to=commit.batch_id - 1)
    return judge_again(
        log, seqs, rules, timelines, compute=computed, refused=duplicates, first_times=first_times, most=MOST_JUDGED
    )


def _within(seqs: range) -> Filters:
    return [(c.SEQ, ">=", seqs.start), (c.SEQ, "<", seqs.stop)]


@dataclass(frozen=True, eq=False)
class _Places:
    """Where the tables have the records of a part of the log.

    Attributes:
        seqs: Their numbers.
        code: What each is: one of _WORDS; _NOWHERE of one that is in no table.
        copies: In how many places it is.
        us: `_timestamp` of an accepted one, microseconds; NONE of others.
        is_let_in: Whether an operator has let it in.
        policy: What rule 3 does with an event that it finds.
        events_from: The first record whose event stays.
        letters_from: The first record whose dead letters stay.
    """

    seqs: range
    code: NDArray[np.int8]
    copies: NDArray[np.int8]
    us: Numbers
    is_let_in: Flags
    policy: str
    events_from: int
    letters_from: int

    def may_be_gone(self, seqs: Numbers, recounted: NDArray[np.int8]) -> Flags:
        """Return for some records whether `retention` may have removed the row that they should have."""
        is_event = (recounted == _ACCEPTED) | self.is_let_in[seqs - self.seqs.start]
        return np.where(is_event, seqs < self.events_from, seqs < self.letters_from)

    @classmethod
    def of(cls, workspace: Workspace, seqs: range, rules: RecountRules) -> "_Places":
        """Read where the tables have some records."""
        n = len(seqs)
        code, copies, us = np.full(n, _NOWHERE, np.int8), np.zeros(n, np.int8), np.full(n, NONE)
        names = [tables.ORDERED_EVENTS, tables.HELD_EVENTS] if workspace.spec.outputs.ordered_events else []
        for table in names:
            for piece in _pieces(workspace, table, seqs, [c.SEQ, c.TIMESTAMP]):
                at = piece[c.SEQ].to_numpy() - seqs.start
                code[at], us[at] = _ACCEPTED, piece[c.TIMESTAMP].cast(pa.int64()).to_numpy()
                np.add.at(copies, at, 1)  # += would count a record once that occurs twice
        for piece in _pieces(workspace, tables.DEAD_LETTERS, seqs, [c.SEQ, "stage", "reason", "replayed_at"]):
            of_records = pc.is_in(piece["stage"].cast(pa.string()), value_set=pa.array([Stage.INGEST, Stage.TIME]))
            rows = piece.filter(of_records)
            at, is_let_in = rows[c.SEQ].to_numpy() - seqs.start, pc.is_valid(rows["replayed_at"]).to_numpy(False)
            code[at] = [_CODES.get(reason, _NOWHERE) for reason in rows["reason"].to_pylist()]
            np.add.at(copies, at[~is_let_in], 1)
        numbers = np.arange(seqs.start, seqs.stop)
        return cls(
            seqs,
            code,
            copies,
            us,
            is_let_in=np.isin(numbers, admitted(workspace).between(seqs.start, seqs.stop)),
            policy=rules.out_of_order,
            events_from=before_seq_of(workspace, tables.ORDERED_EVENTS),
            letters_from=before_seq_of(workspace, tables.DEAD_LETTERS),
        )


def _pieces(workspace: Workspace, table: str, seqs: range, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    return pieces(workspace.lake, table, workspace.base_of(table), names, _within(seqs))


@dataclass
class _Faults:
    """The faults of the records that were compared: `_arrival_seq`, or batches whose watermark is wrong.

    `others` are by what a record is and what it should be; `times` are `_arrival_seq`, its `_timestamp` and the one
    that it should have, microseconds.
    """

    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    others: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    times: list[tuple[int, int, int]] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON can hold them."""
        return vars(self) | {"others": [[*pair, seqs] for pair, seqs in self.others.items()]}

    @classmethod
    def of_dict(cls, stored: Mapping[str, Any]) -> "_Faults":
        """Return what `to_dict` has returned."""
        others = {(code, recounted): seqs for code, recounted, seqs in stored.get("others", [])}
        return cls(**{**stored, "others": others})


@dataclass(frozen=True)
class _Comparison:
    """Comparing records, and what was wrong with them so far."""

    workspace: Workspace
    faults: _Faults

    @cached_property
    def total(self) -> int:
        """Return how many records there are."""
        return self.workspace.progress.processed_end()

    @property
    def _knows_accepted(self) -> bool:
        return self.workspace.spec.outputs.ordered_events

    def compare(self, part: Recounted, places: _Places) -> None:
        """Compare where some records are with what the second opinion says."""
        at = part.seqs - places.seqs.start
        recounted = _codes(part, drops=places.policy == "drop")
        expected = np.zeros(len(places.seqs), bool)
        expected[at] = True  # the others have left the log
        copies = places.copies.copy()
        if not self._knows_accepted:  # of an accepted record there is no row
            copies[at[recounted == _ACCEPTED]] += 1
            expected &= ~places.is_let_in
        may_be_gone = places.may_be_gone(part.seqs, recounted) & (copies[at] == 0)
        copies[at[may_be_gone]] = 1
        self.faults.lost += self._seqs_where(places, expected & (copies == 0))
        self.faults.doubled += self._seqs_where(places, (copies > 1) | (~expected & ~places.is_let_in & (copies > 0)))
        is_there = ~places.is_let_in[at] & (copies[at] == 1) & ~may_be_gone
        self._compare_reasons(part.seqs, places.code[at], recounted, is_there)
        is_timed = (places.us[at] != NONE) & (recounted == _ACCEPTED) & ~places.is_let_in[at]
        if places.policy == "adjust":  # these have the time of the watermark
            is_timed &= ~part.below
        for number in np.flatnonzero(is_timed & (places.us[at] != part.t))[:_MOST_NAMED].tolist():
            self.faults.times.append((int(part.seqs[number]), int(places.us[at][number]), int(part.t[number])))

    def _seqs_where(self, places: _Places, which: Flags) -> list[int]:
        return [places.seqs.start + int(number) for number in np.flatnonzero(which)[:_MOST_NAMED]]

    def _compare_reasons(
        self, seqs: Numbers, code: NDArray[np.int8], recounted: NDArray[np.int8], which: Flags
    ) -> None:
        which = which & (code != recounted)
        if not self._knows_accepted:
            which &= ~((code == _NOWHERE) & (recounted == _ACCEPTED))
        for number in np.flatnonzero(which)[:_MOST_NAMED].tolist():
            pair = _WORDS[int(code[number])], _WORDS[int(recounted[number])]
            self.faults.others.setdefault(pair, []).append(int(seqs[number]))

    def compare_watermark(self, checkpoint: Checkpoint, wanted_us: int | None) -> None:
        """Compare the watermark after a batch with the one that the second opinion has there."""
        if checkpoint.position.watermark_us != wanted_us:
            self.faults.watermarks.append(checkpoint.batch_id)

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong."""
        workspace = self.workspace
        events = tables.ORDERED_EVENTS if self._knows_accepted else tables.DEAD_LETTERS
        if self.faults.lost:
            sentence = f"{plural(len(self.faults.lost), 'record')} of the log ended nowhere: {some(self.faults.lost)}"
            yield wrong_rows(workspace, events, sentence)
        if self.faults.doubled:
            sentence = f"{plural(len(self.faults.doubled), 'record')} of the log ended in more than one place"
            yield wrong_rows(workspace, events, f"{sentence}, or should not be there: {some(self.faults.doubled)}")
        for (code, recounted), seqs in self.faults.others.items():
            table = events if code == _WORDS[_ACCEPTED] else tables.DEAD_LETTERS
            sentence = f"{plural(len(seqs), 'record is', 'records are')} {code}, and by the recount {recounted}"
            yield wrong_rows(workspace, table, f"{sentence}: {some(seqs)}")
        if self.faults.times:
            seq, there_us, wanted_us = self.faults.times[0]
            records = plural(len(self.faults.times), "record")
            sentence = f"`_timestamp` of {records} is not as recounted, such as of record {seq:,}"
            yield wrong_rows(
                workspace, events, f"{sentence}: {Instant(there_us)}, and {Instant(wanted_us)} by the recount"
            )
        if self.faults.watermarks:
            sentence = f"the watermark after batch {some(self.faults.watermarks)} is not the recounted one"
            yield wrong_rows(workspace, tables.WATERMARKS, sentence)


def _codes(part: Recounted, *, drops: bool) -> NDArray[np.int8]:
    """Return what each record is by the second opinion."""
    code = np.full(len(part.seqs), _ACCEPTED, np.int8)
    if drops:
        code[part.below] = _OUT_OF_ORDER
    for outcome, its_code in _BY_OUTCOME.items():
        code[part.are(outcome)] = its_code
    return code
