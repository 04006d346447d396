"""What the fast stages give, compared with what the oracle gives, row by row."""

from collections.abc import Sequence
from typing import Any

from tests.properties.fold import Gathered
from tests.properties.logs import Log, judged_by_oracle
from tidemark.timeops.rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec


def assert_nothing_lost(logs: Sequence[Log], out: Gathered) -> None:
    """Conservation: records = ordered + held + dead letters of the stages ingest and time."""
    kept = sum(len(rows) for rows in (*out.ordered.values(), *out.held.values()))
    refused = sum(letter[1] != "window" for letters in out.letters.values() for letter in letters)
    assert sum(len(log.events) for log in logs) == kept + refused
    for name in out.windows:
        parts = ("in_windows", "in_gap", "filtered", "window_closed")
        assert out.tally["accepted"] == sum(out.tally[f"{name}.{part}"] for part in parts)


def assert_equal_to_oracle(
    log: Log,
    out: Gathered,
    time: TimeSpec,
    windows: tuple[WindowSpec, ...],
    sources: tuple[SourceTime, ...] = (),
    *,
    flush: bool,
    flushed_after: Sequence[int] = (),
) -> None:
    expected = judged_by_oracle(log, time, windows, sources=sources, flush=flush, flushed_after=flushed_after)
    behind = {"out_of_order", "kept_out_of_order"}
    ordered = [
        (e.seq, e.timestamp_us, e.release_seq is not None, e.adjusted_by)
        + ((e.watermark_us,) if set(e.adjusted_by) & behind else (None,))
        for e in expected.ordered
    ]
    # Events kept out of order pass at once, so only those in the sequence have a place to compare.
    assert [e for e in out.ordered[log.case] if e[2]] == [e for e in ordered if e[2]], log
    assert sorted(e for e in out.ordered[log.case] if not e[2]) == sorted(e for e in ordered if not e[2]), log
    held = sorted((e.seq, e.timestamp_us, e.adjusted_by) for e in expected.held)
    assert sorted(out.held[log.case]) == held, log
    assert_letters(log, out, expected.dead_letters)
    for window in windows:
        want = sorted(
            (r.window_start, r.window_end, r.group, r.events, r.revision, r.is_final, r.watermark_us)
            for r in expected.windows[window.name]
        )
        # Sorted by what is never null: a flush leaves the watermark so.
        assert sorted(out.windows[window.name][log.case], key=lambda r: r[:6]) == want, (log, window)
        # What a result holds that is not shown is nobody's business.
        hidden = [
            (r.window_start, r.window_end, r.group, r.revision, r.is_final, r.watermark_us)
            for r in expected.hidden[window.name]
            if window.revises
        ]
        taken = [(*r[:3], *r[4:]) for r in out.hidden[window.name][log.case]]
        assert sorted(taken, key=lambda r: r[:5]) == sorted(hidden, key=lambda r: r[:5]), (log, window)


def assert_letters(log: Log, out: Gathered, letters: Any) -> None:
    got = sorted((letter for event in log.events for letter in out.letters.get(str(event.seq), ())), key=str)
    want = sorted(
        (
            (
                letter.seq,
                letter.stage,
                letter.reason,
                letter.window_name,
                letter.missed_windows,
                letter.event_us,
                letter.watermark_us,
                letter.lateness_us,
                letter.watermark_set_by,
            )
            for letter in letters
        ),
        key=str,
    )
    assert got == want, log
