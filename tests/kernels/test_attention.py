"""Attention over paged keys and values, against a float64 softmax over what the pages hold.

Everything that a sequence must not see is NaN: other sequences' pages, free pages, and the places
after its newest token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from kernel_tools import HALF_ULP, Array, accumulated, build, each_isa

from mlc_llm.kernels.attention import SECTION, attention, query_tile
from mlc_llm.kernels.isa import Isa
from mlc_llm.kernels.kv_pages import PAGE
from mlc_llm.kernels.vectors import LOG2E

SHAPES = [(2, 2, 64), (9, 3, 64), (8, 2, 64), (8, 1, 64), (6, 2, 128), (4, 2, 16)]
"""(heads, kv heads, head size): 1, 3, 4 and 8 query heads a key head; the tiny model's size."""
MORE_SHAPES = [(4, 4, 128), (4, 1, 128), (16, 2, 128), (3, 1, 32), (5, 1, 48), (14, 1, 64)]


@dataclass
class Cache:
    """Keys and values of sequences of the given lengths, scattered over pages."""

    kv_heads: int
    head_dim: int
    dtype: str
    lengths: tuple[int, ...]
    pages: Array = field(init=False)
    tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        counts = [-(-length // PAGE) for length in self.lengths]
        shuffled = rng.permutation(sum(counts) + 3).tolist()
        self.tables = [[shuffled.pop() for _ in range(count)] for count in counts]
        shape = (sum(counts) + 3, self.kv_heads, 2, PAGE * self.head_dim)
        self.pages = np.full(shape, np.nan, self.dtype)
        for table, length in zip(self.tables, self.lengths, strict=True):
            for token in range(length):
                keys, values = self.place(self.pages, table[token // PAGE], token % PAGE)
                keys[...] = rng.standard_normal(keys.shape)
                values[...] = rng.standard_normal(values.shape)

    def place(self, pages: Array, page: int, at: int) -> tuple[Array, Array]:
        """Views [kv_heads, head_dim] of a token's keys and values."""
        keys = pages[page, :, 0].reshape(self.kv_heads, self.head_dim, PAGE)[:, :, at]
        return keys, pages[page, :, 1].reshape(self.kv_heads, PAGE, self.head_dim)[:, at]

    def sequence(self, index: int, length: int) -> tuple[Array, Array]:
        """float64 keys and values [length, kv_heads, head_dim]."""
        table = self.tables[index]
        taken = [self.place(self.pages, table[t // PAGE], t % PAGE) for t in range(length)]
        keys, values = (np.stack(part).astype(np.float64) for part in zip(*taken, strict=True))
        return keys, values

    def only(self, rows: Rows, window: Window) -> Array:
        """The pages with NaN everywhere but in the pages that a row of these sequences sees, and
        there after the row's end."""
        pages = np.full_like(self.pages, np.nan)
        for index, start, end in rows:
            for token in range(end):
                first = token // PAGE * PAGE
                if first >= window[1] and first + PAGE <= start - window[0] + 1:
                    continue
                page, at = self.tables[index][token // PAGE], token % PAGE
                parts = zip(
                    self.place(pages, page, at), self.place(self.pages, page, at), strict=True
                )
                for target, source in parts:
                    target[...] = source
        return pages


Window = tuple[int, int]
"""Tokens that are seen, and sinks."""
ALL: Window = (2**31 - 1, 0)
Rows = list[tuple[int, int, int]]
"""(sequence, first position, end): the new tokens of a step."""


def attend(
    isa: Isa, heads: int, cache: Cache, rows: Rows, q: Array, *, window: Window = ALL
) -> Array:
    """The kernel on these rows; q float32 [m, heads * head_dim], not yet scaled."""
    tile = query_tile(heads, cache.kv_heads, isa)
    tiles, page_ids, position = [], [], []
    for index, start, end in rows:
        for at in range(0, end - start, tile):
            tiles.append((len(position) + at, min(tile, end - start - at), len(page_ids)))
        page_ids += cache.tables[index][: -(-end // PAGE)]
        position += range(start, end)
    scaled = q * np.float32(LOG2E * cache.head_dim**-0.5)
    out = np.full_like(q, np.nan)
    kernel = attention(heads, cache.kv_heads, cache.head_dim, isa, cache.dtype)
    build(kernel, isa)(
        scaled,
        cache.only(rows, window),
        np.asarray(position, np.int32),
        np.asarray(tiles, np.int32),
        np.asarray(page_ids, np.int32),
        np.asarray(window, np.int32),
        out,
    )
    return out


def queries(rows: Rows, heads: int, head_dim: int) -> Array:
    """float32: the same numbers for the same token, whatever else is asked."""
    parts = []
    for index, start, end in rows:
        rng = np.random.default_rng(index)
        parts.append(rng.standard_normal((end, heads * head_dim))[start:])
    return np.concatenate(parts).astype(np.float32)


def reference(
    heads: int, cache: Cache, rows: Rows, q: Array, window: Window
) -> tuple[Array, Array]:
    """Exact attention, and a bound of what float32 may make of it; float64 like q."""
    share, dim = heads // cache.kv_heads, cache.head_dim
    outs, bounds, first = [], [], 0
    for index, start, end in rows:
        keys, values = (np.repeat(a, share, axis=1) for a in cache.sequence(index, end))
        own = q[first : first + end - start].reshape(-1, heads, dim).astype(np.float64)
        first += end - start
        key, token = np.arange(end)[None, None], np.arange(start, end)[:, None, None]
        seen = (key <= token) & ((key > token - window[0]) | (key < window[1]))
        scores = np.einsum("qhd,khd->qhk", own, keys) * dim**-0.5
        scores[~np.broadcast_to(seen, scores.shape)] = -np.inf
        terms = np.einsum("qhd,khd->qhk", np.abs(own), np.abs(keys)) * dim**-0.5
        weights = np.where(seen, np.exp(scores - scores.max(axis=2, keepdims=True)), 0)
        weights /= weights.sum(axis=2, keepdims=True)
        outs.append(np.einsum("qhk,khd->qhd", weights, values))
        # An error of a score is a relative one of its weight; each page may rescale once more.
        relative = 2 * accumulated(dim + 6) * np.where(seen, terms, 0).max(axis=2) + 6e-7
        relative += accumulated(end + 8 * len(cache.tables[index]))
        spread = np.einsum("qhk,khd->qhd", weights, np.abs(values))
        bounds.append(2 * relative[..., None] * spread + HALF_ULP)
    return tuple(np.concatenate(a).reshape(len(q), -1) for a in (outs, bounds))  # type: ignore[return-value]


LENGTHS = (70, 16, 33, 17, 2 * SECTION * PAGE + 3, SECTION * PAGE)


def check(isa: Isa, shape: tuple[int, int, int], rows: Rows, window: Window = ALL) -> None:
    heads, kv_heads, head_dim = shape
    cache = Cache(kv_heads, head_dim, isa.kv_dtype, LENGTHS)
    q = queries(rows, heads, head_dim)
    out = attend(isa, heads, cache, rows, q, window=window)
    expected, bound = reference(heads, cache, rows, q, window)
    assert (np.abs(out - expected) <= bound).all()


def check_alone(isa: Isa, shape: tuple[int, int, int], window: Window = ALL) -> None:
    """Every token of a prefill, decoded alone, gives the very bits."""
    heads, kv_heads, head_dim = shape
    cache = Cache(kv_heads, head_dim, isa.kv_dtype, LENGTHS)
    edge = SECTION * PAGE
    rows = [(0, 3, 70), (1, 0, 16), (2, 32, 33), (4, edge - 2, 2 * edge + 3), (5, edge - 3, edge)]
    out = attend(isa, heads, cache, rows, queries(rows, heads, head_dim), window=window)
    first = 0
    for index, start, end in rows:
        count = end - start
        for i in sorted({0, min(1, count - 1), count // 2, max(0, count - 2), count - 1}):
            token = [(index, start + i, start + i + 1)]
            alone = attend(isa, heads, cache, token, queries(token, heads, head_dim), window=window)
            assert alone[0].tobytes() == out[first + i].tobytes(), f"token {start + i}"
        first += count


BATCHES: dict[str, Rows] = {
    "first-token": [(0, 0, 1)],
    "one-page": [(1, 0, 16)],
    "decode": [(0, 69, 70), (1, 15, 16), (2, 32, 33), (3, 16, 17)],
    "prefill": [(0, 0, 70)],
    "long": [(4, 2 * SECTION * PAGE + 2, 2 * SECTION * PAGE + 3)],
    "longer": [(4, 100, 2 * SECTION * PAGE + 3), (5, 127, 128), (0, 69, 70)],
    "mixed": [(0, 30, 47), (1, 7, 8), (2, 0, 33), (3, 14, 17)],
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_isa()
def test_against_float64(isa: Isa, shape: tuple[int, int, int], batch: str) -> None:
    check(isa, shape, BATCHES[batch])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_isa()
def test_decoding_gives_what_prefill_gives(isa: Isa, shape: tuple[int, int, int]) -> None:
    check_alone(isa, shape)


@pytest.mark.parametrize(
    "window", [(1, 0), (5, 3), (40, 1), (16, 16), (20, 150), (130, 0)], ids=str
)
@each_isa()
def test_windows(isa: Isa, window: Window) -> None:
    """Pages that no token of a row sees are NaN, and the bits are those of one token alone."""
    for rows in BATCHES.values():
        check(isa, (9, 3, 64), rows, window)
    check_alone(isa, (9, 3, 64), window)


@pytest.mark.slow
@pytest.mark.parametrize("shape", MORE_SHAPES, ids=str)
@each_isa()
def test_more_shapes(isa: Isa, shape: tuple[int, int, int]) -> None:
    for rows in BATCHES.values():
        check(isa, shape, rows)
    check_alone(isa, shape)


@each_isa()
def test_sharp_scores(isa: Isa) -> None:
    """Scores thousands apart: the softmax is one token's value, and nothing overflows."""
    cache = Cache(1, 64, isa.kv_dtype, (40,))
    keys, values = cache.sequence(0, 40)
    q = (1000 * keys[21]).astype(np.float32)
    out = attend(isa, 1, cache, [(0, 39, 40)], q)
    assert np.abs(out - values[21]).max() <= 1e-6
    assert np.isfinite(attend(isa, 1, cache, [(0, 39, 40)], -q)).all()
