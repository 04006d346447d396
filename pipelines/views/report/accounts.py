"""The subject of a report: a pipeline as one commit left it, and where its records went, in numbers.

Here: the state, read once, and the sums and rows of its tables that the page shows. Not here: charts, words and the
page (pipelines/views/report/page.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow.compute as pc

from tidemark.resources import tables
from tidemark.resources.batches.plans import (
    FIRST_CLOCK,
    LOG_CLOCK,
    MENDED,
    REMOVED_OF_SOURCE,
    BatchInput,
    Commit,
    Counts,
    IngestInput,
    Plan,
    RebuildInput,
    counted_commits,
)
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import newest_rows, pieces
from tidemark.resources.sources.kafka_offsets import Positions
from tidemark.resources.tables import DEAD_LETTERS
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import Spec


@dataclass(frozen=True)
class State:
    """A pipeline at a commit.

    Attributes:
        spec: The spec as it is now.
        commits: All commits, by batch; at least one.
        pending: A batch that is not committed.
        source_names: The names that sources have now, by their former ones.
    """

    spec: Spec
    lake: Lake
    commits: Sequence[Commit]
    pending: Plan | None
    source_names: Mapping[str, str]

    @property
    def last(self) -> Commit:
        """The commit that everything is read at."""
        return self.commits[-1]

    @property
    def versions(self) -> Mapping[str, int]:
        """Version of each table that belongs to the last commit."""
        return self.last.table_versions

    @cached_property
    def ingested(self) -> list[Commit]:
        """The batches that read input."""
        return [commit for commit in self.commits if commit.plan.kind == "ingest"]

    @cached_property
    def processed(self) -> list[Commit]:
        """The batches that judged records."""
        return [commit for commit in self.commits if commit.plan.kind == "process"]

    @cached_property
    def counts(self) -> Counts:
        """The outcomes of all processed records."""
        return Counts.sum(commit.counts for commit in counted_commits(self.commits))

    @property
    def dead_letters(self) -> Counter[str]:
        """How many of them have a dead letter, by reason."""
        return self.counts.dead_letters(self.counts.windows)

    @property
    def log_end(self) -> int:
        """How many records the log has."""
        return plan_end(self.ingested[-1].plan) if self.ingested else 0

    @property
    def processed_end(self) -> int:
        """How many of them are processed."""
        return plan_end(self.processed[-1].plan) if self.processed else 0

    @property
    def spec_has_changed(self) -> bool:
        """Return whether the spec differs from the spec of the last commit."""
        return self.last.plan.fingerprint != self.spec.fingerprint()

    @cached_property
    def position(self) -> Position:
        """The position of the pipeline."""
        if not self.processed:
            return Position()
        return self.positions_from(self.processed[-1].batch_id)[self.processed[-1].batch_id]

    def positions_from(self, batch_id: int) -> dict[int, Position]:
        """Return the position after each processed batch from one on."""
        rows = self.lake.rows(
            tables.WATERMARKS,
            self.versions[tables.WATERMARKS],
            filters=[("_batch_id", ">=", batch_id), ("_timeline", "=", None)],
        )
        return {row["_batch_id"]: Position.of(row) for row in rows.to_pylist()}


def state_of(workspace: Workspace) -> State | None:
    """Return the state of a pipeline at its last commit; None before the first."""
    commits = workspace.batches.history() if workspace.exists else []
    if not commits:
        return None
    pending, names = workspace.batches.pending(), workspace.source_names
    return State(workspace.spec, workspace.lake, commits, pending, names)


MOST_DEAD_LETTERS = 500
_COLUMNS = (
    *("_arrival_seq", "_arrival_time", "_event_time", "_source", "_position"),
    *("reason", "detail", "window_name", "lateness_us", "payload"),
)


@dataclass(frozen=True)
class Place:
    """Where some of the records went.

    Attributes:
        name: An outcome, or the reason of dead letters.
        stage: The stage that refused them; empty where they were not.
    """

    name: str
    stage: str
    records: int
    why: str


@dataclass(frozen=True)
class SourceInput:
    """The account of a source: files, versions or partitions, and records."""

    name: str
    files: int
    records: int


@dataclass(frozen=True)
class WindowPlaces:
    """Where the accepted events of a window went; `missed_some` of `inside` were late for another one."""

    name: str
    accepted: int
    inside: int
    in_gap: int
    filtered: int
    closed: int
    failed: int
    missed_some: int
    rows: int


def places(state: State) -> list[Place]:
    """Return where the processed records went; the numbers add up to all of them."""
    counts = state.counts
    accepted = counts.accepted
    if state.spec.outputs.ordered_events:
        ordered = counts.ordered
        accepted_places = [
            Place("ordered", "", ordered, "in event-time order in ordered_events; final"),
            Place("held", "", accepted - ordered, "the watermark has not passed them yet"),
        ]
    else:
        accepted_places = [
            Place("accepted", "", accepted, "taken by the windows; this pipeline writes no ordered_events")
        ]
    reasons = sorted(counts.refused.items(), key=lambda item: -item[1])
    by_name = {reason.value: reason for reason in Reason}
    return accepted_places + [
        Place(reason, by_name[reason].stage, n, by_name[reason].sentence) for reason, n in reasons
    ]


def sources(state: State) -> list[SourceInput]:
    """Count files and records of each source; of Kafka partitions."""
    files = Counter(source for source, _ in _files_read(state))
    for commit in state.ingested[-1:]:
        for noted_as, noted in IngestInput.of(commit.plan).positions.items():
            name = state.source_names.get(noted_as, noted_as)
            files[name] = sum(len(topic.following) for topic in Positions.from_json(noted).topics)
    names = [source.name for source in state.spec.sources]
    records = _records_by_source(state) if len(names) > 1 else {names[0]: state.log_end}
    return [SourceInput(name, files[name], records.get(name, 0)) for name in names]


def _files_read(state: State) -> set[tuple[str, str]]:
    """Return source and path of each file that was read; an older Tidemark stored its path of that time."""
    rows = state.lake.rows(tables.FILES, state.versions[tables.FILES]).to_pylist()
    rows = [{**row, "source": state.source_names.get(row["source"], row["source"])} for row in rows]
    name_at = {(row["source"], row.get("place")): row["path"] for row in rows}
    read = [row for row in rows if row.get("copy_of") is None]
    return {(row["source"], name_at.get((row["source"], row["path"]), row["path"])) for row in read}


def _records_by_source(state: State) -> Mapping[str, int]:
    """Count records of the log by source, also ones that `retention` has removed; one column is read, in pieces."""
    counts: Counter[str] = Counter()
    for name, n in state.counts.items():
        if name.startswith(REMOVED_OF_SOURCE):
            source = name.removeprefix(REMOVED_OF_SOURCE)
            counts[state.source_names.get(source, source)] += n
    for piece in pieces(state.lake, tables.RAW_EVENTS, state.versions[tables.RAW_EVENTS], ["_source"]):
        for row in piece["_source"].value_counts().to_pylist():
            counts[state.source_names.get(row["values"], row["values"])] += row["counts"]
    return counts


def windows(state: State) -> list[WindowPlaces]:
    """Return where accepted events went, window by window."""
    counts, window_places = state.counts, []
    for window in state.spec.event_windows:
        table = tables.window_table(window.name)
        window_places.append(
            WindowPlaces(
                name=window.name,
                accepted=counts.accepted,
                inside=counts.get(f"{window.name}.in_windows", 0),
                in_gap=counts.get(f"{window.name}.in_gap", 0),
                filtered=counts.get(f"{window.name}.filtered", 0),
                closed=counts.get(f"{window.name}.window_closed", 0),
                failed=counts.get(f"{window.name}.bad_expression", 0),
                missed_some=counts.get(f"{window.name}.missed_some", 0),
                rows=state.lake.row_count(table, state.versions[table]) if table in state.versions else 0,
            )
        )
    return window_places


def timelines(state: State, batches: int, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the timelines that their own events moved in the last batches: how many, and the slowest ones.

    A row has `_timeline`, `watermark_max`, which is an instant or None, and `released_max`.
    """
    first = state.processed[-batches:][0].batch_id
    rows = state.lake.rows(
        tables.WATERMARKS,
        state.versions[tables.WATERMARKS],
        columns=["_batch_id", "_timeline", "watermark", "released"],
        filters=[("_batch_id", ">=", first)],
    )
    of_timelines = rows.filter(pc.is_valid(rows["_timeline"]))
    by_timeline = of_timelines.group_by("_timeline").aggregate([("watermark", "max"), ("released", "max")])
    return by_timeline.num_rows, by_timeline.sort_by("watermark_max").slice(0, most).to_pylist()


