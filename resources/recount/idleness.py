"""The effect of splits, silences and periods of emission on a watermark, for the recount: SQL of its own.

Here: SQL that shares no code with timeops. Not here: event times (records.py), the recount itself (late_drops.py).
"""

from tidemark.resources.recount.records import (
    FIRST_US,
    EndsOfWindow,
    RecountRules,
    SourceRules,
    by_source,
    literal,
    text_literal,
    tolerance_of,
)


def period_of(clock: str, every_us: int) -> str:
    """Return SQL of the start of a period of emission."""
    return f"{clock} - pmod({clock}, {every_us}L)"


def by_clock(rules: RecountRules) -> str:
    """Return SQL of the watermark that the clock alone sets at an event."""
    if rules.clock_tolerance_us is None:
        return "CAST(NULL AS BIGINT)"
    reached = f"greatest(clock_now - {rules.clock_tolerance_us}L, {FIRST_US}L)"
    return f"{reached} - pmod({reached}, {rules.unit_us}L)"


def watched_with_watchers(rules: RecountRules, every_us: int) -> str:
    """Return SQL of `watched`: the records of `events`, with watchers between them, at most one a period."""
    period, start_us = period_of("clock_now", every_us), literal(rules.start_clock_us)
    start = f"IF({start_us} < period, {start_us}, {literal(rules.start_ended_us)})"
    return f"""ended AS (
  SELECT period, coalesce(
    max(max(clock_now)) OVER (ORDER BY period ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), {start}) AS ended
  FROM (SELECT clock_now, {period} AS period FROM {{log}} WHERE clock_now IS NOT NULL) GROUP BY period
), watchers AS (
  SELECT line, period, min(seq) AS first_seq
  FROM (SELECT line, seq, {period} AS period FROM events WHERE active) GROUP BY line, period
), watched AS (
  SELECT line, 2 * seq + 1 AS seq, source, part, clock_now, own_clock, active, t FROM events
  UNION ALL
  SELECT line, 2 * first_seq AS seq, NULL, NULL, ended, NULL, true, NULL
  FROM watchers JOIN ended USING (period) LEFT JOIN {{timelines}} ON line = _timeline
  WHERE ended IS NOT NULL AND coalesce(last_clock < period, true)
)"""


def before_and_after(rules: RecountRules) -> str:
    """Return SQL of `asked`: `line`, `seq`, `clock_now`, `t`, `before` and `after`, the watermarks asked for.

    `before` is from the clock before a record, `after` from its events on.
    """
    excludes, by_windows = rules.idle == "exclude_split", rules.idle == "window_close"
    if rules.uses_splits:
        found = _of_splits(rules, excludes=excludes)
    else:
        found = f"""of_splits AS (
  SELECT line, seq, CAST(NULL AS BIGINT) AS left_before,
    greatest(t - {tolerance_of(rules)}, IF(t IS NOT NULL, {FIRST_US}L, NULL)) AS lowest_after
  FROM watched WHERE active
)"""
    before = "left_before" if excludes else by_clock(rules)
    if by_windows:
        before = f"closed - pmod(closed, {rules.unit_us}L)"
        found += ", " + _of_windows(rules)
    joined = "JOIN of_windows USING (line, seq)" if by_windows else ""
    return f"""{found}, asked AS (
  SELECT line, seq, clock_now, t, {before} AS before, IF(t IS NOT NULL, lowest_after, NULL) AS after
  FROM watched JOIN of_splits USING (line, seq) {joined}
  WHERE active
)"""


