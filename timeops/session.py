"""The settings of a Spark session that the meaning of an expression rests on.

Here: what they must be, and whether one process plans and computes. Not here: starting a session
(resources/spark/session.py).
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from tidemark.timeops.errors import TidemarkError

SESSION_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}
"""What an expression means must not depend on where it runs."""


def is_local(master: str) -> bool:
    """Whether the threads of one process compute, by what Spark calls a master."""
    return master == "local" or master.startswith("local[")


def check_session(session: SparkSession) -> None:
    """Check that a session that somebody else made means the same by an expression as a pipeline's.

    Raises:
        TidemarkError: A setting differs.
    """
    found = {name: session.conf.get(name) for name in SESSION_SETTINGS}
    wrong = [name for name, value in SESSION_SETTINGS.items() if str(found[name]).lower() != value.lower()]
    if wrong:
        raise TidemarkError(
            "the Spark session has " + ", ".join(f"{name} = {found[name]}" for name in wrong),
            expected=", ".join(f"{name} = {SESSION_SETTINGS[name]}" for name in wrong)
            + ", on which the meaning of times and expressions rests",
            remedy="; ".join(f'spark.conf.set("{name}", "{SESSION_SETTINGS[name]}")' for name in wrong),
        )
