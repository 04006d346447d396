#!/usr/bin/env bash
# deltalake: the dataset of `to_pyarrow_dataset` loses or adds rows by bounds that are right.
#
# 1. A file whose statistics have bounds of one column only, as the protocol permits: no condition on the other column
#    finds a row.
# 2. The year 10000, which deltalake writes as "+10000-…" and reads as null: the same, for ordinary rows of the file too.
# 3. NaN is in no bound, and DuckDB over the dataset returns it for `v < 5`, although it counts NaN as the largest value.
# 4. SQL of deltalake, which counts NaN as the largest value too, does not find it by `v > 5` in a file that deltalake wrote.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install deltalake==1.6.6 pyarrow==26.0.1 duckdb==2.0.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import os
import sys

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

root = sys.argv[1]
print("deltalake", deltalake.__version__, "pyarrow", pa.__version__, "duckdb", duckdb.__version__)
seen = []


def show(what: str, found: int, right: int) -> None:
    print(f"{what}: {found} rows, {right} in the table")
    seen.append(found != right)


rows = pa.table({"k": [1, 2], "v": [1.0, 2.0]})
DeltaTable.create(f"{root}/part", Schema.from_arrow(rows.schema))
pq.write_table(rows, f"{root}/part/a.parquet")
bounds = {"numRecords": 2, "minValues": {"k": 1}, "maxValues": {"k": 2}, "nullCount": {"k": 0}}
add = {"path": "a.parquet", "partitionValues": {}, "size": os.path.getsize(f"{root}/part/a.parquet")}
add |= {"modificationTime": 0, "dataChange": True, "stats": json.dumps(bounds)}
with open(f"{root}/part/_delta_log/{1:020}.json", "w") as entry:
    entry.write(json.dumps({"add": add}) + "\n")
part = DeltaTable(f"{root}/part").to_pyarrow_dataset()
show("1. v = 1, bounds of k alone", part.to_table(filter=pc.field("v") == 1.0).num_rows, 1)

instants = pa.array([0, 253402300800000000], pa.int64()).cast(pa.timestamp("us", "UTC"))
write_deltalake(f"{root}/far", pa.table({"at": instants}))
far = DeltaTable(f"{root}/far").to_pyarrow_dataset()
show("2. at = 1970, with a row of the year 10000", far.to_table(filter=pc.field("at") == instants[0]).num_rows, 1)

write_deltalake(f"{root}/nan", pa.table({"v": [1.0, 2.0, float("nan")]}))
nan = DeltaTable(f"{root}/nan").to_pyarrow_dataset(filesystem=SubTreeFileSystem(f"{root}/nan", LocalFileSystem()))
count = "SELECT count(*) AS n FROM {} WHERE v {} 5"
show("3. DuckDB, v < 5", duckdb.sql(count.format("nan", "<")).fetchall()[0][0], 2)
table = QueryBuilder().register("t", DeltaTable(f"{root}/nan"))
show("4. SQL of deltalake, v > 5", pa.table(table.execute(count.format("t", ">")).read_all())["n"][0].as_py(), 1)
sys.exit(0 if all(seen) else 1)
PYTHON
