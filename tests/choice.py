"""Which tests a run takes, and in what order: the short ones, all of them, or a sample of the long ones beside them.

Here: options, what is left out, the order. Not here: how long tests took (durations.py), what a test does.
"""

import json
import os
import random
from collections.abc import Mapping

import pytest

from tests.durations import SECONDS, by_file, file_of

UNKNOWN_SECONDS = 20.0  # of a long test that was never measured


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tidemark")
    group.addoption("--all", action="store_true", help="run the tests that are marked `long` too")
    group.addoption(
        "--sample", type=float, metavar="MINUTES", help="run a sample of them that takes so long, by seed"
    )


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
    files = {file_of(item.nodeid) for item in items}
    seconds_of = by_file({name: known.get(name, 0.0) for name in (*(item.nodeid for item in items), *files)})
    items.sort(key=lambda item: (-seconds_of[file_of(item.nodeid)], file_of(item.nodeid)))


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
