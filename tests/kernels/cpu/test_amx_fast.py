"""Fast rows in bfloat16: their values, their independence, and exact rows beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest
from kernel_tools import Array, accumulated, build, each_isa, fixed_values, rounded_rows
from pairs import every_other

from mlc_llm.backends.cpu.formats import BLOCK, format_of_kind, padded_rows
from mlc_llm.backends.cpu.isa import AMX, Isa
from mlc_llm.backends.cpu.packing import Packed, pack
from mlc_llm.kernels.cpu import bf16
from mlc_llm.kernels.cpu.amx_blocking import CHUNK_BYTES
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS
from mlc_llm.kernels.cpu.matmul import matmul
from mlc_llm.kernels.cpu.quant_blocks import quantize_blocks, row_width
from mlc_llm.quantization.block_format import Grouped

FAST_AMX = replace(AMX, fast=True)
ROWS = 70
COLUMNS = (32, 96, 544, 1088)
"""A group, an odd number of them, two k blocks (an odd number of groups), three."""
COUNTS = (1, 2, 15, 16, 17, 32, 33, 49)


@dataclass(frozen=True)
class Weights:
    """A packed matrix, its whole numbers and the units of its rows, float64."""

    packed: Packed
    whole: Array
    units: Array


@cache
def weights(kind: str, k: int, n: int = ROWS) -> Weights:
    rng = np.random.default_rng(k)
    fmt = format_of_kind(kind, half=True, fixed_point=True)
    q = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scale = (rng.standard_normal((n, k // 32)) * np.exp(rng.normal(size=(n, 1)))).astype(np.float16)
    low = -rng.random((n, k // 32)).astype(np.float16).astype(np.float32) * 8
    minimum = low if fmt.has_minimum else None
    packed = pack(Grouped(q, 4, 32, scale.astype(np.float32), minimum, fmt.offset, half=True), fmt)
    units = np.ascontiguousarray(packed.tensor[:, -1, :BLOCK]).view(np.float32)
    units = units.reshape(-1)[:n, None].astype(np.float64)
    return Weights(packed, np.rint(fixed_values(packed, q) / units), units)


def activations(m: int, k: int) -> Array:
    rng = np.random.default_rng(m)
    spread = np.exp(rng.standard_normal((1, k)))
    return (rng.standard_normal((m, k)) * spread).astype(np.float32)


def bfloat16(x: Array) -> Array:
    """float64 of the nearest bfloat16; of two that are as near the one farther from zero."""
    bits = x.astype(np.float32).view(np.uint32) + 0x8000
    return (bits & 0xFFFF0000).view(np.float32).astype(np.float64)


def prepare(
    x: Array, fast: int, kind: str = "plain", *, weight: Array | None = None, eps: float = 0.0
) -> Array:
    k = x.shape[1] // (2 if kind == "silu" else 1)
    y = np.full((len(x) + TILE_ROWS, row_width(k)), -1, np.int32)
    other = x if weight is None else weight
    build(AMX, bf16.prepare_fast, kind, k, AMX, eps)(x, other, np.array([fast], np.int32), y)
    return y


def product(w: Weights, x: Array, fast: int, into: Array | None = None) -> Array:
    n, k = padded_rows(w.packed.rows), x.shape[1]
    add = into is not None
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    kernel = build(AMX, matmul, n, k, w.packed.format, FAST_AMX, accumulate=add, fast=True)
    given = (prepare(x, fast), np.asarray(w.packed.tensor), np.array([fast], np.int32))
    kernel(*given, y)
    return y


def exact_product(w: Weights, x: Array, into: Array | None = None) -> Array:
    n, k = padded_rows(w.packed.rows), x.shape[1]
    q = np.full((len(x), row_width(k)), -1, np.int32)
    build(AMX, quantize_blocks, "plain", k, AMX)(x, x, q)
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    kernel = build(AMX, matmul, n, k, w.packed.format, AMX, accumulate=into is not None)
    kernel(q, np.asarray(w.packed.tensor), y)
    return y


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("kind", "k"), every_other(["Q4_0", "Q4_1"], COLUMNS))
@each_isa(with_amx=True)
def test_product_of_rounded_values(isa: Isa, kind: str, k: int) -> None:
    """Rounding of float32 sums alone is left: of products, of pairs, of every step."""
    w = weights(kind, k)
    for m in COUNTS:
        x = activations(m, k)
        y = product(w, x, m)
        rounded = bfloat16(w.whole) * w.units
        sums = np.abs(bfloat16(x)) @ np.abs(rounded).T
        error = np.abs(y[:, :ROWS] - bfloat16(x) @ rounded.T)
        assert (error <= accumulated(2 * k + 4) * sums).all(), f"{m} rows"
        assert (y[:, ROWS:] == 0).all(), "padding"
        exact = x.astype(np.float64) @ (w.whole * w.units).T
        assert (np.abs(y[:, :ROWS] - exact) <= 2**-7 * sums).all(), f"{m} rows"


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("k", "add"), every_other(COLUMNS, [False, True]))
@each_isa(with_amx=True)
def test_rows_of_either_kind_do_not_know_each_other(isa: Isa, k: int, add: bool) -> None:
    w = weights("Q4_1", k)
    check_independence(
        partial(product, w), partial(exact_product, w), activations(49, k), COUNTS, add=add
    )


def check_independence(
    product: Callable[[Array, int, Array | None], Array],
    exact_product: Callable[[Array, Array | None], Array],
    x: Array,
    counts: Sequence[int],
    *,
    add: bool,
) -> None:
    """AssertionError unless each row, fast or exact, has the bits that it has alone. counts: of
    fast rows among the rows of x, and among the first of them. add: to what is there."""
    m = len(x)
    start = np.random.default_rng(7).standard_normal((m, padded_rows(ROWS))).astype(np.float32)

    def into(rows: slice) -> Array | None:
        return start[rows] if add else None

    one = [slice(i, i + 1) for i in range(m)]
    fast = np.concatenate([product(x[i], 1, into(i)) for i in one])
    exact = exact_product(x, into(slice(m)))
    assert (fast[:, :ROWS] != exact[:, :ROWS]).any(axis=1).all()
    for count in (0, *counts):
        for rows in {count, min(count + 1, m), min(count + 13, m), m}:
            y = product(x[:rows], count, into(slice(rows)))
            assert y[:count].tobytes() == fast[:count].tobytes(), f"{count} of {rows} rows"
            assert y[count:].tobytes() == exact[count:rows].tobytes(), f"{count} of {rows} rows"


@each_isa(with_amx=True)
def test_chunks_of_rows(isa: Isa) -> None:
    """More rows than a chunk has, several column blocks, an odd number of weight blocks each."""
    w = weights("Q4_0", 1088, 3 * BLOCK)
    most = CHUNK_BYTES // (4 * row_width(1088) * 32) * 32
    x = activations(most + 50, 1088)
    y = product(w, x, most + 41)
    for i in (0, most - 1, most, most + 15, most + 16, most + 40):
        assert y[i].tobytes() == product(w, x[i : i + 1], 1)[0].tobytes(), f"row {i}"
    assert y[most + 41 :].tobytes() == exact_product(w, x[most + 41 :]).tobytes()


@pytest.mark.parametrize("kind", ["plain", "norm", "silu"])
@each_isa(with_amx=True)
def test_prepared_rows(isa: Isa, kind: str) -> None:
    """Fast rows are bfloat16; exact rows keep every bit."""
    m, fast, k, eps = 45, 37, 1088, 1e-5
    x = activations(m, 2 * k if kind == "silu" else k)
    weight = activations(1, k)[0] if kind == "norm" else x
    y = prepare(x, fast, kind, weight=weight, eps=eps)
    exact = np.full((m, row_width(k)), -1, np.int32)
    build(AMX, quantize_blocks, kind, k, AMX, eps)(x, weight, exact)
    assert y[fast + TILE_ROWS :].tobytes() == exact[fast:].tobytes()
    wide = x[:fast].astype(np.float64)
    if kind == "norm":
        wide = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps) * weight
    if kind == "silu":
        gate, up = wide[:, :k], wide[:, k:]
        wide = gate / (1 + np.exp(-gate)) * up
    found = rounded_rows(y, fast, k)
    assert (np.abs(found - wide) <= 2**-8 * 1.0001 * np.abs(wide)).all()
    if kind == "plain":
        assert (found == bfloat16(x[:fast])).all()


@each_isa(with_amx=True)
def test_not_a_number_stays_in_its_row(isa: Isa) -> None:
    w, x = weights("Q4_0", 96), activations(20, 96)
    clean = product(w, x, 18)
    x[2, 77] = np.nan
    x[3, 5] = np.inf
    y = product(w, x, 18)
    assert np.isnan(y[2, :ROWS]).all() and not np.isfinite(y[3, :ROWS]).any()
    others = [i for i in range(20) if i not in (2, 3)]
    assert y[others].tobytes() == clean[others].tobytes()
