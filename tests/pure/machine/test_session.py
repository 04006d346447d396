"""Which zones of a session are UTC, under whatever name the machine has it."""

import pytest

from tidemark.timeops.session import is_utc


@pytest.mark.parametrize(
    "zone",
    ["UTC", "Etc/UTC", "Zulu", "Etc/Universal", "UCT", "GMT", "Etc/GMT-0", "Greenwich", "UT", "Z", "+00:00", "UTC+0"],
)
def test_utc_has_many_names(zone: str) -> None:
    assert is_utc(zone)


@pytest.mark.parametrize(
    "zone", ["Europe/London", "Africa/Abidjan", "Etc/GMT+1", "+01:00", "UTC-00:30", "nonsense", "../UTC", ""]
)
def test_a_zone_that_was_ever_at_another_offset_is_not_utc(zone: str) -> None:
    assert not is_utc(zone)
