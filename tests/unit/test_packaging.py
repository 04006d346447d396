"""What `pip install PATH` installs, and what it leaves behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
PACKAGES = ("assets", "pipelines", "resources", "timeops")


def test_building_the_package_takes_every_file_of_it_along_and_leaves_nothing_in_the_checkout(tmp_path: Path) -> None:
    checkout, wheels = tmp_path / "checkout", tmp_path / "wheels"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    before = sorted(checkout.rglob("*"))
    build = f"import hatchling.build; hatchling.build.build_wheel({os.fspath(wheels)!r})"  # as pip does
    wheels.mkdir()
    subprocess.run([sys.executable, "-B", "-c", build], cwd=checkout, check=True, capture_output=True, timeout=60)
    assert sorted(checkout.rglob("*")) == before
    [wheel] = wheels.iterdir()
    taken = {name for name in ZipFile(wheel).namelist() if name.startswith(PACKAGES)}
    assert taken == {str(path.relative_to(checkout)) for name in PACKAGES for path in (checkout / name).rglob("*.*")}