def _of_splits(rules: RecountRules, *, excludes: bool) -> str:
    sources, tolerance, first = rules.sources, tolerance_of(rules, "of"), literal(rules.first_clock_us)
    timeout = by_source({source.name: source.idle_timeout_us for source in sources}, "of")
    listed = [f"struct('{s.name}' AS of, {text_literal(value)} AS part)" for s in sources for value in s.splits]
    none = "array(CAST(NULL AS STRUCT<of: STRING, part: STRING>))"
    reading = by_source({s.name: _reading_of(s, "clock_now", "part") for s in sources}, "of")
    own_reading = by_source(
        {s.name: _reading_of(s, "w.clock_now", "p.part", has_record=True) for s in sources}, "p.of"
    )
    active_before = f"{reading} < last_before + {timeout}" if excludes else "true"
    active_after = f"{reading} < last_after + {timeout}" if excludes else "true"
    own = "w.source = p.of AND w.part <=> p.part"
    rows = "PARTITION BY p.line, p.of, p.part ORDER BY w.seq ROWS BETWEEN UNBOUNDED PRECEDING AND"
    return f"""listed AS (
  SELECT line, one.of, one.part, true AS is_listed
  FROM (SELECT DISTINCT line, explode({f"array({', '.join(listed)})" if listed else none}) AS one
        FROM watched WHERE active) WHERE one IS NOT NULL
), carried AS (
  SELECT _timeline AS line, one.source AS of, one.split AS part, one.max_t, one.last_clock
  FROM (SELECT _timeline, explode(splits) AS one FROM {{timelines}})
), parts AS (
  SELECT line, of, part, any_value(max_t) IGNORE NULLS AS max_t,
    coalesce(max(last_clock), IF(bool_or(is_listed), {first}, NULL)) AS last_clock,
    coalesce(bool_or(is_listed), false) AS is_listed
  FROM (
    SELECT DISTINCT line, source AS of, part, CAST(NULL AS BIGINT) AS max_t, CAST(NULL AS BIGINT) AS last_clock,
      false AS is_listed FROM watched WHERE active AND source IS NOT NULL
    UNION ALL SELECT line, of, part, max_t, last_clock, false FROM carried
    UNION ALL SELECT line, of, part, NULL, NULL, is_listed FROM listed)
  GROUP BY line, of, part
), each AS (
  SELECT p.line, w.seq, w.clock_now, p.of, p.part, p.is_listed,
    greatest(p.max_t, max(IF({own}, w.t, NULL)) OVER ({rows} 1 PRECEDING)) AS t_before,
    greatest(p.max_t, max(IF({own}, w.t, NULL)) OVER ({rows} CURRENT ROW)) AS t_after,
    greatest(p.last_clock, max(IF({own}, {own_reading}, NULL)) OVER ({rows} 1 PRECEDING)) AS last_before,
    greatest(p.last_clock, max(IF({own}, {own_reading}, NULL)) OVER ({rows} CURRENT ROW)) AS last_after
  FROM watched w JOIN parts p ON w.line = p.line WHERE w.active
), valued AS (
  SELECT *, IF(t_before IS NULL, NULL, greatest(t_before - {tolerance}, {FIRST_US}L)) AS value_before,
    IF(t_after IS NULL, NULL, greatest(t_after - {tolerance}, {FIRST_US}L)) AS value_after,
    {active_before} AND (t_before IS NOT NULL OR is_listed) AS counts_before,
    {active_after} AND (t_after IS NOT NULL OR is_listed) AS counts_after
  FROM each
), of_splits AS (
  SELECT line, seq, {_lowest("before")} AS left_before, {_lowest("after")} AS lowest_after
  FROM valued GROUP BY line, seq
)"""


def _lowest(when: str) -> str:
    """Return SQL of the lowest active split; of the highest if all are idle; null while a listed one is awaited."""
    counts, value = f"counts_{when}", f"value_{when}"
    return (
        f"CASE WHEN count_if({counts}) = 0 THEN max({value}) "
        f"WHEN count_if({counts} AND {value} IS NULL) = 0 THEN min(IF({counts}, {value}, NULL)) END"
    )


