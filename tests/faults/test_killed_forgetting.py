"""Forgetting that is killed between commits, or while it deletes, with live runs between: in the end all is gone."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import KILLED, Death, Gateway, forget_and_die
from tests.runs.batch.test_forgotten import OF_ADA, SHOP, VALUES, forget, holding, land, run, seqs_of_ada
from tests.runs.landing import assert_tables_equal_the_oracle, table
from tests.runs.running import asked, written

DEATHS = (
    Death("beside commit of process", "python"),
    Death("raw_events", "python"),
    Death("log_control", "python"),
    Death("deleting the files of older versions", "python", is_said=True),
    Death("deleting the old files of the log", "python", is_said=True),
    Death("the old files of the log are deleted", "python", is_said=True),
)
LIVE_AFTER = (1, 4)
"""The deaths after which a live run comes before the next try."""


@pytest.mark.long
def test_forgetting_that_is_killed_again_and_again_leaves_nothing_in_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "shop", SHOP)
    warehouse, spec = made[1].warehouse, made[0].spec
    assert isinstance(warehouse, Path)
    land(tmp_path, "0", 0)
    run(made)
    seqs = seqs_of_ada(made)
    where = f"{OF_ADA} AND _arrival_seq <= {max(seqs)} OR _malformed IS NOT NULL AND _arrival_seq <= {max(seqs)}"
    for number, death in enumerate(DEATHS):
        died = forget_and_die(made[0].path, warehouse, where, death, Gateway.of(spark))
        assert died == KILLED, (death, (tmp_path / "said.txt").read_text())
        rows = [row for row in table(warehouse, spec, "raw_events") if row["_arrival_seq"] in seqs]
        assert len(rows) == len(seqs)
        if number not in LIVE_AFTER:
            continue
        late = {"id": f"m{number}", "at": "2026-01-01T01:00:00Z", "got": f"2026-01-01T01:00:0{number}Z"}
        (tmp_path / "in" / f"more{number}.jsonl").write_text(json.dumps(late) + "\n")
        run(made)
    done = forget(made, where)
    assert done.exit_code == 0, done.output
    assert "none of them was found" in done.output
    assert holding(warehouse, *VALUES) == []
    assert_tables_equal_the_oracle(warehouse, spec, without=seqs, revisions=False)
    status = asked(made, "status")
    assert (status.exit_code, "by hand" in status.output) == (0, False), status.output
