"""The loop that the demo of joins compares its rows with, and what it says where they differ."""

from datetime import UTC, datetime
from pathlib import Path

from tidemark.pipelines.demos.weather import TABLE, difference, joined, land_weather

FLIGHTS = """\
year,month,day,sched_dep_time,dep_delay,carrier,flight,origin,dest
2013,1,1,517,2,UA,1545,EWR,IAH
2013,1,1,555,5,UA,1,EWR,IAH
2013,1,1,959,0,AA,2,EWR,MIA
2013,1,1,600,NA,AA,3,EWR,MIA
2013,7,1,600,0,DL,4,EWR,ATL
"""
WEATHER = """\
origin,temp,wind_speed,precip,visib,time_hour
EWR,39.02,10.35702,0,10,2013-01-01T10:00:00Z
EWR,NA,8.05546,0,0.5,2013-01-01T11:00:00Z
JFK,1,1,1,1,2013-01-01T12:00:00Z
EWR,70,3,0,10,2013-07-01T10:00:00Z
"""


def rows(folder: Path) -> list[tuple[object, ...]]:
    for name, text in (("flights", FLIGHTS), ("weather", WEATHER)):
        (folder / name).mkdir()
        (folder / name / "a.csv").write_text(text)
    return list(joined(folder / "flights", folder / "weather"))


def at(hour: int, minute: int = 0, month: int = 1) -> datetime:
    return datetime(2013, month, 1, hour, minute, tzinfo=UTC)


def test_the_loop_takes_the_last_observation_of_the_airport_at_most_two_hours_old(tmp_path: Path) -> None:
    nothing = (None,) * 5
    assert rows(tmp_path) == [
        (at(10, 19), "UA", 1545, "EWR", "IAH", 2, at(10), 39.02, 10.35702, 0.0, 10.0),
        (at(11), "UA", 1, "EWR", "IAH", 5, at(11), None, 8.05546, 0.0, 0.5),
        (at(14, 59), "AA", 2, "EWR", "MIA", 0, *nothing),
        (at(10, month=7), "DL", 4, "EWR", "ATL", 0, at(10, month=7), 70.0, 3.0, 0.0, 10.0),
    ]


def test_a_row_that_is_missing_or_there_too_often_is_said(tmp_path: Path) -> None:
    expected = rows(tmp_path)
    assert difference(reversed(expected), expected) == ""
    said = difference([*expected[1:], expected[1]], expected)
    assert said.startswith(f"1 rows are missing from {TABLE}, and 1 are there that should not be; the first one: (")
    assert "1545" in said


def test_the_weather_is_landed_once(tmp_path: Path) -> None:
    land_weather(tmp_path)
    [place] = tmp_path.iterdir()
    place.write_text("kept")
    land_weather(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]
