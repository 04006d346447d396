"""The differences of two versions of a spec, and what each of them means for tables that the first one made.

Here: the differences key by key, the decision on each, types of columns by their words in DDL and which of them hold
all values of others. Not here: which specs the tables were made with (assets/log/spec_changes.py), what is done about
a change, writing a table with another type (resources/delta/migration.py).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from tidemark.timeops.errors.problems import Path
from tidemark.timeops.expressions.column_types import (
    ColumnType,
    digits_of,
    holds_number,
    misfit,
    type_of_ddl,
    type_of_words,
    unknown_fields,
)
from tidemark.timeops.expressions.tokens import Token, mentions, top_level_parts
from tidemark.timeops.spec.fields import name_in_tables
from tidemark.timeops.spec.pipeline import Spec
from tidemark.timeops.spec.scope import Scope
from tidemark.timeops.spec.window import WindowSpec

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def types_in_tables(ddl: str, rename: Mapping[str, str]) -> dict[str, str]:
    """Return the type of each column of a source as it is called in the tables, each type in one spelling."""
    parts = [part for part in top_level_parts(ddl) if part[0].is_name]
    return {name_in_tables(part[0].text, rename): _type(part[1:]) for part in parts}


def _type(words: Sequence[Token]) -> str:
    """Return the type that words mean, in the spelling of Spark SQL: `decimal(10,0)` for `DEC`."""
    return type_of_words(words[1:] if words and words[0].text == ":" else words).sql


def is_wider(before: str, now: str) -> bool:
    """Return whether a type holds every value of another one, which it is not; structs may have more fields."""
    old, new = type_of_ddl(before), type_of_ddl(now)
    if old == new or (before, now) == ("date", "timestamp"):
        return old != new
    return misfit(old, new, holds_number, may_lack=True) is None and not [*unknown_fields(old, new)]


def _has_same_texts(old: ColumnType, new: ColumnType) -> bool:
    """Return whether the values of a type, and of the fields inside, have the same texts as values of a wider one."""
    if old.inside:
        inside = dict(new.inside)
        return all(name in inside and _has_same_texts(kind, inside[name]) for name, kind in old.inside)
    digits_before, digits = digits_of(old.word), digits_of(new.word)
    return old == new or (digits_before is not None and digits is not None and digits_before[1] == digits[1])


def may_be_cast(before: str, now: str) -> bool:
    """Return whether values of a type can be values of another one, each of them or not."""
    texts = ("float", "double", "date", "timestamp")
    if before == "string":
        return now in texts or digits_of(now) is not None
    if now == "string":
        return before in _INTEGERS
    numbers = ("float", "double")
    return all(kind in numbers or digits_of(kind) is not None for kind in (before, now))


_LONGEST = 160


class Meaning(StrEnum):
    """The meaning of a change for existing tables, from the least to the most."""

    NOTHING = "nothing"
    FROM_HERE_ON = "from here on"
    NEEDS_THE_PAST = "needs the past"
    REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """A key in which two specs differ.

    Attributes:
        path: The key as text, sources and windows by their names.
        before: Its value; None for none, or the default.
        now: The other one.
        meaning: What it means.
        effect: The same in a sentence.
        past: The tables whose rows would be others if the past were computed by the later spec.
        sentence: What changed, in words.
        judges: Records of the log are judged in another way.
        fills: It is a column whose values `_rescued` may have.
    """

    path: str
    before: Any
    now: Any
    meaning: Meaning
    effect: str
    past: Scope = Scope.NOTHING
    sentence: str = ""
    judges: bool = False
    fills: bool = False

    @property
    def needs_decision(self) -> bool:
        """True if existing tables cannot continue with it."""
        return self.meaning in (Meaning.NEEDS_THE_PAST, Meaning.REFUSED)

    @property
    def needed(self) -> Scope:
        """The tables whose past has to be computed before live runs continue."""
        return self.past if self.meaning is Meaning.NEEDS_THE_PAST else Scope.NOTHING

    def keys(self, spec: Spec) -> Path:
        """Return the keys and positions of its place in the file of the later spec."""
        positions = {
            "sources": {source.name: number for number, source in enumerate(spec.sources)},
            "windows": {window.name: number for number, window in enumerate(spec.windows)},
            "joins": {join.name: number for number, join in enumerate(spec.joins)},
        }
        keys: list[str | int] = []
        for step in self.path.split("."):
            match = re.fullmatch(r"(\w+)\[(\w+)\]", step)
            if match is None:
                keys.append(step)
                continue
            keys.append(match[1])
            if match[2] in positions[match[1]]:
                keys.append(positions[match[1]][match[2]])
        return tuple(keys)


Decision = tuple[Meaning, str]

_NOTHING: Decision = (Meaning.NOTHING, "no result changes")
_FROM_HERE_ON = Meaning.FROM_HERE_ON
_NEW_INPUT: Decision = (_FROM_HERE_ON, "applies to input that is read from here on")
_NEW_RECORDS: Decision = (_FROM_HERE_ON, "applies to the records from here on")
_ALL_ROWS: Decision = (Meaning.NEEDS_THE_PAST, "every row would change: all tables must be recomputed")

_OF_TIME: Mapping[str, Decision] = {
    "out_of_orderness": (
        _FROM_HERE_ON,
        "a smaller one raises the watermark here; a larger one takes effect once the largest time has moved on",
    ),
    "end_of_input": (_FROM_HERE_ON, "applies to the next end of input"),
    "within": (_FROM_HERE_ON, "records from here on are compared with all before them"),
    "over": _ALL_ROWS,
    "deduplicate_by": _ALL_ROWS,
    "start_at": _ALL_ROWS,
}
"""The meanings of changes of `time`; changes of keys that are not named here hold for the records from here on."""

OF_RECORDS = ("timestamp_by", "time_zone", "out_of_orderness", "idle", "splits")
"""The keys of a source that say how its records are judged, next to `split`."""
_OF_SOURCE: Mapping[str, Decision] = {
    **dict.fromkeys(("arrival_time", "live", "max_bytes", "alignment", "format", "keep_unknown"), _NEW_INPUT),
    "future_arrival": _NEW_INPUT,
    **dict.fromkeys(("options", "order", "settle", "max_files", "missing", "on_rewrite", "skip_lines"), _NEW_INPUT),
    **dict.fromkeys(("changes", "start_version", "start_timestamp", "max_versions"), _NEW_INPUT),
    **dict.fromkeys(("max_records", "on_data_loss"), _NEW_INPUT),
    **dict.fromkeys(("skip_bytes", "avro_schema"), _NEW_INPUT),
    **dict.fromkeys(("rename", "metadata"), _NEW_INPUT),
    "was": _NOTHING,
    "start": (Meaning.NOTHING, "it says where a first reading begins"),
    **dict.fromkeys(OF_RECORDS, _NEW_RECORDS),
}
"""The meanings of changes of a source, but of its place; others are refused."""

_NEW_TOPICS = "topics that were not read before are read from their beginning"
_MOVED: Mapping[tuple[str, str], str] = {
    ("files", "path"): "files that were already read are recognized in their new place by name and bytes; others "
    "are read",
    ("delta", "path"): "a table is recognized by its id: if it was moved, reading continues; if it is another table, "
    "the source stops",
    ("kafka", "bootstrap_servers"): "topics are recognized by their ids: at other brokers of the same cluster, "
    "reading continues; topics of another cluster are different topics, see `on_data_loss`",
    ("kafka", "topics"): _NEW_TOPICS,
    ("kafka", "topic_pattern"): _NEW_TOPICS,
}
"""The meanings of another place of a source, by its kind and the key that names the place."""

_WHEN_CLOSED: Decision = (_FROM_HERE_ON, "applies to the windows that close from here on, with all of their events")
_OF_WINDOW: Mapping[str, Decision] = {
    "aggregates": _WHEN_CLOSED,
    "having": _WHEN_CLOSED,
    "empty_max": (_FROM_HERE_ON, "applies to the next batch"),
    "was": _NOTHING,
    "change_feed": (_FROM_HERE_ON, "the feed begins, or ends, with the next batch"),
}
"""The meanings of changes of a window; changes of keys that are not named here need its past."""

OF_WINDOW_ALONE = tuple(key for key, decision in _OF_WINDOW.items() if decision != _WHEN_CLOSED)
"""The keys of a window that change none of its rows."""


def changes_between(
    before: Mapping[str, Any], now: Mapping[str, Any], former: Mapping[str, str] = MappingProxyType({})
) -> list[Change]:
    """Return the differences of two specs, and what each of them means, in the order of the spec.

    Args:
        before: The canonical JSON of the spec that the tables were made with.
        now: That of the other one.
        former: The names that sources of the first one have, by their former names.
    """
    names, sources = renamed_parts("windows", before, now), renamed_parts("sources", before, now)
    before = with_new_names(with_new_names(before, names), sources, "sources")
    old, new = Spec.model_validate(before), Spec.model_validate(now)
    changes = [_source_renamed(*pair, former, new) for pair in sources.items()]
    changes += [*_of_sources(before["sources"], now["sources"], former, old, new), *_of_time(before, now, old, new)]
    for name in sorted({*before, *now} - {"sources", "time", "windows", "joins"}):
        decided = _NOTHING if name == "partitions" else _ALL_ROWS
        changes += _decided(before.get(name), now.get(name), name, decided)
    changes += [_renamed(*pair) for pair in names.items()]
    changes += _of_windows(before.get("windows", []), now.get("windows", []), new)
    changes += _of_joins(before.get("joins", []), now.get("joins", []))
    closes = old.closes_by_silence or new.closes_by_silence
    values = [spec.model_dump(mode="json", by_alias=True) for spec in (old, new)]
    judged = [replace(change, judges=_judges(change.path, windows_close=closes)) for change in changes]
    return [
        replace(change, past=_past_of(change), sentence=change.sentence or _was_and_is(change, *values))
        for change in judged
    ]


def _past_of(change: Change) -> Scope:
    """Return the tables whose rows a change makes others; where it needs their past it may name the windows."""
    if change.judges:
        return Scope.ALL
    if change.meaning is Meaning.NEEDS_THE_PAST:
        return change.past or Scope.ALL
    # These hold from here on, and the rows before them were computed in another way.
    of_results = re.match(r"windows\[(\w+)\]\.(aggregates|having)", change.path)
    return Scope((of_results[1],)) if of_results else Scope.NOTHING


def renamed_parts(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return the windows, or sources, that a spec calls otherwise than the one before: old names by new ones."""
    old_names, here = ([str(entry["name"]) for entry in spec.get(part, [])] for spec in (before, now))
    was = {str(entry["name"]): str(entry["was"]) for entry in now.get(part, []) if "was" in entry}
    return {name: old for name, old in was.items() if old in old_names and name not in old_names and old not in here}


