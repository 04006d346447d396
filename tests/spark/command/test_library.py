"""`tm.adjust` and `tm.windows`: judged as by the oracle, what a DataFrame may lack, the documented examples."""

import doctest
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import tidemark as tm
import tidemark.timeops.library
from tests import ROOT
from tests.properties.logs import KEY, Event, Log, generate, items, judged_by_oracle
from tidemark.pipelines.commands.operating import lay_out
from tidemark.resources.spark.session import with_settings
from tidemark.timeops.columns import to_us
from tidemark.timeops.errors import SpecError

HOURLY = {"name": "w", "kind": "tumbling", "size": "1 hour", "aggregates": {"n": "count(*)"}}


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    rows = [("a", "12:00:00", "12:00:01"), ("b", "12:00:09", "12:00:10"), ("c", "12:00:03", "12:00:11")]
    return spark.createDataFrame(
        [(name, f"2026-01-01 {at}", f"2026-01-01 {came}") for name, at, came in rows],
        "id STRING, at STRING, came STRING",
    )


def clock_of(instant: str) -> Column:
    return F.date_format(instant, "HH:mm:ss")


def ids(frame: DataFrame) -> list[str]:
    return sorted(row["id"] for row in frame.select("id").collect())


@pytest.mark.parametrize(
    "policy", ["keep", *(pytest.param(policy, marks=pytest.mark.long) for policy in ("drop", "adjust"))]
)
def test_events_are_judged_as_by_the_oracle(spark: SparkSession, policy: str) -> None:
    time = tm.TimeSpec.model_validate(
        {"timestamp_by": "e", "over": ["case"], "out_of_orderness": "5 us"}
        | {"out_of_order": policy, "late": {"tolerance": "25 us", "policy": "drop"}, "end_of_input": "flush"}
    )
    if policy == "adjust":
        time = tm.TimeSpec.model_validate({**time.model_dump(), "deduplicate_by": KEY, "within": "8 us"})
    window = tm.WindowSpec.model_validate(
        {"name": "w", "kind": "hopping", "size": "10 us", "hop": "4 us", "group_by": ["case"]}
        | {"aggregates": {"seqs": "array_sort(collect_set(_arrival_seq))"}}
    )
    logs = [_well_formed(log) for log in generate(11, 60)]
    found = tm.adjust(items(spark, logs).select("case", "e", "v", "_arrival_seq", "_arrival_time"), time)
    ordered = found.ordered.withColumn("t", to_us("_timestamp")).collect()
    stamps = {row["_arrival_seq"]: row["t"] for row in ordered}
    numbers = {row["_arrival_seq"]: row["_release_seq"] for row in ordered}
    letters = [found.dead_letters, tm.window_dead_letters(found, window)]
    reasons = sorted((row["_arrival_seq"], row["reason"], row["lateness_us"]) for f in letters for row in f.collect())
    results = {
        (row["case"], row["s"], tuple(row["seqs"]))
        for row in tm.windows(found, window).withColumn("s", to_us("window_start")).collect()
    }
    expected = [(log, judged_by_oracle(log, time, [window], flush=True)) for log in logs]
    assert stamps == {one.seq: one.timestamp_us for _, outcome in expected for one in outcome.ordered}
    assert numbers == {one.seq: one.release_seq for _, outcome in expected for one in outcome.ordered}
    assert reasons == sorted(
        (letter.seq, letter.reason, letter.lateness_us) for _, outcome in expected for letter in outcome.dead_letters
    )
    assert results == {
        (log.case, row.window_start, row.events) for log, outcome in expected for row in outcome.windows["w"]
    }
    assert found.held.count() == 0


def _well_formed(log: Log) -> Log:
    """Return the log without malformed records, which a DataFrame does not have."""
    return Log(log.case, tuple(Event(e.seq, e.arrival_us, e.event_us, e.value) for e in log.events), log.cuts)


