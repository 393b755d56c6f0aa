"""TVM's functions without NumPy, and what they know of it once TVM itself is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("tvm_ffi")
LIGHT = "import sys, mlc_llm.support.light_tvm\nassert 'numpy' not in sys.modules\n"
LOOKED_FOR = """
from importlib.util import find_spec
assert find_spec("tvm").submodule_search_locations and "numpy" not in sys.modules
"""
USED = """
import tvm, numpy, ml_dtypes
from tvm_ffi import _convert, _dtype
known = _dtype.dtype._NUMPY_DTYPE_TO_STR
print(_convert.numpy is numpy, sorted((str(one), name) for one, name in known.items()))
print(tvm.tirx.const(numpy.float32(2.5)), tvm.runtime.tensor(numpy.ones(3, "int8")).numpy().sum())
print(tvm_ffi_dtype := _dtype.dtype.from_dlpack_data_type((4, 16, 1)), tvm.__file__)
"""


def said(code: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
def test_with_tvm_they_know_numpy_as_ever() -> None:
    assert said(LIGHT + LOOKED_FOR + USED) == said("import tvm_ffi\n" + USED)


@pytest.mark.slow
def test_what_is_loaded_already_is_left_alone() -> None:
    code = "import sys, numpy, tvm_ffi, mlc_llm.support.light_tvm\n"
    assert said(code + "print(len([one for one in sys.meta_path if 'TVM' in str(one)]))") == "0\n"
    code = "import sys, numpy, mlc_llm.support.light_tvm\n"
    assert said(code + USED) == said("import tvm_ffi\n" + USED)
