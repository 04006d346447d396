"""Which tests a run takes, and in what order: the short ones, all of them, or a sample of the long ones beside them.

Here: options, what is left out, how long tests took (seconds.json). Not here: what a test does.
"""

import json
import os
import random
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
UNKNOWN_SECONDS = 20.0  # of a long test that was never measured


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tidemark")
    group.addoption("--all", action="store_true", help="run the tests that are marked `long` too")
    group.addoption(
        "--sample", type=float, metavar="MINUTES", help="run a sample of them that takes so long, by seed"
    )
    group.addoption("--write-seconds", action="store_true", help=f"write how long tests took to {SECONDS.name}")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.write_seconds and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Stopwatch())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for; the files that take longest come first, so that workers end together."""
    known: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
    named = config.option.markexpr or any("::" in argument for argument in config.args)
    if not (config.option.all or named):
        longs = [item for item in items if item.get_closest_marker("long")]
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        seconds = (config.option.sample or 0) * 60
        took = {item.nodeid: known.get(item.nodeid, UNKNOWN_SECONDS) for item in longs}
        in_time = {name: one for name, one in took.items() if one <= seconds}  # no worker takes longer than asked for
        kept = sample(in_time, seconds * workers, config.option.seed)
        left_out = [item for item in longs if item.nodeid not in kept]
        config.hook.pytest_deselected(items=left_out)
        gone = {item.nodeid for item in left_out}
        items[:] = [item for item in items if item.nodeid not in gone]
    by_file: defaultdict[str, float] = defaultdict(float)
    for item in items:
        by_file[_file(item)] += known.get(item.nodeid, 0.0)
    items.sort(key=lambda item: (-by_file[_file(item)], _file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def sample(tests: Mapping[str, float], seconds: float, seed: int) -> set[str]:
    """Choose as many tests as fit into some seconds, in an order that the seed determines."""
    names = sorted(tests)
    random.Random(seed).shuffle(names)
    kept = set()
    for name in names:
        if tests[name] <= seconds:
            seconds -= tests[name]
            kept.add(name)
    return kept


class _Stopwatch:
    """Adds up the seconds of each test, with those of its fixtures, and writes them after the last test."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = json.loads(SECONDS.read_text(encoding="utf-8"))
        known |= self._seconds
        lasting = {name: round(seconds, 1) for name, seconds in sorted(known.items()) if seconds >= 1}
        SECONDS.write_text(json.dumps(lasting, indent=0) + "\n", encoding="utf-8")
