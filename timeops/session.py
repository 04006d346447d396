"""The settings of a Spark session that the meaning of an expression rests on.

Here: what they must be, and whether one process plans and computes. Not here: starting a session
(resources/spark/session.py).
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from zoneinfo import ZoneInfo

from pyspark.sql import SparkSession

from tidemark.timeops.errors import TidemarkError

_ZONE = "spark.sql.session.timeZone"
SESSION_SETTINGS: Mapping[str, str] = {
    _ZONE: "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}
"""The settings that make an expression mean the same wherever it runs."""


def is_local(master: str) -> bool:
    """Return whether the threads of one process compute, by what Spark calls a master."""
    return master == "local" or master.startswith("local[")


def computes_here(session: SparkSession) -> bool:
    """Return whether a session computes in one process on this machine, and not on a cluster."""
    return is_local(session.conf.get("spark.master", "local") or "")


def check_session(session: SparkSession) -> None:
    """Check that a session made elsewhere means the same by an expression as a pipeline's.

    Raises:
        TidemarkError: A setting differs.
    """
    found = {name: session.conf.get(name) for name in SESSION_SETTINGS}
    wrong = [name for name, value in SESSION_SETTINGS.items() if str(found[name]).lower() != value.lower()]
    wrong = [name for name in wrong if name != _ZONE or not is_utc(str(found[name]))]
    if wrong:
        raise TidemarkError(
            "the Spark session has " + ", ".join(f"{name} = {found[name]}" for name in wrong),
            expected=", ".join(f"{name} = {SESSION_SETTINGS[name]}" for name in wrong)
            + ", on which the meaning of times and expressions rests",
            remedy="; ".join(f'spark.conf.set("{name}", "{SESSION_SETTINGS[name]}")' for name in wrong),
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