@pytest.mark.long
def test_without_numbers_events_are_ordered_by_arrival_and_then_by_their_columns(events: DataFrame) -> None:
    found = tm.adjust(events, {"timestamp_by": "at", "out_of_orderness": "5 s"}, arrival_time="came")
    assert [
        ids(frame)
        for frame in (
            found.ordered,
            found.held,
            found.dead_letters.select(F.get_json_object("payload", "$.id").alias("id")),
        )
    ] == [["a"], ["b"], ["c"]]
    assert ids(found.accepted) == ["a", "b"]
    [state] = found.watermarks.withColumn("w", clock_of("watermark")).collect()
    assert (state["_timeline"], state["w"], state["watermark_set_by"]) == ("[]", "12:00:04", 1)
    same = events.withColumn("came", F.lit("2026-01-01 12:00:00"))
    for shuffled in (same, same.orderBy(F.desc("id")).repartition(3)):
        kept = tm.adjust(shuffled, {"timestamp_by": "at"}, arrival_time="came").accepted
        numbers = {row["id"]: row["_arrival_seq"] for row in kept.collect()}
        assert numbers == {"a": 0, "b": 1}


def test_events_without_an_arrival_come_last_and_are_dead_letters(events: DataFrame) -> None:
    one_lost = events.withColumn("came", F.when(F.col("id") != "a", F.col("came")))
    letters = tm.adjust(one_lost, {"timestamp_by": "at", "out_of_order": "keep"}, arrival_time="came").dead_letters
    [letter] = letters.collect()
    assert (letter["_arrival_seq"], letter["stage"], letter["reason"]) == (2, "ingest", "no_arrival_time")
    assert letter["detail"] == "there is no arrival time of the years 0001 to 9999 for record 2 of events"


def test_numbers_are_enough_where_no_rule_goes_by_arrival(events: DataFrame) -> None:
    numbered = events.withColumn("_arrival_seq", F.expr("CASE id WHEN 'b' THEN 0 WHEN 'c' THEN 1 ELSE 2 END"))
    found = tm.adjust(numbered, {"timestamp_by": "at"})
    assert ids(found.accepted) == ["b"]
    assert {row["us"] for row in found.dead_letters.select(to_us("_arrival_time").alias("us")).collect()} == {0}
    late = {"timestamp_by": "at", "late": {"tolerance": "5 s", "policy": "drop"}}
    with pytest.raises(tm.InputError, match=r"time\.late needs to know when events arrived"):
        tm.adjust(numbered, late)
    window = {**HOURLY, "aggregates": {"last": "max(_arrival_time)"}}
    with pytest.raises(tm.InputError, match=r"windows \(w\) needs to know when events arrived"):
        tm.windows(found, window)


def test_columns_may_be_called_as_nearly_anything_even_with_two_underscores(events: DataFrame) -> None:
    own = {name: F.lit(number) for number, name in enumerate(("__t", "__seen", "__reason", "__block", "__w_before"))}
    judged = tm.adjust(events.withColumns(own), {"timestamp_by": "at", "out_of_order": "keep"}, arrival_time="came")
    rows = judged.accepted.collect()
    assert len(rows) == 3
    assert {tuple(row[name] for name in own) for row in rows} == {(0, 1, 2, 3, 4)}
    window = {**HOURLY, "group_by": ["__t"], "aggregates": {"n": "sum(__seen)"}}
    flushed = tm.adjust(events.withColumns(own), {"timestamp_by": "at", "end_of_input": "flush"}, arrival_time="came")
    assert [(row["__t"], row["n"]) for row in tm.windows(flushed, window).collect()] == [(0, 2)]


