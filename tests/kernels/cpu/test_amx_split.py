"""Products of numbers in two parts: what is left out, and that rows do not know each other."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, accumulated, build, each_isa
from test_amx_fast import activations, bfloat16
from test_matmul import ROWS, Weights, columns, weights

from mlc_llm.backends.cpu.formats import format_of_kind, padded_rows
from mlc_llm.backends.cpu.isa import AMX, VNNI, Isa
from mlc_llm.kernels.cpu.amx_split import can_split
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS
from mlc_llm.kernels.cpu.matmul import matmul
from mlc_llm.kernels.cpu.split import split_rows

KINDS = (
    "Q8_0", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4",
    "F16", "BF16", "F32",
)  # fmt: skip
"""One of each format that is not in fixed point."""
COUNTS = (1, 2, 15, 16, 17, 33)
LEFT_OUT = 2**-16
"""Of a product: what either number loses, 2^-18 each, and both low parts' product, as much."""


def prepare(x: Array, kind: str = "plain", eps: float = 0.0) -> Array:
    k = x.shape[1]
    y = np.full((len(x) + TILE_ROWS, k), -1, np.int32)
    build(AMX, split_rows, kind, k, eps)(x, x[0].copy() if kind == "norm" else x, y)
    return y


def product(w: Weights, x: Array, into: Array | None = None) -> Array:
    n, add = padded_rows(ROWS), into is not None
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    kernel = build(AMX, matmul, n, w.columns, w.format, AMX, accumulate=add, split=True)
    kernel(prepare(x), *w.arguments(), y)
    return y


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kind", KINDS)
@each_isa(with_amx=True)
def test_product(isa: Isa, kind: str) -> None:
    w = weights(kind, AMX)
    k = w.columns
    for m in COUNTS:
        x = activations(m, k)
        error = np.abs(product(w, x) - x.astype(np.float64) @ w.exact.T)
        # Float32 rounds a weight by what it is made of: a minimum may take most of it away.
        sums = np.abs(x).astype(np.float64) @ np.maximum(np.abs(w.exact), w.magnitude * 2**-8).T
        assert (error <= (LEFT_OUT + accumulated(3 * k)) * sums).all(), f"{m} rows"
        assert np.median(error / np.maximum(sums, 1e-30)) <= 2**-18, f"{m} rows"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
@each_isa(with_amx=True)
def test_rows_do_not_know_each_other(isa: Isa, kind: str, add: bool) -> None:
    w, m = weights(kind, AMX), 49
    x = activations(m, w.columns)
    start = np.random.default_rng(7).standard_normal((m, padded_rows(ROWS))).astype(np.float32)
    given = start if add else None
    alone = [product(w, x[i : i + 1], start[i : i + 1] if add else None) for i in range(m)]
    assert product(w, x, given).tobytes() == np.concatenate(alone).tobytes()
    if add:
        plain = product(w, x)
        assert np.abs(product(w, x, given) - (plain + start)).max() <= np.abs(plain).max() * 2**-20


@pytest.mark.parametrize("kind", ["plain", "norm"])
@each_isa(with_amx=True)
def test_parts(isa: Isa, kind: str) -> None:
    """The high part is what fast rows are; both together hold 16 bits of a number."""
    m, k, eps = 19, 96, 1e-5
    x = activations(m, k)
    low, high = parts(prepare(x, kind, eps), m, k)
    wide = x.astype(np.float64)
    if kind == "norm":
        wide = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps) * wide[0]
    else:
        assert (high == bfloat16(x)).all()
    assert (np.abs(high + low - wide) <= np.abs(wide) * 2**-16.5).all()


def parts(y: Array, m: int, k: int) -> tuple[Array, Array]:
    """float64 [m, k] each: the low and the high parts of rows as `split.py` prepares them."""
    tiles = -(-m // TILE_ROWS)
    words = y.reshape(-1)[: tiles * TILE_ROWS * k].view(np.uint32)
    words = words.reshape(tiles, k // 32, 2, TILE_ROWS, 16).transpose(2, 0, 3, 1, 4)
    pairs = np.stack([words << 16, words & 0xFFFF0000], axis=4).view(np.float32)
    low, high = pairs.reshape(2, -1, k)[:, :m].astype(np.float64)
    return low, high


def test_which_products_are_split() -> None:
    packed = format_of_kind("Q8_0", half=True, fixed_point=True)
    assert can_split(packed, AMX, columns(packed)) and not can_split(packed, VNNI, 96)
    assert not can_split(format_of_kind("F16", half=True), AMX, 588), "groups are whole"
    assert not can_split(format_of_kind("Q4_0", half=True, fixed_point=True), AMX, 96)
