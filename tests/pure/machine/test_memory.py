"""Memory that was freed goes back to the system: Arrow's, and what the C library keeps inside its heap."""

import ctypes
import os
import subprocess
import sys

import psutil
import pytest

from tests import ROOT
from tidemark.resources.memory import release_memory

BLOCK, BLOCKS = 2_000, 50_000
POOL = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"


def pool_of(program: str, **variables: str) -> str:
    """Return the allocator that Arrow has in a process of its own, by what that prints."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == "", "Arrow warns of an allocator that it does not have"
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="Arrow has jemalloc on Linux")
def test_arrow_uses_the_allocator_that_returns_what_was_freed_unless_a_user_names_another() -> None:
    assert pool_of(f"import tidemark; {POOL}") == "jemalloc"
    assert pool_of(f"import tidemark; {POOL}", **{VARIABLE: "system"}) == "system"
    assert pool_of(f"import pyarrow; import tidemark; {POOL}") == pool_of(POOL), "it is too late to choose then"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_memory_that_was_freed_inside_the_heap_goes_back_to_the_system() -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [c.malloc(BLOCK) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    last = blocks.pop()  # it holds the end of the heap
    for block in blocks:
        c.free(block)
    before = psutil.Process().memory_info().rss
    release_memory()
    assert psutil.Process().memory_info().rss < before - BLOCK * BLOCKS // 2
    c.free(last)
