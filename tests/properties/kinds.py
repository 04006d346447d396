"""Windows of some kinds, and settings of idleness, that several properties try."""

from collections.abc import Sequence
from typing import Any

from tests.seeds import Dice
from tidemark.timeops.spec import WindowSpec


def window(**keys: Any) -> WindowSpec:
    aggregates = {"seqs": "array_sort(collect_set(_arrival_seq))"}
    return WindowSpec(**({"name": "w", "group_by": ("case",), "aggregates": aggregates} | keys))


ON_TIME = window(
    name="on_time", kind="tumbling", size="10 us", allowed_lateness="25 us", emit="on_time", revise_every="10 us"
)
EARLY = window(name="early", kind="hopping", size="30 us", hop="10 us", emit={"early": "10 us"})
SLIDING = window(name="sliding", kind="sliding", size="10 us", emit={"early": "3 us"}, group_by=("case", "v"))
SESSION = window(name="session", kind="session", gap="7 us", group_by=("case", "v"), where="v > 1")
EMPTY = window(name="empty", kind="tumbling", size="10 us", empty=True, group_by=("case", "v"), empty_max=100_000)
CLOSED_RIGHT = window(name="right", kind="cumulative", size="20 us", step="10 us", offset="7 us", closed="right")

IDLE_SPLITS = {"advance": "exclude_split", "timeout": "6 us"}
SILENCE = {"advance": "window_close", "timeout": "6 us"}


def some_of(windows: Sequence[WindowSpec], dice: Dice, turn: int) -> tuple[WindowSpec, ...]:
    """One of the windows of a mode, as each of them takes long; the fixed dice take all."""
    return tuple(windows) if dice.is_fixed else (dice.turn(windows, turn),)
