"""Input of the oracle: the items of the log, the time rules and the windows.

Also the checks that refuse impossible or contradictory settings. No judging here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Split = tuple[str, str | None]
Waiter = str | Split
"""A source, or one split of it."""
Interval = tuple[int, int]
Group = tuple[object, ...]


@dataclass(frozen=True)
class Record:
    """One record of the arrival log.

    `arrival_us` None is a dead letter `no_arrival_time`; `event_us` None is `no_timestamp` unless `bad`
    (malformed, bad_timestamp, bad_expression) says otherwise. `key` is the value of `deduplicate_by`.
    `is_let_in` says that an operator has let it in.
    """

    seq: int
    arrival_us: int | None
    event_us: int | None = None
    bad: str | None = None
    timeline: str = "[]"
    source: str = "s"
    split: str | None = None
    key: object = None
    payload: Mapping[str, object] = field(default_factory=dict)
    is_let_in: bool = False


@dataclass(frozen=True)
class Control:
    """A control item (tick, flush, reopen, wait, spec) that follows `after_seq`.

    Only a tick has a clock, only a wait waiters, which are the sources and splits that wait from there on, and only a
    spec the time rules that hold from there on.
    """

    after_seq: int
    kind: str
    clock_us: int | None = None
    waiters: frozenset[Waiter] = frozenset()
    rules: "TimeRules | None" = None


@dataclass(frozen=True)
class TimeRules:
    """The time rules of a pipeline.

    `late` and `early` are (tolerance, "drop" or "adjust"), `early` also "keep". `idle` is ("exclude_split" |
    "arrival_clock" | "window_close", timeout or None). `known_splits` are (source, value) pairs. `within_us` turns
    the duplicate rule on. `out_of_orderness_us` and, for exclude_split, the timeout may be given per source.
    """

    unit_us: int = 1
    out_of_orderness_us: int | Mapping[str, int] = 0
    out_of_order: str = "drop"
    late: tuple[int, str] | None = None
    early: tuple[int, str] | None = None
    emit_every_us: int | None = None
    idle: tuple[str, int | Mapping[str, int] | None] | None = None
    use_splits: bool = False
    known_splits: tuple[Split, ...] | None = None
    within_us: int | None = None
    processing_time: bool = False

    def tolerance_of(self, source: str) -> int:
        if isinstance(self.out_of_orderness_us, int):
            return self.out_of_orderness_us
        return self.out_of_orderness_us[source]

    def timeout_of(self, source: str) -> int:
        timeout = self.idle[1] if self.idle else None
        if timeout is None:
            raise ValueError("idle: there is no timeout")
        return timeout if isinstance(timeout, int) else timeout[source]


def one_group(_record: Record) -> Group:
    """Return the grouping of a window without `group_by`."""
    return ()


@dataclass(frozen=True)
class Window:
    """One window definition; lengths of 0 are not given.

    `gap` says how long a record keeps its session open, or None where it says no length. `gap_us` is the longest.
    `calendar` is ("day" | "month", time zone) for a tumbling window on local midnights; by months each has so many as
    `months` says, and one begins on the day `origin`, as (year, month, day). `zone` is that of the wall
    clock on which the grid of any other one is, and `split` begins a window each time its start comes. `emit` is
    "on_close", "on_time" or ("early", interval). `having` is asked about the records of a result. `across` lets the
    window go by the lowest watermark of all timelines.
    """

    name: str
    kind: str
    size_us: int = 0
    hop_us: int = 0
    offset_us: int = 0
    gap_us: int = 0
    gap: Callable[[Record], int | None] | None = None
    max_duration_us: int | None = None
    step_us: int = 0
    closed: str = "left"
    allowed_lateness_us: int = 0
    where: Callable[[Record], bool] | None = None
    group: Callable[[Record], Group] = one_group
    emit: str | tuple[str, int] = "on_close"
    revise_every_us: int = 60_000_000
    empty: bool = False
    having: Callable[[Sequence[Record]], bool] | None = None
    calendar: tuple[str, str] | None = None
    months: int = 1
    origin: tuple[int, int, int] = (1970, 1, 1)
    zone: str | None = None
    split: bool = False
    across: bool = False

    @property
    def end_is_inside(self) -> bool:
        """True if an event exactly at the end still belongs to the window."""
        return self.closed == "right" or self.kind in ("session", "sliding", "snapshot")

    @property
    def early_every_us(self) -> int | None:
        """The interval of early revisions, if they are on."""
        return None if isinstance(self.emit, str) else self.emit[1]


def refuse(wrong: bool, setting: str, why: str) -> None:
    """Raise a ValueError that names the setting when it is wrong."""
    if wrong:
        raise ValueError(f"{setting}: {why}")


def check_rules(rules: TimeRules, windows: Sequence[Window]) -> None:
    refuse(rules.unit_us not in (1, 1_000, 1_000_000), "unit_us", "is a microsecond, millisecond or second")
    per_source = rules.out_of_orderness_us
    tolerances = [per_source] if isinstance(per_source, int) else list(per_source.values())
    for tolerance in tolerances:
        refuse(tolerance < 0 or tolerance % rules.unit_us != 0, "out_of_orderness_us", "whole units, from 0 up")
    several = not isinstance(per_source, int)
    refuse(several and not rules.use_splits, "out_of_orderness_us", "per source needs use_splits")
    refuse(rules.out_of_order not in ("drop", "adjust", "keep"), "out_of_order", "is drop, adjust or keep")
    for name, rule in (("late", rules.late), ("early", rules.early)):
        refuse(rule is not None and rule[0] < 0, name, "the tolerance is from 0 up")
        policies = ("drop", "adjust", "keep") if name == "early" else ("drop", "adjust")
        refuse(rule is not None and rule[1] not in policies, name, f"the policy is one of {policies}")
    if rules.processing_time:
        timed = any(tolerances) or rules.late is not None or rules.early is not None
        refuse(timed, "processing_time", "no out_of_orderness, late or early without an event time")
    refuse(rules.emit_every_us is not None and rules.emit_every_us <= 0, "emit_every_us", "is above 0")
    refuse(rules.within_us is not None and rules.within_us < 0, "within_us", "is from 0 up")
    refuse(rules.known_splits is not None and not rules.use_splits, "known_splits", "needs use_splits")
    check_idle(rules, windows)


def check_idle(rules: TimeRules, windows: Sequence[Window]) -> None:
    if rules.idle is None:
        return
    kind, timeout = rules.idle
    refuse(kind not in ("exclude_split", "arrival_clock", "window_close"), "idle", f"unknown kind {kind}")
    if kind == "arrival_clock":
        refuse(rules.late is None or timeout is not None, "idle", "arrival_clock needs late and no timeout")
        return
    refuse(timeout is None, "idle", f"{kind} needs a timeout")
    some_across = any(window.across for window in windows)
    refuse(
        kind == "exclude_split" and not rules.use_splits and not some_across,
        "idle",
        "exclude_split needs use_splits, or a window across timelines",
    )
    if kind == "window_close":
        refuse(not windows, "idle", "window_close needs a window")
        refuse(not isinstance(timeout, int), "idle", "window_close has one timeout, not one per source")


def check_window(window: Window, rules: TimeRules) -> None:
    """Refuse a window that cannot work, or cannot work with these time rules."""
    needs = {
        "tumbling": ("size_us",),
        "hopping": ("size_us", "hop_us"),
        "session": ("gap_us",),
        "sliding": ("size_us",),
        "snapshot": (),
        "cumulative": ("size_us", "step_us"),
    }
    refuse(window.kind not in needs, "kind", f"unknown kind {window.kind}")
    if window.calendar is not None:
        refuse(window.kind != "tumbling", "calendar", "is for tumbling windows")
        refuse(window.calendar[0] not in ("day", "month"), "calendar", "is by day or month")
        refuse(window.size_us != 0, "calendar", "gives the size itself")
        refuse(window.months < 1, "months", "is from 1 up")
    else:
        for setting in needs[window.kind]:
            refuse(getattr(window, setting) <= 0, setting, f"{window.kind} needs it above 0")
    if window.kind == "cumulative":
        refuse(window.size_us % window.step_us != 0, "step_us", "the size is a whole number of steps")
    on_grid = window.kind in ("tumbling", "hopping", "cumulative")
    refuse(window.zone is not None and not on_grid, "zone", "is for windows on a grid")
    refuse(window.split and (window.zone is None or window.kind != "tumbling"), "split", "tumbling, with a zone")
    refuse(window.closed not in ("left", "right"), "closed", "is left or right")
    refuse(window.closed == "right" and not on_grid, "closed", "is for windows on a grid")
    if window.max_duration_us is not None:
        refuse(
            window.kind != "session" or window.max_duration_us <= 0,
            "max_duration_us",
            "for sessions, above 0",
        )
        refuse(rules.out_of_order == "keep", "max_duration_us", "needs out_of_order drop or adjust")
        refuse(window.across, "max_duration_us", "is not for sessions across timelines")
    check_emission(window, rules)


def check_emission(window: Window, rules: TimeRules) -> None:
    """Refuse lateness and emission settings that contradict each other or that no text defines."""
    keeps = rules.out_of_order == "keep"
    refuse(window.allowed_lateness_us < 0, "allowed_lateness_us", "is from 0 up")
    refuse(window.allowed_lateness_us > 0 and not keeps, "allowed_lateness_us", "needs out_of_order keep")
    refuse(window.emit == "on_time" and not keeps, "emit", "on_time needs out_of_order keep")
    refuse(isinstance(window.emit, str) and window.emit not in ("on_close", "on_time"), "emit", "unknown")
    every = window.early_every_us
    refuse(every is not None and (window.emit[0] != "early" or every <= 0), "emit", "('early', above 0)")
    refuse(window.revise_every_us < 0, "revise_every_us", "is from 0 up")
    once = window.emit == "on_close"
    refuse(window.max_duration_us is not None and not once, "emit", "sessions that are cut give one result")
    on_grid = window.kind in ("tumbling", "hopping", "cumulative")
    refuse(window.empty and not on_grid, "empty", "is for windows on a grid")
