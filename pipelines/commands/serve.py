"""`tidemark serve`: a warm Spark for the runs of this machine.

Here: what a person types and reads. Not here: the server (serving.py).
"""
# ruff: noqa: PLC0415 - Spark takes a second to import, so each command imports what it needs

import sys

import click

from tidemark.pipelines.command_line import INTERRUPTED, in_words, say, settings_of, spark_ui_option, verbose_option
from tidemark.resources.spark.server import PORT


@click.command()
@click.option("--port", type=click.IntRange(1024, 65535), default=PORT, show_default=True, help="Where it listens.")
@spark_ui_option
@verbose_option
def serve(*, port: int, spark_ui: bool, verbose: bool) -> None:
    """Keep a Spark warm for the runs on this machine, until Ctrl-C.

    Runs that have the same DAGSTER_HOME use it as long as it answers, and compute in their own process when it does
    not. It is a Spark Connect server with Delta Lake that listens on this machine only and admits whoever can read
    DAGSTER_HOME.

    Exit status: 130 stopped; 1 a failure, also when Spark ends by itself.
    """
    with in_words(verbose=verbose):
        from tidemark.pipelines.serving import serve as serve_until_stopped

        try:
            serve_until_stopped(settings_of(spark_ui=spark_ui), port, lambda doing: say(f"serve: {doing}"))
        except KeyboardInterrupt:
            say("serve: stopped; runs compute in their own processes again")
            sys.exit(INTERRUPTED)
