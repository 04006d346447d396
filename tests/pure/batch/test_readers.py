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
    T,
    by_delta_sql,
    by_polars,
    in_arrow,
    in_sql,
    rows_of,
)
from tidemark.resources.delta.versions import files_of


@pytest.mark.parametrize("way", WAYS)
def test_each_reader_finds_the_same_with_bounds_as_in_all_rows(tmp_path: Path, way: str) -> None:
    lake, rows = WAYS[way](tmp_path), pa.concat_tables(map(rows_of, HOSTILE))
    table = DeltaTable(str(lake.path(T)))
    dataset, ours = table.to_pyarrow_dataset(filesystem=files_of(lake.path(T))), lake.dataset(T, None)
    assert dataset.count_rows() == rows.num_rows
    scanned, held = pl.scan_delta(table.table_uri), pl.DataFrame(rows).lazy()
    all_rows, over_dataset, over_ours = ByDuckDB(rows), ByDuckDB(dataset), ByDuckDB(ours)
    sql = QueryBuilder().register("t", table)
    wrong = []
    for condition in CONDITIONS:
        right, found = all_rows(condition), rows.filter(in_arrow(condition)).num_rows
        counts = {
            "DuckDB over the dataset": (over_dataset(condition), right),
            "DuckDB over ours": (over_ours(condition), right),
            "the dataset": (dataset.count_rows(filter=in_arrow(condition)), found),
            "ours": (ours.count_rows(filter=in_arrow(condition)), found),
            "SQL of delta-rs": (by_delta_sql(sql, condition), right),
            "Polars": (by_polars(scanned, condition), by_polars(held, condition)),
        }
        if "." not in condition[0]:  # of fields in structs no condition of ours asks
            symbol = condition[1].replace("IS", "=")
            counts["counted by bounds"] = lake.opened.seen(T).count([(condition[0], symbol, condition[2])]), found
        if way == EARLIER and condition[0] in FLOATS:  # footers of its files have bounds without NaN
            counts = {name: one for name, one in counts.items() if name.startswith("DuckDB") or name == "Polars"}
        wrong += [f"{in_sql(condition)}: {name} {one}" for name, one in counts.items() if one[0] != one[1]]
    assert not wrong