@pytest.mark.long
def test_the_clock_and_periods_go_by_arrival(events: DataFrame) -> None:
    late = {"tolerance": "5 s", "policy": "adjust"}
    clock = {"timestamp_by": "at", "late": late, "idle": {"advance": "arrival_clock"}}
    found = tm.adjust(events, clock, arrival_time="came")
    stamps = {row["id"]: row["t"] for row in found.accepted.withColumn("t", clock_of("_timestamp")).collect()}
    assert stamps == {"a": "12:00:00", "b": "12:00:09"}
    periods = tm.adjust(events, {"timestamp_by": "at", "emit": {"every": "1 minute"}}, arrival_time="came")
    assert (ids(periods.held), periods.dead_letters.count()) == (["a", "b", "c"], 0)
    assert [row["watermark"] for row in periods.watermarks.collect()] == [None]
    both = tm.adjust(
        events, {**clock, "out_of_orderness": "20 s", "emit": {"every": "10 s"}}, arrival_time="came"
    ).watermarks.withColumn("w", clock_of("watermark"))
    # What the clock gave at the first record, which is the last one before the period of the others.
    assert [(row["w"], row["watermark_set_by"]) for row in both.collect()] == [("11:59:56", None)]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"time": {"timestamp_by": "att"}}, tm.SpecError, "att"),
        ({"time": {"timestamp_by": "at", "unit": "hour"}}, tm.SpecError, 'time, unit: found "hour"'),
        ({"time": {"timestamp_by": "at", "lat": {}}}, tm.SpecError, "did you mean `late`?"),
        ({"time": {"timestamp_by": "at", "unit": None}}, tm.SpecError, "a key has the value None"),
        ({"arrival_time": "now()"}, tm.SpecError, "arrival_time: "),
        ({"arrival_time": "camee"}, tm.SpecError, "arrival_time: `camee` is not a column here"),
        ({"arrival_time": None}, tm.InputError, "the events have no order of arrival"),
        ({"column": ("_watermark", "at")}, tm.InputError, "`_watermark`, a name that is reserved by Tidemark"),
        ({"column": ("_arrival_seq", "id")}, tm.InputError, "`_arrival_seq` is STRING"),
        ({"column": ("_arrival_time", "timestamp(came)")}, tm.InputError, "`arrival_time` is 'came' as well"),
    ],
)
def test_what_stands_in_the_way_is_said_with_a_remedy(
    events: DataFrame, change: dict[str, Any], error: type[tm.TidemarkError], said: str
) -> None:
    if "column" in change:
        name, expression = change["column"]
        events = events.withColumn(name, F.expr(expression))
    time = change.get("time", {"timestamp_by": "at"})
    with pytest.raises(error) as raised:
        tm.adjust(events, time, arrival_time=change.get("arrival_time", "came"))
    assert said in str(raised.value)


def test_a_text_that_would_be_taken_for_a_time_is_refused(spark: SparkSession) -> None:
    """Spark would complete `08:00:00` with the day of the machine."""
    events = spark.createDataFrame([("2026-01-01 12:00:00", "08:00:00")], "at STRING, opened STRING")
    said = "implicitly reads the text `opened` as a time"
    with pytest.raises(SpecError, match=f"time: .* {said}"):
        tm.adjust(events, {"timestamp_by": "at", "over": ["opened < timestamp_millis(1)"]}, arrival_time="at")
    judged = tm.adjust(events, {"timestamp_by": "at", "end_of_input": "flush"}, arrival_time="at")
    for part in (
        {"where": "opened < _timestamp"},
        {"group_by": ["opened < _timestamp AS before"]},
        {"aggregates": {"n": "count_if(opened < _timestamp)"}},
    ):
        with pytest.raises(SpecError, match=f"window w: .* {said}"):
            tm.windows(judged, {**HOURLY, **part})
    assert tm.windows(judged, {**HOURLY, "where": "opened < date_format(_timestamp, 'HH:mm')"}).count() == 1


def test_a_window_must_go_with_the_time_of_the_events(events: DataFrame) -> None:
    found = tm.adjust(events, {"timestamp_by": "at", "over": ["id"]}, arrival_time="came")
    with pytest.raises(tm.SpecError, match=r"window w, group_by: lacks `id` of `time\.over`"):
        tm.windows(found, HOURLY)
    with pytest.raises(tm.SpecError, match=r"`time\.out_of_order: keep`"):
        tm.window_dead_letters(found, {**HOURLY, "group_by": ["id"], "allowed_lateness": "1 s"})
    with pytest.raises(tm.SpecError, match="windows, size: the key is missing"):
        tm.windows(found, {name: value for name, value in HOURLY.items() if name != "size"})


def test_revised_results_of_any_events_are_their_last_revisions(spark: SparkSession) -> None:
    times = ("12:01", "12:30", "12:05", "12:40")
    rows = [(f"2026-01-01T{at}Z", f"2026-01-01T13:0{number}Z") for number, at in enumerate(times)]
    late = tm.adjust(
        spark.createDataFrame(rows, "at STRING, got STRING"),
        {"timestamp_by": "at", "out_of_order": "keep"},
        arrival_time="got",
    )
    revises = {"allowed_lateness": "1 hour", "emit": "on_time"}
    revised = tm.windows(late, HOURLY | revises | {"size": "10 minutes"})
    first = revised.orderBy("window_start").collect()[0]
    assert (first["n"], first["_revision"]) == (2, 1)
    assert revised.schema["_revision"].dataType.simpleString() == "int", "as in the tables of earlier versions"
    session = {"name": "s", "kind": "session", "gap": "10 minutes", "aggregates": {"n": "count(*)"}}
    sessions = tm.windows(late, session | revises | {"revise_every": "0 s"})
    assert [(row["n"], row["_revision"]) for row in sessions.collect()] == [(2, 0)], "the last has not ended"


