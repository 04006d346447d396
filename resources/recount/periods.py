"""What periods of emission publish of silences, for the recount of late drops: SQL of its own.

Here: watchers. Not here: what the clock gives before a record (idleness.py). A watcher is a record that
nobody sent, on the timeline of a period's first event: it stands just before this event, came with the last record of
the log before the period, asks for nothing and ends no silence. So what the clock gives before it is what the period
publishes, and the queries need not know of periods. The pipeline goes another way: it asks what the silence before
the first event would have given at an earlier clock.
"""


def watched_with_watchers(every_us: int, start_us: int | None, start_ended_us: int | None) -> str:
    """SQL of `watched`: the records of `events`, and watchers between them.

    Args:
        every_us: Length of a period, microseconds.
        start_us: The clock before the range of the log.
        start_ended_us: The clock of the last record before the period in which that one lies.
    """
    period = f"clock_now - pmod(clock_now, {every_us}L)"
    start = f"IF({_number(start_us)} < period, {_number(start_us)}, {_number(start_ended_us)})"
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


def _number(us: int | None) -> str:
    return "CAST(NULL AS BIGINT)" if us is None else f"{us}L"
