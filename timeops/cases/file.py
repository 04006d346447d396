"""A file of cases, read whole: all that is wrong with it, also against the spec that the cases are of.

Here: the file and what it asks of the spec. Not here: the keys of a case (transcripts.py), file access.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, Field, ValidationError

from tidemark.timeops.cases.transcripts import HELD, ORDERED, WINDOWS, Case, Row, Step
from tidemark.timeops.columns import ARRIVAL, FILE, SOURCE, SPLIT
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.problems import Path, Problem, ProblemsError, did_you_mean, problems_of, show, spec_error
from tidemark.timeops.spec import FilesSource, Spec
from tidemark.timeops.spec.arrival import keys_by_arrival
from tidemark.timeops.spec.fields import SpecModel, read_instant
from tidemark.timeops.spec.yaml_text import read_yaml

_GIVEN_BESIDE_PAYLOAD = (ARRIVAL, SOURCE, SPLIT, FILE)


class _File(SpecModel):
    cases: tuple[Case, ...] = Field(description="a list of cases")


_MODELS: Mapping[Path, type[BaseModel]] = {
    (): _File,
    ("cases",): Case,
    ("cases", "steps"): Step,
}


@dataclass(frozen=True)
class CasesFile:
    """A cases file that was read.

    Attributes:
        file: Its name.
        cases: Its cases; their names differ.
        lines: Line of each path, for messages.
    """

    file: str
    cases: tuple[Case, ...]
    lines: Mapping[Path, int] = field(repr=False)

    def complain(self, problems: Sequence[Problem]) -> None:
        """Raise SpecError with what was found out about the file later on, if anything was."""
        if problems:
            raise spec_error(self.file, problems, self.lines)


def parse_cases(text: str, spec: Spec, *, file: str) -> CasesFile:
    """Read a cases file.

    Args:
        text: What the file holds.
        spec: The spec that the cases are of.
        file: Its name, for messages.

    Raises:
        SpecError: All that is wrong with the file, each with line, key path, what was found and expected.
    """
    document = read_yaml(text, expected="a mapping with `cases`", nullable=_is_value)
    problems = list(document.problems)
    cases: tuple[Case, ...] = ()
    if document.is_readable:
        try:
            cases = _File.model_validate(document.data).cases
        except ValidationError as error:
            problems.extend(problems_of(error, _MODELS))
        else:
            problems.extend(_case_problems(cases, spec))
    read = CasesFile(file, cases, document.lines)
    read.complain(problems)
    return read


def _is_value(path: Path) -> bool:
    """Whether a place of the file holds values of rows, which may be null."""
    return bool({"records", "expect"} & set(path[:-1]))


def _case_problems(cases: Sequence[Case], spec: Spec) -> Iterator[Problem]:
    if not cases:
        yield Problem("found no case", expected="at least one", at=("cases",))
    seen: set[str] = set()
    for number, case in enumerate(cases):
        at: Path = ("cases", number)
        if case.name in seen:
            yield Problem(f"found a second case called {show(case.name)}", "distinct names", at=(*at, "name"))
        seen.add(case.name)
        for problem in (*_record_problems(case, spec), *_tick_problems(case, spec), *_table_problems(case, spec)):
            yield Problem(problem.found, problem.expected, problem.remedy, at + problem.at)


def payload_names(source: FilesSource) -> list[str]:
    """The payload columns of a source as they are called in the tables."""
    return [*source.columns_in_tables, *(["_rescued"] if source.keep_unknown else [])]


def _record_problems(case: Case, spec: Spec) -> Iterator[Problem]:
    sources = {source.name: source for source in spec.sources}
    has_arrival = False
    for at, record in case.places():
        named = record.get(SOURCE, next(iter(sources)) if len(sources) == 1 else None)
        source = sources.get(str(named))
        if source is None:
            found = f"found {show(named)}" if SOURCE in record else "the key is missing: there are several sources"
            yield Problem(found, expected=f"one of {', '.join(sources)}", at=(*at, SOURCE))
            continue
        columns = payload_names(source)
        for name in record:
            if name not in (*columns, *_GIVEN_BESIDE_PAYLOAD):
                expected = f"columns of the source: {', '.join(columns)}; or {', '.join(_GIVEN_BESIDE_PAYLOAD)}"
                yield Problem(f"unknown column `{name}`", expected, did_you_mean(name, columns), (*at, name))
        if record.get(SPLIT) is not None and not isinstance(record[SPLIT], str):
            yield Problem(f"found {show(record[SPLIT])}", "text", "put the value in quotes", (*at, SPLIT))
        if FILE in record and not mentions(source.arrival_time or "", FILE):
            found = f"`{FILE}` has no effect: the source's arrival_time does not name it"
            yield Problem(found, remedy="leave it out", at=(*at, FILE))
        yield from _arrival_problems(record, source, at, spec, is_known=has_arrival)
        has_arrival = has_arrival or ARRIVAL in record


def _arrival_problems(record: Row, source: FilesSource, at: Path, spec: Spec, *, is_known: bool) -> Iterator[Problem]:
    if source.arrival_time is not None:
        if ARRIVAL in record:
            found = f"`{ARRIVAL}` has no effect: the source's arrival_time `{source.arrival_time}` says it"
            yield Problem(found, remedy="leave it out", at=(*at, ARRIVAL))
    elif ARRIVAL in record:
        try:
            read_instant(record[ARRIVAL])
        except ProblemsError as error:
            yield from (Problem(p.found, p.expected, at=(*at, ARRIVAL)) for p in error.problems)
    elif not is_known and (keys := keys_by_arrival(spec.time, spec.windows)):
        found = f"the key is missing: {', '.join(keys)} goes by when a record arrived"
        expected = "an instant; records without one arrive together with the record before"
        yield Problem(found, expected, at=(*at, ARRIVAL))


def _tick_problems(case: Case, spec: Spec) -> Iterator[Problem]:
    for number, step in enumerate(case.steps or ()):
        if step.tick is not None and not spec.heeds_ticks:
            found = "`tick` has no effect: no rule of the spec goes by the clock alone"
            yield Problem(found, remedy="leave it out", at=("steps", number, "tick"))


def _table_problems(case: Case, spec: Spec) -> Iterator[Problem]:
    windows = {WINDOWS + window.name for window in spec.windows}
    for at, expected in case.expectations():
        for table in expected.tables:
            if table.startswith(WINDOWS) and table not in windows:
                yield _unknown_window(table, windows, (*at, table))
            elif table in (ORDERED, HELD) and not spec.outputs.ordered_events:
                found = f"the spec writes no `{table}`: outputs.ordered_events is false"
                yield Problem(found, remedy="leave it out", at=(*at, table))


def _unknown_window(table: str, windows: Iterable[str], at: Path) -> Problem:
    known = sorted(windows)
    expected = f"one of {', '.join(known)}" if known else "none: the spec has no windows"
    return Problem(f"the spec has no `{table}`", expected, did_you_mean(table, known), at)
