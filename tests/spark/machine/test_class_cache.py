"""The cache of Java's classes: used where there is one that fits, never in the way."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark.resources.spark.class_cache import Java, cache_of, make, make_in_background, options_for
from tidemark.resources.spark.delta_jars import delta_package, known_jars, remember_jars

JAVA = Java("/opt/java/bin/java", 25, 'openjdk version "25.0.3"')
_STARTS = """
from tidemark.resources.spark.session import JAVA_OPTIONS, local_session, session_config
config = session_config()
config[JAVA_OPTIONS] += " -Xlog:class+load:file={log}"
print(local_session(config).range(7).count())
"""


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a jar that is known as Delta's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jar = tmp_path / "io.delta_delta-spark_4.2_2.13-4.4.0.jar"
    jar.touch()
    remember_jars(delta_package(), str(jar))
    return jar


def place_of(java: Java, package: str | None = None) -> Path:
    found = cache_of(java, package or delta_package())
    assert found is not None
    return found


@pytest.mark.usefixtures("jar")
@pytest.mark.parametrize(
    ("major", "option"), [(17, "SharedArchiveFile"), (21, "SharedArchiveFile"), (25, "AOTCache")]
)
def test_classes_are_taken_from_a_cache_that_is_there(major: int, option: str) -> None:
    java = replace(JAVA, major=major)
    assert options_for(java, delta_package()) == ""
    place_of(java).write_text("classes")
    place_of(java).with_suffix(".size").write_text("7")
    assert f'-XX:{option}="{place_of(java)}"' in options_for(java, delta_package())
    assert "-XX:ArchiveRelocationMode=0" in options_for(java, delta_package()).split(), "processes share its pages"
    place_of(java).write_text("cut")
    assert options_for(java, delta_package()) == ""


def test_another_java_or_other_jars_have_a_cache_of_their_own(jar: Path) -> None:
    places = {place_of(JAVA), place_of(Java(JAVA.path, 25, 'openjdk version "25.0.4"'))}
    with_a_store = f"{delta_package()},a.store:client:1"
    remember_jars(with_a_store, f"{jar},{jar.with_name('client.jar')}")
    jar.with_name("client.jar").touch()
    places.add(place_of(JAVA, with_a_store))
    jar.write_text("changed")
    assert len(places | {place_of(JAVA)}) == 4


@pytest.mark.usefixtures("jar")
def test_a_java_that_does_not_say_its_version_has_no_cache() -> None:
    assert cache_of(replace(JAVA, major=None), delta_package()) is None


@pytest.mark.usefixtures("jar")
def test_a_cache_that_cannot_be_made_is_not_tried_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where no Java is, so Spark does not start
    assert not make(JAVA, delta_package())
    assert not place_of(JAVA).exists()
    begun: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: begun.append(words))
    make_in_background(JAVA, delta_package())
    assert not begun
    make_in_background(Java(JAVA.path, 25, 'openjdk version "25.0.4"'), delta_package())
    assert len(begun) == 1, "another Java is tried"


def _home_of(major: int) -> Path | None:
    """Return the folder of a Java of this version on this machine."""
    homes = [os.environ.get("JAVA_HOME", ""), *map(str, sorted(Path("/usr/lib/jvm").glob(f"*-{major}-*")))]
    return next((Path(home) for home in homes if str(major) in home and Path(home, "bin", "java").exists()), None)


HOMES = {major: home for major in (17, 21, 25) if (home := _home_of(major)) is not None}


@pytest.mark.long
@pytest.mark.parametrize("major", HOMES)
def test_spark_takes_its_classes_from_the_cache_and_starts_beside_one_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, major: int
) -> None:
    home, jars = HOMES[major], known_jars(delta_package())
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remember_jars(delta_package(), ",".join(jars))
    said = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True).stderr
    java = Java(str(home / "bin" / "java"), major, said)
    assert make(java, delta_package())
    for name, is_shared in (("whole", True), ("cut", False)):
        log = tmp_path / name
        words = [sys.executable, "-c", _STARTS.format(log=log)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr
        loaded = log.read_text().splitlines()
        shared = sum("org.apache.spark" in line and "shared objects file" in line for line in loaded)
        assert (shared > 1_000) == is_shared
        found = place_of(java)
        found.chmod(0o644)  # Java 17 writes one that is read-only
        found.write_bytes(found.read_bytes()[: found.stat().st_size // 2])
