"""Queries and keys turned, keys and values stored in pages, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.cuda.kv_pages import LOG2E, copy_pages, rope_append, rotate_queries
from mlc_llm.kernels.heads import Heads

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]
POSITION, SLOT, PAGES = np.array([5, 0, 99]), np.array([3, 33, 16]), 3


def turned(x: Array, table: Array, rope_dim: int) -> Array:
    """Heads [m, heads, head_dim], turned; table: [m, 2, rope_dim / 2]."""
    half, out = rope_dim // 2, x.astype(np.float64)
    low, high = out[..., :half].copy(), out[..., half:rope_dim].copy()
    cos, sin = table[:, None, 0], table[:, None, 1]
    out[..., :half], out[..., half:rope_dim] = low * cos - high * sin, high * cos + low * sin
    return out


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        Heads(4, 2, 64, "float16", 0.125, 64),
        Heads(3, 1, 80, "float16", 0.2, 20, query_scaling=(0.1, 8)),
        Heads(2, 2, 128, "float16", 0.1, 0),
    ],
    ids=["all turn", "some turn", "none turns"],
)
def test_pages_and_queries(emulate: Emulator, sizes: Heads, has_bias: bool) -> None:
    random, m = np.random.default_rng(1), len(POSITION)
    counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    ends = np.cumsum([count * sizes.head_dim for count in counts])
    starts = (0, int(ends[0]), int(ends[1]))
    qkv = random.normal(size=(m, ends[2])).astype(np.float32)
    biases = [random.normal(size=n * sizes.head_dim).astype(np.float32) for n in counts]
    angles = random.uniform(0, 7, (100, sizes.half))
    rope = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    pages = np.full((PAGES, sizes.kv_heads, 2, PAGE * sizes.head_dim), 7, np.float16)
    rotated = np.zeros((m, sizes.heads * sizes.head_dim), np.float32)
    *_, pages, rotated = emulate(
        rope_append(sizes, (int(ends[2]),) * 3, starts, has_bias=has_bias),
        *(qkv, qkv, qkv, *(biases if has_bias else ()), *([rope] if sizes.half else ())),
        *(POSITION.astype(np.int32), SLOT.astype(np.int32), pages, rotated),
    )
    q, k, v = (
        (qkv[:, start:end] + (bias if has_bias else 0)).reshape(m, count, sizes.head_dim)
        for start, end, bias, count in zip(starts, ends, biases, counts, strict=True)
    )
    check_queries(sizes, rotated, turned(q, rope[POSITION], sizes.rope_dim))
    check_pages(pages, turned(k, rope[POSITION], sizes.rope_dim), v)


@pytest.mark.parametrize("shares", [False, True])
def test_queries_for_sinks(emulate: Emulator, shares: bool) -> None:
    """shares: the layer has queries alone."""
    sizes, random, m = Heads(3, 1, 80, "float16", 0.2, 20), np.random.default_rng(3), len(POSITION)
    qkv = random.normal(size=(m, 400)).astype(np.float32)
    angles = random.uniform(0, 7, (100, sizes.half))
    rope = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    sinks = np.minimum(POSITION, 5).astype(np.int32)
    places, rotated = (POSITION.astype(np.int32), sinks), np.zeros((m, 480), np.float32)
    if shares:
        kernel = rotate_queries(sizes, 400, 0, sink_query=True)
        rotated = emulate(kernel, qkv, rope, *places, rotated)[-1]
    else:
        pages = np.full((PAGES, 1, 2, PAGE * 80), 7, np.float16)
        kernel = rope_append(sizes, (400,) * 3, (0, 240, 320), sink_query=True)
        given = (qkv, qkv, qkv, rope, *places, SLOT.astype(np.int32), pages, rotated)
        *_, pages, rotated = emulate(kernel, *given)
        k, v = qkv[:, 240:].reshape(m, 2, 1, 80).swapaxes(0, 1)
        check_pages(pages, turned(k, rope[POSITION], 20), v)
    q = qkv[:, :240].reshape(m, 3, 80)
    check_queries(sizes, rotated[:, :240], turned(q, rope[POSITION], 20))
    check_queries(sizes, rotated[:, 240:], turned(q, rope[sinks], 20))


def check_queries(sizes: Heads, rotated: Array, queries: Array) -> None:
    factor = np.full(len(POSITION), LOG2E * sizes.scale)
    if sizes.query_scaling is not None:
        beta, context = sizes.query_scaling
        factor *= 1 + beta * np.log(1 + POSITION // context)
    expected = (queries * factor[:, None, None]).reshape(rotated.shape)
    assert np.allclose(rotated, expected, rtol=1e-5, atol=1e-6)


def check_pages(pages: Array, keys: Array, values: Array) -> None:
    kv_heads, head_dim = keys.shape[1:]
    split = pages.reshape(PAGES, kv_heads, 2, PAGE, head_dim)
    for row, slot in enumerate(SLOT):
        found = split[slot // PAGE, :, :, slot % PAGE]
        for kind, expected in enumerate((keys, values)):
            assert np.allclose(found[:, kind], expected[row], rtol=1e-3, atol=1e-5)
    used = np.zeros((PAGES, PAGE), bool)
    used[SLOT // PAGE, SLOT % PAGE] = True
    assert (split.transpose(0, 3, 1, 2, 4)[~used] == 7).all()


def test_machine_code() -> None:
    sizes = Heads(32, 8, 64, "float16", 0.125, 64)
    kernel = rope_append(sizes, (3072,) * 3, (0, 2048, 2560))
    check_code(kernel, wanted={"LDG", "STG"})
    check_code(copy_pages(8, 64), wanted={"LDG", "STG"})


@pytest.mark.parametrize("head_dim", [8, 80])
def test_pages_are_copied(emulate: Emulator, head_dim: int) -> None:
    pages = np.random.default_rng(2).normal(size=(6, 2, 2, PAGE * head_dim)).astype(np.float16)
    source, target = np.array([4, 0, 4], np.int32), np.array([1, 5, 2], np.int32)
    *_, found = emulate(copy_pages(2, head_dim), source, target, pages)
    expected = pages.copy()
    expected[target] = pages[source]
    assert found.tobytes() == expected.tobytes()
