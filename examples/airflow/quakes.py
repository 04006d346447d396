"""A pipeline of Tidemark by Airflow 3: live runs, days that are waited for, and backfills.

`quakes_live` processes what is waiting, every five minutes, and reports each day that changed as a partition of the
asset `quakes/windows/by_hour`. `quakes_days` has a run for each day: it waits until no live run changes the day any
more, and uses its rows. A backfill of `quakes_days` in Airflow first computes its days from the arrival log.

Airflow and Tidemark have environments of their own. The workers need the variables TIDEMARK_PYTHON, the Python that
has Tidemark, TIDEMARK_SPEC, the path of the spec, and what commands read, such as TIDEMARK_WAREHOUSE.
docs/how-to/use-airflow.md explains each step.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.sensors.bash import BashSensor
from airflow.sdk import DAG, Asset, CronPartitionTimetable, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

TIDEMARK = os.environ["TIDEMARK_PYTHON"]
SPEC = os.environ["TIDEMARK_SPEC"]
HERE = Path(__file__).parent
WINDOW = "windows/by_hour"
BY_HOUR = Asset(f"quakes/{WINDOW}")
NOT_YET = 75  # exit code of day_is_complete.py
DAY = "{{ dag_run.partition_key }}"


@task.external_python(python=TIDEMARK, expect_airflow=False, retries=3, retry_delay=timedelta(minutes=1))
def run(spec: str, window: str) -> dict[str, Any]:
    """Process what is waiting; return the commit, and the days that have new rows in a window's table.

    A run that failed is tried again, and continues where the other one stopped: no record is lost or counted twice.
    """
    import os
    from zoneinfo import ZoneInfo

    import pyarrow.dataset as ds

    import tidemark as tm

    before = tm.status(spec).last
    done = tm.run(spec)
    if done.batch is None:
        return {"batch": None, "days": []}
    pipeline, warehouse = tm.spec(spec), os.environ.get("TIDEMARK_WAREHOUSE", "warehouse")
    zone = ZoneInfo(pipeline.partitions.time_zone)
    is_new = ds.field("_batch_id") > (-1 if before is None else before.batch_id)
    rows = tm.table(warehouse, pipeline.name, window).to_table(columns=["window_start"], filter=is_new)
    days = {start.astimezone(zone).date().isoformat() for start in rows["window_start"].unique().to_pylist()}
    return {"batch": done.batch, "days": sorted(days)}


@task.external_python(python=TIDEMARK, expect_airflow=False, retries=3, retry_delay=timedelta(minutes=1))
def compute(spec: str, window: str, day: str, kind: str) -> dict[str, Any]:
    """In a run of an Airflow backfill, compute the day from the arrival log."""
    import tidemark as tm

    if kind != "backfill":
        return {"batch": None, "days": []}
    done = tm.backfill(spec, day, day, windows=[window.removeprefix("windows/")])
    return {"batch": max(done.batches), "days": [day]}


@task(outlets=[BY_HOUR])
def report(done: dict[str, Any]) -> None:
    """Report each changed day as a partition of the asset; where no day changed, no DAG downstream is woken."""
    if not done["days"]:
        raise AirflowSkipException("no day has changed")
    event = get_current_context()["outlet_events"][BY_HOUR]
    event.extra = {"batch": done["batch"]}
    event.add_partitions(done["days"])


@task.external_python(python=TIDEMARK, expect_airflow=False)
def use(spec: str, window: str, day: str) -> None:
    """Use the rows of a day: your own work goes here."""
    import os
    from datetime import date, datetime, time, timedelta
    from zoneinfo import ZoneInfo

    import pyarrow.dataset as ds

    import tidemark as tm

    pipeline, warehouse = tm.spec(spec), os.environ.get("TIDEMARK_WAREHOUSE", "warehouse")
    zone = ZoneInfo(pipeline.partitions.time_zone)
    first = datetime.combine(date.fromisoformat(day), time(), zone)
    end = datetime.combine(date.fromisoformat(day) + timedelta(days=1), time(), zone)
    is_of_day = (ds.field("window_start") >= first) & (ds.field("window_start") < end)
    rows = tm.table(warehouse, pipeline.name, window).to_table(filter=is_of_day)
    print(f"{day}: {rows.num_rows} rows of {window}")


with DAG("quakes_live", schedule="*/5 * * * *", max_active_runs=1, catchup=False):
    report(run(SPEC, WINDOW))

by_day = CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")

with DAG("quakes_days", schedule=by_day, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    complete = BashSensor(
        task_id="complete",
        bash_command=f"{TIDEMARK} {HERE / 'day_is_complete.py'} {SPEC} {WINDOW} {DAY}",
        retry_exit_code=NOT_YET,
        mode="reschedule",  # the task takes no slot of a worker while it waits
        poke_interval=timedelta(minutes=5),
        timeout=timedelta(days=2),
    )
    computed = compute(SPEC, WINDOW, DAY, "{{ dag_run.run_type.value }}")
    computed >> complete >> use(SPEC, WINDOW, DAY)
    report(computed)
