"""One sentence on each column that is Tidemark's own, for people who look at a table in Dagster.

Here: the words. Not here: columns of the users' records and aggregates, which the spec explains.
"""

from tidemark.resources import tables

_EVERYWHERE = {
    "_arrival_seq": "Number of the record in the arrival log: 0, 1, 2, …",
    "_arrival_time": "When the record arrived.",
    "_clock": "The latest arrival so far: the clock of the log.",
    "_source": "The source that the record came from.",
    "_split": "Its split: part of a source with a watermark of its own.",
    "_position": "Line, row or record in its file, from 1.",
    "_file": "The file that it came from: its path from the folder before the first wildcard of the source's path.",
    "_malformed": "The raw text of a record that does not fit the schema.",
    "_batch_id": "The batch that wrote the row, see the asset batches.",
    "_timestamp": "Event time that order and windows go by: cut to the unit, and moved where a policy adjusts it.",
    "_event_time": "Event time as the record says it.",
    "_timeline": "The values of `over`, which have a watermark each; [] without it.",
    "_release_seq": "Number of the event in event-time order: 0, 1, 2, …",
    "_adjusted_by": "The rules that moved the event's time.",
    "_watermark": "The watermark when the event came, where it was behind it.",
}
_OF_DEAD_LETTERS = {
    "stage": "What refused the record: ingest, time or window.",
    "reason": "Why, in a word.",
    "detail": "Why, in a sentence.",
    "window_name": "The window that it came too late for.",
    "missed_windows": "Start and end of the windows that it missed.",
    "lateness_us": "The least tolerance more that would have let it in, in microseconds.",
    "watermark_set_by": "The record that moved the watermark to where it was.",
    "payload": "The record itself: as JSON, or its raw text.",
    "replayed_at": "When it was tried again; not used yet.",
}
_OF_WINDOWS = {
    "window_start": "Start of the window.",
    "window_end": "End of the window.",
    "_revision": "How often the row was given anew: 0, 1, 2, …",
    "_is_final": "Whether the window is closed, so that the row stays as it is.",
    "_watermark": "The watermark when the row was given.",
}


def words_on(table: str, column: str) -> str | None:
    """What a column holds; None where it is the users' own."""
    own = _EVERYWHERE
    if table == tables.DEAD_LETTERS:
        own = _EVERYWHERE | _OF_DEAD_LETTERS
    elif table.startswith(tables.window_table("")):
        own = _EVERYWHERE | _OF_WINDOWS
    return own.get(column)
