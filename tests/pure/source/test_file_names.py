"""Which file a file is, by its name and its bytes: moved, renamed, copied, and remembered by an older lake."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.pure.report.shop import Shop
from tests.pure.source.landed import AN_HOUR_AGO, NOW, discover, land, names, source
from tidemark.assets.state.files import copies_after
from tidemark.resources import tables
from tidemark.resources.sources import known_files, local_files
from tidemark.resources.sources.files import FilesFound
from tidemark.resources.sources.known_files import FileState, state_of
from tidemark.timeops.spec import FilesSource

NOTHING_NEW = FilesFound()


def read(base: Path, given: FilesSource | None = None) -> list[FileState]:
    """Return what a first ingestion leaves to remember; every file has a record."""
    found = discover(given or source(), base, [], NOW)
    return [*(state_of(file, 1) for file in found.ready), *found.copies]


def look(
    base: Path, states: Sequence[FileState], given: FilesSource | None = None, *, reread: bool = False
) -> FilesFound:
    return discover(given or source(), base, states, NOW, reread=reread)


def copies(found: FilesFound) -> list[tuple[str, str | None]]:
    return [(copy.name, copy.copy_of) for copy in found.copies]


def test_a_project_that_moves_keeps_its_files_and_they_grow_on(tmp_path: Path) -> None:
    file = land(tmp_path / "project" / "in" / "x.csv", "1\n")
    states = read(tmp_path / "project")
    (tmp_path / "project").rename(tmp_path / "moved")
    assert look(tmp_path / "moved", states) == NOTHING_NEW
    land(tmp_path / "moved" / "in" / "x.csv", "1\n", AN_HOUR_AGO + timedelta(minutes=1))  # restored by a backup
    touched = look(tmp_path / "moved", states).touched
    assert [state.place for state in touched] == [str(tmp_path / "moved" / "in" / "x.csv")]
    land(tmp_path / "moved" / "in" / "x.csv", "1\n2\n")
    [grown] = look(tmp_path / "moved", states).ready
    assert (grown.name, grown.skip_lines) == ("x.csv", 1)
    assert not file.exists()


def test_a_folder_of_another_name_holds_the_same_files(tmp_path: Path) -> None:
    land(tmp_path / "in" / "a" / "x.csv", "1\n")
    states = read(tmp_path, source("in/**/*.csv"))
    (tmp_path / "in").rename(tmp_path / "archive")
    assert look(tmp_path, states, source("archive/**/*.csv")) == NOTHING_NEW
    land(tmp_path / "archive" / "a" / "x.csv", "1\n2\n")
    [grown] = look(tmp_path, states, source("archive/**/*.csv")).ready
    assert (grown.name, grown.skip_lines) == ("a/x.csv", 1)


def test_a_file_that_another_path_of_the_source_means_is_known_by_its_place(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "a" / "x.csv", "1\n")
    states = read(tmp_path, source("in/a/*.csv"))
    assert look(tmp_path, states, source("in/*/*.csv")) == NOTHING_NEW
    land(file, "1\n2\n")
    [grown] = look(tmp_path, states, source("in/*/*.csv")).ready
    assert (grown.name, grown.skip_lines) == ("a/x.csv", 1)


def test_a_name_in_another_folder_is_another_file_while_the_known_one_stays_where_it_was(tmp_path: Path) -> None:
    known = land(tmp_path / "2024" / "01.csv", "1\n2\n")
    states = read(tmp_path, source("2024/*.csv"))
    land(tmp_path / "2025" / "01.csv", "3\n4\n5\n")
    [other] = look(tmp_path, states, source("2025/*.csv")).ready
    assert other.skip_lines == 0
    known.unlink()
    [error] = look(tmp_path, states, source("2025/*.csv")).errors
    assert "was rewritten" in str(error), "the folder may have been moved, and the file changed"
    assert f"if it is another file than {known} was, `tidemark run --reread` reads it" in str(error)
    assert names(look(tmp_path, states, source("2025/*.csv"), reread=True)) == ["01.csv"]


def test_known_bytes_under_another_name_are_told_once_and_read_only_if_asked_for(tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", "1\n")
    states = read(tmp_path)
    (tmp_path / "in" / "x.csv").rename(tmp_path / "in" / "y.csv")
    land(tmp_path / "in" / "z.csv", "1\n")
    found = look(tmp_path, states)
    assert (found.ready, copies(found)) == ((), [("y.csv", "x.csv"), ("z.csv", "x.csv")])
    assert [copy.records for copy in found.copies] == [1, 1]
    told = [*states, *found.copies]
    assert look(tmp_path, told) == NOTHING_NEW
    for asked in (look(tmp_path, states, reread=True), look(tmp_path, told, reread=True)):
        assert (names(asked), asked.copies) == (["y.csv", "z.csv"], ())
    reread = [*told, *(state_of(file, 1) for file in look(tmp_path, told, reread=True).ready)]
    assert look(tmp_path, reread) == look(tmp_path, reread, reread=True) == NOTHING_NEW


def test_of_files_that_come_together_with_the_same_bytes_the_first_is_read_and_empty_ones_are_no_copies(
    tmp_path: Path,
) -> None:
    for name in ("a", "b", "c"):
        land(tmp_path / "in" / f"{name}.csv", "1\n")
        land(tmp_path / "in" / f"{name}_empty.csv", "")
    found = look(tmp_path, [])
    assert names(found) == ["a.csv", "a_empty.csv", "b_empty.csv", "c_empty.csv"]
    assert copies(found) == [("b.csv", "a.csv"), ("c.csv", "a.csv")]
    assert names(look(tmp_path, [], reread=True))[:4] == ["a.csv", "a_empty.csv", "b.csv", "b_empty.csv"]


def test_a_copy_grows_with_its_original_and_without_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        land(tmp_path / "in" / f"{name}.csv", "1\n")
    states = [replace(state, records=1) for state in read(tmp_path)]
    for name in ("a", "b"):
        land(tmp_path / "in" / f"{name}.csv", "1\n2\n")
    found = look(tmp_path, states)
    assert ([(file.name, file.skip_lines) for file in found.ready], copies(found)) == (
        [("a.csv", 1)],
        [("b.csv", "a.csv")],
    )
    (tmp_path / "in" / "a.csv").unlink()
    [alone] = look(tmp_path, states).ready
    assert (alone.name, alone.skip_lines) == ("b.csv", 1), "a renamed file is read on"


def test_an_older_lake_remembers_absolute_paths_and_nothing_is_read_again(tmp_path: Path) -> None:
    for name in ("x", "y"):
        land(tmp_path / "in" / f"{name}.csv")
    old = [replace(state, name=str(state.place), place=None) for state in read(tmp_path)]
    assert look(tmp_path, old) == NOTHING_NEW
    land(tmp_path / "in" / "x.csv", "x.csv\nmore\n")
    [grown] = look(tmp_path, old).ready
    assert (grown.name, grown.skip_lines) == ("x.csv", 1)
    land(tmp_path / "in" / "x.csv")
    (tmp_path / "in").rename(tmp_path / "moved")
    found = look(tmp_path, old, source("moved/*.csv"))
    assert (found.ready, found.errors) == ((), ())
    assert copies(found) == [(f"{name}.csv", str(tmp_path / "in" / f"{name}.csv")) for name in ("x", "y")]
    assert look(tmp_path, [*old, *found.copies], source("moved/*.csv")) == NOTHING_NEW


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def read_content(path: str, *sizes: Any, as_text: bool) -> local_files.Content:
        hashed.append(os.path.basename(path))
        return local_files.read_content(path, *sizes, as_text=as_text)

    monkeypatch.setattr(known_files, "read_content", read_content)
    for name in ("x", "y"):
        land(tmp_path / "in" / f"{name}.csv")
    assert look(tmp_path, []) == look(tmp_path, [])
    land(tmp_path / "in" / "x.csv", "z.csv\n")  # as long, and at the same time
    assert look(tmp_path, []).ready[0].digest
    assert hashed == ["x.csv", "y.csv", "x.csv"]


def test_a_run_names_the_copies_that_its_batches_found_and_no_older_ones(tmp_path: Path) -> None:
    """By what was stored: a copy may come when the run has looked already."""
    made = Shop(tmp_path).create()
    stored = [(0, "b.csv", "one"), (2, "c.csv", "one"), (2, "b.csv", "one"), (3, "b.csv", "two")]
    for batch, name, digest in stored:
        row = {"source": "tills", "path": name, "digest": digest, "size": 1, "modified_us": batch, "records": 1}
        made.add(tables.FILES, [row | {"copy_of": "a.csv", "_batch_id": batch, "ends_with_newline": True}])
    made.ingest(10)
    found = [copy.copy_sentence for copy in copies_after(made.workspace, 0)]
    assert found == [f"{name}: the same bytes were read as a.csv" for name in ("c.csv", "b.csv")]


def test_a_folder_with_a_colon_and_a_bracket_in_one_path_hold_back_that_file_alone(tmp_path: Path) -> None:
    """Spark takes the bracket for a wildcard, if it is quoted too, and then the colon for the end of a scheme."""
    land(tmp_path / "in" / "08:00" / "x.csv", "1\n")
    land(tmp_path / "in" / "b[1]" / "x.csv", "2\n")
    land(tmp_path / "in" / "08:00" / "x[1].csv", "3\n")
    found = discover(source("in/**/*.csv"), tmp_path, [], NOW)
    assert [file.name for file in found.ready] == ["08:00/x.csv", "b[1]/x.csv"]
    [error] = found.errors
    assert "x[1].csv: Spark cannot read a path that has both a colon and one of" in error.found
