"""Advice on an out-of-orderness, in words, on logs whose fault is known; and where there is none.

The log is judged by the loop, and its tables are written without Spark.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from tests.pure.batch.batches import START
from tests.pure.letter.test_losses import DAY_S, KEEP, TIMED, Arrived, ahead, offline, shop, tills
from tests.pure.report.shop import SPEC, Shop
from tidemark.assets.questions.advice import advice_of, advice_on
from tidemark.assets.questions.advice_answer import Advice
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.figures.log_times import LogTimes, Stretch
from tidemark.timeops.rules.reasons import CODES, Reason
from tidemark.timeops.values.utc import us_of

MINUTE_S, HOUR_S = 60, 3_600
ADJUST = TIMED.replace("out_of_orderness: 10 s}", "out_of_orderness: 10 s, out_of_order: adjust}")


def advised(folder: Path, records: Sequence[Arrived], spec: str = TIMED, *, malformed: Sequence[int] = ()) -> Advice:
    """Return the advice for a shop with these records, some of them malformed."""
    workspace, start_us = shop(folder, records, spec).workspace, us_of(START)
    came, time = (np.array([record[n] for record in records], np.int64) * 1_000_000 + start_us for n in (0, 1))
    why, nothing = np.zeros(len(records), np.int8), np.zeros(len(records), np.int32)
    why[[*malformed]] = CODES[Reason.MALFORMED]
    times = LogTimes(
        seq=np.arange(len(records)),
        event_us=time,
        arrival_us=came,
        clock_us=np.maximum.accumulate(came),
        why=why,
        timeline=nothing,
        timelines=["[]"],
        source=nothing,
        sources=["tills"],
        split=nothing,
        splits=[None],
        stretches=[Stretch(0, len(records))],
    )
    return advice_on(workspace, times)


def slow(second: int, till: str) -> tuple[int, int]:
    """Let the clock of t3 be two minutes slow."""
    return second + 1, second - (120 if till == "t3" else 0)


def jumped(second: int, till: str) -> tuple[int, int]:
    """Let one record be a day ahead."""
    return second + 1, second + (DAY_S if second == 300 else 0)


def hourly(second: int, till: str) -> tuple[int, int]:
    """Let t3 send what it has once in five minutes."""
    return (second // 300 * 300 + 301 if till == "t3" else second + 1), second


LOGS = {"a clock ahead": ahead, "a slow clock": slow, "one record far ahead": jumped, "bursts": hourly}


@pytest.mark.parametrize("name", [*LOGS, "once offline"])
def test_the_screen_says_who_loses_and_what_to_write(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    records = tills(600, offline if name == "once offline" else LOGS[name])
    assert advised(tmp_path, records).text == snapshot


@pytest.mark.parametrize("spec", [KEEP, ADJUST], ids=["keep", "adjust"])
def test_lost_means_what_the_policy_makes_of_late_events(
    spec: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    found = advised(tmp_path, tills(60, lambda second, till: (second + (30 if till == "t1" else 1), second)), spec)
    assert found.text == snapshot


def test_where_nothing_is_lost_it_says_so_and_what_else_was_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    found = advised(tmp_path, tills(60, lambda second, _: (second + 1, second)), malformed=[7])
    assert (found.lost, found.refused, found.losers, found.picture()) == (0, {"malformed": 1}, (), None)
    assert found.text == snapshot


def test_the_numbers_of_a_log_that_can_be_counted_by_hand(tmp_path: Path) -> None:
    # Ten records a minute apart; of each second one 25 s, 35 s, … after the latest event.
    records = [(n * MINUTE_S, n * MINUTE_S - (25 + 5 * n if n % 2 else 0), "t") for n in range(10)]
    records = [(came + 61, time, till) for came, time, till in records]
    late_s = [30 - 60, 40 - 60, 50 - 60, 60 - 60, 70 - 60]
    found = advised(tmp_path, records)
    assert [one.lost for one in found.tolerances if one.tolerance_us in (0, 10_000_000)] == [
        sum(late > 0 for late in late_s),
        sum(late > 10 for late in late_s),
    ]
    told = found.to_dict()
    assert [{*one} for one in (told["tolerances"][0], told["targets"][0])] == [
        {"tolerance_us", "lost", "share", "later_us", "held"},
        {"share", "tolerance_us", "verified_share"},
    ]


def test_a_target_is_found_on_the_first_part_and_fails_where_the_rest_is_later(tmp_path: Path) -> None:
    came = list(range(1_000))
    late = [5 if n % 100 == 50 else 0 for n in range(700)] + [50 if n % 10 == 5 else 0 for n in range(300)]
    records = [(n + 1, n - 2 * wait, "t") for n, wait in zip(came, late, strict=True)]
    found = advised(tmp_path, records)
    [one, *_] = found.targets
    # 7 of the first 700 may be lost, and 7 are 9 s after the latest event.
    assert (one.share, one.tolerance_us) == (0.01, 0)
    assert found.targets[1].tolerance_us == 9_000_000
    assert found.targets[1].verified_share == pytest.approx(0.1)
    assert "the rest is later than the first part" in found.text


def test_a_pipeline_without_event_time_or_tables_is_refused_with_a_sentence(tmp_path: Path) -> None:
    made = Shop(tmp_path, SPEC)
    with pytest.raises(TidemarkError, match="shop has no processed records in "):
        advice_of(made.workspace)
    made = Shop.with_log(tmp_path, 3)
    with pytest.raises(TidemarkError, match="shop has no processed records in "):
        advice_of(made.workspace)
    made = Shop(tmp_path, SPEC.replace("time: {timestamp_by: at, out_of_orderness: 10 s}\n", ""))
    with pytest.raises(SpecError, match="shop has no `timestamp_by`, so event time is arrival time"):
        advice_of(made.workspace)
