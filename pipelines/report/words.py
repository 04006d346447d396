"""The settings of a pipeline in words, for people who have not read its spec.

Here: sentences. Not here: numbers of what has happened (accounts.py).
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from markupsafe import Markup

from tidemark.pipelines.terminal import instant_us
from tidemark.timeops.durations import format_duration
from tidemark.timeops.spec import Source, Spec, TimeSpec, TolerancePolicy, WindowSpec
from tidemark.timeops.spec.event_time import Periodic
from tidemark.timeops.spec.window import Early

_OUT_OF_ORDER = {
    "drop": "An event behind the watermark is refused, with a dead letter.",
    "adjust": "An event behind the watermark is moved to it.",
    "keep": "An event behind the watermark keeps its time; the windows decide whether it is too late.",
}
_IDLE = {
    "exclude_split": "A split that is silent{for_so_long} no longer holds the watermark back.",
    "arrival_clock": "The watermark stays at most the late tolerance behind the latest arrival.",
    "window_close": "Windows close although no event comes{for_so_long}.",
}

Lines = list[tuple[str, str]]
"""The subject and the text about it: plain, or Markup in which the spec's own text is escaped."""


def of_sources(spec: Spec) -> Lines:
    """Return a line for each source: what is read."""
    return [(source.name, _source(source)) for source in spec.sources]


def of_time(spec: Spec) -> Lines:
    """Return lines on what event time is, how the watermark follows it, and what is refused."""
    time = spec.time
    lines: Lines = [("Event time", _event_time(time)), ("Watermark", _joined(_watermark(spec)))]
    lines.append(("Out of order", _OUT_OF_ORDER[time.out_of_order]))
    if time.late is not None:
        lines.append(("Late", _off("arrives more than {} after its event time", time.late)))
    if time.early is not None:
        lines.append(("Early", _off("has an event time more than {} ahead of its arrival", time.early)))
    if time.deduplicate_by and time.within is not None:
        said = Markup("Of records with the same {} and event times at most {} apart the first counts.")
        lines.append(("Duplicates", said.format(_codes(time.deduplicate_by), format_duration(time.within))))
    if time.start_at is not None:
        lines.append(("Start", f"Results for whole windows from {instant_us(time.start_us)} UTC on."))
    if time.flushes():
        lines.append(("End of input", "When all input is read, everything is released and closed."))
    return lines


def of_window(window: WindowSpec) -> str:
    """Describe a window, and when it has results."""
    parts: list[str] = [_shape(window)]
    if window.input is not None:
        parts.append(Markup("Over the final results of {}, each at its end.").format(code(window.input)))
    if window.group_columns:
        parts.append(Markup("One row for each {}.").format(_codes(window.group_columns)))
    if window.where is not None:
        parts.append(Markup("Only events where {}.").format(code(window.where)))
    if window.having is not None:
        parts.append(Markup("Only results where {}.").format(code(window.having)))
    if window.allowed_lateness:
        what = "late events" if window.input is None else "results of late events"
        parts.append(f"Takes {what} for {format_duration(window.allowed_lateness)} after its end.")
    if isinstance(window.emit, Early):
        every = format_duration(window.emit.early)
        parts.append(f"Makes results before it closes, every {every} in which events came, and the last one then.")
    elif window.emit == "on_time":
        parts.append("Makes a result at its end, and revises it for late events until it closes.")
    return _joined(parts)


def _source(source: Source) -> str:
    arrival = code(source.arrival_time) if source.arrival_time else source.ARRIVAL
    parts: list[str] = [Markup("{} {}; a record arrived at {}.").format(source.what, code(source.place), arrival)]
    if source.timestamp_by:
        parts.append(Markup("Event time here: {}.").format(code(source.timestamp_by)))
    if source.split:
        parts.append(Markup("Split by {}.").format(code(source.split)))
    if source.out_of_orderness is not None:
        parts.append(Markup("Out-of-orderness here: {}.").format(format_duration(source.out_of_orderness)))
    return _joined(parts)


def _event_time(time: TimeSpec) -> str:
    if time.timestamp_by is None:
        return "When a record arrived, where its source says nothing else."
    parts: list[str] = [Markup("{}.").format(code(time.timestamp_by))]
    if time.time_zone != "UTC":
        parts.append(f"Times without a zone are those of {time.time_zone}.")
    if time.unit != "microsecond":
        parts.append(f"Rounded down to the {time.unit}.")
    return _joined(parts)


def _off(by: str, policy: TolerancePolicy) -> str:
    what = "is refused" if policy.policy == "drop" else "is moved to the edge of that"
    return f"An event that {by.format(format_duration(policy.tolerance))} {what}."


def _watermark(spec: Spec) -> Iterator[str]:
    time = spec.time
    far = (
        f"{format_duration(time.out_of_orderness)} behind the newest event"
        if time.out_of_orderness
        else "at the newest event"
    )
    yield f"Stays {far}{' of the slowest split' if spec.uses_splits else ''}; what is older is final."
    if time.over:
        yield Markup("Each {} has a watermark of its own (a timeline).").format(_codes(time.over))
    if isinstance(time.emit, Periodic):
        yield f"Events see it move once every {format_duration(time.emit.every)} of the clock of arrivals."
    if time.idle is not None:
        for_so_long = f" for {format_duration(time.idle.timeout)}" if time.idle.timeout else ""
        yield _IDLE[time.idle.advance].format(for_so_long=for_so_long)


def _shape(window: WindowSpec) -> str:
    lengths = {
        "size": window.size,
        "hop": window.hop,
        "step": window.step,
        "gap": window.gap,
        "at most": window.max_duration,
    }
    said = [f"{name} {_length(value)}" for name, value in lengths.items() if value]
    zone = [f"days of {window.time_zone}"] if window.time_zone else []
    return f"{window.kind.capitalize()} window{': ' if said else ''}{', '.join([*said, *zone])}."


def code(expression: str) -> Markup:
    """Return an expression in one line, as code."""
    return Markup("<code>{}</code>").format(" ".join(expression.split()))


def _codes(expressions: Iterable[str]) -> Markup:
    return Markup(", ").join(code(one) for one in expressions)


def _joined(sentences: Iterable[str]) -> Markup:
    return Markup(" ").join(sentences)


def _length(length: timedelta | str) -> str:
    return length if isinstance(length, str) else format_duration(length)