@pytest.mark.long
def test_first_events_of_any_dataframe_have_its_columns(events: DataFrame) -> None:
    time = {"timestamp_by": "at", "out_of_order": "keep", "end_of_input": "flush"}
    judged = tm.adjust(events, time, arrival_time="came")
    first = {
        "name": "w",
        "kind": "tumbling",
        "size": "1 hour",
        "top": {"n": 2, "by": "substr(came, 19) DESC, id DESC"},
    }
    rows = tm.windows(judged, first).orderBy("_rank").select("_rank", "id", "came", clock_of("_timestamp")).collect()
    assert [tuple(row) for row in rows] == [
        (1, "c", "2026-01-01 12:00:11", "12:00:03"),
        (2, "a", "2026-01-01 12:00:01", "12:00:00"),
    ]
    with pytest.raises(SpecError, match="the aggregate `came` and the column `came` of the events meet"):
        tm.windows(judged, first | {"aggregates": {"came": "max(came)"}})


@pytest.mark.long
def test_windows_across_timelines_close_by_the_lowest_watermark(spark: SparkSession) -> None:
    came = [("a", "12:01"), ("b", "13:02"), ("a", "12:06"), ("c", "12:03"), ("a", "12:20"), ("c", "12:11")]
    rows = [(seq, device, f"2026-01-01 {at}:00") for seq, (device, at) in enumerate(came)]
    events = spark.createDataFrame(rows, "_arrival_seq LONG, device STRING, at STRING")
    judged = tm.adjust(events, {"timestamp_by": "at", "over": ["device"]})
    window = {"name": "w", "kind": "tumbling", "size": "5 minutes", "across": True}
    totals = {
        **window,
        "aggregates": {"devices": "count(DISTINCT device)", "seqs": "array_sort(collect_set(_arrival_seq))"},
    }
    found = tm.windows(judged, totals).orderBy("window_start").collect()
    assert [(row["devices"], row["seqs"]) for row in found] == [(1, [0]), (1, [2])]
    [letter] = tm.window_dead_letters(judged, totals).collect()
    assert (letter["_arrival_seq"], letter["_timeline"], letter["watermark_set_by"]) == (3, '["c"]', 2)


def test_a_tick_lets_the_clock_go_on_behind_the_last_event(events: DataFrame) -> None:
    late = {"late": {"tolerance": "5 s", "policy": "adjust"}, "idle": {"advance": "arrival_clock"}}
    window = {**HOURLY, "size": "10 s"}
    time, tick = {"timestamp_by": "at", "out_of_orderness": "20 s", **late}, datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
    still = tm.adjust(events, time, "came")
    assert tm.windows(still, window).count() == 0
    ticked = tm.adjust(events, time, "came", tick=tick)
    assert [row["watermark"].second for row in ticked.watermarks.collect()] == [55]
    assert ids(ticked.ordered) == ["a", "b", "c"]
    rows = tm.windows(ticked, window).select(clock_of("window_start"), "n", clock_of("_watermark")).collect()
    assert [tuple(row) for row in rows] == [("12:00:00", 3, "12:00:55")]
    with pytest.raises(tm.InputError, match="which has no offset"):
        tm.adjust(events, time, "came", tick=tick.replace(tzinfo=None))


@pytest.mark.parametrize("advance", ["window_close", "exclude_split"])
def test_idle_rules_that_need_a_pipeline_are_refused(events: DataFrame, advance: str) -> None:
    time = {"timestamp_by": "at", "idle": {"advance": advance, "timeout": "1 min"}}
    with pytest.raises(tm.SpecError, match=f"idle.advance: {advance} depends on the splits or windows"):
        tm.adjust(events, time, arrival_time="came")


