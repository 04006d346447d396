"""Why is a record where it is: its times, its watermark, its windows, and what would have let it in.

Here: what the tables of the last commit and the times of the log say about one record. Not here: the answer as values
and a text (assets/questions/record_answer.py), the log's times (assets/questions/times.py), the events of a window
(assets/questions/contents.py), the rules.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np

from tidemark.assets.log.admissions import admitted
from tidemark.assets.log.control import ADMIT, CORRECTION, EXCLUDE, FORGET, INCLUDE, recorded
from tidemark.assets.log.exclusions import Excluded, numbers_in, pairs_in, records_of
from tidemark.assets.log.retention import before_seq_of, log_begins_at
from tidemark.assets.questions.contents import Contents, group_of
from tidemark.assets.questions.record_answer import RecordAnswer, Setter
from tidemark.assets.questions.record_joins import JoinsOfRecord, RecordJoin
from tidemark.assets.questions.record_windows import RecordWindow, WindowsOfRecord
from tidemark.assets.questions.times import PipelineLog
from tidemark.assets.questions.words import instant_text
from tidemark.resources import tables
from tidemark.resources.delta.queries import Row, python_rows
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.events.adjustment import ADMITTED, KEPT
from tidemark.timeops.figures.admission import Refusal, admitted_by, admitting_unit
from tidemark.timeops.figures.log_times import NO_WATERMARK, Item, Met
from tidemark.timeops.rules.reasons import REASONS, Reason, Stage
from tidemark.timeops.spec import Spec, parse_spec
from tidemark.timeops.values.durations import format_duration
from tidemark.timeops.values.instants import NONE
from tidemark.timeops.values.utc import Instant, us_of

_REASONS = {str(reason): reason for reason in REASONS}


_OF_ACCEPTED = (Stage.WINDOW, Stage.JOIN)
"""The stages that refuse an event which the rules of time have accepted; the first of them names the reason."""


@dataclass(frozen=True, eq=False)
class RecordQuestions:
    """Questions about records of a pipeline: what they share is read once.

    Attributes:
        log: Its log.
        with_windows: False leaves out the windows of a record, because Spark may have to compute their `where`.
    """

    log: PipelineLog
    with_windows: bool = True

    @cached_property
    def contents(self) -> Contents:
        """The events of windows."""
        return Contents(self.log)

    def answer(self, seq: int) -> RecordAnswer:
        """Explain a record.

        Raises:
            SpecError: There is no such record.
            TidemarkError: It is not processed yet.
        """
        self._ensure_processed(seq)
        out, row = self.log.committed.out, self._row(tables.RAW_EVENTS, seq)
        if np.isin(seq, out.seqs):
            return self._excluded(seq, row, out)
        self._ensure_kept(seq)
        # A letter that was let in again stays in the table, and is in the outputs too.
        letters = [letter for letter in self._rows(tables.DEAD_LETTERS, seq) if letter["replayed_at"] is None]
        refusal = next((letter for letter in letters if letter["stage"] not in _OF_ACCEPTED), None)
        event = None if refusal is not None else self._accepted(seq)
        return self._answer_in_log(
            seq, refusal, event, [letter for letter in letters if letter["stage"] in _OF_ACCEPTED]
        )

    def answers(self, seqs: Sequence[int]) -> tuple[RecordAnswer, ...]:
        """Explain some records; errors as of `answer`."""
        if self.with_windows:
            self.contents.look_at(seqs)
        return tuple(self.answer(seq) for seq in seqs)

    def _ensure_processed(self, seq: int) -> None:
        name, progress = self.log.workspace.spec.name, self.log.workspace.progress
        end = progress.log_end()
        if not 0 <= seq < end:
            expected = f"a number from 0 to {end - 1:,}" if end else "a log with records"
            raise SpecError(
                f"The log of {name} has no record {seq:,}.",
                expected=expected,
                remedy="`_arrival_seq` in its tables is this number",
            )
        begin = log_begins_at(self.log.workspace)
        if seq < begin:
            raise TidemarkError(
                f"Record {seq:,} of {name} is gone: `retention` has removed the records of the log before {begin:,}.",
                expected=f"a record from {begin:,} on",
            )
        if seq >= progress.processed_end():
            raise TidemarkError(
                f"Record {seq:,} of {name} is in the log, and no batch has processed it yet.",
                expected=f"a record below {progress.processed_end():,}",
                remedy="run the pipeline with `tidemark run`",
            )

    def _ensure_kept(self, seq: int) -> None:
        """Check that the tables say whether a record was refused."""
        kept_from = before_seq_of(self.log.workspace, tables.DEAD_LETTERS)
        if seq < kept_from:
            name = self.log.workspace.spec.name
            raise TidemarkError(
                f"Whether record {seq:,} of {name} was refused is not known any more: `retention` has removed the "
                f"dead letters of records before {kept_from:,}.",
                expected=f"a record from {kept_from:,} on",
                remedy=f"`tidemark show SPEC raw_events --where '{c.SEQ} = {seq}'` shows the record; a rebuild makes "
                "all dead letters again",
            )

    def _rows(self, table: str, seq: int) -> list[Row]:
        workspace = self.log.workspace
        if not workspace.lake.exists(table):
            return []
        filters = [(c.SEQ, "=", seq)]
        return list(python_rows(workspace.lake.rows(table, workspace.base_of(table), filters=filters), maps="lossy"))

    def _row(self, table: str, seq: int) -> Row:
        return self._rows(table, seq)[0]

    def _accepted(self, seq: int) -> Row | None:
        """Return the row of an accepted event; None where such rows are not written, or were removed as old."""
        if not self.log.workspace.spec.outputs.ordered_events:
            return None
        for table in (tables.HELD_EVENTS, tables.ORDERED_EVENTS):
            for row in self._rows(table, seq):
                return {**row, "table": table}
        if seq < before_seq_of(self.log.workspace, tables.ORDERED_EVENTS):
            return None
        raise TidemarkError(
            f"Record {seq:,} of {self.log.workspace.spec.name} is in no table.",
            expected="it in ordered_events, held_events or dead_letters",
            remedy="look with `tidemark status` for rows that were changed by hand",
        )

    def _excluded(self, seq: int, row: Row, out: Excluded) -> RecordAnswer:
        reason = self._why_excluded(seq)
        at = np.flatnonzero(out.records == seq)
        detail = f"it is judged in the place of record {int(out.places[at[0]]):,}" if len(at) else None
        return RecordAnswer(
            self.log.workspace.spec.name,
            seq,
            "excluded",
            row,
            self.log.workspace.rules,
            reason=reason,
            detail=detail,
            arrival_us=_us(row[c.ARRIVAL]),
            clock_us=_us(row[c.CLOCK]),
        )

    def _why_excluded(self, seq: int) -> str | None:
        """Return the reason of the last control item that took a record out of the log."""
        reason = None
        for item in recorded(self.log.workspace, EXCLUDE, INCLUDE, CORRECTION, FORGET):
            argument = json.loads(item["argument"])
            seqs = [numbers_in(argument["records"])]
            if item["kind"] == CORRECTION:
                seqs += list(pairs_in(argument["replaced"]))
            if np.isin(seq, np.concatenate(seqs)):
                reason = item["reason"]  # a record may go out and come back several times: the last item decides
        return reason

    def _answer_in_log(self, seq: int, refusal: Row | None, event: Row | None, missed: Sequence[Row]) -> RecordAnswer:
        """Return the answer about a record of the log.

        Args:
            seq: The record.
            refusal: Its dead letter of ingestion or time; None for none.
            event: Its row as an accepted event; None where it was refused, or such rows are not written.
            missed: Its dead letters of windows and joins.
        """
        judged, known_log = self.log.judged, self.log.committed
        at = known_log.times.place(seq)
        assert at is not None  # it is part of the log
        is_of_timeline = refusal is None or refusal["stage"] != Stage.INGEST
        timeline = judged.timeline_of(seq) if is_of_timeline else None
        met = judged.before(seq) if is_of_timeline else NO_WATERMARK
        if known_log.changed:  # the spec as it is now would have set another watermark
            met = Met(_us((refusal or event or {}).get(c.WATERMARK)), (refusal or {}).get("watermark_set_by"))
        t_us = _or_none(int(judged.t[at]))
        timestamp_us, adjusted_by = self._as_accepted(event, t_us, met) if refusal is None else (None, ())
        released_by, by_flush = self._release(seq, timeline, timestamp_us, adjusted_by)
        outcome = _outcome(refusal, event, adjusted_by, is_released=by_flush or released_by is not None)
        of_stage = [[letter for letter in missed if letter["stage"] == stage] for stage in _OF_ACCEPTED]
        of_first = next(filter(None, of_stage), [])
        # Of several windows the one that it missed by most: a tolerance that is enough for this one is for all.
        letter = refusal or max(of_first, key=lambda letter: letter["lateness_us"] or -1, default=None)
        verdict = judged.reason_of(seq)
        us = timestamp_us if timestamp_us is not None else t_us
        admitted, unit = ({}, None) if letter is None else self._admission(seq, letter, of_first, verdict)
        row = self._row(tables.RAW_EVENTS, seq)
        return RecordAnswer(
            self.log.workspace.spec.name,
            seq,
            outcome,
            row,
            self.log.workspace.rules,
            reason=None if letter is None else letter["reason"],
            detail=self._let_in(seq) if letter is None else letter["detail"],
            event_us=_or_none(int(known_log.times.event_us[at])),
            timestamp_us=timestamp_us,
            arrival_us=_or_none(int(known_log.times.arrival_us[at])),
            clock_us=_or_none(int(known_log.times.clock_us[at])),
            timeline=timeline,
            t_us=t_us,
            met=met,
            setter=self._setter(met, at),
            now=judged.last(timeline) if timeline is not None else NO_WATERMARK,
            splits=tuple(judged.splits(timeline)) if timeline is not None else (),
            lateness_us=None if letter is None else letter["lateness_us"],
            admitted_by=admitted,
            unit=unit,
            windows=self._windows(seq, us, timeline, missed, is_refused=refusal is not None),
            joins=self._joins(row, us, timeline, refusal, missed),
            adjusted_by=adjusted_by,
            release_seq=None if event is None else event.get(c.RELEASE_SEQ),
            released_by=released_by if outcome == "ordered" else None,
            by_flush=by_flush,
            changed=known_log.changed,
            is_accepted_now=bool(known_log.changed) and refusal is not None and verdict is None,
        )

    def _release(
        self, seq: int, timeline: str | None, timestamp_us: int | None, adjusted_by: Sequence[str]
    ) -> tuple[Item | None, bool]:
        """Return what released an event in the order of time, see `PipelineLog.passed`; nothing for other records."""
        if timestamp_us is None or timeline is None or KEPT in adjusted_by or ADMITTED in adjusted_by:
            return None, False
        # It is released when the watermark is past its time, not at it.
        return self.log.passed(timeline, timestamp_us + 1, seq)

    def _windows(
        self, seq: int, us: int | None, timeline: str | None, missed: Sequence[Row], *, is_refused: bool
    ) -> tuple[RecordWindow, ...]:
        if not self.with_windows or us is None or timeline is None:
            return ()
        letters = {letter["window_name"]: letter for letter in missed}
        return WindowsOfRecord(self.contents, seq, us, timeline, is_refused, letters).all()

    def _joins(
        self, row: Row, us: int | None, timeline: str | None, refusal: Row | None, missed: Sequence[Row]
    ) -> tuple[RecordJoin, ...]:
        if us is None or timeline is None:
            return ()
        source = self.log.workspace.source_names.get(row[c.SOURCE], row[c.SOURCE])
        letters = {letter["window_name"]: letter for letter in missed if letter["stage"] == Stage.JOIN}
        joins = JoinsOfRecord(self.log, row[c.SEQ], source, us, timeline, refusal is not None, letters)
        return tuple(joins.all())

    def _let_in(self, seq: int) -> str | None:
        """Say by what decision of an operator a record is in the outputs that a rule had refused; None for none."""
        let_in = admitted(self.log.workspace)
        at = np.flatnonzero(let_in.seqs == seq)
        if not len(at):
            return None
        items = recorded(self.log.workspace, ADMIT)
        why = next(item["reason"] for item in reversed(items) if np.isin(seq, records_of(item)))
        return f"refused, and let in again at {instant_text(int(let_in.at_us[at[0]]))}: {why}"

    def _as_accepted(self, event: Row | None, t_us: int | None, met: Met) -> tuple[int | None, tuple[str, ...]]:
        """Return `_timestamp` and `_adjusted_by` of an accepted event; the loop says them where no table does."""
        if event is not None:
            return _us(event[c.TIMESTAMP]), tuple(event[c.ADJUSTED_BY] or ())
        policy = self.log.workspace.spec.time.out_of_order
        if t_us is None or met.us is None or t_us >= met.us:
            return t_us, ()
        return (met.us, ("out_of_order",)) if policy == "adjust" else (t_us, (KEPT,))

    def _setter(self, met: Met, at: int) -> Setter | None:
        times = self.log.committed.times
        place = None if met.set_by is None else times.place(met.set_by)
        if place is None or met.set_by is None:
            return None
        row = self._row(tables.RAW_EVENTS, met.set_by)
        names = self.log.workspace.source_names
        source = names.get(row[c.SOURCE], row[c.SOURCE])
        event_us, arrival_us = (_or_none(int(values[place])) for values in (times.event_us, times.arrival_us))
        return Setter(met.set_by, event_us, arrival_us, source, row[c.SPLIT], at - place - 1)

    # What would have let it in.

    def _admission(
        self, seq: int, letter: Row, missed: Sequence[Row], verdict: Reason | None
    ) -> tuple[dict[str, int], str | None]:
        spec, rules = self.log.workspace.spec, self.log.workspace.rules
        overriding = [place for place, source in enumerate(spec.sources) if source.out_of_orderness_us is not None]
        if letter["reason"] == Reason.JOIN_CLOSED:
            source = self.log.workspace.source_names.get(letter[c.SOURCE], letter[c.SOURCE])
            waits = _waits_of_joins(spec, missed, source)
            refused = Refusal(seq, Reason.JOIN_CLOSED, joins_wait_us=min(waits, default=None))
            patience = admitted_by(self.log.committed.times, rules, refused, overriding) if waits else {}
            return self._allowed(_lateness_of_joins(spec, missed) | patience), None
        names = [window.name for window in spec.windows]
        closed = [
            names.index(letter["window_name"])
            for letter in missed
            if letter["reason"] == Reason.WINDOW_CLOSED
            and letter["window_name"] in names
            and letter["lateness_us"] is not None
        ]
        reason = _REASONS[letter["reason"]]
        if (reason is Reason.WINDOW_CLOSED and not closed) or (
            reason is not Reason.WINDOW_CLOSED and verdict is None
        ):
            return {}, None
        groups, dropped = {}, {}
        for place in closed:
            window = spec.windows[place]
            if window.kind == "session":
                # What a session holds depends on all events of its group.
                group = group_of(self.contents, window, seq)
                groups[place] = self.contents.of_group(window, group)
                dropped[place] = self.contents.dropped_of_group(window, group)
        refused = Refusal(seq, reason, closed if reason is Reason.WINDOW_CLOSED else (), groups, dropped)
        keys_us = admitted_by(self.log.committed.times, rules, refused, overriding)
        return self._allowed(keys_us), admitting_unit(self.log.committed.times, rules, refused)

    def _allowed(self, keys_us: Mapping[str, int]) -> dict[str, int]:
        """Return the keys that can be changed by themselves: the spec stays valid with each of them."""
        allowed = {}
        for key, us in keys_us.items():
            try:
                value = format_duration(timedelta(microseconds=us))
                parse_spec(self.log.workspace.file.text, file="", overrides=[f"{key}={value}"])
            except SpecError:
                continue
            allowed[key] = us
        return allowed


def _lateness_of_joins(spec: Spec, missed: Sequence[Row]) -> dict[str, int]:
    """Return the least `allowed_lateness` of each join that has refused a record; no watermark depends on it."""
    more_us = {letter["window_name"]: letter["lateness_us"] for letter in missed}
    return {
        f"joins[{place}].allowed_lateness": join.allowed_lateness_us + more_us[join.name]
        for place, join in enumerate(spec.joins)
        if more_us.get(join.name) is not None
    }


def _waits_of_joins(spec: Spec, missed: Sequence[Row], source: str) -> list[int]:
    """Return how far the watermark may be past a record of a source for each join that has refused it."""
    refused = {letter["window_name"] for letter in missed}
    return [
        join.closes_after_us if source == join.left.source else join.useful_for_us
        for join in spec.joins
        if join.name in refused
    ]


def _outcome(refusal: Row | None, event: Row | None, adjusted_by: Sequence[str], *, is_released: bool) -> str:
    if refusal is not None:
        return "dead_letter"
    if KEPT in adjusted_by or ADMITTED in adjusted_by:
        return "kept"
    is_held = event["table"] == tables.HELD_EVENTS if event is not None else not is_released
    return "held" if is_held else "ordered"


def _us(value: Any) -> int | None:
    if value is None:
        return None
    return value.us if isinstance(value, Instant) else us_of(value)


def _or_none(value: int) -> int | None:
    return None if value == NONE else value
