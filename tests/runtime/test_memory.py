"""Memory of our own: zero, page-aligned, of the very size, and not shared with a child."""

from __future__ import annotations

import os

import pytest

from mlc_llm.runtime.memory import zeroed


@pytest.mark.parametrize("size", [0, 1, 4097, (1 << 21) + 3])
def test_zeroed(size: int) -> None:
    memory = zeroed(size)
    assert memory.shape == (size,)
    assert not memory.any()
    assert size == 0 or memory.ctypes.data % 4096 == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_writes_to_a_copy() -> None:
    memory = zeroed(4096)
    child = os.fork()
    if child == 0:
        memory[:] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert not memory.any()
