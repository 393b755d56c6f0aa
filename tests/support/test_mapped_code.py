"""Code of a library leaves the memory, and is there when it runs again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlc_llm.support.mapped_code import release_code

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells it")

RELEASE = """
import zlib, json, sys
from pathlib import Path
from mlc_llm.support.mapped_code import release_code

import tvm_ffi_orcjit
name = "libtvm_ffi_orcjit.so"

def resident():
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split()[0].count("-") == 1 and ":" not in line.split()[0]:
            inside = line.endswith("/" + name) and " r-xp " in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total

tvm_ffi_orcjit.ExecutionSession(orc_rt=None)
before = resident()
release_code(name)
after = resident()
tvm_ffi_orcjit.ExecutionSession(orc_rt=None)
print(before, after, resident())
"""


def test_code_leaves_the_memory_and_runs_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RELEASE], capture_output=True, text=True, check=True
    )
    before, after, again = map(int, done.stdout.split())
    assert before > 100 and after < before / 10 and again > after


def test_a_library_that_is_not_loaded_is_nothing() -> None:
    release_code("libno_such_library.so")
