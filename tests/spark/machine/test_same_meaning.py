"""An expression means the same on every machine, whatever its locale, its environment and Spark's defaults there."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import ROOT
from tidemark.resources.spark import session as of_machine
from tidemark.timeops.computing.session import check_locale, check_session
from tidemark.timeops.errors import TidemarkError

TURKISH = "-Duser.language=tr -Duser.country=TR"
ENVIRONMENT = {
    "LC_ALL": "tr_TR.UTF-8",
    "TZ": "Pacific/Apia",
    "PYTHONHASHSEED": "7",
    "JAVA_TOOL_OPTIONS": f"{TURKISH} -Duser.extensions=u-nu-thai",
    "JDK_JAVA_OPTIONS": TURKISH,
    "_JAVA_OPTIONS": f"{TURKISH} -Duser.language.format=ar -Duser.timezone=Asia/Kathmandu -Dfile.encoding=US-ASCII",
    "SPARK_SUBMIT_OPTS": TURKISH,
    "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{TURKISH}' pyspark-shell",
}
DEFAULTS = """
spark.driver.extraJavaOptions -Duser.language=tr
spark.driver.defaultJavaOptions -Duser.language=tr
spark.sql.ansi.doubleQuotedIdentifiers true
spark.sql.ansi.enabled true
spark.sql.caseSensitive true
spark.sql.decimalOperations.allowPrecisionLoss false
spark.sql.function.concatBinaryAsString true
spark.sql.icu.caseMappings.enabled false
spark.sql.jsonGenerator.ignoreNullFields false
spark.sql.legacy.castComplexTypesToString.enabled true
spark.sql.legacy.negativeIndexInArrayInsert true
spark.sql.legacy.sizeOfNull true
spark.sql.legacy.timeParserPolicy LEGACY
spark.sql.mapKeyDedupPolicy LAST_WIN
spark.sql.parser.escapedStringLiterals true
spark.sql.session.timeZone Asia/Kathmandu
spark.sql.timestampType TIMESTAMP_NTZ
"""
EXPRESSIONS = [
    "upper(city)",
    "lower(CITY)",
    "initcap(city)",
    "city ILIKE '%ISTANBUL%'",
    "array_insert(array(1, 2), -1, 3)",
    "cast(INTERVAL '1 02:03' DAY TO MINUTE AS STRING)",
    "cast(array(1, null) AS STRING)",
    "size(cast(null AS ARRAY<INT>))",
    "try_cast('9' AS TIMESTAMP)",
    "cast('x' AS INT)",
    "concat(\"a\", 'b\\nc')",
    "typeof(concat(X'00', X'01'))",
    "typeof(to_timestamp('2026-01-01', 'yyyy-MM-dd'))",
    "typeof(cast(1 AS DECIMAL(38, 18)) * cast(1 AS DECIMAL(38, 18)))",
    "to_json(struct(null AS a))",
    "unix_micros(cast('1892-07-04 10:00:00' AS TIMESTAMP))",
    "cast(timestamp_micros(1) AS STRING)",
    "date_format(timestamp_micros(1), 'EEEE d MMMM')",
    "format_number(1234.5, 1)",
    "format_string('%,.2f %d', 1234.5D, 7)",
    "map_from_entries(array(struct('a' AS k, 1 AS v)))",
    "'${env:HOME} ${spark.master}'",
]
ANSWERS = """
import json
from tests.spark.machine.test_same_meaning import answers
from tidemark.resources.spark.session import local_session, session_config, settle, without_delta
config = without_delta(session_config(small=True))
print(json.dumps(answers(local_session(config))))
assert local_session(config) and not settle.cache_info().misses, "it takes seconds, and its Java has our options"
"""


def answers(spark: SparkSession) -> dict[str, list[str]]:
    """Return the values of the expressions on some cities."""
    cities = spark.createDataFrame([("diyarbak\u0131r",), ("İstanbul",), ("Iğd\u0131r",), ("Ìlė",)], "city STRING")
    rows = cities.selectExpr(*(f"{text} AS `{number}`" for number, text in enumerate(EXPRESSIONS))).collect()
    return {text: [str(row[number]) for row in rows] for number, text in enumerate(EXPRESSIONS)}


@pytest.mark.long
def test_a_hostile_locale_environment_and_defaults_of_spark_change_no_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    environment = {**os.environ, **ENVIRONMENT, "SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["upper(city)"] == ["DIYARBAKIR", "İSTANBUL", "IĞDIR", "ÌLĖ"]
    assert found == answers(session_of_ours(spark))


def session_of_ours(spark: SparkSession) -> SparkSession:
    """Return a session with the settings of ours, whatever other tests have set."""
    fresh = spark.newSession()
    for name, value in of_machine.SERVED_SETTINGS.items():
        fresh.conf.set(name, value)
    return fresh


@pytest.fixture
def in_locale(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Yield a session whose Java has the locale of a language, as in a Spark that others started."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    locale = jvm.java.util.Locale
    before = locale.getDefault()
    locale.setDefault(locale.forLanguageTag(request.param))
    yield session_of_ours(spark)
    locale.setDefault(before)


@pytest.mark.parametrize("in_locale", ["tr-TR", "az", "lt", "el-GR", "hy", "ar-EG", "th-u-nu-thai"], indirect=True)
def test_a_session_in_the_locale_of_a_language_with_other_texts_is_refused(in_locale: SparkSession) -> None:
    for check in (check_session, of_machine.settle):
        with pytest.raises(TidemarkError, match="runs in the locale of another language") as refused:
            check(in_locale)
        assert "-Duser.language=en -Duser.country=US" in str(refused.value)


@pytest.mark.parametrize("in_locale", ["de-DE", "ja-JP", "th-TH"], indirect=True)
def test_a_session_in_a_locale_with_the_same_texts_is_taken(in_locale: SparkSession) -> None:
    check_session(in_locale)


def test_executors_are_asked_for_their_texts_as_well(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.timeops.computing.session.computes_here", lambda _session: False)
    check_locale(spark)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("spark.sql.caseSensitive", "true", 'spark.conf.set("spark.sql.caseSensitive", "false")'),
        ("spark.sql.ansi.enabled", "true", 'spark.conf.set("spark.sql.ansi.enabled", "false")'),
        ("spark.sql.session.timeZone", "Europe/Berlin", 'spark.conf.set("spark.sql.session.timeZone", "UTC")'),
        ("spark.sql.legacy.sizeOfNull", "true", 'spark.conf.unset("spark.sql.legacy.sizeOfNull")'),
    ],
)
def test_a_session_with_another_setting_that_decides_is_refused_with_the_line_to_run(
    spark: SparkSession, name: str, value: str, remedy: str
) -> None:
    session = session_of_ours(spark)
    check_session(session)
    session.conf.set(name, value)
    with pytest.raises(TidemarkError, match=f"the Spark session has {name} = {value}") as refused:
        check_session(session)
    assert remedy in str(refused.value)
