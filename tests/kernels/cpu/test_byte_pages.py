"""KV pages of bytes: what is stored, and attention over it, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_tools import ALL, LENGTHS, Cache, Rows, Window, attend, queries, reference
from byte_pages import block_width, quantised, take
from kernel_tools import Array, build, each_isa, each_isa_and

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.attention_shape import SPLIT_KEYS
from mlc_llm.kernels.cpu.kv_pages import PAGE, copy_pages, rope_append
from mlc_llm.kernels.heads import Heads
from mlc_llm.library.page_format import block_elements

SHAPES = [(9, 3, 64), (2, 1, 16), (4, 1, 128), (2, 1, 80)]
"""(heads, kv heads, head size): the default model's, the tiny one's, and a last group that is
shorter than others."""
EDGE = SPLIT_KEYS
ROWS: Rows = [(0, 3, 70), (1, 0, 16), (2, 32, 33), (4, EDGE - 2, 2 * EDGE + 3), (3, 14, 17)]
WINDOWS: list[Window] = [ALL, (40, 1), (20, 150)]


def of_bytes(isa: Isa) -> Isa:
    return replace(isa, byte_pages=True)


@pytest.mark.one_of(7)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@each_isa_and("shape", SHAPES)
def test_attention_against_float64(isa: Isa, shape: tuple[int, int, int], window: Window) -> None:
    """What is not seen has a scale that is NaN, and each token's bits are those of it alone."""
    heads, kv_heads, head_dim = shape
    cache, q = Cache(kv_heads, head_dim, "int8", LENGTHS), queries(ROWS, heads, head_dim)
    out = attend(of_bytes(isa), heads, cache, ROWS, q, window=window)
    expected, bound = reference(heads, cache, ROWS, q, window)
    assert (np.abs(out - expected) <= bound).all()
    first = 0
    for index, start, end in ROWS:
        for i in {0, (end - start) // 2, end - start - 1}:
            token = [(index, start + i, start + i + 1)]
            own = queries(token, heads, head_dim)
            alone = attend(of_bytes(isa), heads, cache, token, own, window=window)
            assert alone[0].tobytes() == out[first + i].tobytes(), f"token {start + i}"
        first += end - start


@pytest.mark.one_of(4)
@pytest.mark.parametrize("cap", [None, 0.9])
@each_isa()
def test_caps_learned_sinks_and_second_queries(isa: Isa, cap: float | None) -> None:
    cache, q = Cache(3, 64, "int8", LENGTHS), queries(ROWS, 9, 64)
    asked = {
        "window": (40, 1),
        "cap": cap,
        "sinks": np.array([-500, -2, -1, 0, 0.5, 1, 2, 4, 300], np.float32),
        "for_sinks": q[:, ::-1].copy(),
    }
    out = attend(of_bytes(isa), 9, cache, ROWS, q, **asked)  # type: ignore[arg-type]
    expected, bound = reference(9, cache, ROWS, q, **asked)  # type: ignore[arg-type]
    assert (np.abs(out - expected) <= bound).all()


def stored(isa: Isa, head_dim: int, kv: Array, slots: list[int], pages: Array) -> None:
    """Puts keys and values [tokens, 2, 2 KV heads, head_dim] into pages."""
    tokens, width = len(kv), 2 * head_dim
    x = np.concatenate([np.zeros((tokens, width), np.float32), kv.reshape(tokens, -1)], axis=1)
    sizes = Heads(2, 2, head_dim, "int8", 1.0, 0)
    kernel = build(of_bytes(isa), rope_append, sizes, (3 * width,) * 3, (0, width, 2 * width))
    at, out = np.zeros(tokens, np.int32), np.zeros((tokens, width), np.float32)
    kernel(x, x, x, at, at, np.array(slots, np.int32), pages, out)


@each_isa_and("head_dim", [16, 64, 80, 128])
def test_storing(isa: Isa, head_dim: int) -> None:
    """Every number is within half a step of its group, and nothing else changes."""
    rng = np.random.default_rng(1)
    kv = rng.standard_normal((9, 2, 2, head_dim)).astype(np.float32)
    kv *= 10.0 ** rng.integers(-6, 6, (9, 2, 2, 1)).astype(np.float32)
    kv[0], kv[1, :, :, 1:] = 0, 0
    slots = [17, 0, 34, 31, 63, 5, 6, 7, 8]
    pages = np.full((4, 2, 2, block_width(head_dim)), 7, np.int8)
    stored(isa, head_dim, kv, slots, pages)
    assert pages.shape[3] == block_elements("int8", PAGE, head_dim)
    untouched = np.full_like(pages, 7)
    for token, slot in enumerate(slots):
        for kind in (0, 1):
            found = take(pages, slot // PAGE, kind, slot % PAGE, head_dim)
            for head, x in enumerate(kv[token, kind]):
                whole, scales = quantised(x)
                steps = np.repeat(scales, 32)[:head_dim]
                assert (np.abs(found[head] - x) <= 0.5001 * steps).all()
                assert (np.abs(found[head] - whole * steps) <= 1.001 * steps).all()
                assert np.abs(x).max() <= 127 * scales.max() <= 1.01 * np.abs(x).max()
    alone = np.full_like(pages, 7)
    for token, slot in reversed([*enumerate(slots)]):
        stored(isa, head_dim, kv[token : token + 1], [slot], alone)
    assert alone.tobytes() == pages.tobytes()
    assert (pages != untouched).mean() < 0.2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@each_isa()
def test_what_is_not_finite_stays_so(isa: Isa, bad: float) -> None:
    """The logits have to show it."""
    kv = np.ones((1, 2, 2, 64), np.float32)
    kv[0, 0, 1, 40] = kv[0, 1, 0, 3] = bad
    pages = np.zeros((1, 2, 2, block_width(64)), np.int8)
    stored(isa, 64, kv, [3], pages)
    keys, values = take(pages, 0, 0, 3, 64), take(pages, 0, 1, 3, 64)
    assert not np.isfinite(keys[1, 32:]).any() and np.isfinite(keys[1, :32]).all()
    assert not np.isfinite(values[0, :32]).any() and np.isfinite(values[1]).all()


@pytest.mark.one_of(4)
@each_isa()
def test_copying(isa: Isa) -> None:
    pages = np.arange(5 * 2 * 2 * block_width(16)).astype(np.int8).reshape(5, 2, 2, -1)
    expected = pages.copy()
    expected[[3, 0]] = pages[[1, 4]]
    build(of_bytes(isa), copy_pages, 2, 16, "int8")(
        np.array([1, 4], np.int32), np.array([3, 0], np.int32), pages
    )
    assert pages.tobytes() == expected.tobytes()
