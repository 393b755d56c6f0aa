"""The reference kernels in a process that compiles nothing."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from mlc_llm.backends.registry import backend_of
import tvm_ffi
backend_of("reference").device
print(tvm_ffi.get_global_func("tvm.contrib.sort.sort", allow_missing=True) is not None)
"""


def test_functions_of_plain_relax_are_there() -> None:
    """A library from the cache calls them, and nothing else may have loaded the compiler."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["True"]
