"""Simulations and advice foretell what a run with other settings does: row by row, record by record.

The settings, the log and its cuts are drawn; each setting is also run on a new warehouse.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.batch.test_plans import differing, letters_of, rows_of
from tests.runs.landing import LINES, START, land, table
from tests.runs.running import Made, asked, go, written
from tests.seeds import Dice
from tidemark.assets.judging import replay
from tidemark.pipelines.running.runner import RunOptions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings

CASES = 1
LOG = LINES + "    order: position\n"
COUNTS = "group_by: [k], aggregates: {n: count(*), s: sum(v)}"
FIRST = (
    f"{{name: minutes, kind: tumbling, size: 1 minute, {COUNTS}}}",
    f"{{name: visits, kind: session, gap: 8 s, {COUNTS}}}",
)
OTHERS = (
    f"{{name: hops, kind: hopping, size: 30 s, hop: 10 s, where: v > 2, {COUNTS}}}",
    f"{{name: slides, kind: sliding, size: 10 s, having: n > 1, {COUNTS}}}",
    "{name: hours, kind: tumbling, from: minutes, size: 1 hour, group_by: [k], aggregates: {n: sum(n)}}",
    f"{{name: steps, kind: cumulative, size: 1 minute, step: 20 s, {COUNTS}}}",
    f"{{name: instants, kind: snapshot, {COUNTS}}}",
    f"{{name: quiet, kind: tumbling, size: 20 s, empty: true, {COUNTS}}}",
)
SPEC = f"name: shop\n{LOG}time: {{timestamp_by: at, unit: millisecond, out_of_orderness: 4 s, out_of_order: %s}}\n"
SETTINGS = (
    ("time.out_of_orderness=20s",),
    ("time.out_of_orderness=0s", "time.out_of_order=adjust"),
    ("time.late={tolerance: 9 s, policy: drop}", "windows[0].size=30 s"),
    ("time.late={tolerance: 12 s, policy: adjust}", "time.idle={advance: arrival_clock}"),
    ("time.over=[k]",),
    ("time.emit={every: 7 s}", "time.unit=second"),
    ("time.idle={advance: window_close, timeout: 20 s}",),
    ("time.deduplicate_by=[k, v]", "time.within=30 s"),
    ("time.early={tolerance: 0 s, policy: keep}",),
)
LATE = (
    ("windows[0].allowed_lateness=20 s", "windows[0].emit=on_time"),
    ("windows[1].allowed_lateness=15 s", "time.out_of_orderness=1s"),
    ("time.out_of_order=drop",),
)


def made_with(of: Made, overrides: tuple[str, ...], folder: str) -> Made:
    """Return the same spec with other settings, in a warehouse of its own."""
    home = of[1].dagster_home
    return read_spec(of[0].path, overrides), Settings(home.parent / folder, home.parent, home)


def simulated(of: Made, *words: str) -> list[dict[str, Any]]:
    done = asked(of, "simulate", *words, "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_simulation_is_what_a_run_with_that_setting_makes_and_writes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dice: Dice
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(replay, "MOST_IN_A_PIECE", dice.choice((40, 1_000)))
    keeps = dice.choice((False, True, False))
    choices = LATE if keeps else SETTINGS
    settings = [dice.turn(choices, 0), dice.choice(choices[1:])]
    kinds = (*FIRST, dice.turn(OTHERS, 0), dice.turn(OTHERS, 1))
    windows = "windows:\n" + "".join(f"  - {kind}\n" for kind in kinds)
    now = written(tmp_path, "shop", SPEC % ("keep" if keeps else "drop") + windows)
    land(tmp_path / "in", 120, seed=dice.seed(1), start=START)
    with DagsterInstance.ephemeral() as instance:
        go(now, instance, RunOptions(max_events_per_batch=dice.choice((50, None))))
        there = contents(tmp_path)
        first, second = ([word for value in one for word in ("--set", value)] for one in settings)
        words = [*first, "--or", *second]
        found = simulated(now, *words)
        advised = asked(now, "advise", "--json")
        assert advised.exit_code == 0, advised.output
        assert contents(tmp_path) == there
        assert [one["set"] for one in found] == [[], *map(list, settings)]
        names = [window.name for window in now[0].spec.windows]
        before = {name: rows_of(now, name) for name in names}
        assert found[0]["dead_letters"] == letters_of(now)
        assert {name: one["rows"] for name, one in found[0]["windows"].items()} == {
            name: len(rows) for name, rows in before.items()
        }
        for number, setting in enumerate(settings):
            other = made_with(now, setting, f"other{number}")
            go(other, instance, RunOptions(max_events_per_batch=dice.choice((None, 37))))
            told = found[1 + number]
            assert told["dead_letters"] == letters_of(other), setting
            for name in names:
                expected = differing(before[name], rows_of(other, name))
                numbers = {"rows": "then", "new": "new", "gone": "gone", "changed": "other"}
                assert told["windows"][name] == {key: expected[was] for key, was in numbers.items()}, (setting, name)
        # What advise says of a tolerance is what a run with it refuses.
        advice = json.loads(advised.stdout)
        [today] = [one for one in advice["tolerances"] if one["tolerance_us"] == 4_000_000]
        held = len(table(now[1].warehouse, now[0].spec, "held_events"))
        assert today["held"] == held
        assert today["lost"] == letters_of(now)["out_of_order"] or keeps
        chosen = dice.choice(advice["tolerances"])
        dropping = (f"time.out_of_orderness={chosen['tolerance_us']}us", "time.out_of_order=drop")
        drops = made_with(now, dropping, "drops")
        go(drops, instance)
        assert chosen["lost"] == letters_of(drops)["out_of_order"]
