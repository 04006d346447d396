"""Time zones that only one of Java and Python knows, or by other rules, are refused with a sentence."""

import json
import zoneinfo
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import tidemark as tm
from tidemark.pipelines.cli import main
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import python_rows
from tidemark.timeops.calendar.zones import first_difference, java_release
from tidemark.timeops.errors import SpecError


@pytest.fixture
def other_rules(tmp_path: Path) -> Iterator[None]:
    """Yield a Python that has Bangkok's rules for Asia/Seoul, as one of another release has other rules."""
    (tmp_path / "zones" / "Asia").mkdir(parents=True)
    rules = files("tzdata") / "zoneinfo" / "Asia" / "Bangkok"
    (tmp_path / "zones" / "Asia" / "Seoul").write_bytes(rules.read_bytes())
    zoneinfo.reset_tzpath([str(tmp_path / "zones")])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


def spec(folder: Path, zone: str) -> str:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "a.jsonl").write_text('{"at": "2026-05-01T00:00:00Z"}\n')
    (folder / "p.yaml").write_text(f"""
name: p
sources: [{{name: s, kind: files, path: in/*.jsonl, format: json, settle: 0 s, schema: at STRING}}]
time: {{timestamp_by: at}}
windows: [{{name: by_day, kind: tumbling, size: 1 day, aggregates: {{n: count(*)}}, time_zone: {zone}}}]
""")
    return str(folder / "p.yaml")


def test_a_zone_that_java_lacks_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    path = spec(tmp_path, "Factory")  # a zone of the IANA data base that Java leaves out
    for command in ("validate", "run"):
        done = CliRunner().invoke(main, [command, path, "--warehouse", str(tmp_path / "wh")], catch_exceptions=False)
        assert done.exit_code == 2
        assert (
            "windows[0].time_zone: `Factory` is unknown to Java, whose time zone data are of release 20"
            in done.stderr
        )
        assert "update Java" in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "wh" / "p" / "raw_events").exists()


def test_a_zone_with_other_rules_in_java_is_refused_with_the_first_instant(
    spark: SparkSession, tmp_path: Path, other_rules: None
) -> None:
    done = CliRunner().invoke(main, ["validate", spec(tmp_path, "Asia/Seoul")], catch_exceptions=False)
    assert done.exit_code == 2
    assert "windows[0].time_zone: `Asia/Seoul` has different rules in two databases: at 19" in done.stderr
    assert "its offset is +09:00 by Java's (release 20" in done.stderr
    assert "and +07:00 by Python's" in done.stderr


def test_a_zone_that_java_lacks_is_refused_in_the_library_too(spark: SparkSession) -> None:
    events = spark.createDataFrame([("2026-05-01 12:00:00",)], "at STRING")
    with pytest.raises(SpecError, match=r"time_zone: `Factory` is unknown to Java"):
        tm.adjust(events, {"timestamp_by": "at", "time_zone": "Factory"}, arrival_time="at")
    judged = tm.adjust(events, {"timestamp_by": "at"}, arrival_time="at")
    by_day = {"name": "d", "kind": "tumbling", "size": "1 day", "aggregates": {"n": "count(*)"}}
    with pytest.raises(SpecError, match=r"time_zone: `Factory` is unknown to Java"):
        tm.windows(judged, {**by_day, "time_zone": "Factory"})


def test_offsets_differ_from_the_first_quarter_of_an_hour_on_at_which_they_do() -> None:
    same, moved = (3600,) * 97, (3600,) * 8 + (7200,) * 89
    later = (3600,) * 9 + (7200,) * 88
    assert first_difference({0: same, 90: moved}, {0: same, 90: moved}) is None
    for one, other in (({0: same, 90: moved}, {0: same, 90: later}), ({0: same}, {0: same, 90: moved})):
        found = first_difference(one, other)
        assert found is not None
        assert f"{found[0]:%Y-%m-%d %H:%M}" == "1970-03-31 02:00"
        assert {*found[1:]} == {3600, 7200}


@pytest.mark.long
def test_a_plan_says_by_which_rules_its_batch_is_computed(spark: SparkSession, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["run", spec(tmp_path, "Europe/Berlin"), "--warehouse", str(tmp_path / "wh")])
    assert done.exit_code == 0, done.stderr
    rows = python_rows(Lake(tmp_path / "wh" / "p").rows("batches"))
    [said] = {json.loads(row["input"]).get("zone_data") for row in rows if row["kind"] == "process"}
    assert said == java_release(spark)
