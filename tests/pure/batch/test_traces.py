"""Values that are sought in files: found however a file has them, and not where others only look like them."""

import io
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.resources.traces import Sought, Texts, trace_in, words_of

EMAIL, NAME = "ada@example.org", 'Ada "Ñandú" 中'


def sought(**columns: list[object]) -> Sought:
    return Sought.of(pa.record_batch({name: pa.array(values)}) for name, values in columns.items())


@pytest.mark.parametrize("seed", range(20))
def test_texts_are_found_in_bytes_exactly_where_they_are(seed: int) -> None:
    draw = random.Random(seed)
    texts = {bytes(draw.choices(b"abc", k=draw.randint(4, 9))) for _ in range(draw.randint(1, 30))}
    data = bytes(draw.choices(b"abcd", k=draw.randint(0, 400)))
    assert Texts(texts).texts_in(data) == {text for text in texts if text in data}


def test_a_text_is_found_across_the_pieces_in_which_a_large_file_is_read(tmp_path: Path) -> None:
    for at in (8_000_000 - 3, 8_000_000, 16_000_000 - len(EMAIL)):
        file = tmp_path / str(at)
        file.write_bytes(b"x" * at + EMAIL.encode() + b"y" * 100)
        assert trace_in(file, sought(email=[EMAIL])) is not None, at


@pytest.mark.parametrize(
    "text",
    [
        NAME,
        json.dumps({"name": NAME}),
        json.dumps({"name": NAME}, ensure_ascii=False),
        json.dumps(json.dumps({"name": NAME})),
        json.dumps(json.dumps({"name": NAME}, ensure_ascii=False)),
        json.dumps(json.dumps({"name": NAME}), ensure_ascii=False),
    ],
)
def test_a_text_is_found_as_json_spells_it_and_json_in_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "entry.json").write_text(f"before {text} behind", encoding="utf-8")
    assert trace_in(tmp_path / "entry.json", sought(name=[NAME])) is not None
    assert trace_in(tmp_path / "entry.json", sought(name=["Ada Lovelace"])) is None


@pytest.mark.parametrize("compression", ["NONE", "SNAPPY", "ZSTD"])
@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", None])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_a_text_is_found_in_a_column_of_parquet_however_it_is_written(
    tmp_path: Path, compression: str, encoding: str | None, kind: pa.DataType
) -> None:
    texts = [f"ada@example.o{n:04}" for n in range(500)] + [EMAIL, None] + [f"{EMAIL}x{n}" for n in range(3)]
    column = pa.array([None if text is None else text.encode() for text in texts], pa.binary()).cast(kind)
    how = {"use_dictionary": True} if encoding is None else {"use_dictionary": False, "column_encoding": encoding}
    file = tmp_path / "part.parquet"
    pq.write_table(pa.table({"_payload": column}), file, compression=compression, write_statistics=False, **how)
    assert trace_in(file, sought(email=[EMAIL])) is not None
    assert trace_in(file, sought(email=["bob@example.org"])) is None


def test_a_text_is_found_inside_of_lists_structs_and_maps_and_in_json_in_a_column(tmp_path: Path) -> None:
    struct = pa.array([{"a": [{"b": EMAIL}]}], pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))]))
    of_map = pa.array([[(EMAIL, 1)]], pa.map_(pa.string(), pa.int64()))
    payload = pa.array([json.dumps({"email": EMAIL})])
    for number, column in enumerate((struct, of_map, payload, payload.dictionary_encode())):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"v": column}), file, compression="ZSTD")
        assert trace_in(file, sought(email=[EMAIL])) is not None, column.type
    values = Sought.of(pa.table({"s": struct, "m": of_map, "p": payload}).to_batches())
    assert EMAIL in values.texts


def test_bounds_in_a_footer_are_found(tmp_path: Path) -> None:
    table = pa.table({"v": [EMAIL, "zoe"]})
    pq.write_table(table, tmp_path / "part.parquet", compression="ZSTD", use_dictionary=False)
    metadata = pq.read_metadata(tmp_path / "part.parquet")
    assert metadata.row_group(0).column(0).statistics.min == EMAIL
    buffer = io.BytesIO()
    metadata.write_metadata_file(buffer)
    (tmp_path / "footer").write_bytes(buffer.getvalue())
    assert trace_in(tmp_path / "footer", sought(email=[EMAIL])) is not None