def names_of_sources(specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names that sources have in the last of some specs, by their names in the others.

    The specs are the canonical JSON of each that the log was processed with, in order. A name is of one source only:
    `changes_between` refuses one that another source had.
    """
    names_now: dict[str, str] = {}
    for before, now in pairwise(specs):
        new_of = {old: new for new, old in renamed_parts("sources", before, now).items()}
        names_now = {old: new_of.get(name, name) for old, name in names_now.items()} | new_of
    return {old: name for old, name in names_now.items() if old != name}


_SIDES = ("left", "right")


def with_new_names(spec: Mapping[str, Any], names: Mapping[str, str], part: str = "windows") -> Mapping[str, Any]:
    """Return a spec, as canonical JSON, whose windows or sources have new names, and that says what they were.

    `names` has the old names by the new ones.
    """
    if not names:
        return spec
    new_of, parts = {old: new for new, old in names.items()}, []
    taken = {new.lower() for new in names}
    for entry in spec.get(part, []):
        renamed = {key: value for key, value in entry.items() if key != "was" or str(value).lower() not in taken}
        if entry["name"] in new_of:
            renamed |= {"name": new_of[entry["name"]], "was": entry["name"]}
        if "from" in entry:
            renamed["from"] = new_of.get(entry["from"], entry["from"])
        parts.append(renamed)
    if part == "windows":
        return {**spec, part: sorted(parts, key=lambda entry: str(entry["name"]))}
    joins = [
        {**join, **{side: {**join[side], **_with_new_name(join[side], new_of)} for side in _SIDES}}
        for join in spec.get("joins", [])
    ]
    return {**spec, part: parts, **({"joins": joins} if joins else {})}


def _with_new_name(side: Mapping[str, str], new_of: Mapping[str, str]) -> Mapping[str, str]:
    """Return the source of a side of a join by its new name; nothing of a table."""
    return {"source": new_of.get(side["source"], side["source"])} if "source" in side else {}


def _renamed(name: str, old: str) -> Change:
    effect = "its tables continue under the new name"
    return Change(f"windows[{name}].was", None, old, _FROM_HERE_ON, effect, sentence=f"`{old}` is `{name}` now")


def _source_renamed(name: str, old: str, former: Mapping[str, str], spec: Spec) -> Change:
    """Return the change of a name; rows for which expressions use the name would be others."""
    time, windows = spec.time, [window for window in spec.windows if _names_sources(window)]
    meaning, effect, past = _FROM_HERE_ON, "what was read from it is kept under the new name", Scope.NOTHING
    if former.get(name, old) != old:
        meaning, effect = Meaning.REFUSED, _name_is_taken(name, former[name])
    elif any(mentions(text, "_source") for text in (*time.over, *time.deduplicate_by, time.timestamp_by or "")):
        meaning, effect = Meaning.NEEDS_THE_PAST, "`time` depends on `_source`: all tables must be recomputed"
    elif windows:
        past = _with_readers([window.name for window in windows], spec)
        shown = " and ".join(f"`{window.name}`" for window in windows)
        meaning, effect = Meaning.NEEDS_THE_PAST, f"{shown} depends on `_source`: its rows must be recomputed"
    past = Scope.ALL if past and spec.closes_by_silence else past
    sentence = f"`{old}` is `{name}` now"
    return Change(f"sources[{name}].was", None, old, meaning, effect, past, sentence=sentence)


def _name_is_taken(name: str, heir: str) -> str:
    return f"`{heir}` was called `{name}` before, and its records in the log have that name: choose another one"


def _names_sources(window: WindowSpec) -> bool:
    texts = (*window.event_expressions, window.having or "")
    return any(mentions(text, "_source") for text in texts)


def _judges(path: str, *, windows_close: bool) -> bool:
    """Return whether a key says how the records of a log are judged: idleness may ask what windows wait for."""
    first, _, path_inside = path.partition(".")
    key = path_inside.partition(".")[0]
    if first.startswith("sources["):
        return key in ("", "split", *OF_RECORDS)
    if first.startswith("windows["):
        return windows_close and key not in _OF_WINDOW
    return first in ("sources", "time")


def _decided(before: Any, now: Any, path: str, decision: Decision) -> Iterator[Change]:
    """Return the changes at a key and below it, all of one meaning."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _decided(before.get(name), now.get(name), f"{path}.{name}", decision)
    elif before != now:
        yield Change(path, before, now, *decision)


def _of_time(before: Mapping[str, Any], now: Mapping[str, Any], old: Spec, new: Spec) -> Iterator[Change]:
    """Return the changes of `time`."""
    earlier, later = before.get("time", {}), now.get("time", {})
    for name in sorted({*earlier, *later}):
        yield from _decided(earlier.get(name), later.get(name), f"time.{name}", _of_time_key(name, old, new))


_OF_PERIODS = ("emit", "idle", "late", "unit")
_COUNTED: Decision = (_FROM_HERE_ON, "applies to the records from here on; silences are counted from here on")


def _of_time_key(name: str, old: Spec, new: Spec) -> Decision:
    """Return what a change of a key of `time` means, as far as other keys have a say in it."""
    time = new.time
    if name in _OF_PERIODS and time.idle is not None and time.emit_every_us is not None:
        return Meaning.NEEDS_THE_PAST, (
            "periods show what the clock gave before them, by the old rules: everything must be recomputed"
        )
    if name == "unit" and time.idle is not None:
        return Meaning.NEEDS_THE_PAST, (
            "what the clock raises is rounded to the unit, and earlier times are not: everything must be recomputed"
        )
    if name in ("deduplicate_by", "within") and not time.deduplicate_by:
        return _FROM_HERE_ON, "no record is a duplicate from here on"
    if name == "start_at" and (new.time.read_from_us or 0) < (old.time.read_from_us or 0):
        return Meaning.REFUSED, (
            "records that arrived earlier were not read: a pipeline with another `name` reads them"
        )
    return _COUNTED if name == "idle" else _OF_TIME.get(name, _NEW_RECORDS)


def _of_sources(
    before: list[dict[str, Any]], now: list[dict[str, Any]], former: Mapping[str, str], old_spec: Spec, new_spec: Spec
) -> Iterator[Change]:
    """Return the changes of sources, which are known by their names."""
    old, new = ({str(source["name"]): source for source in side} for side in (before, now))
    for name in new:
        if name not in old:
            again = next((old_name for old_name, source in old.items() if _reads_the_same(source, new[name])), None)
            yield _new_source(name, None if again in new else again, former.get(name), new_spec)
    for name in old:
        if name not in new:
            effect = (
                "its records are in the log, and its splits hold the watermark: keep it; `idle: {timeout: …, "
                "advance: exclude_split}` lets the watermark advance without it"
            )
            yield Change(f"sources[{name}]", name, None, Meaning.REFUSED, effect, sentence=f"`{name}` gone")
    for name in new:
        if name in old:
            yield from _of_columns(name, old_spec, new_spec)
            yield from _of_source(old[name], new[name], f"sources[{name}]", new_spec)


def _reads_the_same(source: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(source.get(key) == other.get(key) for key in ("kind", "path", "topics", "topic_pattern"))


def _new_source(name: str, again: str | None, heir: str | None, spec: Spec) -> Change:
    """Return a source that joins, unless it is another one under a new name, or has the former name of another."""
    path = f"sources[{name}]"
    if again is not None or heir is not None:
        advice = f"it would read again what `{again}` has read: write `was: {again}` next to the new name"
        effect = advice if heir in (None, again) else _name_is_taken(name, str(heir))
        return Change(path, None, name, Meaning.REFUSED, effect, sentence=f"`{name}` new")
    source = next(source for source in spec.sources if source.name == name)
    since = "once each of its splits has had an event" if source.splits else "once it has had an event"
    effect = f"it is read from here on; it counts for the watermark {since}"
    return Change(path, None, name, _FROM_HERE_ON, effect, sentence=f"`{name}` new")


def _effect_of_move(before: Mapping[str, Any], now: Mapping[str, Any], key: str, spec: Spec) -> str:
    """Say what becomes of input that was read where a source is elsewhere now; splits of topics stay."""
    effect = _MOVED[now["kind"], key]
    if key not in ("topics", "topic_pattern") or "split" in now:
        return effect
    topics, pattern = now.get("topics", ()), now.get("topic_pattern") or "(?!)"
    left = [topic for topic in before.get("topics", ()) if topic not in topics and not re.fullmatch(pattern, topic)]
    if not left and "topic_pattern" not in before:
        return effect
    which = " and ".join(f"`{name}`" for name in left) or "topics that no longer match"
    splits = "hold the watermark forever, unless `idle: {timeout: …, advance: exclude_split}` lets them go"
    if _of_split(spec)[0] is not Meaning.REFUSED:
        splits = "stop counting for the watermark once they are idle"
    return f"{effect}; the partitions of {which} get no more records, and {splits}"


def _of_split(spec: Spec) -> Decision:
    if spec.time.idle_advance == "exclude_split":
        return _FROM_HERE_ON, "the earlier splits stop counting for the watermark once they are idle"
    effect = (
        "the earlier splits get no more events, and would hold the watermark forever: `idle: {timeout: …, advance: "
        "exclude_split}` lets them go"
    )
    return Meaning.REFUSED, effect


def _of_source(before: Mapping[str, Any], now: Mapping[str, Any], path: str, spec: Spec) -> Iterator[Change]:
    """Return the changes of a source except for its columns."""
    for name in sorted({*before, *now} - {"name", "schema"}):
        decision = _OF_SOURCE.get(name, (Meaning.REFUSED, "what was read from it would belong to another source"))
        if name == "split":
            decision = _of_split(spec)
        if (now["kind"], name) in _MOVED:
            decision = _FROM_HERE_ON, _effect_of_move(before, now, name, spec)
        yield from _decided(before.get(name), now.get(name), f"{path}.{name}", decision)


def _of_columns(name: str, before: Spec, now: Spec) -> Iterator[Change]:
    """Return the changes of the columns that a source has in the tables, one for each column."""
    old, new = (_columns(spec, name) for spec in (before, now))
    path, lowered = f"sources[{name}].schema", {column.lower(): column for column in old}
    keeps_unknown = next(source.keep_unknown for source in before.sources if source.name == name)
    filled = "; `tidemark rebuild SPEC` fills them from `_rescued`" if keeps_unknown else ""
    for column, kind in new.items():
        old_kind, shown = old.get(column), type_of_ddl(kind).ddl
        if old_kind is None and column.lower() in lowered:
            decision = (Meaning.REFUSED, f"the tables call it `{lowered[column.lower()]}`: use that spelling")
            yield Change(path, None, f"{column} {kind}", *decision, sentence=f"`{column}` {shown} new")
        elif old_kind is None:
            effect = (
                f"null in the records{_of_this_source(column, name, before)} before{_used_by(column, now)}{filled}"
            )
            yield Change(
                path,
                None,
                f"{column} {kind}",
                *(_FROM_HERE_ON, effect),
                sentence=f"`{column}` {shown} new",
                fills=keeps_unknown,
            )
        elif old_kind != kind:
            sentence = f"`{column}` was {type_of_ddl(old_kind).ddl}, is {shown}"
            meaning, effect = _of_type(column, old_kind, kind, now)
            has_more = meaning is _FROM_HERE_ON and bool([*unknown_fields(type_of_ddl(kind), type_of_ddl(old_kind))])
            effect += f"; fields that they lack are null{filled}" if has_more else ""
            fills = has_more and keeps_unknown
            parts = (f"{column} {old_kind}", f"{column} {kind}", meaning, effect)
            yield Change(path, *parts, sentence=sentence, fills=fills)
    names = {column.lower() for column in new}
    for column, kind in old.items():
        if column.lower() not in names:
            effect = f"it stays in the tables, null in the records{_of_this_source(column, name, now)} from here on"
            yield Change(path, f"{column} {kind}", None, _FROM_HERE_ON, effect, sentence=f"`{column}` gone")


def _columns(spec: Spec, name: str) -> dict[str, str]:
    """Return the columns that a source has in the tables, with their types."""
    source = next(source for source in spec.sources if source.name == name)
    added = ", ".join(f"{column} {kind}" for column, kind in source.added_columns.items())
    return types_in_tables(source.columns, source.rename) | types_in_tables(added, {})


def _used_by(column: str, spec: Spec) -> str:
    """Describe how nulls in a new column affect the windows computed from it; empty if no window uses it."""
    windows = spec.event_windows
    groups = [
        window.name for window in windows if any(mentions(text, column) for _, text in window.group_expressions)
    ]
    names = [
        window.name
        for window in windows
        if window.name not in groups and any(mentions(text, column) for text in window.event_expressions)
    ]
    grouping = f"; {_names_with_verb(groups)} by it, so these records form its null group" if groups else ""
    return f"{grouping}; {_names_with_verb(names, 'computes', 'compute')} with it" if names else grouping


def _names_with_verb(windows: Sequence[str], singular: str = "groups", plural: str = "group") -> str:
    return f"{' and '.join(f'`{name}`' for name in windows)} {singular if len(windows) == 1 else plural}"


def _of_this_source(column: str, name: str, spec: Spec) -> str:
    """Return words for the records of one source as against others, where others have the column too."""
    sharing = [
        source.name for source in spec.sources if source.name != name and column in _columns(spec, source.name)
    ]
    return f" of `{name}`" if sharing else ""


def _of_type(column: str, before: str, now: str, spec: Spec) -> Decision:
    gets_zone = before in ("date", "string") and now == "timestamp"
    if gets_zone and len({source.time_zone or spec.time.time_zone for source in spec.sources}) > 1:
        return Meaning.REFUSED, "times differ with each source's `time_zone`: choose another name for this column"
    if is_wider(before, now):
        if not _has_same_texts(type_of_ddl(before), type_of_ddl(now)):
            # The values stay, their texts become others: 1 is `1`, and as DOUBLE `1.0`.
            if any(source.split is not None and mentions(source.split, column) for source in spec.sources):
                return _of_split(spec)
            if any(mentions(text, column) for text in (*spec.time.over, *spec.time.deduplicate_by)):
                return _ALL_ROWS
        return _FROM_HERE_ON, "existing rows get the wider type and keep their values"
    if may_be_cast(before, now):
        return Meaning.NEEDS_THE_PAST, "the values in the log are cast; a rebuild names the first that does not fit"
    return Meaning.REFUSED, "existing values may not fit: choose another name for the new column with `rename`"


_WITH_ALL = "with all tables: the watermark across timelines is known from the first record on or not at all"


def _of_windows(before: list[dict[str, Any]], now: list[dict[str, Any]], spec: Spec) -> Iterator[Change]:
    """Return the changes of windows."""
    old, new = ({str(window["name"]): window for window in side} for side in (before, now))
    for name in new:
        if name not in old:
            effect = "its past must be computed from the log"
            past = _with_readers([name], spec)
            if new[name].get("across"):
                effect, past = f"{effect}, {_WITH_ALL}", Scope.ALL
            yield Change(
                f"windows[{name}]", None, name, Meaning.NEEDS_THE_PAST, effect, past, sentence=f"`{name}` new"
            )
    for name in old:
        if name not in new:
            when_gone = (_FROM_HERE_ON, "its table stays as it is, and gets no more rows")
            decision = _ALL_ROWS if spec.closes_by_silence else when_gone
            yield Change(f"windows[{name}]", name, None, *decision, sentence=f"`{name}` gone")
    for name in new:
        if name in old:
            yield from _of_window(old[name], new[name], spec)


def _of_window(before: Mapping[str, Any], now: Mapping[str, Any], spec: Spec) -> Iterator[Change]:
    name = str(now["name"])
    readers = with_readers([name], spec)
    for key in sorted({*before, *now}):
        decision = _OF_WINDOW.get(key, (Meaning.NEEDS_THE_PAST, "its rows must be recomputed from the log"))
        becomes_across = key == "across" and bool(now.get(key))
        if becomes_across:
            decision = (Meaning.NEEDS_THE_PAST, f"rows change, {_WITH_ALL}")
        if key in ("aggregates", "having") and len(readers) > 1:  # windows are not told which rows changed
            reader_names = " and ".join(f"`{reader}`" for reader in readers[1:])
            decision = (
                Meaning.NEEDS_THE_PAST,
                f"{reader_names} keeps results as they were emitted: both must be recomputed from the log",
            )
        for change in _decided(before.get(key), now.get(key), f"windows[{name}].{key}", decision):
            past = Scope.ALL if becomes_across else _with_readers([name], spec)
            yield replace(change, past=past) if change.meaning is Meaning.NEEDS_THE_PAST else change


def _of_joins(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[Change]:
    """Return the changes of joins; the past of one is computed with all tables."""
    old, new = ({str(join["name"]): join for join in side} for side in (before, now))
    needs = (Meaning.NEEDS_THE_PAST, "its rows must be computed from the log, with all tables")
    for name, join in new.items():
        if name not in old:
            yield Change(f"joins[{name}]", None, name, *needs, Scope.ALL, sentence=f"`{name}` new")
        else:
            for key in sorted({*old[name], *join}):
                yield from _decided(old[name].get(key), join.get(key), f"joins[{name}].{key}", needs)
    for name in old:
        if name not in new:
            when_gone = (_FROM_HERE_ON, "its table stays as it is, and gets no more rows")
            yield Change(f"joins[{name}]", name, None, *when_gone, sentence=f"`{name}` gone")


def _with_readers(names: Iterable[str], spec: Spec) -> Scope:
    """Return what is computed again with windows."""
    readers = with_readers(names, spec)
    return Scope.ALL if spec.are_made_with_all(readers) else Scope(readers)


def with_readers(names: Iterable[str], spec: Spec) -> tuple[str, ...]:
    """Return windows, and the windows over their results."""
    readers = list(names)
    for window in spec.chained_windows:
        if window.input in readers and window.name not in readers:
            readers.append(window.name)
    return tuple(readers)


def _was_and_is(change: Change, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say what a key was and is; `old` and `new` are the specs with their defaults."""
    before, now = change.before, change.now
    before = _value_at(change.path, old) if before is None else before
    now = _value_at(change.path, new) if now is None else now
    return f"was {_value_in_words(before)}, is {_value_in_words(now)}"


def _value_at(path: str, spec: Any) -> Any:
    """Return the value at a path such as `windows[w].size`; None where nothing is set."""
    for step in re.findall(r"\w+|\[\w+\]", path):
        if step.startswith("["):
            spec = next((part for part in spec if part["name"] == step[1:-1]), None)
        else:
            spec = spec.get(step) if isinstance(spec, Mapping) else None
    return spec


def _value_in_words(value: Any) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
