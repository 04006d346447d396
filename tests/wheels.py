"""The wheel of this checkout, as `pip install PATH` builds it.

Here: building it. Not here: what it has to hold (pure/project/test_project_files.py).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import ROOT

STOREYS = ("assets", "pipelines", "resources", "timeops")


def copy_checkout(to: Path) -> None:
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in STOREYS:
        shutil.copytree(ROOT / name, to / name, ignore=without_caches)
    shutil.copytree(ROOT / "tidemark", to / "tidemark", symlinks=True, ignore=without_caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to)


def build_wheel(checkout: Path, into: Path) -> Path:
    into.mkdir()
    build = f"import hatchling.build; hatchling.build.build_wheel({os.fspath(into)!r})"  # as pip does
    subprocess.run([sys.executable, "-B", "-c", build], cwd=checkout, check=True, capture_output=True, timeout=60)
    [wheel] = into.iterdir()
    return wheel