def test_a_timeline_without_a_plain_text_is_refused(events: DataFrame) -> None:
    with pytest.raises(tm.SpecError, match=r"time\.over\[0\]: `array\(id\)` .* has no plain text") as refused:
        tm.adjust(events, {"timestamp_by": "at", "over": ["array(id)"]}, arrival_time="came")
    assert "write `to_json(array(id))`" in str(refused.value)


def test_without_an_event_time_nothing_can_be_late(events: DataFrame) -> None:
    with pytest.raises(tm.SpecError, match="late: `late` has no effect without `timestamp_by`"):
        tm.adjust(events, {"late": {"tolerance": "1 s", "policy": "drop"}}, arrival_time="came")


def test_a_session_that_means_something_else_is_refused(spark: SparkSession, events: DataFrame) -> None:
    with (
        with_settings(spark, {"spark.sql.session.timeZone": "Asia/Tokyo"}),
        pytest.raises(tm.TidemarkError, match=r'spark\.conf\.set\("spark\.sql\.session\.timeZone", "UTC"\)'),
    ):
        tm.adjust(events, {"timestamp_by": "at"}, arrival_time="came")


@pytest.mark.long
def test_a_session_may_have_utc_under_another_name(spark: SparkSession, events: DataFrame) -> None:
    time = {"timestamp_by": "at", "out_of_orderness": "5 s"}
    expected = tm.adjust(events, time, arrival_time="came").ordered.collect()
    for zone in ("Etc/UTC", "Z", "+00:00"):
        with with_settings(spark, {"spark.sql.session.timeZone": zone}):
            assert tm.adjust(events, time, arrival_time="came").ordered.collect() == expected, zone


@pytest.mark.long
def test_the_examples_of_the_code_and_of_the_page_give_what_they_show(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in them leave the session of this process, its settings and the environment as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    lay_out(tmp_path, "quakes")
    spark.conf.set("spark.sql.session.timeZone", "Etc/UTC")
    environment = dict(os.environ)
    names = {"spark": spark}
    code = doctest.testmod(tidemark.timeops.library, extraglobs=names)
    page = doctest.testfile(str(ROOT / "docs" / "library.md"), module_relative=False, globs=names)
    assert (code.failed, page.failed) == (0, 0)
    assert code.attempted >= 8
    assert page.attempted >= 14
    assert (tmp_path / ".dagster" / "dagster.yaml").exists()
    assert {**os.environ, "PYTEST_CURRENT_TEST": ""} == {**environment, "PYTEST_CURRENT_TEST": ""}
    assert spark.conf.get("spark.sql.session.timeZone") == "Etc/UTC"
    assert spark.range(2).count() == 2


def test_importing_tidemark_is_light_and_the_library_needs_no_dagster_and_no_lake() -> None:
    code = (
        "import sys\n"
        "import tidemark as tm\n"
        "early = {'pyspark', 'dagster', 'pydantic', 'deltalake', 'pandas'} & set(sys.modules)\n"
        "tm.adjust\n"
        "heavy = {'dagster', 'delta', 'deltalake', 'great_expectations', 'click', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {early | heavy}' if early | heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.mark.long
def test_cases_of_a_program_are_judged_as_by_the_command_and_their_failures_are_said(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what cannot be meant is said before anything starts."""
    monkeypatch.chdir(tmp_path)
    examples = Path(tidemark.__file__).parents[1] / "examples"
    spec, cases = examples / "preset_flink.yaml", examples / "preset_flink.cases.yaml"
    assert tm.test(spec, cases).holds
    wrong = tmp_path / "wrong.cases.yaml"
    wrong.write_text(
        cases.read_text().replace("watermark: 2026-01-01T12:09:59.999Z", "watermark: 2026-01-01T12:10:00Z")
    )
    judged = tm.test(spec, cases, wrong)
    assert not judged.holds
    assert all(said.startswith(f"{wrong}: ") for said in judged.failed)
    assert [*judged.verdicts] == [str(cases), str(wrong)]
    with pytest.raises(tm.SpecError, match="There is no file of cases"):
        tm.test(spec)
    with pytest.raises(tm.SpecError, match="Both `windows` and `to_spec`"):
        tm.rebuild(spec, windows=["w"], to_spec=True)
    with pytest.raises(tm.SpecError, match="is the text 'w'"):
        tm.rebuild(spec, windows="w")
    with pytest.raises(tm.SpecError, match="`reason` is empty"):
        tm.rebuild(spec, reason=" ")
