"""Sessions that late events draw out over others which had closed: results, and what recomputing them says."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, assert_tables_equal_the_oracle, table
from tests.runs.running import go, written
from tidemark.assets.recount.windows import wrong_results
from tidemark.resources.workspace import Workspace

SPEC = f"""\
name: drawn_out
{LINES}
time: {{timestamp_by: at, out_of_order: keep}}
windows:
  - {{name: visits, kind: session, gap: 4 s, aggregates: {{n: count(*)}}}}
  - {{name: odd, kind: session, gap: 4 s, aggregates: {{n: count(*)}}, having: n % 2 = 1}}
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
CLOSED, DRAWN_OVER_IT = [0, 3], [10, 7, 4, 2, 11]
REFUSED, DRAWN_OVER_THAT = [20], [26, 22, 19, 31]  # 20 comes when 30 has opened the session, and nothing is near


@pytest.mark.long
def test_a_session_may_lie_over_a_closed_one_and_the_others_are_recomputed(
    spark: SparkSession, tmp_path: Path
) -> None:
    seconds = [*CLOSED, *DRAWN_OVER_IT, 30, *REFUSED, *DRAWN_OVER_THAT, 60]
    rows = [
        {"at": (START + timedelta(seconds=s)).isoformat(), "got": (START + timedelta(minutes=n)).isoformat()}
        for n, s in enumerate(seconds)
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file, settings = made = written(tmp_path, "drawn_out", SPEC)
    assert go(made).batches == 1
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    sessions = table(settings.warehouse, file.spec, "windows/visits")
    assert {((row["window_start"] - START).seconds, row["n"]) for row in sessions} == {(0, 2), (2, 5), (19, 5)}
    assert len(table(settings.warehouse, file.spec, "windows/odd")) == 2

    workspace = Workspace(file, settings.warehouse, lambda: spark)
    (visits,) = (window for window in file.spec.windows if window.name == "visits")
    assert [*wrong_results(workspace, visits)] == []
    DeltaTable(str(workspace.lake.path("windows/visits"))).update(updates={"n": "n + 1"})
    wrong = [result.key["window_start"] for result in wrong_results(workspace, visits)]
    assert wrong == ["2026-01-01 00:00:00"], "which events the others hold, times do not tell"
