"""Paged keys and values for attention kernels, calls of those, and a float64 softmax.

Everything that a sequence must not see is NaN: other sequences' pages, free pages, and the places
after its newest token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from byte_pages import block_width, put, spoil
from kernel_tools import HALF_ULP, Array, accumulated, build

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.attention import attention, has_both_products, query_block_tokens
from mlc_llm.kernels.cpu.attention_shape import SPLIT_KEYS, Shape
from mlc_llm.kernels.cpu.fast_attention import fast_attention
from mlc_llm.kernels.cpu.fast_attention_tiles import fast_query_block_tokens
from mlc_llm.kernels.cpu.kv_pages import PAGE
from mlc_llm.kernels.cpu.vectors import LOG2E


@dataclass
class Cache:
    """Keys and values of sequences of the given lengths, scattered over pages."""

    kv_heads: int
    head_dim: int
    dtype: str
    lengths: tuple[int, ...]
    pages: Array = field(init=False)
    stored: Array = field(init=False)
    tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        counts = [-(-length // PAGE) for length in self.lengths]
        shuffled = rng.permutation(sum(counts) + 3).tolist()
        self.tables = [[shuffled.pop() for _ in range(count)] for count in counts]
        shape = (sum(counts) + 3, self.kv_heads, 2, PAGE * self.head_dim)
        is_bytes = self.dtype == "int8"
        self.pages = np.full(shape, np.nan, "float32" if is_bytes else self.dtype)
        for table, length in zip(self.tables, self.lengths, strict=True):
            for token in range(length):
                keys, values = self.place(self.pages, table[token // PAGE], token % PAGE)
                keys[...] = rng.standard_normal(keys.shape)
                values[...] = rng.standard_normal(values.shape)
        if is_bytes:
            self._become_bytes()

    def _become_bytes(self) -> None:
        """`stored` is what a kernel reads, and `pages` what it stands for."""
        shape = (len(self.pages), self.kv_heads, 2, block_width(self.head_dim))
        self.stored = np.full(shape, 77, np.int8)
        for page in range(len(self.pages)):
            for at in range(PAGE):
                for kind, x in enumerate(self.place(self.pages, page, at)):
                    x[...] = put(self.stored, page, kind, at, x)

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
        return pages if self.dtype != "int8" else self._without(pages)

    def _without(self, pages: Array) -> Array:
        """`stored`, broken where a token of these pages is NaN."""
        stored = self.stored.copy()
        for page in range(len(pages)):
            for at in range(PAGE):
                if np.isnan(self.place(pages, page, at)[0]).any():
                    for kind in (0, 1):
                        spoil(stored, page, kind, at, self.head_dim)
        return stored


Window = tuple[int, int]
"""Tokens that are seen, and sinks."""
ALL: Window = (2**31 - 1, 0)
Rows = list[tuple[int, int, int]]
"""(sequence, first position, end): the new tokens of a step."""


def attend(
    isa: Isa,
    heads: int,
    cache: Cache,
    rows: Rows,
    q: Array,
    *,
    window: Window = ALL,
    fast: int | None = None,
    for_sinks: Array | None = None,
    cap: float | None = None,
    sinks: Array | None = None,
    reach: int | None = None,
) -> Array:
    """The kernel on these rows; q float32 [m, heads * head_dim], not yet scaled.

    fast: how many of the first rows are fast; None: the kernel without fast tokens. for_sinks: a
    second query for each, like q; None: the kernel without them. sinks: learned ones, or none.
    reach: what tokens of whole sequences see on each side; None: what is behind them, by `window`.
    """
    blocks, page_ids, places, firsts = [], [], [], []
    for i, (index, start, end) in enumerate(rows):
        size = query_block_tokens(heads, cache.kv_heads, isa)
        if i < (fast or 0) and isa.amx_tiles:
            size = fast_query_block_tokens(heads, cache.kv_heads)
        for at in range(0, end - start, size):
            blocks.append((len(places) + at, min(size, end - start - at), len(page_ids)))
        page_ids += cache.tables[index][: -(-end // PAGE)]
        places += range(start, end)
        firsts += [max(at - (reach or 0), 0) for at in range(start, end)]
        if reach is not None:
            places[start - end :] = [min(at + reach, end - 1) for at in range(start, end)]
    both = q if for_sinks is None else np.concatenate([q, for_sinks], axis=1)
    scaled = both * np.float32(LOG2E * cache.head_dim**-0.5)
    out = np.full_like(q, np.nan)
    kernel = attention if fast is None or isa.bf16 else fast_attention
    if fast is None and has_both_products(cache.head_dim, isa):
        isa = replace(isa, fast=False)
    tokens = [sum(end - start for _, start, end in rows[:fast])]
    shape = Shape(
        heads, cache.kv_heads, cache.head_dim, isa, cache.dtype, sink_query=for_sinks is not None,
        score_cap=cap, learned_sinks=sinks is not None, both_sides=reach is not None,
    )  # fmt: skip
    build(isa, kernel, shape)(
        scaled,
        cache.only(rows, window),
        np.asarray(places, np.int32),
        np.asarray(blocks, np.int32),
        np.asarray(page_ids, np.int32),
        np.asarray(window, np.int32),
        *([] if sinks is None else [sinks]),
        *([] if reach is None else [np.asarray(firsts, np.int32)]),
        *([] if fast is None else [np.asarray(tokens, np.int32)]),
        out,
    )
    return out


@dataclass(frozen=True)
class Rounding:
    """Relative errors beside those of float32 sums."""

    score: float = 0.0
    """The error of each term of a score."""
    weight: float = 0.0
    """The error of a weight times a value."""


FLOAT32 = Rounding()


def queries(rows: Rows, heads: int, head_dim: int) -> Array:
    """float32: the same numbers for the same token, whatever else is asked."""
    parts = []
    for index, start, end in rows:
        rng = np.random.default_rng(index)
        parts.append(rng.standard_normal((end, heads * head_dim))[start:])
    return np.concatenate(parts).astype(np.float32)


def reference(
    heads: int,
    cache: Cache,
    rows: Rows,
    q: Array,
    window: Window,
    *,
    rounding: Rounding = FLOAT32,
    for_sinks: Array | None = None,
    cap: float | None = None,
    sinks: Array | None = None,
    reach: int | None = None,
) -> tuple[Array, Array]:
    """Exact attention, and a bound of what such rounding may make of it; float64 like q.

    for_sinks: the queries of the KV splits that hold sinks, if they are not q. sinks: learned ones.
    """
    heads_per_kv, dim = heads // cache.kv_heads, cache.head_dim
    outs, bounds, first = [], [], 0
    for index, start, end in rows:
        keys, values = (np.repeat(a, heads_per_kv, axis=1) for a in cache.sequence(index, end))
        own, other = (
            every[first : first + end - start].reshape(-1, heads, dim).astype(np.float64)
            for every in (q, q if for_sinks is None else for_sinks)
        )
        first += end - start
        key, token = np.arange(end)[None, None], np.arange(start, end)[:, None, None]
        seen = (key <= token) & ((key > token - window[0]) | (key < window[1]))
        if reach is not None:
            seen = abs(key - token) <= reach
        scores = np.einsum("qhd,khd->qhk", own, keys) * dim**-0.5
        of_sinks = -(-window[1] // SPLIT_KEYS) * SPLIT_KEYS
        scores[..., :of_sinks] = np.einsum("qhd,khd->qhk", other, keys[:of_sinks]) * dim**-0.5
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        scores[~np.broadcast_to(seen, scores.shape)] = -np.inf
        top, rest = scores.max(axis=2, keepdims=True), np.float64(0)
        if sinks is not None:
            top = np.maximum(top, sinks[:, None])
            rest = np.exp(sinks[:, None] - top)
        largest = np.maximum(np.abs(own), np.abs(other))
        terms = np.einsum("qhd,khd->qhk", largest, np.abs(keys)) * dim**-0.5
        weights = np.where(seen, np.exp(scores - top), 0)
        weights /= weights.sum(axis=2, keepdims=True) + rest
        outs.append(np.einsum("qhk,khd->qhd", weights, values))
        # An error of a score is a relative one of its weight; each page may rescale once more.
        error = accumulated(dim + 6) + rounding.score
        relative = 2 * error * np.where(seen, terms, 0).max(axis=2) + 6e-7
        relative += accumulated(end + 8 * len(cache.tables[index])) + rounding.weight
        spread = np.einsum("qhk,khd->qhd", weights, np.abs(values))
        bounds.append(2 * relative[..., None] * spread + HALF_ULP)
    return tuple(np.concatenate(a).reshape(len(q), -1) for a in (outs, bounds))  # type: ignore[return-value]


LENGTHS = (70, 16, 33, 17, 2 * SPLIT_KEYS + 3, SPLIT_KEYS)