def test_a_text_is_found_in_a_cell_of_sqlite_that_is_spread_over_pages(tmp_path: Path) -> None:
    for at in range(3_900, 4_200, 7):
        file = tmp_path / f"{at}.db"
        with closing(sqlite3.connect(file)) as base:
            base.execute("CREATE TABLE events (id INTEGER, event TEXT)")
            base.execute("INSERT INTO events VALUES (1, ?)", ("x" * at + EMAIL + "y" * 5_000,))
            base.commit()
        assert trace_in(file, sought(email=[EMAIL])) is not None, at
        assert trace_in(file, sought(email=["bob@example.org"])) is None


def test_numbers_are_compared_in_columns_of_users_alone_and_small_ones_not_at_all(tmp_path: Path) -> None:
    values = sought(customer=[4_711_000], amount=[12.75], count=[12])
    assert values.numbers == {4_711_000.0, 12.75}
    for column, found in (("customer", True), ("_arrival_seq", False)):
        pq.write_table(pa.table({column: [1, 4_711_000]}), tmp_path / "part.parquet")
        assert (trace_in(tmp_path / "part.parquet", values) is not None) == found


def test_times_short_texts_and_short_numbers_are_compared_with_whole_cells(tmp_path: Path) -> None:
    values = sought(at=["2026-01-01T00:00:05Z", "2026-01-01"], zip=["10115"], k=["a", "é"], phone=["+49 30 123456"])
    assert values.texts == {"+49 30 123456"}
    (tmp_path / "entry.json").write_text('{"min": "2026-01-01T00:00:05Z", "size": 10115, "a": 1}')
    assert trace_in(tmp_path / "entry.json", values) is None
    for text in ("2026-01-01T00:00:05Z", "10115", "a", "é"):
        pq.write_table(pa.table({"v": [f"x{text}"]}), tmp_path / "part.parquet", compression="ZSTD")
        assert trace_in(tmp_path / "part.parquet", values) is None
        pq.write_table(pa.table({"v": [text]}), tmp_path / "part.parquet", compression="ZSTD")
        assert trace_in(tmp_path / "part.parquet", values) is not None


def test_of_a_long_text_its_middle_is_sought_and_of_json_and_raw_lines_their_values(tmp_path: Path) -> None:
    long = "".join(f"{n:05} " for n in range(200))
    (tmp_path / "copy").write_text(f"... {long} ...")
    assert trace_in(tmp_path / "copy", sought(text=[long])) is not None
    rescued = sought(_rescued=[json.dumps({"nick": "countess", "age": 36, "of": [{"town": "London"}]})])
    assert {"countess", "London"} <= rescued.texts
    assert [*words_of('{"email": "ada@example.org", "v": nope')] == ["ada@example.org"]


def test_what_others_have_too_is_not_sought_and_what_is_common_is_compared_with_whole_cells() -> None:
    values = sought(email=[EMAIL, "bob@example.org"], kind=["commitInfo"])
    rest = values.without(sought(email=["bob@example.org"]))
    assert rest.texts == {EMAIL, "commitInfo"}
    common = rest.with_common(["commitInfo", "other"])
    assert common.texts == {EMAIL}
    assert common.whole_values == {"commitInfo"}
    assert not common.in_bytes(b'{"commitInfo": {}}')
    assert common.in_column(pa.array(["commitInfo"]), of_user=True)
    assert len(common) == 2


def test_a_file_that_claims_to_be_parquet_and_cannot_be_read_is_named_and_one_that_is_gone_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "part.parquet").write_bytes(b"PAR1 half a file")
    trace = trace_in(tmp_path / "part.parquet", sought(email=[EMAIL]))
    assert trace is not None
    assert "cannot be read" in trace.where
    assert trace_in(tmp_path / "gone", sought(email=[EMAIL])) is None
