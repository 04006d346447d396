"""Names, places and control schemas of a pipeline's tables.

Here: the layout of `<warehouse>/<pipeline>/`. Not here: reading and writing (see resources/delta/lake.py), and the
schemas that depend on the spec.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from types import MappingProxyType

import pyarrow as pa

from tidemark.timeops.spec import Spec, WindowSpec

FORMAT_VERSION = 4
"""Version of the tables' layout and meaning. A program refuses a lake with a higher one.

Since 2 `_state/files` names files by their path from the source's folder: a program that knows only absolute ones
would read all of them again. Since 3 columns of `_state/` have names of their own for the engine's values; batches
rename the columns of older ones, see resources/delta/migration.py. Since 4 rows of the tables of sessions may take
back others, see assets/state/windows.py; a table of format 3 is one without such rows.
"""

RAW_EVENTS = "raw_events"
LOG_CONTROL = "log_control"
SPEC_ITEM = "spec"
"""Kind of the items of `log_control` that say which spec judges the log from there on."""
ORDERED_EVENTS = "ordered_events"
HELD_EVENTS = "held_events"
DEAD_LETTERS = "dead_letters"
BY_RECORD = (RAW_EVENTS, DEAD_LETTERS, ORDERED_EVENTS)
"""The tables whose old rows go by the record that they are of."""
WATERMARKS = "watermarks"
BATCHES = "batches"
FILES = "_state/files"
REBUILD_FOLDER = "_rebuild"
"""The folder in which a rebuild makes its tables, next to the pipeline's."""
COPIES = ("_state/reading", "_state/aside", "_state/cast_log", REBUILD_FOLDER)
"""Folders with copies of rows, which runs and rebuilds make while they work, and killed ones leave."""
BOOKMARK = "_state/audit.json"
"""The file that says how far an audit has come which was stopped; it may quote values."""
FIRST_TIMES = "_state/first_times"
OPEN_EVENTS = "_state/open_events"
SESSION_EVENTS = "_state/session_events"
REVISED_EVENTS = "_state/revised_events"
REVISED_SESSION_EVENTS = "_state/revised_session_events"
TIMELINES = "_state/timelines"


def table_across_timelines(table: str) -> str:
    """Return the table like one of events that windows still need, for windows across timelines."""
    return table.replace("_state/", "_state/across_")


_BY_TIME = (OPEN_EVENTS, SESSION_EVENTS, REVISED_EVENTS, REVISED_SESSION_EVENTS)
BY_TIME = (*_BY_TIME, *map(table_across_timelines, _BY_TIME))
"""The tables of events that windows still need, whose rows are in the order of their times."""


def window_table(name: str) -> str:
    """Return the table of the window with this name."""
    return f"windows/{name}"


def join_table(name: str) -> str:
    """Return the table of the join with this name."""
    return f"joins/{name}"


def result_table(name: str, spec: Spec) -> str:
    """Return the table of the window, or the join, with this name, whose rows windows take."""
    return join_table(name) if name in {join.name for join in spec.joins} else window_table(name)


def joining_table(name: str) -> str:
    """Return the table of the events that the join with this name still needs."""
    return f"_state/joins/{name}"


def right_rows_table(name: str) -> str:
    """Return the table of the rows that the table on the right side of the join with this name has had."""
    return f"_state/right_tables/{name}"


def names_in_right_rows(names: Iterable[str]) -> tuple[str, str]:
    """Return the columns of the instant and of the version in `right_rows_table`, next to some of the table."""
    columns = [*names]
    return free_name("_valid_from", columns), free_name("_version", columns)


