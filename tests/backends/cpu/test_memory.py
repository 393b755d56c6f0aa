"""Memory of our own: zero, page-aligned, of the very size, and not shared with a child."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlc_llm.backends.cpu.memory import (
    HUGE_PAGE,
    POOL,
    SMALL_START,
    HostScratch,
    Pool,
    growing,
    zeroed,
)
from mlc_llm.errors import CacheError
from mlc_llm.library.metadata import INDEX_FILE, PARAMS_FILE
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.runtime import packed_file
from mlc_llm.support.files import cache_errors


@pytest.mark.parametrize("size", [0, 1, 4097, (1 << 21) + 3])
def test_zeroed(size: int) -> None:
    memory = zeroed(size).numpy()
    assert memory.shape == (size,)
    assert not memory.any()
    assert size == 0 or memory.ctypes.data % 4096 == 0


@pytest.mark.parametrize("size", [0, SMALL_START, SMALL_START + 1, 3 * HUGE_PAGE + 5])
def test_growing(size: int) -> None:
    memory = growing(size).numpy()
    assert memory.shape == (size,) and not memory.any()
    assert size == 0 or memory.ctypes.data % 4096 == 0
    memory[-1:] = 1
    if size > SMALL_START:
        assert (memory.ctypes.data + SMALL_START) % HUGE_PAGE == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says how memory is mapped")
def test_only_the_start_is_in_small_pages() -> None:
    memory = growing(3 * HUGE_PAGE).numpy()
    start = memory.ctypes.data
    if "hg" not in advice(start + SMALL_START):
        pytest.skip("the system has no huge pages")
    assert "nh" in advice(start) and "nh" in advice(start + SMALL_START - 1)
    assert "hg" in advice(start + len(memory) - 1)
    assert "hg" in advice(zeroed(HUGE_PAGE).address)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says how memory is mapped")
def test_no_huge_page_reaches_over_the_end_of_scratch() -> None:
    memory = np.from_dlpack(HostScratch(SMALL_START + 2 * HUGE_PAGE + 5).tensor)
    start = memory.ctypes.data
    if "hg" not in advice(start + SMALL_START):
        pytest.skip("the system has no huge pages")
    assert "hg" not in advice(start)
    assert "hg" in advice(start + SMALL_START + 2 * HUGE_PAGE - 1)
    assert "hg" not in advice(start + len(memory) - 1)


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux says what is resident")
@pytest.mark.parametrize("size", [0, SMALL_START, SMALL_START + HUGE_PAGE - 1, 8 * HUGE_PAGE])
def test_large_scratch_is_given_back(size: int) -> None:
    scratch = HostScratch(size)
    memory = np.from_dlpack(scratch.tensor)
    memory[:] = 1
    large, before = max(size - SMALL_START, 0) // HUGE_PAGE * HUGE_PAGE, resident(memory)
    scratch.give_back()
    assert before - resident(memory) == large
    assert memory[:SMALL_START].all()
    memory[:] = 2
    assert memory.shape == (size,) and (memory == 2).all()


def resident(memory: npt.NDArray[Any]) -> int:
    """Bytes of its pages that are in memory. A count of the whole process changes by itself."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, end = memory.ctypes.data // page, -(-(memory.ctypes.data + len(memory)) // page)
    entries = np.fromfile("/proc/self/pagemap", np.uint64, end - first, offset=8 * first)
    return int((entries >> np.uint64(63)).sum()) * page


def advice(address: int) -> list[str]:
    """The flags of the mapping of an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            first, last = (int(one, 16) for one in name.split("-"))
            here = first <= address < last
        elif here and name == "VmFlags:":
            return rest
    raise AssertionError("the address is not mapped")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_writes_to_a_copy() -> None:
    memory = zeroed(4096).numpy()
    child = os.fork()
    if child == 0:
        memory[:] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert not memory.any()


def refuse(*args: Any, **options: Any) -> Any:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_too_little_memory_is_no_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_file.mmap, "mmap", refuse)
    (tmp_path / PARAMS_FILE).write_bytes(b"x")
    (tmp_path / INDEX_FILE).write_text(json.dumps({"size": 1, "tensors": [], "crc32": 0}))
    with pytest.raises(MemoryError):
        zeroed(1 << 20)
    with pytest.raises(MemoryError):
        packed_file.read_packed(tmp_path)
    with pytest.raises(MemoryError):
        GGUFFile.open(tmp_path / PARAMS_FILE)


@pytest.mark.parametrize(
    "error", [OSError("a library cannot be loaded"), OSError(errno.ENOMEM, "")]
)
def test_too_little_memory_is_no_fault_of_the_cache(error: OSError) -> None:
    with pytest.raises(OSError) as caught, cache_errors(Path("folder")):
        raise error
    assert caught.value is error and not isinstance(error, CacheError)


def test_small_tensors_of_a_pool_lie_side_by_side() -> None:
    pool = Pool()
    first, second = pool.take(100).numpy(), pool.take(POOL // 2).numpy()
    assert second.ctypes.data - first.ctypes.data == 128, "each begins with a cache line"
    first[:] = second[:] = 7
    third = pool.take(POOL // 2).numpy()
    assert (len(first), len(second), len(third)) == (100, POOL // 2, POOL // 2)
    assert not third.any() and (first == 7).all() and (second == 7).all()
