"""Pages of bytes with scales on a GPU (`library/page_format.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.cuda.attention import attention
from mlc_llm.kernels.cuda.attention_sizes import FEW, SHARES, STATE
from mlc_llm.kernels.cuda.kv_pages import copy_pages, rope_append
from mlc_llm.kernels.heads import Heads
from mlc_llm.library.page_format import GROUP, block_elements, scale_groups

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]
HEADS, KV_HEADS, DIM, PAGES = 4, 2, 80, 9
SIZES = Heads(HEADS, KV_HEADS, DIM, "int8", 0.125, 0)


def elements(pages: Array) -> Array:
    """What the bytes stand for, float32 [pages, kv_heads, 2, PAGE, DIM]."""
    groups = scale_groups(DIM)
    whole = pages[..., : PAGE * DIM].reshape(*pages.shape[:3], PAGE, DIM)
    rest = np.ascontiguousarray(pages[..., PAGE * DIM : PAGE * (DIM + 2 * groups)])
    scales = rest.view(np.uint16).astype(np.uint32).reshape(*pages.shape[:3], groups, PAGE) << 16
    wide = scales.view(np.float32).repeat(GROUP, axis=3)[..., :DIM, :]
    return np.asarray(whole * wide.swapaxes(3, 4))


def filled(emulate: Emulator, tokens: int) -> tuple[Array, Array]:
    """Pages with the keys and values of so many tokens, and these [tokens, 2, kv_heads, DIM]."""
    kv = np.random.default_rng(0).normal(size=(tokens, 2, KV_HEADS, DIM)).astype(np.float32)
    kv[3] = 0
    flat = kv.reshape(tokens, -1)
    width, size = KV_HEADS * DIM, block_elements("int8", PAGE, DIM)
    q = np.zeros((tokens, HEADS * DIM), np.float32)
    pages = np.zeros((PAGES, KV_HEADS, 2, size), np.int8)
    place = np.arange(tokens, dtype=np.int32)
    widths = (HEADS * DIM, 2 * width, 2 * width)
    kernel = rope_append(SIZES, widths, (0, 0, width))
    *_, pages, _ = emulate(kernel, q, flat, flat, place, place, pages, q.copy())
    return pages, kv


def test_an_element_is_close(emulate: Emulator) -> None:
    pages, kv = filled(emulate, 40)
    found = elements(pages).transpose(0, 3, 2, 1, 4).reshape(-1, 2, KV_HEADS, DIM)[:40]
    for start in range(0, DIM, GROUP):
        own = slice(start, start + GROUP)
        largest = np.abs(kv[..., own]).max(axis=3, keepdims=True)
        assert (np.abs(found[..., own] - kv[..., own]) <= 0.51 / 126 * largest).all()
    assert not found[3].any()


@pytest.mark.parametrize("few", [True, False])
def test_attention_reads_the_nearest_halves(emulate: Emulator, few: bool) -> None:
    """It gives the bits that it gives with these numbers in pages of float16."""
    tokens = 30 if few else FEW + 6
    pages, _ = filled(emulate, tokens)
    halves = elements(pages).astype(np.float16).reshape(PAGES, KV_HEADS, 2, PAGE * DIM)
    q = np.random.default_rng(1).normal(size=(tokens, HEADS * DIM)).astype(np.float32)
    place = np.arange(tokens, dtype=np.int32)
    blocks = [(first, min(32, tokens - first), 0) for first in range(0, tokens, 32)]
    ids, window = np.arange(PAGES, dtype=np.int32), np.array([1 << 30, 0], np.int32)
    given = (place, np.array(blocks, np.int32), ids, window)
    shares = np.zeros((min(tokens, FEW), HEADS, SHARES, STATE + DIM), np.float32)

    def found(kv_dtype: str, stored: Array) -> list[bytes]:
        kernel = attention(HEADS, KV_HEADS, DIM, kv_dtype=kv_dtype)
        *_, parts, out = emulate(kernel, q, stored, *given, shares.copy(), np.zeros_like(q))
        return [parts.tobytes(), out.tobytes()]

    assert found("int8", pages) == found("float16", halves)


def test_a_page_is_copied(emulate: Emulator) -> None:
    pages = np.random.default_rng(2).integers(-128, 128, (4, 1, 2, 1408)).astype(np.int8)
    source, target = np.array([0, 3], np.int32), np.array([2, 1], np.int32)
    found = emulate(copy_pages(1, DIM, "int8"), source, target, pages.copy())[-1]
    assert (found[[2, 1]] == pages[[0, 3]]).all() and (found[[0, 3]] == pages[[0, 3]]).all()


def test_machine_code() -> None:
    check_code(attention(32, 8, 128, kv_dtype="int8"), {"HMMA", "LDSM", "STS", "LDG"})
    check_code(rope_append(SIZES, (640,) * 3, (0, 320, 480)), {"LDG", "STG", "SHFL"})
    check_code(copy_pages(8, 128, "int8"), {"LDG", "STG"})
