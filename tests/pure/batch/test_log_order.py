"""The records of an ingestion are in one total order, whatever way they lie, with the clock that follows from it."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.seeds import Dice
from tidemark.assets.ingestion.raw_events import ARRIVAL_US, CAME_US, KEYS, NumberedLog, Records
from tidemark.assets.log.corrections import REPLACED_SEQ
from tidemark.resources.delta import ordering
from tidemark.resources.delta.ordering import Places, Rows, rows_in_memory
from tidemark.resources.sources.file_records import PlainFile
from tidemark.resources.sources.known_files import FileRange
from tidemark.timeops import columns as c
from tidemark.timeops.values.instants import NONE

CASES = 20
Row = dict[str, Any]
LOG = pa.schema(
    [
        *[(name, pa.int64()) for name in (c.SEQ, c.POSITION, "id")],
        *[(name, pa.timestamp("us", "UTC")) for name in (c.ARRIVAL, c.CLOCK)],
        *[(name, pa.string()) for name in (c.SOURCE, c.FILE)],
        (c.BATCH, pa.int64()),
    ]
)
TYPES = {c.SOURCE: pa.string(), c.FILE: pa.string()}


def records_of(
    rows: Sequence[Row], cuts: Sequence[int], names: Sequence[str], files: Sequence[Sequence[Row]] = ()
) -> Records:
    """Returns rows in parts, whose keys come in as many chunks; each of `files` lies in order."""
    parts, keys = [], []
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        own = pa.table(
            {
                name: pa.array([row[name] for row in rows[begin:end]], TYPES.get(name, pa.int64()))
                for name in (*names, "id")
            }
        )

        def read(span: range, own: pa.Table = own) -> Iterator[tuple[Places, pa.Table]]:
            for at in range(span.start, span.stop, 5):
                yield np.arange(at, min(at + 5, len(own))), own.slice(at, 5)

        parts.append(Rows(len(own), read))
        keys.append(own.select(list(names)))
    return Records.of([plain_of(file) for file in files], parts, pa.concat_tables(keys))


def plain_of(rows: Sequence[Row]) -> PlainFile:
    read_from = FileRange("/x", rows[0][c.FILE], 1, 1, "", rows[0][c.POSITION] - 1, ends_with_newline=True)
    arrival = [NONE if row[ARRIVAL_US] is None else row[ARRIVAL_US] for row in rows]
    stored = rows_in_memory(pa.table({"number": [row["id"] for row in rows]}))
    return PlainFile(rows[0][c.SOURCE], read_from, stored, {"id": "number"}, np.array(arrival))


def files_in(drawn: random.Random, rows: Sequence[Row], *, reads_tables: bool) -> list[list[Row]]:
    """Choose some runs of records that follow each other in a file, and take no places."""
    files: list[list[Row]] = []
    of_files = [row for row in rows if row[c.FILE] and not (reads_tables and (row[CAME_US] or row[REPLACED_SEQ]))]
    for row in sorted(of_files, key=lambda row: (row[c.FILE], row[c.SOURCE], row[c.POSITION])):
        before = row | {c.POSITION: row[c.POSITION] - 1}
        follows = bool(files) and all(files[-1][-1][name] == before[name] for name in (c.FILE, c.SOURCE, c.POSITION))
        if follows and drawn.random() < 0.8:
            files[-1].append(row)
        elif drawn.random() < 0.5:
            files.append([row])
    drawn.shuffle(files)
    return files


def drawn_rows(drawn: random.Random) -> list[Row]:
    """Returns records with many ties, in any order; each has a place of its own."""
    files, sources = ["b", "é", "a/b", "Z", None], ["s", "r"]
    places = dict.fromkeys((drawn.choice(files), drawn.choice(sources), drawn.randrange(9)) for _ in range(60))
    rows = [
        {
            c.FILE: file,
            c.SOURCE: source,
            c.POSITION: position,
            ARRIVAL_US: drawn.choice([None, 5, 6, 7, -3]),
            CAME_US: drawn.choice([None, 1, 2]),
            REPLACED_SEQ: drawn.choice([None, None, 11, 12]),
        }
        for file, source, position in places
    ]
    drawn.shuffle(rows)
    return [row | {"id": number} for number, row in enumerate(rows)]


def none_last(value: int | None) -> tuple[bool, int]:
    return value is None, value or 0


@pytest.mark.parametrize("by_arrival", [False, True])
@pytest.mark.parametrize("reads_tables", [False, True])
def test_records_are_numbered_as_if_sorted_in_one_list(
    dice: Dice, monkeypatch: pytest.MonkeyPatch, *, by_arrival: bool, reads_tables: bool
) -> None:
    for name, value in {"_GROUP_ROWS": 4, "_LEAST_ROWS": 10, "_WAITING_BYTES": 200}.items():
        monkeypatch.setattr(ordering, name, value)
    drawn = random.Random(dice.seed(3))
    for _ in range(CASES):
        assert_as_if_sorted(drawn, by_arrival=by_arrival, reads_tables=reads_tables)


def assert_as_if_sorted(drawn: random.Random, *, by_arrival: bool, reads_tables: bool) -> None:
    rows, from_us = drawn_rows(drawn), drawn.choice([None, 6])
    now_us, most_us = drawn.choice([9, 5]), {"r": drawn.choice([None, 0, 1]), "s": drawn.choice([None, 0, 1])}
    names = [*KEYS, *([CAME_US, REPLACED_SEQ] if reads_tables else [])]
    files = drawn.choice([[], files_in(drawn, rows, reads_tables=reads_tables)])
    in_files = {row["id"] for file in files for row in file}
    others = [row for row in rows if row["id"] not in in_files]
    cuts = sorted(drawn.choices(range(len(others) + 1), k=3))
    records, ahead = records_of(others, cuts, names, files).arrived_by(now_us, most_us), {}
    for row in rows:
        most, arrival_us, is_new = (
            most_us[row[c.SOURCE]],
            row[ARRIVAL_US],
            not reads_tables or row[REPLACED_SEQ] is None,
        )
        if most is not None and arrival_us is not None and arrival_us > now_us + most and is_new:
            row[ARRIVAL_US], ahead[row["id"]] = now_us, arrival_us - now_us

    def key(row: Row) -> tuple[object, ...]:
        came = row[ARRIVAL_US] if row[CAME_US] is None else row[CAME_US]
        of_tables = (none_last(came), none_last(row[REPLACED_SEQ])) if reads_tables else ()
        arrival = (none_last(row[ARRIVAL_US]),) if by_arrival else ()
        file = (row[c.FILE] is not None, (row[c.FILE] or "").encode())
        return (*of_tables, *arrival, file, row[c.SOURCE], row[c.POSITION])

    entering = [row for row in rows if from_us is None or row[ARRIVAL_US] is None or row[ARRIVAL_US] >= from_us]
    expected, before_us = sorted(entering, key=key), drawn.choice([None, 6])
    log = NumberedLog(records, records.order_in_log(by_arrival=by_arrival, from_us=from_us), 100, before_us)
    made = pa.Table.from_batches([batch for piece in log.pieces(7) for batch in piece(LOG)], LOG)
    assert made["id"].to_pylist() == [row["id"] for row in expected]
    assert made[c.SEQ].to_pylist() == list(range(100, 100 + len(expected)))
    assert made[c.ARRIVAL].cast(pa.int64()).to_pylist() == [row[ARRIVAL_US] for row in expected]
    clocks: list[int | None] = []
    for row in expected:
        known = [us for us in (clocks[-1] if clocks else before_us, row[ARRIVAL_US]) if us is not None]
        clocks.append(max(known, default=None))
    assert made[c.CLOCK].cast(pa.int64()).to_pylist() == clocks
    assert set(made[c.BATCH].to_pylist()) == {7}
    assert log.last_clock_us == clocks[-1]
    assert log.first_clock_us == next((us for us in clocks if us is not None), None)
    new = [row for row in expected if not reads_tables or row[REPLACED_SEQ] is None]
    last = {source: [row[ARRIVAL_US] for row in new if row[c.SOURCE] == source] for source in ("r", "s")}
    timed = {source: [us for us in arrivals if us is not None] for source, arrivals in last.items()}
    assert log.last_arrivals() == {source: max(arrivals) for source, arrivals in timed.items() if arrivals}
    taken = [
        {c.SOURCE: row[c.SOURCE], c.SEQ: 100 + number, REPLACED_SEQ: row[REPLACED_SEQ]}
        for number, row in enumerate(expected)
        if reads_tables and row[REPLACED_SEQ] is not None
    ]
    assert log.replacements().to_pylist() == taken
    in_log = {100 + number: ahead[row["id"]] for number, row in enumerate(expected) if row["id"] in ahead}
    seqs, furthest_us = log.ahead()
    assert (seqs.tolist(), furthest_us) == ([*in_log], max(in_log.values(), default=0))


def test_an_ingestion_without_records_moves_no_clock() -> None:
    records = records_of([], [], KEYS)
    log = NumberedLog(records, records.order_in_log(by_arrival=True, from_us=None), 3, 9)
    assert (len(log), log.pieces(1), log.last_clock_us, log.first_clock_us) == (0, [], 9, None)
    assert not log.last_arrivals()
    assert not len(log.replacements())
