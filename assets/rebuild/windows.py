"""Single windows rebuilt: whether they alone are enough, and what the switch writes.

Here: the windows, and what they share with others in the tables. Not here: which windows (assets/rebuild/plan.py),
judging the log (assets/rebuild/shadow.py), tables that are taken over whole (assets/rebuild/switch.py).

A shadow of some windows has only these windows and their input windows. It computes the same results as a whole
rebuild if the records are judged as they were: the settings of time must not have changed on the way.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import BatchWriter
from tidemark.assets.log.spec_changes import renamed
from tidemark.assets.rebuild.plan import own_tables
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.assets.schemas import payload_of
from tidemark.assets.state.windows import has_marks, live_events
from tidemark.resources import tables
from tidemark.resources.batches.plans import REFUSED_PREFIX, REMOVED_PREFIX, REPLAYED_PREFIX, Counts, Plan
from tidemark.resources.delta.versions import ALL_ROWS, NO_ROWS, Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import LakeError
from tidemark.timeops.events.adjustment import ADMITTED, MOVED
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.rules.reasons import OF_ACCEPTED, Stage


def ensure_judged_alike(shadow: Shadow) -> None:
    """Check that the shadow has come to where the pipeline is, and has refused as many records on the way.

    Raises:
        LakeError: It has not: the log is judged in another way now.
    """
    judged_before, judged_now = (
        # The shadow releases no events.
        replace(side.progress.position(), released=0)
        for side in (shadow.workspace, shadow.tables)
    )
    if judged_before != judged_now or _refused(shadow.workspace) != _refused(shadow.tables):
        raise LakeError(
            f"The log of {shadow.workspace.spec.name} is judged in another way than when it was processed.",
            expected="the watermark, the clock and the refused records that the tables have",
            remedy="Rebuild all tables: `tidemark rebuild SPEC`. The tables are as they were",
        )


def _refused(workspace: Workspace) -> Counter[str]:
    """Return how many records rules of time refused, by reason, whatever an operator has let in of them."""
    counts = Counts.sum(commit.counts for commit in workspace.batches.counted())
    replayed = {reason: n for reason, n in counts.replayed.items() if reason not in OF_ACCEPTED}
    return Counter(counts.refused) + Counter(replayed)


def write_shared(shadow: Shadow, plan: Plan) -> None:
    """Write the events that the windows need into tables that hold events of others too."""
    workspace, chosen = shadow.workspace, shadow.chosen
    names = [window.name for window in chosen]
    for table in dict.fromkeys(tables.needed_table(window) for window in chosen if window.input is None):
        sharing = [window for window in workspace.spec.event_windows if tables.needed_table(window) == table]
        other_names = [window.name for window in sharing if window.name not in names]
        (_merge_marked if has_marks(table) else _add_missing)(shadow, plan, table, other_names)


def write_letters(shadow: Shadow, plan: Plan) -> None:
    """Write the dead letters of the windows, and delete the earlier ones of these windows."""
    workspace, names = shadow.workspace, [window.name for window in shadow.chosen]
    of_windows: Filters = [("stage", "=", Stage.WINDOW), ("window_name", "in", [*names, *_former_names(shadow)])]
    letters = shadow.tables.read_base(tables.DEAD_LETTERS, filters=of_windows)
    BatchWriter(workspace, plan).replace(tables.DEAD_LETTERS, letters, where=of_windows)


def _former_names(shadow: Shadow) -> list[str]:
    """Return the names of the windows in the tables, if the spec has renamed them."""
    names = renamed(shadow.workspace)
    return [names[window.name] for window in shadow.chosen if window.name in names]


def _add_missing(shadow: Shadow, plan: Plan, table: str, other_names: Collection[str]) -> None:
    """Add the events that the windows need and the table lacks; an event that is not needed is in no window."""
    workspace = shadow.workspace
    needed_events = shadow.tables.read_base(table)
    here = workspace.read_base(table).select(c.SEQ)
    rows = needed_events.join(here, c.SEQ, "left_anti") if other_names else needed_events
    BatchWriter(workspace, plan).replace(table, rows, where=NO_ROWS if other_names else ALL_ROWS)


def _merge_marked(shadow: Shadow, plan: Plan, table: str, other_names: Collection[str]) -> None:
    """Rewrite the events of sessions and sliding windows, each with the windows that need it."""
    workspace = shadow.workspace
    mark = tables.open_in_column(payload_of(workspace).names)
    names = [window.name for window in shadow.chosen]
    marked = []
    for side, windows in ((shadow.tables, names), *([(workspace, other_names)] if other_names else [])):
        marks = F.array_intersect(mark, F.array(*map(F.lit, windows)))
        marked.append(live_events(side, table).withColumn(mark, marks).where(F.size(mark) > 0))
    both = reduce(DataFrame.unionByName, marked)
    event_columns = [quoted(name) for name in both.columns if name not in (c.SEQ, mark, c.BATCH)]
    by_seq = both.groupBy(c.SEQ).agg(
        # Both sides have the same event.
        F.first(F.struct(*event_columns)).alias("__tm_event"),
        F.flatten(F.collect_list(mark)).alias(mark),
    )
    merged = by_seq.select("__tm_event.*", c.SEQ, mark)
    BatchWriter(workspace, plan).replace(table, merged, where=ALL_ROWS)


_OF_DECISIONS = ("accepted", ADMITTED, *MOVED)
"""The counts that letting records in changes, in addition to the ones by reason."""


def corrections(shadow: Shadow) -> Mapping[str, int]:
    """Return the differences from the stored counts: of the windows, and of records that a decision lets in."""
    names = [*(window.name for window in shadow.chosen), *_former_names(shadow)]
    differences: Counter[str] = Counter()
    for workspace, sign in ((shadow.tables, 1), (shadow.workspace, -1)):
        for commit in workspace.batches.counted():
            for name, n in commit.counts.items():
                is_decided = name in _OF_DECISIONS or name.startswith((REFUSED_PREFIX, REPLAYED_PREFIX))
                if (is_decided and shadow.plan.items) or _window_of(name) in names:
                    differences[name] += sign * n
    return {name: n for name, n in differences.items() if n}


def _window_of(count: str) -> str:
    """Return the window of a count; also of rows that `retention` has removed, which a rebuild makes again."""
    counted = count.removeprefix(REMOVED_PREFIX)
    folder, _, name = counted.partition("/")
    return name if folder in ("windows", "history") else counted.rpartition(".")[0]


def ensure_others_whole(shadow: Shadow, broken: Mapping[str, LakeError]) -> None:
    """Check that the tables that are not taken over whole are there, and whole.

    Raises:
        LakeError: One is not.
    """
    written = own_tables(shadow.chosen)
    for table, error in broken.items():
        if table not in written:
            raise error
