"""The three pipelines of the chaos, and the files that they read.

Here: their specs, their records by seed. Not here: who runs them (acts.py), what is compared (verdicts.py).
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1, 23, 40, tzinfo=UTC)  # windows fall on several days
SPACING = timedelta(seconds=90)
"""From the first record of a landing to that of the next one, by arrival."""
RECORDS = 36
"""Of a landing."""
DAYS = ("2026-01-01", "2026-01-03")
"""Days that backfills compute again: the first ones."""
_SCHEMA = 'schema: "id STRING, at STRING, got STRING, k STRING, v INT"'

KEPT = f"""\
name: kept
schedule: {{on_new_input: 5 s}}
sources:
  - {{name: lines, kind: files, path: in/kept/*.jsonl, format: json, arrival_time: got, order: position, settle: 0 s,
     {_SCHEMA}}}
time:
  timestamp_by: CASE WHEN v > 12 THEN string(timestamp_millis(v * 700000000000000000)) ELSE at END
  unit: millisecond
  over: [k]
  out_of_orderness: 5 s
  out_of_order: keep
  late: {{tolerance: 5 minutes, policy: drop}}
  early: {{tolerance: 1 minute, policy: drop}}
  deduplicate_by: [id]
  within: 1 hour
  idle: {{timeout: 20 s, advance: exclude_split}}
windows:
  - {{name: minutes, kind: tumbling, size: 1 minute, allowed_lateness: 20 s, emit: on_time, revise_every: 20 s,
     history: true, group_by: [k], aggregates: {{n: count(*), total: sum(v)}}}}
  - {{name: five, kind: tumbling, size: 5 minutes, closed: right, from: minutes, allowed_lateness: 1 minute,
     group_by: [k], aggregates: {{n: sum(n)}}}}
  - {{name: last_20_s, kind: sliding, size: 20 s, where: v > 2, group_by: [k], aggregates: {{n: count(*)}}}}
  - {{name: visits, kind: session, gap: 8 s, allowed_lateness: 5 s, group_by: [k], aggregates: {{n: count(*)}}}}
  - {{name: everywhere, kind: tumbling, size: 20 s, across: true, allowed_lateness: 3 s, aggregates: {{n: count(*)}}}}
partitions: {{start: 2026-01-01}}
"""
"""Late events are kept and revise results; one timeline for each key, and a window across them."""

LIVE = f"""\
name: live
schedule: {{on_new_input: 5 s}}
sources:
  - {{name: lines, kind: files, path: in/live/*.jsonl, format: json, arrival_time: got, live: true, settle: 0 s,
     {_SCHEMA}}}
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 2 s
  out_of_order: drop
  late: {{tolerance: 5 minutes, policy: adjust}}
  early: {{tolerance: 1 minute, policy: drop}}
  emit: {{every: 2 s}}
  idle: {{timeout: 10 s, advance: window_close}}
windows:
  - {{name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {{n: count(*), total: sum(v)}}}}
  - {{name: grow, kind: cumulative, step: 20 s, size: 1 minute, aggregates: {{n: count(*)}}}}
  - {{name: visits, kind: session, gap: 8 s, max_duration: 1 minute, group_by: [k], aggregates: {{n: count(*)}}}}
  - {{name: largest, kind: tumbling, size: 1 minute, top: {{n: 2, by: v DESC}}}}
  - {{name: quiet, kind: tumbling, size: 10 s, empty: true, where: v > 2, group_by: [k], aggregates: {{n: count(*)}}}}
partitions: {{start: 2026-01-01}}
"""
"""Ticks of the wall clock, and decisions of operators: which records are taken out, and which are let in."""

JOINED = f"""\
name: joined
schedule: {{on_new_input: 5 s}}
sources:
  - {{name: asks, kind: files, path: in/joined/asks/*.jsonl, format: json, arrival_time: got, settle: 0 s,
     {_SCHEMA}}}
  - {{name: bids, kind: files, path: in/joined/bids/*.jsonl, format: json, arrival_time: got, settle: 0 s,
     {_SCHEMA}}}
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 3 s
  out_of_order: keep
  early: {{tolerance: 1 minute, policy: keep}}
joins:
  - {{name: priced, kind: as_of, left: {{source: asks}}, right: {{source: bids}}, on: [k], within: 1 minute,
     how: left, allowed_lateness: 5 s}}
  - {{name: near, kind: interval, left: {{source: asks}}, right: {{source: bids}}, on: [k], before: 8 s, after: 5 s,
     how: full, allowed_lateness: 5 s}}
windows:
  - {{name: minutes, kind: tumbling, size: 1 minute, allowed_lateness: 5 s, group_by: [k],
     aggregates: {{n: count(*), total: sum(v)}}}}
  - {{name: prices, kind: tumbling, size: 1 minute, from: priced, allowed_lateness: 30 s,
     aggregates: {{n: count(*), total: sum(right_v)}}}}
partitions: {{start: 2026-01-01}}
"""
"""An as-of join, an interval join, and a window over the first of them."""

SPECS: Mapping[str, str] = {"kept": KEPT, "live": LIVE, "joined": JOINED}
TWINS = ("kept", "joined")
"""The pipelines whose log is the same however often they look at their input: an undisturbed one has it, too."""


@dataclass
class Pipeline:
    """A pipeline of the chaos.

    Attributes:
        name: Its name.
        folder: Where its spec and its input are.
        seed: Of its records.
        landed: How many landings there were.
    """

    name: str
    folder: Path
    seed: str
    landed: int = 0

    @property
    def spec(self) -> Path:
        """The spec file."""
        return self.folder / f"{self.name}.yaml"

    def write(self) -> None:
        """Write the spec, and make the folders of the input."""
        self.spec.write_text(SPECS[self.name])
        for place in self._places():
            place.mkdir(parents=True, exist_ok=True)

    def land(self) -> None:
        """Land the next records. A file appears whole; all its records arrive after those of the files before it."""
        rng = random.Random(f"{self.seed} {self.name} {self.landed}")
        begin, places = START + self.landed * SPACING, self._places()
        for number, place in enumerate(places):
            span = SPACING / len(places)
            lines = _lines(rng, f"{self.landed}{place.name[0]}", begin + number * span, span, RECORDS // len(places))
            if self.name == "joined":  # whether their places in the log depend on the look is for other pipelines
                lines = (line for line in lines if line.endswith("}") and '"got": null' not in line)
            unfinished = place / f"{self.landed:05}.tmp"
            unfinished.write_text("".join(f"{line}\n" for line in lines))
            unfinished.rename(unfinished.with_suffix(".jsonl"))
        self.landed += 1

    def _places(self) -> list[Path]:
        place = self.folder / "in" / self.name
        return [place / "asks", place / "bids"] if self.name == "joined" else [place]


def _lines(rng: random.Random, prefix: str, begin: datetime, span: timedelta, count: int) -> Iterator[str]:
    """Yield records by arrival, with a fault of every kind now and then."""
    last = ""
    for number, clock in enumerate(sorted(begin + rng.random() * span for _ in range(count))):
        event = clock - timedelta(milliseconds=int(rng.expovariate(1 / 4_000)))
        record: dict[str, object] = {"id": f"{prefix}{number}", "at": _text(event), "got": _text(clock)}
        record |= {"k": rng.choice(["a", "b", "c", None]), "v": rng.randint(0, 9)}
        closed: dict[str, object] = {"at": _text(clock - timedelta(seconds=rng.randint(10, 100)))}  # its windows
        faults: list[dict[str, object]] = [
            {"at": None},
            {"at": "yesterday"},
            {"at": _text(clock + timedelta(minutes=4))},  # early
            {"at": _text(clock - timedelta(hours=1))},  # late
            *3 * [closed],
            {"got": None},
            {"v": 13},  # an expression fails on it
        ]
        line = json.dumps(record | (rng.choice(faults) if rng.random() < 0.18 else {}))
        strange = rng.random()
        if strange < 0.02:
            line = line[:-4]
        elif strange < 0.06 and last:
            line = last  # a duplicate
        last = line
        yield line


def _text(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
