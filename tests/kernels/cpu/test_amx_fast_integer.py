"""Fast rows in bfloat16 with packed integers: their values, and exact rows beside them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from kernel_tools import Array, accumulated, build, each_isa, rounded_rows
from test_amx_fast import activations, bfloat16, check_independence
from test_matmul import ROWS, Weights, columns, weights

from mlc_llm.backends.cpu.formats import padded_rows
from mlc_llm.backends.cpu.isa import AMX, VNNI, Isa
from mlc_llm.kernels.cpu import bf16
from mlc_llm.kernels.cpu.activation import quantize
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS
from mlc_llm.kernels.cpu.matmul import can_ask, can_quantize, has_fast_rows, matmul
from mlc_llm.kernels.cpu.quant_blocks import row_width
from mlc_llm.kernels.cpu.quantized_rows import quantized_width
from mlc_llm.kernels.cpu.unpacked_matmul import LEAST_ROWS

FAST_AMX = replace(AMX, fast=True)
KINDS = ("Q8_0", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "Q2_K", "Q3_K", "IQ4_XS", "IQ2_XS", "MXFP4")
"""One of each format that is not in fixed point."""
COUNTS = (1, 2, 15, 16, 17, 33)


def prepare(x: Array, fast: int, group: int, kind: str = "plain", eps: float = 0.0) -> Array:
    k = x.shape[1]
    y = np.full((len(x) + TILE_ROWS, k // group, quantized_width(group)), -1, np.int32)
    kernel = build(AMX, bf16.prepare_fast_integers, kind, k, group, AMX, eps)
    kernel(x, x[0].copy() if kind == "norm" else x, np.array([fast], np.int32), y)
    return y


def product(w: Weights, x: Array, fast: int, into: Array | None = None) -> Array:
    n, add = padded_rows(ROWS), into is not None
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    kernel = build(AMX, matmul, n, w.columns, w.format, FAST_AMX, accumulate=add, fast=True)
    given = prepare(x, fast, w.format.group), *w.arguments(), np.array([fast], np.int32)
    kernel(*given, y)
    return y


def exact_product(w: Weights, x: Array, into: Array | None = None) -> Array:
    n, (group, k) = padded_rows(ROWS), (w.format.group, w.columns)
    q = np.full((len(x), k // group, quantized_width(group)), -1, np.int32)
    build(AMX, quantize, "plain", k, group, AMX)(x, x, q)
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    kernel = build(AMX, matmul, n, k, w.format, AMX, accumulate=into is not None)
    kernel(q, *w.arguments(), y)
    return y


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kind", KINDS)
@each_isa(with_amx=True)
def test_product_of_rounded_values(isa: Isa, kind: str) -> None:
    """Rounding of float32 sums is left, and of weights whose last bits decide how they round."""
    w = weights(kind, AMX)
    k = columns(w.format)
    for m in COUNTS:
        x = activations(m, k)
        y = product(w, x, m)
        rounded = bfloat16(w.exact)
        sums = np.abs(bfloat16(x)) @ np.maximum(np.abs(rounded), w.magnitude * 2**-20).T
        error = np.abs(y - bfloat16(x) @ rounded.T)
        assert (error <= (accumulated(2 * k + 4) + 2**-8) * sums).all(), f"{m} rows"
        # Weights that round otherwise are few: most results are nearer than their half steps.
        assert np.median(error / np.maximum(sums, 1e-30)) <= 2**-14, f"{m} rows"
        assert (y[:, ROWS:] == 0).all(), "padding"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K"])
@each_isa(with_amx=True)
def test_rows_of_either_kind_do_not_know_each_other(isa: Isa, kind: str, add: bool) -> None:
    w, m = weights(kind, AMX), LEAST_ROWS + 20
    products = partial(product, w), partial(exact_product, w)
    check_independence(*products, activations(m, w.columns), (*COUNTS, m), add=add)


@pytest.mark.parametrize(("kind", "group"), [("plain", 32), ("norm", 32), ("plain", 16)])
@each_isa(with_amx=True)
def test_prepared_rows(isa: Isa, kind: str, group: int) -> None:
    """Fast rows are bfloat16, as for weights in fixed point; exact rows keep every bit."""
    m, fast, k, eps = 19, 11, 96, 1e-5
    x = activations(m, k)
    weight = x[0].copy() if kind == "norm" else x
    y = prepare(x, fast, group, kind, eps)
    exact = np.full_like(y[TILE_ROWS:], -1)
    build(AMX, quantize, kind, k, group, AMX, eps)(x, weight, exact)
    assert y[fast + TILE_ROWS :].tobytes() == exact[fast:].tobytes()
    other = np.full((m + TILE_ROWS, row_width(k)), -1, np.int32)
    build(AMX, bf16.prepare_fast, kind, k, AMX, eps)(x, weight, np.array([fast], np.int32), other)
    assert (rounded_rows(y, fast, k) == rounded_rows(other, fast, k)).all()


def test_which_products_are_on_tiles() -> None:
    fmt = weights("Q8_0", AMX).format
    assert has_fast_rows(fmt, FAST_AMX, 64) and not has_fast_rows(fmt, AMX, 64)
    assert can_quantize(fmt, FAST_AMX) and not can_quantize(fmt, FAST_AMX, fast=True)
    assert not can_ask(fmt, AMX) and can_ask(weights("Q8_0", VNNI).format, VNNI)