def _reading_of(source: SourceRules, clock: str, split: str, *, has_record: bool = False) -> str:
    """Return SQL of a clock less the waits of a source, and of splits that waited alone; a record ends a wait."""
    since_us = None if has_record else source.waits_since_us
    found = _reading(clock, since_us, source.waited_us)
    if not source.waits_of_splits:
        return found
    cases = []
    for name, (waited_us, alone_since_us) in source.waits_of_splits.items():
        of_split = since_us if has_record or alone_since_us is None else alone_since_us
        cases.append(f"WHEN {text_literal(name)} THEN {_reading(clock, of_split, source.waited_us + waited_us)}")
    return f"CASE {split} {' '.join(cases)} ELSE {found} END"


def _reading(clock: str, waits_since_us: int | None, waited_us: int) -> str:
    """Return SQL of a clock less the waits; the reading does not move during a wait."""
    return f"{clock} - {waited_us}L" if waits_since_us is None else f"{waits_since_us - waited_us}L"


def _of_windows(rules: RecountRules) -> str:
    """Return SQL of `of_windows`: the highest close time that the clock has reached before a record.

    The waits are about any source: no timeline is silent meanwhile.
    """
    windows, waits_since_us, waited_us = rules.windows, rules.waits_since_us, rules.waited_us
    rows = "PARTITION BY line ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    now = "clock_now" if waits_since_us is None else f"{waits_since_us}L"
    reached = f"{now} - 1L - {rules.idle_timeout_us or 0}L"
    own = _reading("own_clock", waits_since_us, waited_us)
    latest = [f"greatest(max_close[{i}], max({_close_of(w)}) OVER ({rows}))" for i, w in enumerate(windows)]
    closed = [
        f"IF(latest{i} IS NULL, NULL, least(latest{i}, {_last_close(w, reached)}))"
        if w.after_event_us is None
        else f"IF(latest{i} <= {reached}, latest{i}, NULL)"
        for i, w in enumerate(windows)
    ]
    columns = "".join(f", {text} AS latest{i}" for i, text in enumerate(latest))
    return f"""silent AS (
  SELECT line, seq, clock_now, greatest(last_clock, max({own}) OVER ({rows})) + {waited_us}L AS last_now{columns}
  FROM watched LEFT JOIN {{timelines}} ON line = _timeline WHERE active
), of_windows AS (
  SELECT line, seq, IF(last_now <= {reached}, greatest({", ".join(closed)}, CAST(NULL AS BIGINT)), NULL) AS closed
  FROM silent
)"""


def _close_of(window: EndsOfWindow) -> str:
    """Return SQL of the close time of the last window that holds t; null in a gap."""
    later_us, inside = window.allowed_lateness_us + window.delay_us, f"(t - {window.inside_us}L)"
    if window.calendar is not None:
        return f"{_midnight(window.calendar, inside, 1)} + {later_us}L"
    if window.grid is None:
        return f"t + {(window.after_event_us or 0) + later_us}L"
    offset_us, size_us, begins_every_us, _ = window.grid
    end = f"{inside} - pmod({inside} - {offset_us}L, {begins_every_us}L) + {size_us}L"
    return f"IF({inside} < {end}, {end} + {later_us}L, NULL)"


def _last_close(window: EndsOfWindow, limit: str) -> str:
    """Return SQL of the latest close time that is at most a limit."""
    later_us = window.allowed_lateness_us + window.delay_us
    if window.calendar is not None:
        return f"{_midnight(window.calendar, f'({limit} - {later_us}L)', 0)} + {later_us}L"
    if window.grid is None:
        return limit
    offset_us, size_us, _, ends_every_us = window.grid
    return f"({limit}) - pmod({limit} - {offset_us + size_us + later_us}L, {ends_every_us}L)"


def _midnight(calendar: tuple[str, str], instant: str, later: int) -> str:
    """Return SQL of the local midnight at the beginning of an instant's day or month, or of a later one."""
    unit, zone = calendar
    first = f"date_trunc('{unit}', from_utc_timestamp(timestamp_micros({instant}), '{zone}'))"
    return f"unix_micros(to_utc_timestamp({first} + INTERVAL {later} {unit}, '{zone}'))"
