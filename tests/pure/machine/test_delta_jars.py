"""A start of Spark remembers Delta's jars for the next one; without Spark."""

import os
from pathlib import Path

import pytest

from tidemark.resources.spark.delta_jars import known_jars, on_class_path, remember_jars

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
CLASS_PATH = "SPARK_DIST_CLASSPATH"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(CLASS_PATH, raising=False)
    return tmp_path / "cache"


def jars(folder: Path) -> list[str]:
    folder.mkdir(parents=True)
    paths = [folder / "io.delta_delta-spark_4.2_2.13-4.4.0.jar", folder / "io.delta_delta-storage-4.4.0.jar"]
    for path in paths:
        path.touch()
    return [str(path) for path in paths]


def test_a_start_knows_the_jars_of_an_earlier_one_but_not_those_of_the_user(tmp_path: Path) -> None:
    assert known_jars(PACKAGE) == []
    found = jars(tmp_path / "resolved")
    remember_jars(PACKAGE, ",".join([f"file://{tmp_path}/mine.jar", *(f"file://{one}" for one in found)]))
    assert known_jars(PACKAGE) == found
    assert known_jars("io.delta:delta-spark_4.2_2.13:4.5.0") == [], "another version is resolved anew"


def test_jars_that_are_gone_or_a_damaged_note_are_resolved_anew(tmp_path: Path, cache: Path) -> None:
    found = jars(tmp_path / "resolved")
    remember_jars(PACKAGE, ",".join(found))
    Path(found[1]).unlink()
    assert known_jars(PACKAGE) == []
    Path(found[1]).touch()
    assert known_jars(PACKAGE) == found
    (note,) = (cache / "tidemark").iterdir()
    for text in ("[", "7", ""):
        note.write_text(text)
        assert known_jars(PACKAGE) == []


def test_without_a_cache_nothing_is_remembered_and_nothing_fails(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    remember_jars(PACKAGE, ",".join(jars(tmp_path / "resolved")))
    assert known_jars(PACKAGE) == []


@pytest.mark.parametrize("before", [None, "/hadoop/conf"])
def test_jars_stand_behind_what_the_user_has_on_the_class_path(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before:
        monkeypatch.setenv(CLASS_PATH, before)
    with on_class_path(["/a.jar", "/b.jar"]):
        assert os.environ[CLASS_PATH] == os.pathsep.join([*([before] if before else []), "/a.jar", "/b.jar"])
    assert os.environ.get(CLASS_PATH) == before
    with on_class_path([]):
        assert os.environ.get(CLASS_PATH) == before
