"""What `pip install PATH` installs, and what it leaves behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
STOREYS = ("assets", "pipelines", "resources", "timeops")


def test_a_wheel_holds_one_top_level_name_and_every_file_of_the_storeys(tmp_path: Path) -> None:
    checkout, wheels = tmp_path / "checkout", tmp_path / "wheels"
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in STOREYS:
        shutil.copytree(ROOT / name, checkout / name, ignore=without_caches)
    shutil.copytree(ROOT / "tidemark", checkout / "tidemark", symlinks=True, ignore=without_caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    before = sorted(checkout.rglob("*"))
    build = f"import hatchling.build; hatchling.build.build_wheel({os.fspath(wheels)!r})"  # as pip does
    wheels.mkdir()
    subprocess.run([sys.executable, "-B", "-c", build], cwd=checkout, check=True, capture_output=True, timeout=60)
    assert sorted(checkout.rglob("*")) == before
    [wheel] = wheels.iterdir()
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"tidemark"}
    own = {f"tidemark/{path.name}" for path in (checkout / "tidemark").iterdir() if path.is_file()}
    inside = {f"tidemark/{path.relative_to(checkout)}" for name in STOREYS for path in (checkout / name).rglob("*.*")}
    assert names == own | inside
