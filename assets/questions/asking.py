"""One question to a pipeline, and its answer: about one record, about some records of the log, about a window.

Here: which question is asked, and that there are tables to answer it. Not here: the answers
(assets/questions/record.py, assets/questions/window.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidemark.assets.questions.record import RecordQuestions
from tidemark.assets.questions.record_answer import RecordAnswer
from tidemark.assets.questions.times import PipelineLog
from tidemark.assets.questions.window import WindowQuestion
from tidemark.assets.questions.window_answer import WindowAnswer
from tidemark.assets.questions.words import AnswerInParts
from tidemark.resources import tables
from tidemark.resources.delta.queries import rows_where
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.errors.problems import ProblemsError
from tidemark.timeops.spec.fields import read_instant
from tidemark.timeops.values.utc import us_of

MOST_EXPLAINED = 20
"""So many records of a condition are explained by default."""


@dataclass(frozen=True)
class Question:
    """A question: `seq`, or `where`, or `window` with `start`.

    Attributes:
        seq: A record, by its `_arrival_seq`.
        where: A condition in SQL, as DuckDB reads it, over `raw_events`.
        window: A window of the spec.
        start: Its start: an aware instant, or a text in ISO 8601, UTC without an offset.
        group: Texts of values of its group.
        most: At most so many records of `where` are explained.
    """

    seq: int | None = None
    where: str | None = None
    window: str | None = None
    start: datetime | str | None = None
    group: Mapping[str, str | None] | None = None
    most: int = MOST_EXPLAINED

    def check(self) -> None:
        """Check that it is one question.

        Raises:
            SpecError: It is none, or several.
        """
        questions = [name for name in ("seq", "where", "window") if getattr(self, name) is not None]
        if len(questions) != 1:
            names = " and ".join(f"`{name}`" for name in questions) or "no question"
            raise SpecError(
                f"Found {names}.",
                expected="one of `seq`, `where`, or `window` with the `start` of the one that is meant",
            )
        if (self.window is None) != (self.start is None):
            raise SpecError(
                "Found `window` without `start`." if self.window is not None else "Found `start` without `window`.",
                expected="both: the window of the spec, and the instant with which the one that is meant begins",
            )
        if self.most < 1:
            raise SpecError(f"Found a limit of {self.most} records.", expected="at least 1")
        if self.group and self.window is None:
            raise SpecError("Found `group` without `window`.", expected="`window`, `start` and values of a `group`")

    @property
    def start_us(self) -> int:
        """The start of the window, microseconds.

        Raises:
            SpecError: It is not an instant.
        """
        if isinstance(self.start, datetime):
            return us_of(self.start if self.start.tzinfo else self.start.replace(tzinfo=UTC))
        try:
            return us_of(read_instant(self.start))
        except ProblemsError:
            raise SpecError(
                f"`start` is {self.start!r}, which is not an instant.",
                expected="ISO 8601 such as 2026-01-31T12:00:00Z",
            ) from None


@dataclass(frozen=True)
class RecordAnswers(AnswerInParts):
    """The answers about the records that meet a condition.

    Attributes:
        records: The answers, by `_arrival_seq`.
        in_all: How many records meet it.
    """

    records: tuple[RecordAnswer, ...]
    in_all: int

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"records": [record.to_dict() for record in self.records], "in_all": self.in_all}

    def parts(self) -> Iterator[Iterable[str]]:
        """Write the stories of the records, one after the other."""
        texts = [record.text for record in self.records] or ["No record of the log meets the condition."]
        yield from ([text, ""] for text in texts[:-1])  # a part has one empty line after it, a record two
        yield texts[-1:]


Answer = RecordAnswer | RecordAnswers | WindowAnswer


def explain(workspace: Workspace, question: Question) -> Answer:
    """Answer a question from the tables of the last commit; nothing is written.

    Raises:
        SpecError: The question is wrong: no such record, window or group, or a condition that cannot be evaluated.
        TidemarkError: There are no tables, or the record is not processed yet.
    """
    question.check()
    ensure_committed(workspace)
    with workspace.lake.settled():
        return _answer(workspace, question)


def _answer(workspace: Workspace, question: Question) -> Answer:
    log = PipelineLog(workspace)
    if question.window is not None:
        return WindowQuestion(log, question.window, question.start_us, question.group or {}).answer()
    records = RecordQuestions(log)
    if question.seq is not None:
        return records.answer(question.seq)
    raw = tables.RAW_EVENTS
    seqs = rows_where(workspace.lake, raw, workspace.base_of(raw), question.where or "", [c.SEQ])[c.SEQ].to_numpy()
    seqs = seqs[seqs < workspace.progress.processed_end()]
    return RecordAnswers(records.answers(seqs[: question.most].tolist()), len(seqs))


def ensure_committed(workspace: Workspace) -> None:
    """Check that a batch has processed records.

    Raises:
        TidemarkError: None has.
    """
    workspace.ensure_whole()
    last = workspace.batches.last_commit("process") if workspace.exists else None
    if last is None:
        raise TidemarkError(
            f"{workspace.spec.name} has no committed batch in {workspace.warehouse}.",
            expected="tables of a pipeline that has run",
            remedy="run it first with `tidemark run`, or name another --warehouse",
        )
