"""How much was refused, in words and against a limit. No Spark is started."""

import pytest

from tidemark.assets.alerts import Rate


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (Rate("", 24_184, 290_861), "8.3 % refused (24,184 of 290,861)"),
        (Rate('over ["d1"]: ', 7_151, 7_481), 'over ["d1"]: 95.6 % refused (7,151 of 7,481)'),
        (Rate("", 3, 1_000_000), "0.0003 % refused (3 of 1,000,000)"),
        (Rate("", 0, 10), "0.0 % refused (0 of 10)"),
    ],
)
def test_a_rate_says_what_it_is_made_of(rate: Rate, said: str) -> None:
    assert rate.in_words == said


def test_a_share_that_is_met_exactly_is_allowed_and_one_record_more_is_not() -> None:
    assert [Rate("", n, 1_000).beyond(0.07) for n in (69, 70, 71)] == [0, 0, 1]
    assert Rate("", 0, 0).beyond(0.0) == 0
