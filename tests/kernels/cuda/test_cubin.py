"""What the tests of kernels read in machine code (`tests/cubin.py`)."""

from __future__ import annotations

import pytest
from cubin import frame_bytes, opcodes
from cuda_code import ARCHITECTURES

pytestmark = pytest.mark.cuda
KERNEL = """extern "C" __global__ void f(float* x, int i, int n) {
  float kept[64];
  for (int j = 0; j < 64; j++) kept[j] = x[j * n];
  for (int j = 0; j < n; j++) kept[%s] += x[j];
  x[0] = kept[5];
}"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_memory_of_threads_is_seen(arch: str) -> None:
    from mlc_llm.backends.cuda.nvrtc import compile_cubin

    inside, outside = (compile_cubin(KERNEL % index, arch) for index in ("5", "(i + j) % 64"))
    assert frame_bytes(inside, "f") == 0
    assert opcodes(inside, "f") == {"LDG", "STG"}
    assert frame_bytes(outside, "f") == 4 * 64
    assert opcodes(outside, "f") == {"LDG", "STG", "LDL", "STL"}
