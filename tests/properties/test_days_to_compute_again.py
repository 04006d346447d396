"""The days that a consumer has to compute again: exactly the ones that Dagster requests, and no fewer are enough.

For each kind of window, on generated logs: after events that come late, records that are taken out of the log or back
into it, dead letters that are let in or refused again, and rows that an upstream table corrects. The consumer is an
asset of a real instance of Dagster, of the days of a window, with the condition of the page.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import tidemark as tm
from tests.properties.test_rebuilds import KEPT, LATE, TIMES, WINDOWS
from tests.runs.dagster.test_conditions_downstream import of_page
from tests.runs.landing import LINES, START, land, table
from tests.runs.running import Made, go, written
from tests.runs.source.test_delta_sources import add, made, rows
from tests.seeds import Dice
from tidemark.assets.rebuild.differences import OF_REVISION
from tidemark.pipelines.operators.deciding import Decided
from tidemark.pipelines.running.runner import RunOptions

CASES = 1
AGGREGATES = "group_by: [k], aggregates: {n: count(*), s: sum(v)}"
MIDNIGHT = START.replace(minute=59, second=30)
CUMULATIVE = "kind: cumulative, step: 20 s, size: 1 minute"
CLOSING = (*[kind.replace("size: 10 s, empty", "size: 1 hour, empty") for kind in WINDOWS], CUMULATIVE)
REVISED = (*LATE, CUMULATIVE)
Days = dict[str, list[tuple[Any, ...]]]


class Consumer:
    """One asset for each window of a pipeline, whose copy of a day is made when the day is computed."""

    def __init__(self, of: Made, instance: dg.DagsterInstance) -> None:
        self.of, self.instance = of, instance
        self.copies: dict[str, Days] = {window.name: defaultdict(list) for window in of[0].spec.windows}
        self._cursor: AssetDaemonCursor | None = None
        name, condition = of[0].spec.name, of_page()["after_each_change"]
        daily = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-03-01")
        assets: list[Any] = []
        for window in self.copies:
            key, days = tm.asset_key(name, f"windows/{window}"), f"{name}/windows/{window}"
            same_day = dg.AssetDep(key, partition_mapping=dg.IdentityPartitionMapping())
            assets.append(dg.AssetSpec(key, partitions_def=dg.DynamicPartitionsDefinition(name=days)))

            @dg.asset(name=f"of_{window}", deps=[same_day], partitions_def=daily, automation_condition=condition)
            def of_day() -> None:
                """Compute a day."""

            assets.append(of_day)
        self.definitions = dg.Definitions(assets)

    def results(self, window: str) -> Days:
        """Return the results of the table by day: what a consumer computes with, and whether they are final."""
        found: Days = defaultdict(list)
        for row in table(self.of[1].warehouse, self.of[0].spec, f"windows/{window}"):
            values = [value for name, value in row.items() if name not in OF_REVISION]
            found[row["window_start"].date().isoformat()].append((*map(str, values), row["_is_final"]))
        return defaultdict(list, {day: sorted(of_day) for day, of_day in found.items()})

    def requested(self) -> dict[str, list[str]]:
        """Let Dagster evaluate the conditions once; return the days that it requests."""
        keys = {window: dg.AssetKey(f"of_{window}") for window in self.copies}
        found = dg.evaluate_automation_conditions(
            self.definitions,
            self.instance,
            asset_selection=dg.AssetSelection.assets(*keys.values()),
            cursor=self._cursor,
        )
        self._cursor = found.cursor
        return {
            window: sorted(day or "" for day in found.get_requested_partitions(key)) for window, key in keys.items()
        }

    def follow(self) -> dict[str, list[str]]:
        """Compute the days that are requested, and check that they are exactly the ones that are needed."""
        asked = self.requested()
        for window, copy in self.copies.items():
            now = self.results(window)
            for day in asked[window]:
                assert copy[day] != now[day], f"{window} {day}: without it nothing would differ"
                copy[day] = now[day]
            assert {day: of_day for day, of_day in copy.items() if of_day} == now, f"{window}: some day was left out"
        return asked


def days_of(done: Decided) -> Mapping[str, Sequence[str]]:
    return {window.window: [*window.days] for window in done.windows}


def windows_of(kinds: Sequence[str]) -> str:
    return "".join(f"  - {{name: w{number}, {kind}, {AGGREGATES}}}\n" for number, kind in enumerate(kinds))


@pytest.mark.long
def test_exactly_the_days_that_differ_are_requested_after_late_events_and_each_decision_on_records(
    spark: SparkSession, tmp_path: Path, dice: Dice
) -> None:
    times, kinds = dice.turn(((KEPT, REVISED), (TIMES, CLOSING)), 0)
    text = f"name: drawn\n{LINES}time: {dice.choice(times)}\nwindows:\n{windows_of(kinds)}"
    of, cut = written(tmp_path, "drawn", text), RunOptions(max_events_per_batch=dice.choice((None, 40)))
    given: dict[str, Any] = {"warehouse": str(of[1].warehouse)}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        consumer = Consumer(of, instance)
        consumer.requested()
        for number in range(3):  # each on both sides of a midnight
            land(
                tmp_path / "in",
                25,
                dice.seed(number),
                start=MIDNIGHT + timedelta(days=3 * number),
                prefix=f"a{number}",
            )
        go(of, instance, cut)
        consumer.follow()
        land(tmp_path / "in", 30, dice.seed(4), start=MIDNIGHT + timedelta(days=6, seconds=50), prefix="late")
        go(of, instance, cut)
        consumer.follow()

        out = sorted({dice.choice(range(70)), dice.choice(range(20))})
        letters = table(of[1].warehouse, of[0].spec, "dead_letters")
        refused = [row["_arrival_seq"] for row in letters if row["reason"] in ("out_of_order", "late_arrival")]
        where = f"_arrival_seq IN ({', '.join(map(str, refused[:: dice.choice((1, 3))]))})"
        decisions: list[tuple[Any, dict[str, Any]]] = [
            (tm.rejudge, {"exclude": out}),
            (tm.rejudge, {"include": out[:1]}),
            (tm.replay, {"where": where}),
            (tm.replay, {"where": where, "undo": True}),
        ]
        for decide, asked in decisions[: None if refused else 2]:
            looked = decide(of[0].path, reason="a test", dry_run=True, **asked, **given)
            assert all(not days for days in consumer.follow().values()), "nothing was written"
            done = decide(of[0].path, reason="a test", **asked, **given, instance=instance)
            assert {**looked.to_dict(), "dry_run": False} == {
                **done.to_dict(),
                "batch": None,
                "committed_at": None,
            }, "what was announced"
            assert consumer.follow() == days_of(done)
            assert all(not days for days in consumer.follow().values()), "once"
        land(tmp_path / "in", 10, dice.seed(5), start=MIDNIGHT + timedelta(days=12), prefix="c")
        go(of, instance, cut)
        consumer.follow()


@pytest.mark.long
def test_exactly_the_days_that_differ_are_requested_after_an_upstream_table_has_corrected_records(
    spark: SparkSession, tmp_path: Path, dice: Dice
) -> None:
    source = "changes: follow, start_version: 0, arrival_time: got"
    kinds = [dice.turn(CLOSING, turn) for turn in range(3)]
    of = made(tmp_path, "follows", source, policy="drop", more=windows_of(kinds))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        consumer = Consumer(of, instance)
        consumer.requested()
        for number in range(3):
            add(tmp_path, rows(dice.seed(number), 25, MIDNIGHT + timedelta(days=3 * number)))
        go(of, instance)
        consumer.follow()
        upstream = DeltaTable(str(tmp_path / "bronze" / "orders"))
        upstream.update(updates={"v": "v + 10"}, predicate=f"v = {dice.choice((3, 7, 9))} AND k = 'a'")
        go(of, instance)
        consumer.follow()
        upstream.delete(f"v = {dice.choice((1, 4, 8))}")
        go(of, instance)
        consumer.follow()
