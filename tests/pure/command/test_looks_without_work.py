"""Runs that find nothing to do: Dagster is told what they found, once, and otherwise not even imported. No Spark."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster import AssetCheckKey, AssetKey, DagsterInstance

from tests import ROOT
from tests.pure.report.shop import PER_MINUTE, SPEC, WINDOWS, Shop, window_row
from tidemark.assets.catalog.held_back import tell_dagster
from tidemark.pipelines.cli import main
from tidemark.resources.last_look import HOLDS_FOR, LastLook

HELD_BACK = AssetCheckKey(AssetKey(["shop", "raw_events"]), "nothing_held_back")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def folder(workplace: Path) -> Path:
    """Return a folder with a spec, an input that was read, and results of a day that Dagster does not know."""
    shop = Shop.with_log(workplace, 10, SPEC.replace("in/*.csv", "in/*") + WINDOWS)
    shop.add(PER_MINUTE, [window_row(0) | {"_is_final": True, "_batch_id": 1}])
    shop.process(ordered=10, held=0)
    return workplace


def run(folder: Path, *words: str) -> str:
    """Run the pipeline, which finds nothing to do; return what else is said."""
    done = CliRunner().invoke(main, ["run", str(folder / "shop.yaml"), *words], catch_exceptions=False)
    assert done.stdout == "shop: nothing new.\n"
    return done.stderr


def arrive(bad: Path) -> None:
    """Write a file that no run can read, an hour ago: it is settled."""
    bad.write_bytes(b"PK")
    os.utime(bad, (time.time() - 3600,) * 2)


@contextmanager
def at_home(folder: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.from_config(str(folder / "home")) as instance:
        yield instance


def shown(folder: Path) -> list[str]:
    """Return the days that Dagster shows; each was reported."""
    with at_home(folder) as instance:
        days = [*instance.get_dynamic_partitions("shop/windows/per_minute")]
        assert instance.get_materialized_partitions(AssetKey(["shop", "windows", "per_minute"])) == {*days}
        return days


def told(folder: Path) -> list[bool]:
    """Return whether nothing is held back, as Dagster was told one time after the other."""
    with at_home(folder) as instance:
        found = instance.event_log_storage.get_asset_check_execution_history(HELD_BACK, limit=10)
        events = [one.event.dagster_event for one in reversed(found) if one.event is not None]
        return [event.asset_check_evaluation_data.passed for event in events if event is not None]


def imports_much(*words: str) -> bool:
    """Return whether a run in a process of its own imports Dagster, PySpark or the checks; it has to end well."""
    code = (
        "import sys; from tidemark.pipelines.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as ended:\n"
        "    if ended.code: raise\n"
        "print([name for name in ('dagster', 'pyspark', 'great_expectations') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "run", "shop.yaml", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    said, imported = done.stdout.splitlines()
    assert said == "shop: nothing new."
    return imported != "[]"


def test_a_run_with_nothing_new_imports_neither_spark_nor_dagster_once_dagster_was_told_what_it_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run(folder)
    assert len(shown(folder)) == 1
    assert not imports_much()
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert imports_much(), "the settings say where the database is: it may be another one"
    assert not imports_much()


def test_a_trial_run_with_nothing_new_tells_no_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run(folder)
    assert not imports_much("--warehouse", "trial")
    assert "shop: a trial run, which Dagster does not show: " in run(folder, "--warehouse", "trial")


def test_days_are_shown_by_a_run_with_nothing_new_in_each_home_that_does_not_show_them(folder: Path) -> None:
    run(folder)
    days = shown(folder)
    assert len(days) == 1
    shutil.rmtree(folder / "home")
    run(folder)
    assert shown(folder) == days


def test_days_of_a_batch_that_nobody_reported_are_shown_by_the_next_run_with_nothing_new(folder: Path) -> None:
    run(folder)
    shop = Shop(folder, (folder / "shop.yaml").read_text())
    shop.add(PER_MINUTE, [window_row(60 * 24 * 2) | {"_is_final": True, "_batch_id": 2}])
    shop.leave_watermark(2)
    shop.commit("process", 10, {"records": 0, "per_minute.rows": 1})
    run(folder)
    assert len(shown(folder)) == 2


def test_input_that_is_held_back_comes_and_goes_in_dagster_though_nothing_is_new(folder: Path) -> None:
    run(folder)
    assert told(folder) == [], "nothing is as it should be, and Dagster shows nothing else"
    bad = folder / "in" / "tills.csv.zip"
    arrive(bad)
    for _ in range(2):
        assert "1 file(s) held back" in run(folder)
    assert told(folder) == [False]
    bad.unlink()
    for _ in range(2):
        assert run(folder) == ""
    assert told(folder) == [False, True]
    arrive(bad)
    assert "1 file(s) held back" in run(folder)
    assert told(folder) == [False, True, False]


def test_what_a_look_of_dagster_s_own_has_told_is_set_right_by_the_next_run(folder: Path) -> None:
    """Between two runs that both found nothing there was such a file."""
    run(folder)
    with at_home(folder) as instance:
        tell_dagster(instance, Shop(folder, (folder / "shop.yaml").read_text()).file, ["in/a.csv is no text."])
    assert told(folder) == [False]
    run(folder)
    assert told(folder) == [False, True]


def test_a_note_on_a_look_is_believed_for_an_hour_and_by_no_clock_that_went_back(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    last = LastLook(tmp_path, "shop")
    assert not last.was("a", NOW)
    last.note("a", NOW)
    second = timedelta(seconds=1)
    assert [last.was("a", NOW + age) for age in (-second, 0 * second, HOLDS_FOR - second, HOLDS_FOR)] == [
        False,
        True,
        True,
        False,
    ]
    assert not last.was("b", NOW)
    assert not LastLook(tmp_path, "other").was("a", NOW)
    last.forget()
    assert not last.was("a", NOW)
    last.forget()


@pytest.mark.parametrize("text", ["", "[]", '{"look": "a"}', json.dumps({"look": "a", "at": "soon"})])
def test_a_note_that_cannot_be_read_is_as_none(tmp_path: Path, text: str) -> None:
    last = LastLook(tmp_path, "shop")
    last.note("a", NOW)
    assert not last.was("a", NOW), "a home without settings is none"
    (tmp_path / "dagster.yaml").touch()
    last.note("a", NOW)
    [note] = (tmp_path / "tidemark_looks").iterdir()
    note.write_text(text)
    assert not last.was("a", NOW)
