"""Readers of our tables find by any condition what they find in all rows of the table, however these came into it."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.hostile import (
    CONDITIONS,
    EARLIER,
    FLOATS,
    HOSTILE,
    WAYS,
    ByDuckDB,
    Condition,
    T,
    by_delta_sql,
    by_polars,
    in_arrow,
    in_sql,
    rows_of,
)
from tidemark.resources.delta.versions import files_of

SOON = ("appended", "joined", EARLIER)


@pytest.fixture(scope="module")
def right() -> list[tuple[Condition, int, int, int]]:
    """Return with each condition how many of all rows DuckDB, Arrow and Polars find by it in memory."""
    rows = pa.concat_tables(map(rows_of, HOSTILE))
    by_duckdb, held = ByDuckDB(rows), pl.DataFrame(rows).lazy()
    return [(one, by_duckdb(one), rows.filter(in_arrow(one)).num_rows, by_polars(held, one)) for one in CONDITIONS]


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way in SOON else [pytest.mark.long]) for way in WAYS])
def test_each_reader_finds_the_same_with_bounds_as_in_all_rows(
    tmp_path: Path, way: str, right: list[tuple[Condition, int, int, int]]
) -> None:
    lake = WAYS[way](tmp_path)
    table = DeltaTable(str(lake.path(T)))
    dataset, ours = table.to_pyarrow_dataset(filesystem=files_of(lake.path(T))), lake.dataset(T, None)
    assert dataset.count_rows() == sum(map(len, HOSTILE.values()))
    scanned, over_dataset, over_ours = pl.scan_delta(table.table_uri), ByDuckDB(dataset), ByDuckDB(ours)
    sql = QueryBuilder().register("t", table)
    wrong = []
    for condition, by_duckdb, by_arrow, by_polars_in_memory in right:
        counts = {
            "DuckDB over the dataset": (over_dataset(condition), by_duckdb),
            "DuckDB over ours": (over_ours(condition), by_duckdb),
            "the dataset": (dataset.count_rows(filter=in_arrow(condition)), by_arrow),
            "ours": (ours.count_rows(filter=in_arrow(condition)), by_arrow),
            "SQL of delta-rs": (by_delta_sql(sql, condition), by_duckdb),
            "Polars": (by_polars(scanned, condition), by_polars_in_memory),
        }
        if "." not in condition[0]:  # of fields in structs no condition of ours asks
            symbol = condition[1].replace("IS", "=")
            filters = [(condition[0], symbol, condition[2])]
            counts["counted by bounds"] = lake.opened.version_at(T).count(filters), by_arrow
        if way == EARLIER and condition[0] in FLOATS:  # footers of its files have bounds without NaN
            counts = {name: one for name, one in counts.items() if name.startswith("DuckDB") or name == "Polars"}
        wrong += [f"{in_sql(condition)}: {name} {one}" for name, one in counts.items() if one[0] != one[1]]
    assert not wrong
