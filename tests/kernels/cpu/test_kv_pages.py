"""Rotating and storing new tokens, and copying pages."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.kv_pages import PAGE, copy_pages, rope_append
from mlc_llm.kernels.cpu.vectors import LOG2E

TOKENS, PAGES = 5, 4
SLOTS = np.array([3 * PAGE + 15, 0, 2 * PAGE + 7, 1, PAGE], np.int32)
POSITIONS = np.array([4, 0, 7, 7, 1], np.int32)
NOT_READ = np.full_like(POSITIONS, 10**6)


def rotated(x: Array, rope: Array) -> Array:
    """float64; halves of a head are pairs. x [m, heads, dim], rope [m, 2, dim / 2]."""
    low, high = np.split(x.astype(np.float64), 2, axis=2)
    cos, sin = (rope[:, i, None].astype(np.float64) for i in (0, 1))
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("shape", [(2, 2, 64), (9, 3, 64), (4, 1, 128), (4, 2, 16)], ids=str)
@each_isa()
def test_rope_append(isa: Isa, shape: tuple[int, int, int], joined: bool) -> None:
    heads, kv_heads, dim = shape
    rng = np.random.default_rng(0)
    sizes = (heads * dim, kv_heads * dim, kv_heads * dim)
    qkv = [rng.standard_normal((TOKENS, size)).astype(np.float32) for size in sizes]
    angle = rng.uniform(0, 500, (8, dim // 2))
    rope = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    pages = np.full((PAGES, kv_heads, 2, PAGE * dim), 7, isa.kv_dtype)
    before = pages.copy()
    out = np.full((TOKENS, heads * dim), np.nan, np.float32)
    if joined:
        inputs, offsets = [np.concatenate(qkv, axis=1)] * 3, (0, sizes[0], sizes[0] + sizes[1])
    else:
        inputs, offsets = qkv, (0, 0, 0)
    widths = tuple(part.shape[1] for part in inputs)
    parts = (heads, kv_heads, dim, widths, offsets, isa.kv_dtype, dim**-0.5)
    kernel = build(isa, rope_append, *parts)
    kernel(*inputs, rope, POSITIONS, NOT_READ, SLOTS, pages, out)
    rope = rope[POSITIONS]

    q, k, v = (part.reshape(TOKENS, -1, dim) for part in qkv)
    scale = LOG2E * dim**-0.5
    assert np.abs(out.reshape(q.shape) - scale * rotated(q, rope)).max() <= 1e-6
    keys = pages[:, :, 0].reshape(PAGES, kv_heads, dim, PAGE)
    values = pages[:, :, 1].reshape(PAGES, kv_heads, PAGE, dim)
    step = np.finfo(pages.dtype).eps
    for token, slot in enumerate(SLOTS):
        page, at = divmod(int(slot), PAGE)
        expected = rotated(k, rope)[token]
        assert np.abs(keys[page, :, :, at] - expected).max() <= 6 * step
        assert (values[page, :, at] == v[token].astype(pages.dtype)).all()
    untouched = np.ones((PAGES, PAGE), bool)
    untouched.reshape(-1)[SLOTS] = False
    old_keys = before[:, :, 0].reshape(keys.shape)
    old_values = before[:, :, 1].reshape(values.shape)
    for page, at in np.argwhere(untouched):
        assert (keys[page, :, :, at] == old_keys[page, :, :, at]).all()
        assert (values[page, :, at] == old_values[page, :, at]).all()


@each_isa()
def test_a_second_query_for_sinks(isa: Isa) -> None:
    """It is turned by a row of its own; keys, values and the first query are as ever."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((TOKENS, 96)).astype(np.float32)
    rope = rng.standard_normal((8, 2, 8)).astype(np.float32)
    for_sinks = np.array([3, 0, 2, 2, 1], np.int32)
    parts = (2, 2, 16, (96,) * 3, (0, 32, 64), isa.kv_dtype, 0.25)
    expected, others = (np.zeros((TOKENS, 32), np.float32) for _ in range(2))
    pages, ignored, same = (np.zeros((PAGES, 2, 2, PAGE * 16), isa.kv_dtype) for _ in range(3))
    plain = build(isa, rope_append, *parts)
    plain(x, x, x, rope, POSITIONS, NOT_READ, SLOTS, pages, expected)
    plain(x, x, x, rope, for_sinks, NOT_READ, SLOTS, ignored, others)
    out = np.zeros((TOKENS, 64), np.float32)
    both = build(isa, rope_append, *parts, sink_query=True)
    both(x, x, x, rope, POSITIONS, for_sinks, SLOTS, same, out)
    assert out.tobytes() == np.concatenate([expected, others], axis=1).tobytes()
    assert same.tobytes() == pages.tobytes()


@each_isa()
def test_a_token_is_stored_the_same_in_any_batch(isa: Isa) -> None:
    """So a sequence's pages do not tell with whom it was computed."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((TOKENS, 96)).astype(np.float32)
    rope = rng.standard_normal((8, 2, 8)).astype(np.float32)
    kernel = build(isa, rope_append, 2, 2, 16, (96,) * 3, (0, 32, 64), isa.kv_dtype, 0.25)
    together = np.zeros((PAGES, 2, 2, PAGE * 16), isa.kv_dtype)
    alone, out = together.copy(), np.zeros((TOKENS, 32), np.float32)
    kernel(x, x, x, rope, POSITIONS, NOT_READ, SLOTS, together, out)
    for i in range(TOKENS):
        one, row = slice(i, i + 1), np.zeros((1, 32), np.float32)
        kernel(x[one], x[one], x[one], rope, POSITIONS[one], NOT_READ[one], SLOTS[one], alone, row)
        assert row[0].tobytes() == out[i].tobytes()
    assert alone.tobytes() == together.tobytes()


@each_isa()
def test_copy_pages(isa: Isa) -> None:
    rng = np.random.default_rng(2)
    pages = rng.standard_normal((6, 3, 2, PAGE * 16)).astype(isa.kv_dtype)
    before = pages.copy()
    pages[0, 0, 0, 0] = before[0, 0, 0, 0] = np.nan  # broken numbers are copied like others
    source, target = np.array([0, 4], np.int32), np.array([5, 1], np.int32)
    build(isa, copy_pages, 3, 16, isa.kv_dtype)(source, target, pages)
    expected = before.copy()
    expected[target] = before[source]
    assert pages.tobytes() == expected.tobytes()
