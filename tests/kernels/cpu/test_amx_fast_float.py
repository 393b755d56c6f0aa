"""Fast rows in bfloat16 on tiles with 16-bit floats: their values, and exact rows beside them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from kernel_tools import Array, accumulated, build, each_isa
from test_amx_fast import activations, bfloat16, check_independence
from test_matmul import ROWS, Weights, weights

from mlc_llm.backends.cpu.formats import padded_rows
from mlc_llm.backends.cpu.isa import AMX, VNNI, Isa
from mlc_llm.kernels.cpu.amx_fast_float import has_fast_floats
from mlc_llm.kernels.cpu.matmul import has_fast_rows, matmul

FAST_AMX = replace(AMX, fast=True)
KINDS = ("F16", "BF16")
COUNTS = (1, 2, 15, 16, 17, 33)


def _product(w: Weights, x: Array, into: Array | None, isa: Isa, *fast: Array) -> Array:
    n = padded_rows(ROWS)
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    kernel = build(
        AMX, matmul, n, w.columns, w.format, isa, accumulate=into is not None, fast=bool(fast)
    )
    kernel(x, *w.arguments(), *fast, y)
    return y


def product(w: Weights, x: Array, fast: int, into: Array | None = None) -> Array:
    return _product(w, x, into, FAST_AMX, np.array([fast], np.int32))


def exact_product(w: Weights, x: Array, into: Array | None = None) -> Array:
    return _product(w, x, into, AMX)


@pytest.mark.parametrize("kind", KINDS)
@each_isa(with_amx=True)
def test_product_of_rounded_values(isa: Isa, kind: str) -> None:
    """Rounding of float32 sums alone is left."""
    w = weights(kind, AMX)
    rounded = bfloat16(w.exact)
    for m in COUNTS:
        x = activations(m, w.columns)
        y = product(w, x, m)
        sums = np.abs(bfloat16(x)) @ np.abs(rounded).T
        error = np.abs(y - bfloat16(x) @ rounded.T)
        assert (error <= accumulated(2 * w.columns + 4) * sums).all(), f"{m} rows"
        assert (y[:, ROWS:] == 0).all(), "padding"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@each_isa(with_amx=True)
def test_rows_of_either_kind_do_not_know_each_other(isa: Isa, kind: str, add: bool) -> None:
    w = weights(kind, AMX)
    products = partial(product, w), partial(exact_product, w)
    check_independence(*products, activations(40, w.columns), (*COUNTS, 40), add=add)


def test_where_there_are_such_products() -> None:
    for kind in KINDS:
        fmt = weights(kind, AMX).format
        assert has_fast_floats(fmt, FAST_AMX, 64) and has_fast_rows(fmt, FAST_AMX, 64)
        assert not has_fast_rows(fmt, FAST_AMX, 588), "a tile has 32 columns"
        assert not has_fast_rows(fmt, AMX, 64)
        assert not has_fast_floats(fmt, replace(VNNI, fast=True), 64)
    assert not has_fast_rows(weights("F32", AMX).format, FAST_AMX, 64)
