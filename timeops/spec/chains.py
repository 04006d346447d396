"""Windows over windows: which window may take the results of which, and the columns that lead back to timelines.

Here: the key `from` of a spec's windows. Not here: results as events (windows/over_results.py), other rules
(pipeline.py).
"""

from collections.abc import Iterable, Mapping, Sequence

from tidemark.timeops.durations import format_duration
from tidemark.timeops.expressions.tokens import normal_form, plain_column
from tidemark.timeops.problems import Path, Problem, did_you_mean
from tidemark.timeops.spec.window import WindowSpec


def chain_problems(windows: Mapping[int, WindowSpec]) -> Iterable[Problem]:
    """What is wrong between windows and those whose results they take.

    Args:
        windows: The windows that could be read, by their position in the file.
    """
    for position, window in windows.items():
        if window.input is None:
            continue
        at: Path = ("windows", position, "from")
        inputs = inputs_of(window, windows.values())
        names = [one.name for one in windows.values() if one.name != window.name]
        if not inputs:
            found = f"there is no window called `{window.input}`"
            yield Problem(found, "the name of another window", did_you_mean(window.input, names), at)
        elif inputs[0].input is not None:
            found = f"`{window.input}` takes the results of this window in turn"
            yield Problem(found, "windows that lead back to one of events", at=at)
        elif inputs[-1].empty:
            found = f"`{window.input}` has `empty: true`: some of its rows may come when this window is closed"
            yield Problem(found, "a window whose rows are all given when it closes", at=at)
        elif window.allowed_lateness < inputs[-1].allowed_lateness:
            found = (
                f"found {format_duration(window.allowed_lateness)}, less than that of `{window.input}`, whose "
                "results would come when this window is closed"
            )
            expected = f"at least {format_duration(inputs[-1].allowed_lateness)}"
            yield Problem(found, expected, at=("windows", position, "allowed_lateness"))


def inputs_of(window: WindowSpec, windows: Iterable[WindowSpec]) -> list[WindowSpec]:
    """The windows whose results lead to a window, the one of events first; none for a window of events.

    Where windows lead back to each other, which is an error, the first takes results too.
    """
    by_name = {one.name: one for one in windows}
    found: list[WindowSpec] = []
    name = window.input
    while name in by_name and by_name[name] not in found:
        found.append(by_name[name])
        name = found[-1].input
    return found[::-1]


def input_of(window: WindowSpec, windows: Iterable[WindowSpec]) -> WindowSpec:
    """The window whose results a window takes."""
    return inputs_of(window, windows)[-1]


def inputs_first(windows: Sequence[WindowSpec]) -> tuple[WindowSpec, ...]:
    """The windows in an order in which each stands behind those that it goes over."""
    return tuple(sorted(windows, key=lambda window: len(inputs_of(window, windows))))


def missing_of_over(window: WindowSpec, windows: Iterable[WindowSpec], over: Sequence[str]) -> list[str]:
    """What a window has to group by and does not: the expressions of `over`, or the columns that hold them."""
    inputs = inputs_of(window, windows)
    if window.input is not None and (not inputs or inputs[0].input is not None):
        return []  # there is a problem with `from`, and nothing to know of columns
    asked = over
    for one in inputs:
        asked = _columns_of(one, asked)
    grouped = {normal_form(expression) for _, expression in window.group_expressions}
    return [expression for expression in asked if normal_form(expression) not in grouped]


def timeline_columns(window: WindowSpec, windows: Iterable[WindowSpec], over: Sequence[str]) -> tuple[str, ...]:
    """The columns of a window's results that hold the values of `over`, as expressions, in its order."""
    asked = tuple(over)
    for one in (*inputs_of(window, windows), window):
        asked = _columns_of(one, asked)
    return asked


def _columns_of(window: WindowSpec, asked: Sequence[str]) -> tuple[str, ...]:
    """The columns of results that hold what is asked for; what a window lacks is an error of its own."""
    names = {normal_form(expression): name for name, expression in window.group_expressions}
    return tuple(_quoted(names.get(normal_form(expression), expression)) for expression in asked)


def _quoted(name: str) -> str:
    return name if plain_column(name) else f"`{name}`"
