"""Which settings a log can answer for, how they are written, and what a simulation says: without Spark."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

import tidemark as tm
from tests.pure.letter.test_losses import TIMED, shop, tills
from tests.pure.report.shop import WINDOWS, Shop
from tidemark.assets.questions.what_if.preview import ComparedStretch, RowChange, TableRows
from tidemark.assets.questions.what_if.simulation import Setting, simulation_of
from tidemark.assets.questions.what_if.simulation_answer import Simulated, Simulation
from tidemark.pipelines.cli import main
from tidemark.pipelines.code_location.questions import settings_with, stretch_of
from tidemark.timeops.errors import SpecError, TidemarkError

TODAY = Simulated((), {"out_of_order": 40, "early": 2}, {"by_hour": TableRows("by_hour", 9, 9, 0, 0, 0, 0, {})})
CHANGES = (
    RowChange({"window_start": "2026-01-03T07:00:00.000Z", "net": "alp"}, {"n": 2}, {"n": 5, "_x": 1}, 3.0),
    RowChange({"window_start": "2026-01-03T08:00:00.000Z", "net": "isl"}, {"n": 1, "top": 1.25}, None, 1.0),
    RowChange({"window_start": "2026-01-03T09:00:00.000Z", "net": None}, None, {"n": 1, "top": None}, 1.0),
)
WIDER = Simulated(
    ("time.out_of_orderness=20s",),
    {"out_of_order": 3, "early": 2},
    {"by_hour": TableRows("by_hour", 9, 9, 1, 1, 1, 2, {}, CHANGES)},
)
SAME = Simulated(("owners=[team:a]",), TODAY.dead_letters, TODAY.windows, ("changes nothing: the spec says so",))


def call(made: Shop, *words: str) -> Result:
    given = ["simulate", str(made.folder / "shop.yaml"), "--warehouse", str(made.folder / "warehouse"), *words]
    return CliRunner().invoke(main, given, catch_exceptions=False)


def processed(folder: Path) -> Shop:
    return shop(folder, tills(20, lambda second, _: (second + 1, second)), TIMED + WINDOWS)


def setting(made: Shop, *values: str) -> Sequence[Setting]:
    return settings_with(made.folder / "shop.yaml", [values])


def test_today_and_settings_stand_side_by_side_and_the_largest_differences_follow(
    snapshot: SnapshotAssertion,
) -> None:
    found = Simulation("shop", 1_000, TODAY, (WIDER, SAME))
    assert found.text == snapshot
    assert [one["set"] for one in found.to_dict()] == [[], ["time.out_of_orderness=20s"], ["owners=[team:a]"]]
    assert found.to_dict()[1]["windows"] == {"by_hour": {"rows": 9, "new": 1, "gone": 1, "changed": 1}}


def test_long_settings_have_letters_for_heads() -> None:
    long = Simulated((*WIDER.settings, "time.out_of_order=adjust"), WIDER.dead_letters, WIDER.windows)
    text = Simulation("shop", 1_000, TODAY, (long, WIDER)).text
    assert "\n  A: time.out_of_orderness=20s time.out_of_order=adjust\n  B: time.out_of_orderness=20s\n" in text
    assert "The largest differences with B\n" in text


@pytest.mark.parametrize(
    ("value", "key", "why"),
    [
        ("name=other", "name", "it names another pipeline"),
        ("sources[0].path=there/*.csv", r"sources\[tills\].path", "it decides what is read"),
        ("sources[0].schema=at STRING, amount INT, till STRING, more INT", r"sources\[tills\].schema", "it decides"),
        ("sources[0].split=till", r"sources\[tills\].split", "it decides what is read"),
        ("sources[0].arrival_time=at || 'Z'", r"sources\[tills\].arrival_time", "it decides what is read"),
    ],
)
def test_a_setting_that_asks_for_other_input_is_refused(value: str, key: str, why: str, tmp_path: Path) -> None:
    made = processed(tmp_path)
    with pytest.raises(SpecError, match=f"the log cannot answer for `{key}`: {why}"):
        simulation_of(made.workspace, setting(made, value))


def test_without_processed_records_there_is_nothing_to_simulate(tmp_path: Path) -> None:
    made = Shop.with_log(tmp_path, 3)
    with pytest.raises(TidemarkError, match="shop has no processed records in "):
        simulation_of(made.workspace, setting(made, "time.out_of_orderness=20s"))
    assert call(made, "--set", "time.out_of_orderness=20s").exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing option '--set'"),
        (["--set", "time.unit=second", "--or"], "`--or` needs a --set before and after it."),
        (["--or", "--set", "time.unit=second"], "`--or` needs a --set before and after it."),
        (["--set", "time.nonsense=1"], "unknown key `nonsense`"),
        (["--set", "time.unit=second", "--from", "yesterday"], "`from` is 'yesterday', which is not an instant"),
        (["--set", "time.unit=second", "--from", "2026-01-02", "--to", "2026-01-02"], "Expected: an end after"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(words: list[str], said: str, tmp_path: Path) -> None:
    done = call(processed(tmp_path), *words)
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_a_program_gives_a_list_of_settings_and_instants(tmp_path: Path) -> None:
    made = processed(tmp_path)
    all_wrong: dict[str, tuple[Any, ...]] = {
        "`settings` is ": ("time.unit=second", ["time.unit=second"]),
        "A setting without a key": ([], [[]]),
    }
    for said, wrong in ((said, one) for said, each in all_wrong.items() for one in each):
        with pytest.raises(SpecError, match=said):
            tm.simulate(made.folder / "shop.yaml", wrong)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert (
        stretch_of("2026-01-01T12:00:00", None)
        == stretch_of(noon, None)
        == ComparedStretch(1_767_268_800_000_000, None)
    )
