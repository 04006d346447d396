"""The recount's splits, some listed, silent or waiting, against a look at every split at every record."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.seeds import Dice
from tidemark.resources.recount.rules import RecountRules, SourceRules
from tidemark.resources.recount.timelines import walk
from tidemark.timeops.watermark.timelines import STATE

CASES = 500
Row = dict[str, Any]
RECORDS = pa.schema(
    {
        "line": pa.string(),
        "seq": pa.int64(),
        "source": pa.string(),
        "part": pa.string(),
        "clock": pa.int64(),
        "t": pa.int64(),
        "active": pa.bool_(),
    }
)
SOURCE = SourceRules(
    name="",
    timestamp_by=None,
    time_zone="UTC",
    out_of_orderness_us=0,
    idle_timeout_us=None,
    splits=(),
    waited_us=0,
    waits_since_us=None,
    waits_of_splits={},
)
RULES = RecountRules(
    sources=(),
    uses_splits=True,
    over=(),
    deduplicate_by=(),
    within_us=0,
    emit_every_us=None,
    unit_us=1,
    out_of_order="drop",
    early_us=None,
    early_policy=None,
    late_us=None,
    late_policy=None,
    clock_tolerance_us=None,
    idle=None,
    idle_timeout_us=None,
    windows=(),
    first_clock_us=None,
    start_clock_us=None,
    start_ended_us=None,
    waits_since_us=None,
    waited_us=0,
)


def some_rules(rng: random.Random) -> RecountRules:
    """Return two sources, with splits that are listed, silent, or waiting."""
    sources = []
    for name in ("a", "b"):
        waits = {part: (rng.randint(0, 4), rng.choice([None, 3])) for part in "xy" if rng.random() < 0.2}
        source = replace(
            SOURCE,
            name=name,
            out_of_orderness_us=rng.randint(0, 3),
            idle_timeout_us=rng.randint(1, 9),
            splits=tuple(part for part in "xyz" if rng.random() < 0.3),
            waited_us=rng.choice([0, 0, 2]),
            waits_since_us=rng.choice([None, None, None, 3]),  # the clock of the first record, or before it
            waits_of_splits=waits,
        )
        sources.append(source)
    idle = rng.choice([None, "exclude_split"])
    return replace(RULES, sources=tuple(sources), idle=idle, first_clock_us=rng.choice([None, 0]))


def some_timelines(rng: random.Random) -> list[Row]:
    def splits() -> list[Row]:
        known = [(source, part) for source in "ab" for part in ("x", "y", None) if rng.random() < 0.3]
        return [
            {
                "source": source,
                "split": part,
                "max_t": rng.choice([None, rng.randint(0, 9)]),
                "last_clock": rng.choice([None, rng.randint(0, 2)]),
            }
            for source, part in known
        ]

    return [{"_timeline": line, "splits": splits()} for line in ("0", "1", "of others") if rng.random() < 0.7]


def some_records(rng: random.Random, waiting: set[str]) -> list[Row]:
    """Return records of sources that do not wait."""
    clock, found = 3, []
    for seq in range(rng.randint(0, 25)):
        clock += rng.choice([0, 0, 1, 5])
        if waiting < {"a", "b"}:
            source, part = rng.choice(sorted({"a", "b"} - waiting)), rng.choice(["x", "y", "z", None])
            t = rng.choice([None, *[rng.randint(0, 30) for _ in range(4)]])
            split = {"source": source, "part": part, "clock": clock, "t": t}
            found.append({"line": rng.choice("01"), "seq": seq, **split, "active": True})
    return found


def looked_at(records: Sequence[Row], timelines: Sequence[Row], rules: RecountRules) -> list[bool]:
    """Return whether each record is below what the splits allowed so far, from all that came before it."""
    found, reached = [], dict[str, int | None]()
    for now in records:
        line, clock, t = now["line"], now["clock"], now["t"]
        earlier = [row for row in records if row["line"] == line and row["seq"] < now["seq"]]
        known = [one for row in timelines if row["_timeline"] == line for one in row["splits"]]
        before, after = (lowest(met, known, clock, rules) for met in (earlier, [*earlier, now]))
        if rules.idle is not None:
            reached[line] = highest(reached.get(line), before)
        watermark = reached.get(line)
        found.append(t is not None and watermark is not None and t < watermark)
        if t is not None:
            reached[line] = highest(watermark, after)
    return found


def highest(*watermarks: int | None) -> int | None:
    return max((us for us in watermarks if us is not None), default=None)


def lowest(met: Sequence[Row], known: Sequence[Row], clock: int, rules: RecountRules) -> int | None:
    sources = {source.name: source for source in rules.sources}
    listed = {(source.name, part) for source in rules.sources for part in source.splits}
    of_known = {(one["source"], one["split"]): one for one in known}
    of_met = {(row["source"], row["part"]) for row in met}
    counting, every = list[int | None](), list[int | None]()
    for split in listed | {*of_known} | of_met:
        source, own = sources[split[0]], [row for row in met if (row["source"], row["part"]) == split]
        before: Mapping[str, Any] = of_known.get(split, {})
        waited, alone = source.waits_of_splits.get(split[1] or "none", (0, None))
        since, waited = source.waits_since_us if alone is None else alone, source.waited_us + waited
        times = [t for t in (before.get("max_t"), *[row["t"] for row in own]) if t is not None]
        value = max(times) - source.out_of_orderness_us if times else None
        last = before.get("last_clock")
        last = rules.first_clock_us if last is None and split in listed else last
        lasts = [one for one in (last, *[row["clock"] - waited for row in own]) if one is not None]
        reading = (clock if since is None else since) - waited
        timeout = source.idle_timeout_us or 0
        is_active = rules.idle is None or (bool(lasts) and reading < max(lasts) + timeout)
        every.append(value)
        if is_active and (value is not None or split in listed):
            counting.append(value)
    if counting:
        values = [value for value in counting if value is not None]
        return min(values) if len(values) == len(counting) else None
    return highest(*every)


def test_each_record_sees_what_a_look_at_every_split_gives(dice: Dice) -> None:
    rng = random.Random(dice.seed(3))
    for _ in range(dice.some(CASES)):
        rules, timelines = some_rules(rng), some_timelines(rng)
        waiting = {source.name for source in rules.sources if source.waits_since_us is not None}
        records = some_records(rng, waiting)
        rows, begin = pa.Table.from_pylist(records, RECORDS), pa.Table.from_pylist(timelines, STATE)
        found, _ = walk(rows, begin, rules)
        assert found.tolist() == looked_at(records, timelines, rules), (rules, timelines, records)
        cut = rng.randint(0, len(rows))
        first, between = walk(rows[:cut], begin, rules)
        second, _ = walk(rows[cut:], between, rules)
        assert [*first, *second] == found.tolist(), (rules, timelines, records, cut)
