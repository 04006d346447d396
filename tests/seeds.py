"""The seed of a test run: new each time, printed at its head, and given back by `--seed` or TIDEMARK_TEST_SEED.

Here: the dice that random tests throw, and how often. Not here: what they throw them for.
"""

import os
import random
from collections.abc import Generator, Sequence
from math import ceil
from typing import TypeVar

import pytest
from hypothesis import settings

VARIABLE = "TIDEMARK_TEST_SEED"
FIXED, FRESH = "fixed", "fresh"
SHORT_SHARE = 4
"""One in so many of its logs is tried by a test among the short ones; by `--all`, `--logs` and long ones each."""
T = TypeVar("T")

# Of what the environment of a CI server would change, the seed above all.
settings.register_profile("tidemark", derandomize=False, deadline=None, print_blob=True)
settings.register_profile("short", settings.get_profile("tidemark"), max_examples=25)


class Dice:
    """Source from which a random test draws its settings and logs; a fixed one shows the first side for ever.

    Args:
        seed: Of this test alone; None fixes the dice.
        turns: How far values that are taken in turn are turned, the same for all tests of a run.
        share: How many of its logs a test tries: one in so many.
    """

    def __init__(self, seed: str | None, turns: int = 0, share: int = 1) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._turns = turns
        self._share = share

    @property
    def is_fixed(self) -> bool:
        """True if the test is the same on every run."""
        return self._random is None

    def choice(self, values: Sequence[T]) -> T:
        return values[0] if self._random is None else self._random.choice(values)

    @property
    def is_short(self) -> bool:
        """True in the short tests, which try a few of the logs."""
        return self._share > 1

    def turn(self, values: Sequence[T], turn: int) -> T:
        """Another value for each turn, so that a few tests try all of them on every run."""
        return values[(turn + self._turns) % len(values)]

    def some(self, count: int) -> int:
        """Return how many of so many logs to try: all, and a few in the short tests, whose every run has new ones."""
        return ceil(count / self._share)

    def seed(self, fixed: int) -> int:
        """Return a seed of generated logs: this one where the dice are fixed."""
        return fixed if self._random is None else self._random.getrandbits(32)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tidemark")
    group.addoption("--seed", type=int, help=f"seed of random tests, by default a new one ({VARIABLE} does the same)")
    group.addoption("--logs", type=int, help="try so many fresh random logs in each mode of each property")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed, and how many examples Hypothesis tries.

    The workers of pytest-xdist are given the options of their parent, and so its seed.
    """
    settings.load_profile("tidemark" if config.option.all or config.option.logs else "short")
    if config.option.seed is None:
        config.option.seed = int(os.environ.get(VARIABLE) or random.SystemRandom().getrandbits(32))
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(config.option.seed)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed} (the same again: --seed {config.option.seed})"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that throws dice once with fresh ones, or as often as `--logs` needs.

    One of many logs runs with fixed ones too, but in modes that are long themselves.
    """
    if "dice" not in metafunc.fixturenames:
        return
    wanted, at_once = metafunc.config.option.logs, metafunc.module.CASES
    rounds = range(1, ceil(wanted / at_once) + 1 if wanted else 2)
    fresh = [pytest.param(f"{FRESH}{number}", id=f"{FRESH}{number}" if number > 1 else FRESH) for number in rounds]
    fixed = pytest.param(FIXED, id=FIXED, marks=pytest.mark.long)
    metafunc.parametrize("dice", [*fresh, fixed] if at_once > 1 else fresh, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out fixed dice in modes that are long themselves: fresh ones are enough there."""
    longs = [one for one in items if f"[{FIXED}-" in one.name and len(list(one.iter_markers("long"))) > 1]
    twice = [one for one in longs if not hasattr(one.getparent(pytest.Module).obj, "FIXED_TOO")]  # type: ignore[union-attr]
    config.hook.pytest_deselected(items=twice)
    items[:] = [one for one in items if one not in twice]


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> Dice:
    """Dice of this test and of the run's seed."""
    if request.param == FIXED:
        return Dice(None)
    option = request.config.option
    is_short = not (option.all or option.logs or request.node.get_closest_marker("long"))
    turns = option.seed + int(request.param.removeprefix(FRESH))
    return Dice(f"{option.seed} {request.node.nodeid}", turns, share=SHORT_SHARE if is_short else 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failure how to see it again."""
    report = yield
    if report.failed and "dice" in getattr(item, "fixturenames", ()):
        option = item.config.option
        logs = f"--logs {option.logs} " if option.logs else "--all " if option.all else ""
        again = f'.venv/bin/python -m pytest --seed {option.seed} {logs}"{item.nodeid}"'
        report.sections.append(("the same logs again", again))
    return report