@dataclass(frozen=True)
class BatchLine:
    """A committed batch as a row of the page: what it did, in numbers and words."""

    commit: Commit
    records: int
    ordered: int | None
    refused: int | None
    note: str

    @property
    def took_us(self) -> int:
        """How long it took from its plan to its commit, microseconds."""
        return round(self.commit.took.total_seconds() * 1e6)


def batches(state: State, most: int) -> list[BatchLine]:
    """Return the last batches, the newest first."""
    return [_batch(commit, state) for commit in reversed(state.commits[-most:])]


def _batch(commit: Commit, state: State) -> BatchLine:
    plan, counts = commit.plan, commit.counts
    if plan.kind == "ingest":
        inputs = [plural(counts[f"{noun}s"], noun) for noun in ("version", "offset") if counts.get(f"{noun}s")]
        files = [plural(counts.get("files", 0), "file")] if counts.get("files") or not inputs else []
        return BatchLine(commit, counts.records, None, None, f"{' and '.join([*files, *inputs])} read")
    if plan.kind == "backfill":
        return BatchLine(commit, 0, None, None, "days of window tables recomputed")
    if plan.kind == "change":
        of_rows = f"changes of rows by others {plan.input['decision']}"
        sentence = f"{'lost files read again' if plan.input['decision'] == MENDED else of_rows}: {commit.reason}"
        return BatchLine(commit, 0, None, None, sentence)
    if plan.kind == "retention":
        return BatchLine(commit, 0, None, None, f"old rows of {' and '.join(plan.input['tables'])} removed")
    if plan.kind == "rebuild":
        why = f": {commit.reason}" if commit.reason else ""
        return BatchLine(commit, 0, None, None, f"{_of_rebuild(plan)}{why}")
    dead_letters = counts.dead_letters(state.spec.result_names).total()
    notes, batch_input = ["judged again by a rebuild"] if plan.is_replayed else [], BatchInput.of(plan)
    notes += [f"reopened after a flush: {batch_input.reopen}"] if batch_input.reopen else []
    notes += ["the end of input was flushed"] if batch_input.flush else []
    notes += [f"accepted although a check failed: {commit.reason}"] if commit.reason is not None else []
    in_order = counts.ordered if state.spec.outputs.ordered_events else None
    return BatchLine(commit, plan_end(plan) - plan.first_seq, in_order, dead_letters, "; ".join(notes))


