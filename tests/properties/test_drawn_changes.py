"""Pipelines that are changed in a drawn way, at a drawn place: after the rebuild they equal a new pipeline.

Here: windows that are renamed, removed or added, columns that are filled or cast, records that are taken out, and
live runs under the old spec until the switch. Not here: changes of windows and times at large (test_rebuilds.py).
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.properties.test_rebuilds import TIMES, WINDOWS
from tests.runs.landing import START, assert_tables_equal_the_oracle, land
from tests.runs.running import assert_same, at_the_end, committed, elsewhere, go, rebuild, workspace_of, written
from tests.runs.time.test_rejudged import rejudge
from tests.seeds import Dice
from tidemark.assets.judging import replay
from tidemark.pipelines.running.runner import RunOptions

CASES = 1
CHANGES = ("filled", "excluded", "cast", "renamed", "time", "removed", "added")
SPEC = """\
name: drawn
sources:
  - {{name: lines, kind: files, path: in/*.jsonl, format: json, settle: 0 s, order: position, arrival_time: got,
     keep_unknown: true, schema: "id STRING, at STRING, got STRING{columns}"}}
time: {time}
windows:
  - {{name: stays, kind: tumbling, size: 30 s, {stays}aggregates: {{n: count(*)}}}}
"""


@dataclass(frozen=True)
class Drawn:
    """Two specs, by what they differ in.

    Attributes:
        what: The changes, of CHANGES.
        times: `time` before and after a change of it.
        kind: Keys of the window that may be renamed.
        filled: The column that `schema` names from the change on.
    """

    what: Collection[str]
    times: tuple[str, str]
    kind: str
    filled: str

    def text(self, *, now: bool) -> str:
        """Return the spec after the changes, or before them."""
        done = self.what if now else ()
        kinds = {"k": "STRING", "v": "INT" if "cast" in done or "cast" not in self.what else "STRING"}
        known = [name for name in kinds if "filled" not in self.what or now or name != self.filled]
        columns = "".join(f", {name} {kinds[name]}" for name in known)
        group = "group_by: [k], " if "k" in known else ""
        rows = f"{group}aggregates: {{n: count(*)}}}}\n"
        name = "named, was: w" if "renamed" in done else "w"
        stays = "" if "filled" in self.what else "group_by: [k], "
        text = SPEC.format(columns=columns, time=self.times["time" in done], stays=stays)
        text += f"  - {{name: {name}, {self.kind}, {rows}"
        text += "" if "removed" in done else f"  - {{name: gone, kind: session, gap: 8 s, {rows}"
        return text + (f"  - {{name: added, kind: sliding, size: 10 s, {rows}" if "added" in done else "")


def draw(dice: Dice) -> Drawn:
    what = {dice.turn(CHANGES, 0), dice.choice(CHANGES), dice.choice(CHANGES)}
    filled = "v" if "cast" not in what and dice.choice((True, False)) else "k"
    times = [one for one in TIMES if "filled" not in what or "[k" not in one]
    kinds = [one for one in WINDOWS if "where" not in one and "having" not in one]
    return Drawn(what, (dice.choice(times), dice.choice(times)), dice.choice(kinds), filled)


@pytest.mark.long
def test_after_a_drawn_change_and_a_rebuild_the_tables_are_those_of_a_new_pipeline(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dice: Dice
) -> None:
    drawn = draw(dice)
    monkeypatch.setattr(replay, "MOST_IN_A_PIECE", dice.choice((40, 17, 1_000)))
    cut = RunOptions(max_events_per_batch=dice.choice((30, 11, None)))
    out, taken_out = str(dice.choice((7, 0, 31, 52))), dice.choice(("with it", "before", "after"))
    taken_out = taken_out if "excluded" in drawn.what else ""
    words = ["--to-spec"] if dice.choice((True, False)) else []
    said = (drawn, taken_out, words)
    land(tmp_path / "in", 60, seed=dice.seed(1), start=START, prefix="a")
    with DagsterInstance.ephemeral() as instance:
        before = written(tmp_path, "drawn", drawn.text(now=False))
        go(before, instance, cut)
        if taken_out == "before":
            assert rejudge(before, "--exclude", out).exit_code == 0
        changed = written(tmp_path, "drawn", drawn.text(now=True))
        if dice.choice((True, False)):

            def lives() -> None:
                land(tmp_path / "in", 20, dice.seed(2), prefix="b")
                go(before, instance)

            at_the_end(monkeypatch, lives)
        done = rejudge(changed, "--exclude", out) if taken_out == "with it" else rebuild(changed, *words)
        assert done.exit_code == 0, (*said, done.output)
        monkeypatch.undo()
        if taken_out == "after":
            assert rejudge(changed, "--exclude", out).exit_code == 0
        go(changed, instance)  # where nothing needs the past, this run takes the change
        if "removed" in drawn.what:
            assert rebuild(changed, "--drop", "gone").exit_code == 0
            assert not workspace_of(changed).lake.exists("windows/gone")
        fresh = elsewhere(changed)
        go(fresh, instance, RunOptions(max_events_per_batch=dice.choice((None, 23))))
        if taken_out:
            assert rejudge(fresh, "--exclude", out).exit_code == 0
        assert_same(changed, fresh)
        assert not any(drawn.filled in (row["_rescued"] or "") for row in committed(changed, "raw_events")), said
        land(tmp_path / "in", 30, seed=dice.seed(3), prefix="c")
        end = RunOptions(end_of_input=dice.choice(("hold", "flush")))
        for one in (changed, fresh):
            go(one, instance, end)
    assert_same(changed, fresh)
    if taken_out:
        flush = end.end_of_input == "flush"
        assert_tables_equal_the_oracle(changed[1].warehouse, changed[0].spec, flush=flush, without=[int(out)])
