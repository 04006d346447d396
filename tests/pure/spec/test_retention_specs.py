"""The key `retention`: what is refused, and that a change of it changes no result."""

from typing import Any

import pytest

from tests.pure.spec.specs import SMALL, changed, message, parse

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "records that rates compare": (
        {"raw_events": "1 day"},
        "retention.raw_events: `raw_events` is shorter than two periods of `alerts.dead_letter_rate`",
    ),
    "hours": ({"dead_letters": "36 hours"}, "retention.dead_letters: found 36 hours, which are not whole days"),
    "nothing": ({"windows": "0 days"}, "retention.windows: "),
    "no key": ({}, "retention: no key is set, so nothing is ever removed"),
    "letters that rates compare": (
        {"dead_letters": "1 day"},
        "retention.dead_letters: `dead_letters` is shorter than two periods of `alerts.dead_letter_rate`",
    ),
    "another key": ({"held_events": "9 days"}, "unknown key `held_events`"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_length_that_cannot_be_kept_is_refused_with_its_key(wrong: str) -> None:
    keys, said = WRONG[wrong]
    assert said in message(changed("retention", keys))


def test_a_length_without_effect_is_refused() -> None:
    no_events = changed("outputs", {"ordered_events": False}, changed("retention", {"ordered_events": "9 days"}))
    assert "`ordered_events` has no effect with `outputs: {ordered_events: false}`" in message(no_events)
    no_results = changed("windows", ..., changed("retention", {"windows": "9 days"}))
    assert "`windows` has no effect without windows and joins" in message(no_results)


def test_records_of_a_log_that_is_corrected_stay() -> None:
    source = {"name": "orders", "kind": "delta", "path": "orders", "schema": "t TIMESTAMP", "changes": "follow"}
    spec = changed("sources", [source], changed("retention", {"raw_events": "400 days"}))
    assert "`raw_events` with `changes: follow` of `orders`: a correction computes all tables again" in message(spec)
    source["changes"] = "rows"
    assert parse(changed("sources", [source], spec)).retention is not None


def test_how_long_rows_stay_is_no_change_of_the_spec_and_comes_in_any_unit_that_makes_days() -> None:
    plain, kept = (
        parse(SMALL),
        parse(changed("retention", {"windows": "2 weeks", "dead_letters": "48 h", "raw_events": "400 days"})),
    )
    assert kept.fingerprint() == plain.fingerprint()
    assert kept.retention is not None
    days = {key: None if length is None else length.days for key, length in kept.retention.of.items()}
    assert days == {"raw_events": 400, "dead_letters": 2, "ordered_events": None, "windows": 14}
