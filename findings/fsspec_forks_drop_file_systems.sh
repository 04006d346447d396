#!/usr/bin/env bash
# fsspec: a process that is started with `preexec_fn` ends the file systems that its parent has open, before it begins.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet fsspec==2026.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import os
import subprocess
import sys

import fsspec
from fsspec import AbstractFileSystem

PARENT = os.getpid()
LOOK, TELL = os.pipe()
os.set_blocking(LOOK, False)


class Orders(AbstractFileSystem):
    """A file system whose end can be seen, as a client with threads or connections has one."""

    def __del__(self) -> None:
        os.write(TELL, b"in the parent" if os.getpid() == PARENT else b"in the child")


def ended(*, prepared: bool) -> str:
    """Start a program, with or without something to do between fork and exec; return where file systems ended."""
    subprocess.run([sys.executable, "-c", ""], preexec_fn=(lambda: None) if prepared else None, check=True)
    try:
        return os.read(LOOK, 1_000).decode()
    except BlockingIOError:
        return "nowhere"


print("fsspec", fsspec.__version__)
Orders()  # fsspec keeps it
seen = [ended(prepared=False), ended(prepared=True)]
Orders.clear_instance_cache()
os.read(LOOK, 1_000)
apart = Orders(skip_instance_cache=True)
seen.append(ended(prepared=True))
print("a file system in the cache of fsspec ends when a program is started plainly:", seen[0])
print("… with preexec_fn:", seen[1])
print("one outside the cache, with preexec_fn:", seen[2])
raise SystemExit(0 if seen == ["nowhere", "in the child", "nowhere"] else 1)
PYTHON
