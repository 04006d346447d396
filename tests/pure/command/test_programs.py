"""Pipelines run by a program: arguments that are refused, the signals of its process. No Spark session is started."""

import os
import signal
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import tidemark as tm
from tidemark.resources.machine import ensure_not_stopped, listening, stop_signal

SPEC = """
name: shop
sources: [{name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING, amount INT", settle: 0 s}]
time: {timestamp_by: at}
windows: [{name: by_hour, kind: tumbling, size: 1 hour, aggregates: {n: count(*)}}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "shop.yaml").write_text(SPEC)
    return tmp_path


DAY = date(2026, 1, 31)


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        (tm.run, {"spec": "none.yaml"}, "none.yaml: the spec cannot be read"),
        (tm.run, {"overrides": ["time.late=5 minutes"]}, "time.late: found"),
        (tm.run, {"end_of_input": "later"}, '`end_of_input` is \'later\'\nExpected: "flush", "hold" or None'),
        (tm.run, {"max_events_per_batch": 0}, "`max_events_per_batch` is 0"),
        (tm.run, {"reopen": " "}, "`reopen` is empty"),
        (tm.run, {"live": True, "end_of_input": "flush"}, "shop.yaml: `live` has no effect"),
        (tm.run, {"warehouse": "nowhere://bucket"}, "nowhere://bucket is not a place"),
        (tm.backfill, {"first": "31.01.2026", "last": DAY}, "'31.01.2026' is not a day"),
        (tm.backfill, {"first": DAY, "last": datetime(2026, 1, 31, 23, tzinfo=UTC)}, "is not a day"),
        (tm.backfill, {"first": DAY, "last": "2026-01-30"}, "The first day, 2026-01-31, is after the last one"),
        (tm.backfill, {"first": DAY, "last": DAY, "windows": ["by_our"]}, "did you mean `by_hour`?"),
        (tm.backfill, {"first": DAY, "last": DAY, "windows": "by_hour"}, "`windows` is the text 'by_hour'"),
        (tm.is_complete, {"window": "by_our", "day": DAY}, "did you mean `by_hour`?"),
        (tm.is_complete, {"window": "by_hour", "day": "31.01.2026"}, "'31.01.2026' is not a day"),
        (tm.status, {"spec": "none.yaml"}, "none.yaml: the spec cannot be read"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    folder: Path, call: Callable[..., object], given: dict[str, Any], said: str
) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(tm.SpecError) as refused:
        call(**{"spec": "shop.yaml", **given})
    assert said in str(refused.value)
    assert sorted(folder.rglob("*")) == before


def test_a_run_with_nothing_to_do_starts_no_spark_and_needs_no_dagster_home(folder: Path) -> None:
    done = tm.run("shop.yaml")
    assert (done, done.batch) == (tm.RunReport(), None)
    assert (folder / ".dagster" / "dagster.yaml").exists()
    assert "DAGSTER_HOME" not in os.environ
    with pytest.raises(FrozenInstanceError):
        done.batches = 1  # type: ignore[misc]


def test_what_cannot_be_read_is_in_the_report_and_no_error(folder: Path) -> None:
    (folder / "in" / "a.csv").write_bytes(b"at,amount\n\xff\xfe\n")
    (folder / "in" / "b.csv.gz").write_bytes(b"not gzip")
    (folder / "shop.yaml").write_text(SPEC.replace("in/*.csv", "in/*.csv.gz"))
    [held] = tm.run("shop.yaml", warehouse=folder / "tables").held_back
    assert "b.csv.gz" in held
    assert not tm.is_complete("shop.yaml", "by_hour", DAY, warehouse=folder / "tables"), "no event has come"
    state = tm.status("shop.yaml", warehouse=folder / "tables")
    assert (state.watermark, state.is_flushed, len(state.wrong)) == (None, False, 1)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_was_asked_to_stop_has_its_own_handlers_afterwards(by: signal.Signals) -> None:
    def stop() -> None:
        signal.signal(by, lambda *_: None)  # as Spark and Dagster set theirs
        os.kill(os.getpid(), by)
        ensure_not_stopped()

    mine = signal.signal(by, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), listening(then_ends=False):
            stop()
        assert signal.getsignal(by) is signal.default_int_handler
        assert stop_signal() is None
    finally:
        signal.signal(by, mine)


def test_a_call_inside_of_a_command_leaves_the_wish_to_stop_to_the_command() -> None:
    mine = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        with listening():
            with pytest.raises(KeyboardInterrupt), listening(then_ends=False):
                os.kill(os.getpid(), signal.SIGTERM)
            assert stop_signal() == signal.SIGTERM
    finally:
        for one, handler in mine.items():
            signal.signal(one, handler)


def test_in_another_thread_nothing_is_listened_to() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def look() -> None:
        with listening(then_ends=False):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
