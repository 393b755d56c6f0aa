"""Rotating and storing new tokens, and copying pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.kv_pages import LEAST_TOGETHER, PAGE, TOGETHER, copy_pages, rope_append
from mlc_llm.kernels.cpu.queries import rotate_queries
from mlc_llm.kernels.cpu.vectors import LOG2E
from mlc_llm.kernels.heads import Heads

TOKENS, PAGES = 5, 4
SLOTS = np.array([3 * PAGE + 15, 0, 2 * PAGE + 7, 1, PAGE], np.int32)
POSITIONS = np.array([4, 0, 7, 7, 1], np.int32)
NOT_READ = np.full_like(POSITIONS, 10**6)


def rotated(x: Array, rope: Array) -> Array:
    """float64; of the elements that rope turns, halves are pairs. x [m, heads, head_dim], rope
    [m, 2, dim / 2]."""
    turned, rest = np.split(x.astype(np.float64), [2 * rope.shape[2]], axis=2)
    low, high = np.split(turned, 2, axis=2)
    cos, sin = (rope[:, i, None].astype(np.float64) for i in (0, 1))
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=2)


def sizes_of(isa: Isa, shape: tuple[int, int, int], dim: int | None = None) -> Heads:
    """dim: elements of a head that turn, if it is not all of them."""
    return Heads(*shape, isa.kv_dtype, shape[2] ** -0.5, shape[2] if dim is None else dim)


@pytest.mark.one_of(6)
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
    kernel = build(isa, rope_append, sizes_of(isa, shape), widths, offsets)
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


@pytest.mark.one_of(14)
@pytest.mark.parametrize("scaling", [None, (0.3, 3)], ids=["", "scaled"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("head_dim, dim", [(16, 0), (16, 4), (80, 20), (80, 32), (96, 72)])
@each_isa()
def test_parts_of_heads_biases_and_scales(
    isa: Isa, head_dim: int, dim: int, has_bias: bool, scaling: tuple[float, int] | None
) -> None:
    """What turns, what is added, and what queries are multiplied by."""
    rng = np.random.default_rng(4)
    sizes = replace(sizes_of(isa, (2, 1, head_dim), dim), query_scaling=scaling)
    x = rng.standard_normal((TOKENS, 4 * head_dim)).astype(np.float32)
    biases = [rng.standard_normal(n * head_dim).astype(np.float32) for n in (2, 1, 1)]
    angle = rng.uniform(0, 500, (8, dim // 2))
    rope = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    pages = np.zeros((PAGES, 1, 2, PAGE * head_dim), isa.kv_dtype)
    out = np.full((TOKENS, 2 * head_dim), np.nan, np.float32)
    offsets = (0, 2 * head_dim, 3 * head_dim)
    kernel = build(isa, rope_append, sizes, (x.shape[1],) * 3, offsets, has_bias=has_bias)
    given = [*(biases if has_bias else []), *([rope] if dim else [])]
    kernel(x, x, x, *given, POSITIONS, NOT_READ, SLOTS, pages, out)

    both = x + np.concatenate(biases) if has_bias else x
    q, k, v = (part.reshape(TOKENS, -1, head_dim) for part in np.split(both, offsets[1:], axis=1))
    factor = np.full(TOKENS, LOG2E * head_dim**-0.5)
    if scaling is not None:
        factor *= 1 + scaling[0] * np.log(1 + POSITIONS // scaling[1])
    expected = factor[:, None, None] * rotated(q, rope[POSITIONS])
    assert np.abs(out.reshape(q.shape) - expected).max() <= 2e-6
    step = np.finfo(pages.dtype).eps
    for token, slot in enumerate(SLOTS):
        page, at = divmod(int(slot), PAGE)
        key = pages[page, 0, 0].reshape(head_dim, PAGE)[:, at]
        value = pages[page, 0, 1].reshape(PAGE, head_dim)[at]
        assert np.abs(key - rotated(k, rope[POSITIONS])[token, 0]).max() <= 6 * step
        assert (value == v[token, 0].astype(pages.dtype)).all()


@pytest.mark.one_of(3)
@each_isa()
def test_a_second_query_for_sinks(isa: Isa) -> None:
    """It is turned by a row of its own; keys, values and the first query are as ever."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((TOKENS, 96)).astype(np.float32)
    rope = rng.standard_normal((8, 2, 8)).astype(np.float32)
    for_sinks = np.array([3, 0, 2, 2, 1], np.int32)
    parts = (sizes_of(isa, (2, 2, 16)), (96,) * 3, (0, 32, 64))
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