def columns_of_right_rows(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the table itself among all that `right_rows_table` has, with their types."""
    names = [name for name in columns if name != "_batch_id"]
    for position in (0, 1):
        # The table may have a column of that name; the one that was added came after it.
        free = [name for name in names if names_in_right_rows(n for n in names if n != name)[position] == name]
        names = [name for name in names if name not in free[-1:]]
    return {name: columns[name] for name in names}


def seen_groups_table(name: str) -> str:
    """Return the table of the groups that the window with this name, which has `empty`, has seen."""
    return f"_state/seen_groups/{name}"


def flushed_table(name: str) -> str:
    """Return the table of the remembered results that a flush has closed, for the window with this name."""
    return f"_state/flushed/{name}"


def history_table(name: str) -> str:
    """Return the table of all revisions of the window with this name."""
    return f"history/{name}"


def open_results_table(name: str) -> str:
    """Return the table of results that the window with this name still needs from the window below it."""
    return f"_state/open_results/{name}"


def needed_table(window: WindowSpec) -> str:
    """Return the table of the earlier events, or results, that a window still needs; several may share one."""
    if window.input is not None:
        return open_results_table(window.name)
    if window.revises:
        table = REVISED_SESSION_EVENTS if window.kind == "session" else REVISED_EVENTS
    else:
        table = SESSION_EVENTS if window.is_linked else OPEN_EVENTS
    # An event meets another watermark there, and is of another timeline.
    return table_across_timelines(table) if window.across else table


def is_one_of(table: str, *names: str) -> bool:
    """Return whether a table is one of some, or the one like it for windows across timelines."""
    return table in (*names, *map(table_across_timelines, names))


def open_in_column(column_names: Iterable[str]) -> str:
    """Return the column that says for which session and sliding windows an event is stored.

    It is `_open_in`. That is not a reserved name: a payload column of that name keeps it.
    """
    return free_name("_open_in", column_names)


def free_name(name: str, taken_names: Iterable[str]) -> str:
    """Return a name for a column of a state, with underscores at its end where other columns have it."""
    lowered = {taken.lower() for taken in taken_names}
    while name in lowered:
        name += "_"
    return name


OF_THE_LOG = (RAW_EVENTS, LOG_CONTROL, BATCHES, FILES)
"""The tables from which a rebuild makes the others."""


def remedy_of(place: object) -> str:
    """Return the remedy for a table, or a file of one, that is lost or damaged, by its path or URL."""
    backup = "restore the pipeline's folder from a backup, with all tables from the same time"
    if _is_of_the_log(PurePosixPath(str(place)).parts):
        return f"{backup}. Nothing was changed"
    return f"rebuild the table from the log with `tidemark rebuild SPEC`, or {backup}. Nothing was changed"


def _is_of_the_log(parts: Sequence[str]) -> bool:
    """Return whether the last table in a path is one that cannot be rebuilt."""
    derived = (ORDERED_EVENTS, HELD_EVENTS, DEAD_LETTERS, WATERMARKS)
    for above, name in reversed([*pairwise(parts)]):  # from the end: a folder above may be called `batches`, too
        if name in OF_THE_LOG or f"{above}/{name}" in OF_THE_LOG:
            return above not in (
                "windows",
                "history",
                "seen_groups",
                "flushed",
                "open_results",
                "joins",
            )  # of windows
        if name in derived or above in ("windows", "history", "joins", "_state"):
            return False
    return False


_EVENT_RANGES = ("_timestamp", "_arrival_seq", "_batch_id")
_ANSWER_RANGES = ("_timestamp", "_left_seq", "_batch_id")
_RESULT_RANGES = ("window_start", "window_end", "_batch_id")
_RANGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        RAW_EVENTS: ("_arrival_seq", "_arrival_time", "_clock", "_batch_id"),
        ORDERED_EVENTS: (*_EVENT_RANGES, "_release_seq"),
        DEAD_LETTERS: ("_arrival_seq", "_arrival_time", "_event_time", "_batch_id"),
        WATERMARKS: ("_batch_id", "max_timestamp"),
        BATCHES: ("_batch_id", "attempt"),
        LOG_CONTROL: ("_after_seq", "_control_seq", "_batch_id"),
        FIRST_TIMES: ("event_us", "_batch_id"),
    }
)


def bounded_columns(table: str) -> tuple[str, ...]:
    """Return the columns whose bounds the log keeps for each file of a table: ranges prune by them.

    All are numbers or instants of our own, which every table of this kind has had from its first version on. Readers
    take a bound for more than it says: pyarrow returns NaN for `v < 5` if a file is said to be below 5, and the
    dataset of delta-rs hides the rows of a file that has bounds, but lacks a column's that the property of the
    table names. So floats, texts, and what users name have none. Bounds of the payload would also take two thirds of
    the time of writing it.
    """
    if table.startswith("joins/"):
        return _ANSWER_RANGES
    is_result = table.startswith(("windows/", "history/"))
    return _RANGES.get(table, _RESULT_RANGES if is_result else _EVENT_RANGES)


_INSTANT = pa.timestamp("us", "UTC")
_NUMBERS = pa.map_(pa.string(), pa.int64())

BATCHES_SCHEMA = pa.schema(
    [
        ("_batch_id", pa.int64()),
        ("kind", pa.string()),  # ingest, process, backfill, change, rebuild, retention
        ("state", pa.string()),  # planned, heartbeat, released, committed, accepted
        ("attempt", pa.int64()),
        ("owner", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("started", pa.int64()),
        ("heartbeat_at", _INSTANT),
        ("planned_at", _INSTANT),
        ("committed_at", _INSTANT),
        ("first_seq", pa.int64()),  # inclusive
        ("end_seq", pa.int64()),  # exclusive
        ("input", pa.string()),  # JSON
        ("spec_fingerprint", pa.string()),
        ("tidemark_version", pa.string()),
        ("format_version", pa.int32()),
        ("counts", _NUMBERS),
        ("table_versions", _NUMBERS),
        ("reason", pa.string()),  # of an accept
    ]
)

LOG_CONTROL_SCHEMA = pa.schema(
    [
        ("_after_seq", pa.int64()),  # the item comes after this record of the log; -1 before the first
        ("_control_seq", pa.int64()),  # 0, 1, 2, ... over the whole log: orders items after the same record
        # spec, tick, wait, data_loss, end_of_input, reopen, rebuild, exclude, include, forget, correction, retention
        ("kind", pa.string()),
        ("clock", _INSTANT),
        ("argument", pa.string()),  # JSON
        ("reason", pa.string()),
        ("_batch_id", pa.int64()),
    ]
)

WATERMARKS_SCHEMA = pa.schema(
    [
        ("_batch_id", pa.int64()),
        ("_timeline", pa.string()),  # null in the row of the whole pipeline
        ("watermark", _INSTANT),
        ("clock", _INSTANT),
        ("max_timestamp", _INSTANT),
        ("watermark_set_by", pa.int64()),  # lowest _arrival_seq after which the watermark had this value
        ("released", pa.int64()),  # events with a _release_seq so far
        ("final", pa.bool_()),  # flushed: the watermark is past every event, and null
        ("counts", _NUMBERS),
        # Of the pipeline, if periods of emission publish watermarks that the clock sets: the clock of the last record
        # before the period of `clock`.
        ("clock_before_period", _INSTANT),
        ("watermark_before_flush", _INSTANT),  # of the pipeline, with `final`: a reopened pipeline continues from it
    ]
)

FILES_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("path", pa.string()),  # from the source's fixed folder; absolute in rows of format 1
        ("size", pa.int64()),  # bytes
        ("modified_us", pa.int64()),
        ("digest", pa.string()),
        ("records", pa.int64()),
        ("ends_with_newline", pa.bool_()),
        ("place", pa.string()),  # absolute path of the file; null in rows of format 1
        ("copy_of", pa.string()),  # path of the file with the same bytes that was read instead of this one
        ("text_digest", pa.string()),  # of the text of a compressed file; null for others
        ("text_size", pa.int64()),  # bytes
        ("begins_as", pa.string()),  # path of the file as which the beginning of this one was read
        ("_batch_id", pa.int64()),
    ]
)

CONTROL_SCHEMAS: Mapping[str, pa.Schema] = MappingProxyType(
    {
        BATCHES: BATCHES_SCHEMA,
        LOG_CONTROL: LOG_CONTROL_SCHEMA,
        WATERMARKS: WATERMARKS_SCHEMA,
        FILES: FILES_SCHEMA,
    }
)
