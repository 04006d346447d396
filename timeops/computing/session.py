"""The settings of a Spark session and of its Java that the meaning of an expression rests on.

Here: what they must be, and whether one process plans and computes. Not here: starting a session
(resources/spark/session.py).
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from zoneinfo import ZoneInfo

from pyspark.sql import SparkSession

from tidemark.timeops.errors import TidemarkError

_ZONE = "spark.sql.session.timeZone"
_ANSI = "spark.sql.ansi.enabled"
LEGACY = "spark.sql.legacy."
"""The beginning of the names of settings that bring back what older versions of Spark did."""
SESSION_SETTINGS: Mapping[str, str] = {
    _ZONE: "UTC",
    _ANSI: "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # What follows is as Spark has it by default, which the defaults of a cluster may change.
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.avro.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.caseSensitive": "false",
    "spark.sql.charAsVarchar": "false",
    "spark.sql.chunkBase64String.enabled": "true",
    "spark.sql.columnNameOfCorruptRecord": "_corrupt_record",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.function.eltOutputAsString": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.preserveCharVarcharTypeInfo": "false",
    "spark.sql.readSideCharPadding": "true",
    "spark.sql.retainGroupColumns": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variant.allowDuplicateKeys": "false",
}
"""The settings that make an expression mean the same wherever it runs."""

_ENGLISH = {"language": "en", "script": "", "country": "US", "variant": "", "extensions": ""}
JAVA_MEANING = " ".join(
    [
        *(f"-Duser.{part}{of}={value}" for of in ("", ".display", ".format") for part, value in _ENGLISH.items()),
        *("-Djava.locale.providers=CLDR", "-Duser.timezone=UTC", "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8"),
    ]
)
"""The options of Java that make an expression mean the same, on any machine: its locale above all."""

# Each text is another one in the languages whose rules differ: Turkish, Azeri, Lithuanian, Greek, Armenian, and ones
# with digits of their own. A table of all Spark's functions found no more of them that go by the locale.
_BY_LOCALE = {
    "upper({})": ("iάև", "IΆԵՒ"),
    "lower({})": ("IÌİ", "iìi̇"),
    "CAST(make_dt_interval(0, 2, length({})) AS STRING)": ("abc", "INTERVAL '0 02:03:00' DAY TO SECOND"),
}
_TASKS = 100


def is_local(master: str) -> bool:
    """Return whether the threads of one process compute, by what Spark calls a master."""
    return master == "local" or master.startswith("local[")


def computes_here(session: SparkSession) -> bool:
    """Return whether a session computes in one process on this machine, and not on a cluster."""
    return is_local(session.conf.get("spark.master", "local") or "")


def check_session(session: SparkSession) -> None:
    """Check that a session made elsewhere means the same by an expression as a pipeline's.

    Raises:
        TidemarkError: A setting differs, or its Java has the locale of a language with other texts.
    """
    changed = session.conf.getAll
    settings = {name: changed.get(name, value) for name, value in SESSION_SETTINGS.items()}
    settings |= {name: session.conf.get(name) or "" for name in (_ZONE, _ANSI)}  # Spark's own defaults are others
    wrong = [name for name, value in SESSION_SETTINGS.items() if settings[name].lower() != value.lower()]
    wrong = [name for name in wrong if name != _ZONE or not is_utc(settings[name])]
    legacy = legacy_settings(changed)
    if wrong or legacy:
        expected = [*(f"{name} = {SESSION_SETTINGS[name]}" for name in wrong), *(f"no {name}" for name in legacy)]
        remedies = [f'spark.conf.set("{name}", "{SESSION_SETTINGS[name]}")' for name in wrong]
        raise TidemarkError(
            "the Spark session has "
            + ", ".join(f"{name} = {(settings | changed)[name]}" for name in [*wrong, *legacy]),
            expected=f"{', '.join(expected)}, which the meaning of times and expressions depends on",
            remedy="; ".join([*remedies, *(f'spark.conf.unset("{name}")' for name in legacy)]),
        )
    check_locale(session)


def legacy_settings(settings: Iterable[str]) -> list[str]:
    """Return, of some settings, any that bring back what older versions of Spark did, without a fixed value here."""
    return sorted(name for name in settings if name.startswith(LEGACY) and name not in SESSION_SETTINGS)


def check_locale(session: SparkSession) -> None:
    """Check that texts do not go by a language, where a session plans and where its tasks run.

    An executor that joins the cluster later is not checked.

    Raises:
        TidemarkError: Java has the locale of a language in which a text has other capitals or digits.
    """
    planned = [of.format(f"'{text}'") for of, (text, _) in _BY_LOCALE.items()]
    if computes_here(session):
        rows = session.sql(f"SELECT {', '.join(planned)}").collect()
    else:
        # What depends on a row is not computed as the query is planned.
        computed = [
            of.format(f"translate(concat(id, '{text}'), '0123456789', '')") for of, (text, _) in _BY_LOCALE.items()
        ]
        rows = session.range(0, _TASKS, 1, _TASKS).selectExpr(*planned, *computed).distinct().collect()
    expected_texts = [text for _, text in _BY_LOCALE.values()]
    for row in rows:
        for query, actual, expected in zip(planned * 2, row, expected_texts * 2, strict=False):
            if actual != expected:
                raise TidemarkError(
                    f"the Java of the Spark session runs in the locale of another language: {query} is {actual!r} "
                    "there",
                    expected=f"{expected!r}: with `upper`, `lower` and `ilike` results would depend on the machine",
                    remedy="start Spark with `-Duser.language=en -Duser.country=US` in both "
                    "spark.driver.extraJavaOptions and spark.executor.extraJavaOptions",
                )


def is_utc(zone: str) -> bool:
    """Return whether Spark takes a zone for UTC: under any of its names, or as an offset of nothing.

    A session takes its zone from the machine, which may say Etc/UTC.
    """
    if re.fullmatch(r"Z|(UTC|GMT|UT)?[+-]0{1,2}(:0{1,2}){0,2}|UT", zone):
        return True
    try:
        return ZoneInfo(zone).utcoffset(None) == timedelta(0)  # None where the offset of a zone ever changed
    except (KeyError, ValueError):
        return False
