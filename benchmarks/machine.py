"""Surroundings of the figures: the machine, the versions, the commit, the processes of a benchmark.

Here: asking the machine. Not here: how fast it is.
"""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks import peers

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "dagster", "great_expectations", "pyarrow", "numpy")
_ROOT = Path(__file__).parents[1]


def described() -> dict[str, object]:
    """All of it, for the JSON."""
    changed = _said("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "system": platform.system(),
        },
        "versions": {
            "tidemark": version("tidemark"),
            "python": platform.python_version(),
            "java": _said("java", "-version").partition("\n")[0],
            **{name: version(name) for name in _PACKAGES},
        },
        "peers": peers.versions(),
        "commit": _said("git", "rev-parse", "HEAD"),
        "uncommitted_changes": bool(changed),
    }


def family() -> list[psutil.Process]:
    """Return this process and all that it has started, directly or not, and that live."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def _said(*command: str) -> str:
    """Return what a command prints; nothing where there is no such command."""
    try:
        done = subprocess.run(
            command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.strip()
