"""Windows over a log against Spark's own: `python -m benchmarks.windows`.

Here: the work that is timed. Each piece reads a Delta log, and writes what it finds as Delta tables.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from benchmarks.logs import JITTER_MS, log_name, log_of, spark_of_two_cores, stored_log
from benchmarks.timing import BUDGET, INTO, LOGS, Figure, Report, seconds
from tidemark.resources.delta.ordering import in_order, set_aside
from tidemark.resources.spark.amount import ANY
from tidemark.timeops.columns import RELEASE_SEQ, SEQ, TIMESTAMP
from tidemark.timeops.computing.materialize import Stored
from tidemark.timeops.engine import State, advance
from tidemark.timeops.events.adjustment import Released, Segment
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.watermark.timelines import LogPlace

AGGREGATES = {"n": "count(*)", "total": "sum(v)", "lowest": "min(v)", "highest": "max(v)", "mean": "avg(v)"}
TUMBLING = {"kind": "tumbling", "size": "1 minute"}
HOPPING = {"kind": "hopping", "size": "1 hour", "hop": "1 minute"}
SESSION = {"kind": "session", "gap": "20 seconds"}
PAYLOAD = ("t", "k", "v")
TUMBLED, STREAMED, BATCHED = "tumbling, 1 minute", "Spark, tumbling, streaming", "Spark, `session_window`, batch"
COMPARED = {  # what each is compared with, and the most that the ratio may be
    TUMBLED: (STREAMED, 1.2),
    "hopping, 1 hour every minute": (TUMBLED, 1.6),
    "sessions, gap 20 seconds": (BATCHED, 1.2),
    "tumbling, and events in order": (TUMBLED, None),
}


def judged_windows(
    log: DataFrame, stored: Stored, shape: dict[str, str], out: Path, *, ordered: bool = False
) -> None:
    """Run the stages of a batch that reads the whole log: time adjustment, dead letters, a window, perhaps order."""
    time = TimeSpec(timestamp_by="t", out_of_orderness=f"{JITTER_MS} ms", out_of_order="drop")
    window = WindowSpec(name="w", group_by=("k",), aggregates=AGGREGATES, **shape)
    rules = TimeRules(time, windows=(window,))
    outcome = advance(Segment(log, LogPlace(), ANY.execution(), stored=stored), State(), rules)
    written(outcome.results(window), out / "windows")
    written(outcome.dead_letters(PAYLOAD), out / "dead_letters")
    if ordered:
        write_in_order(outcome.released, out)


def write_in_order(released: Released, out: Path) -> None:
    """Write the released events, numbered, and the held ones."""
    rows = released.sequence.select(*PAYLOAD, TIMESTAMP, SEQ)
    schema = to_arrow_schema(rows.schema, timezone="UTC").append(pa.field(RELEASE_SEQ, pa.int64()))
    with set_aside(rows, out, ANY) as aside:
        keys = aside.narrow([TIMESTAMP, SEQ])
        order = np.lexsort((keys[SEQ].to_numpy(), keys[TIMESTAMP].cast(pa.int64()).to_numpy()))
        pieces = in_order(aside.parts, order, {RELEASE_SEQ: lambda own: pa.array(np.arange(own.start, own.stop))})
        for number, piece in enumerate(pieces):
            (out / "ordered_events").mkdir(exist_ok=True)
            with pq.ParquetWriter(out / "ordered_events" / f"{number}.parquet", schema) as file:
                for batch in piece(schema):
                    file.write_batch(batch)
    written(released.held.select(*PAYLOAD, TIMESTAMP, SEQ), out / "held_events")


def streamed(spark: SparkSession, log: Path, out: Path) -> None:
    """Spark Structured Streaming over the same table, all that is there; it drops what it finds late."""
    shutil.rmtree(out, ignore_errors=True)
    events = spark.readStream.format("delta").load(str(log))
    aggregates = [F.expr(text).alias(name) for name, text in AGGREGATES.items()]
    found = (
        events.withWatermark("t", f"{JITTER_MS} milliseconds")
        .groupBy(F.window("t", "1 minute"), "k")
        .agg(*aggregates)
    )
    query = (
        found.writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / "windows"))
    )
    query.awaitTermination()


def session_windows(log: DataFrame, out: Path) -> None:
    """Spark's session windows over the table as a batch: no event is late."""
    aggregates = [F.expr(text).alias(name) for name, text in AGGREGATES.items()]
    written(log.groupBy(F.session_window("t", "20 seconds"), "k").agg(*aggregates), out / "windows")


def written(frame: DataFrame, path: Path) -> None:
    """Writes a table anew."""
    frame.write.format("delta").mode("overwrite").save(str(path))


@click.command()
@click.option("--events", default=10_000_000, help="Length of the log.")
@click.option("--rounds", default=3, help="How often each piece is timed.")
@click.option("--in-order", is_flag=True, help="Also time the writing of the events in order: a minute a round.")
@LOGS
@BUDGET
@INTO
def main(*, events: int, rounds: int, in_order: bool, logs: Path, budget: float, into: Path | None) -> None:
    """Times them, and prints the ratios."""
    spark = spark_of_two_cores()
    folder = logs.absolute()
    log, out = log_of(spark, folder, events, 1_000), folder / "windows"
    stored = stored_log(folder, events, 1_000)
    pieces: dict[str, Callable[[], object]] = {
        STREAMED: lambda: streamed(spark, folder / log_name(events, 1_000), out / "streamed"),
        TUMBLED: lambda: judged_windows(log, stored, TUMBLING, out / "tumbling"),
        "hopping, 1 hour every minute": lambda: judged_windows(log, stored, HOPPING, out / "hopping"),
        BATCHED: lambda: session_windows(log, out / "spark_sessions"),
        "sessions, gap 20 seconds": lambda: judged_windows(log, stored, SESSION, out / "sessions"),
    }
    if in_order:
        pieces["tumbling, and events in order"] = lambda: judged_windows(
            log, stored, TUMBLING, out / "ordered", ordered=True
        )
    title = f"windows over {events:,} events, 1,000 keys, Delta to Delta, warm"
    report = Report(title, about={"events": events})
    for work, values in seconds(pieces, rounds=rounds, budget_s=budget).items():
        against, aim = COMPARED.get(work, (None, None))
        report.figures.append(Figure(work, values, against=against, aim=aim))
    report.save(into)


if __name__ == "__main__":
    main()