@pytest.mark.one_of(6)
@pytest.mark.parametrize("sink_query", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("dim", [0, 8, 16])
@each_isa()
def test_queries_alone(isa: Isa, dim: int, sink_query: bool) -> None:
    """They are, to the bit, those beside new keys and values."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((TOKENS, 96)).astype(np.float32)
    biases = [rng.standard_normal(32).astype(np.float32) for _ in range(3)]
    rope = [rng.standard_normal((8, 2, dim // 2)).astype(np.float32)] if dim else []
    for_sinks = np.array([3, 0, 2, 2, 1], np.int32)
    sizes, pages = sizes_of(isa, (2, 2, 16), dim), np.zeros((PAGES, 2, 2, PAGE * 16), isa.kv_dtype)
    expected, out = (np.zeros((TOKENS, 64 if sink_query else 32), np.float32) for _ in range(2))
    more = {"sink_query": sink_query, "has_bias": True}
    both = build(isa, rope_append, sizes, (96,) * 3, (32, 0, 64), **more)
    both(x, x, x, *biases, *rope, POSITIONS, for_sinks, SLOTS, pages, expected)
    build(isa, rotate_queries, sizes, 96, 32, **more)(
        x, biases[0], *rope, POSITIONS, for_sinks, out
    )
    assert out.any() and out.tobytes() == expected.tobytes()


@each_isa()
def test_queries_that_do_not_turn_are_the_same_for_sinks(isa: Isa) -> None:
    x = np.random.default_rng(3).standard_normal((TOKENS, 96)).astype(np.float32)
    pages, out = np.zeros((PAGES, 2, 2, PAGE * 16), isa.kv_dtype), np.zeros((TOKENS, 64), "f4")
    sizes = sizes_of(isa, (2, 2, 16), 0)
    kernel = build(isa, rope_append, sizes, (96,) * 3, (0, 32, 64), sink_query=True)
    kernel(x, x, x, POSITIONS, NOT_READ, SLOTS, pages, out)
    assert np.abs(out[:, :32] - np.float32(LOG2E * 0.25) * x[:, :32]).max() <= 1e-6
    assert out[:, 32:].tobytes() == out[:, :32].tobytes()


MANY_TOKENS = LEAST_TOGETHER + TOGETHER + 3


@pytest.mark.parametrize(
    ("tokens", "skipped"),
    [(TOKENS, None), (MANY_TOKENS, None), (MANY_TOKENS, 0), (MANY_TOKENS, 5)],
    ids=["few", "many", "whole-pages", "parts-of-pages"],
)
@pytest.mark.parametrize(("dim", "turning"), [(16, 16), (48, 24)])
@each_isa()
def test_a_token_is_stored_the_same_in_any_batch(
    isa: Isa, tokens: int, skipped: int | None, dim: int, turning: int
) -> None:
    """So a sequence's pages do not tell with whom it was computed. Many are stored head by head,
    and those that fill a page together. skipped: places before the first token, of pages that are
    filled one after the other; None: places are anywhere."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((tokens, 6 * dim)).astype(np.float32)
    rope = rng.standard_normal((8, 2, turning // 2)).astype(np.float32)
    positions, unread = rng.integers(0, 8, (2, tokens)).astype(np.int32)
    pages = PAGES + tokens // PAGE
    places = rng.permutation(pages * PAGE)
    if skipped is not None:
        order = rng.permutation(pages)
        places = (order[:, None] * PAGE + np.arange(PAGE)).ravel()[skipped:]
    slots = places[:tokens].astype(np.int32)
    sizes, starts = sizes_of(isa, (2, 2, dim), turning), (0, 2 * dim, 4 * dim)
    kernel = build(isa, rope_append, sizes, (6 * dim,) * 3, starts)
    together = np.zeros((pages, 2, 2, PAGE * dim), isa.kv_dtype)
    alone, out = together.copy(), np.zeros((tokens, 2 * dim), np.float32)
    kernel(x, x, x, rope, positions, unread, slots, together, out)
    for i in range(tokens):
        one, row = slice(i, i + 1), np.zeros((1, 2 * dim), np.float32)
        kernel(x[one], x[one], x[one], rope, positions[one], unread[one], slots[one], alone, row)
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