def _of_rebuild(plan: Plan) -> str:
    """Say what a batch of the kind `rebuild` did."""
    rebuild_input = RebuildInput.of(plan)
    if former := [*rebuild_input.renamed.values(), *rebuild_input.dropped]:
        verb = "continue under new names" if rebuild_input.renamed else "were deleted"
        return f"the tables of {' and '.join(former)} {verb}"
    if sources := [*rebuild_input.renamed_sources.values()]:
        return f"what was read from {' and '.join(sources)} continues under another name"
    if rebuild_input.erased:
        return "files with forgotten payload were deleted"
    named = " and ".join(rebuild_input.windows)
    return f"{named or 'tables'} rebuilt from the log" if named or rebuild_input.numbers else "a rebuild was started"


def clocks(state: State) -> Mapping[str, int | None]:
    """Return the first and the last arrival of the log, microseconds since the epoch."""
    last = state.ingested[-1].counts if state.ingested else Counts()
    return {"first_us": last.get(FIRST_CLOCK), "last_us": last.get(LOG_CLOCK)}


def newest_dead_letters(state: State, by_reason: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """Return the newest dead letters of each reason, at most MOST_DEAD_LETTERS in all, the newest first."""
    rows: list[Mapping[str, Any]] = []
    for reason, most in allotted(by_reason, MOST_DEAD_LETTERS).items():
        version = state.versions[DEAD_LETTERS]
        only = [("reason", "=", reason)]
        newest = newest_rows(state.lake, DEAD_LETTERS, version, _COLUMNS, by="_arrival_seq", most=most, filters=only)
        rows += newest.to_pylist()
    return sorted(rows, key=lambda row: -(row["_arrival_seq"] or 0))


def allotted(by_reason: Mapping[str, int], most: int) -> dict[str, int]:
    """Return how many of each reason are shown: an equal part; the others share what rare reasons leave."""
    shown: Counter[str] = Counter()
    reasons: Sequence[tuple[int, str]] = sorted((n, reason) for reason, n in by_reason.items() if n)
    for place, (n, reason) in enumerate(reasons):
        shown[reason] = min(n, (most - shown.total()) // (len(reasons) - place))
    return dict(shown)
