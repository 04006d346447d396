"""Audit of counts: the tables hold as many rows as `batches` counted, batch by batch, and `watermarks` says the same.

Here: rows of the log, of events, of dead letters by stage and reason, of held events, of `_state/files`; revisions of
windows. Not here: which record is where (assets/audit/verdicts.py), values of results (assets/audit/windows.py).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tidemark.assets.audit.findings import Finding, wrong_rows
from tidemark.assets.log.retention import Gone, gone_of
from tidemark.assets.upkeep.removal import name_of_letters
from tidemark.resources import tables
from tidemark.resources.batches.plans import REFUSED_PREFIX, REPLAYED_PREFIX, Commit, Counts, IngestInput
from tidemark.resources.batches.position import KEPT_UNTIL, Position
from tidemark.resources.delta.queries import grouped_rows
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.rules.reasons import OF_ACCEPTED
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.revisions import CHANGE, DELETE, PREIMAGE

_MOST_SHOWN = 3
ByBatch = Mapping[int, int]


def audit_counts(workspace: Workspace, readable: Callable[[str], bool]) -> Iterator[Finding]:
    """Compare tables with counts; `readable` says of a table whether its rows can be compared."""
    workspace.tell("comparing the tables with what the batches counted")
    if readable(tables.WATERMARKS):
        yield from _audit_watermarks(workspace)
    if readable(tables.FILES):
        yield from _audit_files(workspace)
    commits, removals = workspace.batches.counted(), gone_of(workspace)
    if readable(tables.DEAD_LETTERS):
        yield from _audit_letters(workspace, commits, removals.get(tables.DEAD_LETTERS))
    if workspace.spec.outputs.ordered_events:
        if readable(tables.ORDERED_EVENTS):
            written, table = _rows_by_batch(workspace, tables.ORDERED_EVENTS), tables.ORDERED_EVENTS
            ordered = _difference(
                commits,
                "released events",
                written,
                lambda counts: counts.ordered - counts.removed(table),
                removals.get(table),
            )
            yield from _wrong(workspace, table, ordered)
        if readable(tables.HELD_EVENTS):
            yield from _audit_held(workspace, commits)
    for window in workspace.spec.windows:
        # The history of any other window may lack revisions.
        is_plain = window.history and not window.having and not window.may_take_back
        if is_plain and readable(tables.history_table(window.name)):
            yield from _audit_revisions(workspace, window)


def _difference(
    commits: Sequence[Commit], noun: str, written: ByBatch, count: Callable[[Counts], int], removal: Gone | None
) -> str | None:
    """Return in words how rows of a table differ from what the batches counted; None where they do not.

    A rebuild of some windows, and a decision on records, count differences from what earlier batches counted: with
    them the sums alone are compared. So are batches that have lost rows to `removal`: `count` is without these.
    """
    counted, rows = sum(count(commit.counts) for commit in commits), sum(written.values())
    last = -1 if removal is None else removal.last_batch
    complete = [commit for commit in commits if commit.plan.kind == "process" and commit.batch_id > last]
    off = [commit for commit in complete if count(commit.counts) != written.get(commit.batch_id, 0)]
    has_corrections = any(commit.plan.kind not in ("process", "retention") for commit in commits)
    if rows == counted and (has_corrections or not off):
        return None
    sentence = f"it has {rows:,} {noun}, and the batches counted {counted:,}"
    if off and not has_corrections:
        off_by = [
            f"batch {commit.batch_id} counted {count(commit.counts):,} of its {written.get(commit.batch_id, 0):,}"
            for commit in off[:_MOST_SHOWN]
        ]
        sentence += f" ({', '.join(off_by)})"
    return sentence


def _wrong(workspace: Workspace, table: str, sentence: str | None) -> Iterator[Finding]:
    if sentence is not None:
        yield wrong_rows(workspace, table, sentence)


def _rows_by_batch(workspace: Workspace, table: str) -> ByBatch:
    version = workspace.base_of(table)
    rows = grouped_rows(workspace.lake, table, "true", [c.BATCH], {"n": "count(*)"}, version=version)
    return {row[c.BATCH]: row["n"] for row in rows}


def _audit_held(workspace: Workspace, commits: Sequence[Commit]) -> Iterator[Finding]:
    table, total = tables.HELD_EVENTS, Counts.sum(commit.counts for commit in commits)
    held, counted = workspace.lake.row_count(table, workspace.base_of(table)), total.accepted - total.ordered
    if held != counted:
        sentence = (
            f"it has {plural(held, 'event')}, and the batches have accepted {counted:,} more than they released"
        )
        yield wrong_rows(workspace, table, sentence)


def _audit_letters(workspace: Workspace, commits: Sequence[Commit], removal: Gone | None) -> Iterator[Finding]:
    """Compare dead letters by stage, window and reason; of windows over windows batches count none."""
    table = tables.DEAD_LETTERS
    by, version = ("stage", "window_name", "reason", c.BATCH), workspace.base_of(table)
    values = {"is_out": "replayed_at IS NULL", "n": "count(*)"}
    written: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in grouped_rows(workspace.lake, table, "true", by, values, version=version):
        written[name_of_letters(row)][row[c.BATCH]] += row["n"]
    names = {
        name for commit in commits for name in commit.counts if name.startswith((REFUSED_PREFIX, REPLAYED_PREFIX))
    }
    names |= {name for name in written if name.startswith((REFUSED_PREFIX, REPLAYED_PREFIX))}
    of_accepted = [window.name for window in workspace.spec.event_windows]
    of_accepted += [join.name for join in workspace.spec.joins]
    names |= {f"{name}.{reason}" for name in of_accepted for reason in OF_ACCEPTED}
    for name in sorted(names):
        of, _, reason = name.rpartition(".")
        noun = f"dead letters {reason}" + {"refused": "", "_replayed": " that were let in"}.get(of, f" of {of}")
        count = partial(_count_of, name)
        yield from _wrong(workspace, table, _difference(commits, noun, written[name], count, removal))


def _count_of(name: str, counts: Counts) -> int:
    return counts.get(name, 0) - counts.removed(name)


def _audit_watermarks(workspace: Workspace) -> Iterator[Finding]:
    """Compare the rows of the pipeline in `watermarks` with the batches, and with one another."""
    table = tables.WATERMARKS
    rows = workspace.lake.rows(table, workspace.base_of(table), filters=[("_timeline", "=", None)]).to_pylist()
    of_batch = {row["_batch_id"]: row for row in rows}
    earlier_position = Position()
    for commit in workspace.batches.history("process"):
        row, batch = of_batch.get(commit.batch_id), f"batch {commit.batch_id}"
        if row is None:
            yield wrong_rows(workspace, table, f"it has no row of {batch}")
            continue
        row_counts = {name: n for name, n in dict(row["counts"]).items() if name != KEPT_UNTIL}
        differs = sorted(
            name for name in {*row_counts, *commit.counts} if row_counts.get(name, 0) != commit.counts.get(name, 0)
        )
        if differs:
            pairs = [f"{name} {row_counts.get(name, 0):,} and {commit.counts.get(name, 0):,}" for name in differs]
            sentence = (
                f"{batch} has other counts in `{table}` and in `{tables.BATCHES}`: {', '.join(pairs[:_MOST_SHOWN])}"
            )
            yield Finding(tables.BATCHES, sentence, "rebuild")
        position = Position.of(row)
        for name in ("watermark_us", "clock_us", "released"):
            earlier, later = getattr(earlier_position, name), getattr(position, name)
            if earlier is not None and (later is None or later < earlier):
                yield wrong_rows(workspace, table, f"{name.removesuffix('_us')} goes back at {batch}")
        earlier_position = position
    if len(rows) > len(of_batch):
        yield wrong_rows(workspace, table, "it has several rows of the pipeline for one batch")


def _audit_files(workspace: Workspace) -> Iterator[Finding]:
    """Look for files that an ingestion has read and does not remember."""
    rows = workspace.base_rows(tables.FILES).select(["place", "_batch_id"]).to_pylist()
    places: dict[int, set[str | None]] = defaultdict(set)
    for row in rows:
        places[row["_batch_id"]].add(row["place"])
    for commit in workspace.batches.history("ingest"):
        remembered = places[commit.batch_id]
        if None in remembered:  # an earlier version wrote them, by their names alone
            continue
        for source, files in IngestInput.of(commit.plan).files.items():
            forgotten = [str(path) for path, *_ in files if path not in remembered]
            if forgotten:
                files_read = f"{plural(len(forgotten), 'file')} of {source} that batch {commit.batch_id} has read"
                verb = "is" if len(forgotten) == 1 else "are"
                yield wrong_rows(workspace, tables.FILES, f"{files_read} {verb} not remembered: {forgotten[0]}")


def _audit_revisions(workspace: Workspace, window: WindowSpec) -> Iterator[Finding]:
    """Look for windows and groups in a history whose revisions have a gap."""
    table = tables.history_table(window.name)
    values = {"n": "count(*)", "lowest": "min(_revision)", "highest": "max(_revision)"}
    has_gap = "count(*) <> max(_revision) - min(_revision) + 1"
    has_gap += " OR min(_revision) <> 0" if window.top is None else ""  # a rank comes with the revision that fills it
    where = f"{CHANGE} NOT IN ('{PREIMAGE}', '{DELETE}')"
    gaps = grouped_rows(
        workspace.lake, table, where, window.key_columns, values, version=workspace.base_of(table), having=has_gap
    )
    if gaps:
        sentence = f"the revisions of {plural(len(gaps), 'window and group', 'windows and groups')} have gaps"
        yield wrong_rows(workspace, table, f"{sentence}, such as of the one that starts {gaps[0]['window_start']}")
