"""How long tests take: seconds.json, and the table at the end of a run that says where its time went.

Here: the stopwatch. Not here: the order of tests and the sample of long ones, which go by it (choice.py).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
"""Seconds of each test that is long or takes a second, with its fixtures; under a file's name those of its others."""
_LONGEST_FILES = 12
_SHORT_RUN_S = 60.0  # of all workers: a run of a few tests needs no table


def file_of(test: str) -> str:
    """Return the file of a test, by its name in pytest."""
    return test.partition("::")[0]


def by_file(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of all tests of each file."""
    added: defaultdict[str, float] = defaultdict(float)
    for test, took in seconds.items():
        added[file_of(test)] += took
    return dict(added)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tidemark").addoption(
        "--write-seconds", action="store_true", help=f"write how long tests took to {SECONDS.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch())


class Stopwatch:
    """Adds up the seconds of each test, with those of its fixtures."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._fixtures: defaultdict[str, float] = defaultdict(float)
        self._long: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when != "call":
            self._fixtures[report.nodeid] += report.duration
        if "long" in report.keywords:
            self._long.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.write_seconds:
            known: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
            text = json.dumps(merged(known, self._seconds, self._long), indent=0) + "\n"
            SECONDS.write_text(text, encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self._seconds.values()) >= _SHORT_RUN_S:
            terminalreporter.section("where the time went, in seconds of all workers")
            for line in table(self._seconds, self._fixtures):
                terminalreporter.line(line)


def merged(known: Mapping[str, float], measured: Mapping[str, float], long: Collection[str]) -> dict[str, float]:
    """Return the seconds to keep: of each test that is long or takes a second, and by file of the others together.

    The sample takes a long test without seconds for one of 20, so each has some. A run of some shorter tests of a
    file replaces the sum of all of them: pass `--write-seconds` to whole files.
    """
    of_its_own = {test: took for test, took in measured.items() if took >= 1 or test in long}
    kept = {test: took for test, took in known.items() if test not in measured}
    kept |= {test: max(took, 0.1) for test, took in of_its_own.items()}
    kept |= by_file({test: took for test, took in measured.items() if test not in of_its_own})
    return {test: round(took, 1) for test, took in sorted(kept.items()) if took >= 0.1}


def table(seconds: Mapping[str, float], fixtures: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines for each room of tests, such as `tests/pure`, and for the files that took longest."""
    of_file, files = by_file(seconds), by_file(fixtures)
    tests = Counter(map(file_of, seconds))
    rooms: defaultdict[str, list[str]] = defaultdict(list)
    for file in of_file:
        rooms["/".join(Path(file).parts[:2])].append(file)
    yield f"{'':60} {'tests':>6} {'seconds':>8} {'fixtures':>8}"
    for room, inside in sorted(rooms.items(), key=lambda item: -sum(of_file[file] for file in item[1])):
        yield _line(
            room, sum(tests[file] for file in inside), *(sum(s.get(f, 0) for f in inside) for s in (of_file, files))
        )
    yield ""
    for file in sorted(of_file, key=lambda name: -of_file[name])[:_LONGEST_FILES]:
        yield _line(file, tests[file], of_file[file], files.get(file, 0.0))


def _line(name: str, tests: int, seconds: float, fixtures: float) -> str:
    return f"{name:60} {tests:6,} {seconds:8,.0f} {fixtures:8,.0f}"
