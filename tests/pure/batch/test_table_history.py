"""The life of a table's files by its log, and numbers that have to be dense."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.seeds import Dice
from tidemark.assets.recount.sequences import Sequences
from tidemark.resources.delta.history import history_of
from tidemark.resources.delta.log import entry_path

CASES = 300


def rewritten(folder: Path, times: int) -> DeltaTable:
    """Return a table whose rows were replaced so often."""
    for number in range(times):
        write_deltalake(folder, pa.table({"n": [number]}), mode="overwrite")
    return DeltaTable(folder)


def test_a_file_lives_from_the_version_that_adds_it_to_the_one_that_removes_it(tmp_path: Path) -> None:
    rewritten(tmp_path, 3)
    history = history_of(tmp_path, 2)
    assert [(file.added, file.removed, file.rows) for file in history.files] == [(0, 1, 1), (1, 2, 1), (2, None, 1)]
    assert [file.added for file in history.named_by({0, 2})] == [0, 2]
    assert {file.path for file in history.files} == {path.name for path in tmp_path.glob("*.parquet")}
    assert {file.size for file in history.files} == {path.stat().st_size for path in tmp_path.glob("*.parquet")}


def test_a_restored_file_lives_twice(tmp_path: Path) -> None:
    rewritten(tmp_path, 2).restore(0)
    lives = [(file.added, file.removed) for file in history_of(tmp_path, 2).files]
    assert lives == [(0, 1), (1, 2), (2, None)]


def test_files_that_a_vacuum_may_have_deleted_are_not_named(tmp_path: Path) -> None:
    table = rewritten(tmp_path, 3)
    assert len(history_of(tmp_path, 2).named_by({0, 1, 2})) == 3
    assert len(table.vacuum(0, dry_run=False, enforce_retention_duration=False)) == 2
    latest = DeltaTable(tmp_path).version()
    named = history_of(tmp_path, latest).named_by({0, 1, 2, latest})
    assert [tmp_path / file.path for file in named] == [*tmp_path.glob("*.parquet")]


def test_a_missing_or_damaged_entry_counts_until_a_checkpoint_has_what_it_said(tmp_path: Path) -> None:
    rewritten(tmp_path, 6).create_checkpoint()
    entry_path(tmp_path, 2).unlink()
    entry_path(tmp_path, 3).write_text("{half")
    history = history_of(tmp_path, 5)
    assert (history.checkpoints, history.lacks_for(4), history.lacks_for(5)) == ((5,), [2, 3], [])
    assert not history.is_whole


def test_what_is_missing_doubled_and_misplaced_is_found_in_whatever_order_numbers_come(dice: Dice) -> None:
    rng = random.Random(dice.seed(1))
    for _ in range(CASES):
        ends = {key: rng.randint(0, 9) for key in range(3)}
        rows = [(key, number, number // 3, number) for key, end in ends.items() for number in range(end)]
        lost = {row[:2] for row in rows if rng.random() < 0.1}
        doubled = {row[:2] for row in rows if row[:2] not in lost and rng.random() < 0.1}
        rows = [row for row in rows if row[:2] not in lost] + [row for row in rows if row[:2] in doubled]
        rng.shuffle(rows)
        numbers = Sequences()
        while rows:
            some, rows = rows[:4], rows[4:]
            keys, values, first, second = np.array(some, np.int64).T
            numbers.add(keys, values, (first, second))
        faults = numbers.faults(ends)
        assert (Counter(faults.missing), faults.n_missing) == (Counter(lost), len(lost))
        assert {*faults.doubled} == doubled
        assert (faults.n_beyond, faults.misplaced) == (0, [])


def test_numbers_that_do_not_grow_with_their_ranks_are_misplaced() -> None:
    numbers = Sequences()
    keys, ranks = np.zeros(4, np.int64), np.array([1, 2, 2, 1])
    numbers.add(keys, np.arange(4), (ranks, np.array([0, 1, 2, 3])))
    assert numbers.faults().misplaced == [(0, 3)]
    assert numbers.faults({0: 3}).n_beyond == 1
