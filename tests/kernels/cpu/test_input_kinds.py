"""Layer norms, biases, and networks with and without a gate, before a product, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from kernel_tools import (
    Array,
    build,
    dequantised,
    each_isa,
    each_isa_and,
    prepare,
    rounded_rows,
    steps,
)

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import AMX, Isa
from mlc_llm.kernels.cpu.activation import floats
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS, prepare_fast
from mlc_llm.kernels.cpu.quant_blocks import row_width
from mlc_llm.kernels.row_kinds import KINDS, input_width

K, EPS = 96, 1e-5
G32, G16, PLAIN = WeightFormat(4, 32), WeightFormat(8, 16), WeightFormat(32)
FIXED = WeightFormat(4, 32, offset=8, scale_dtype="int16")
HALF_STEP = 0.51
"""Of a quantisation step: half for rounding, the rest for the reciprocal's own rounding."""
NEWER = [kind for kind in KINDS if kind not in ("plain", "norm", "silu")]
"""The others are in `test_activation.py`."""
Function = Callable[[Array], Array]
ACTIVATED: dict[str, Function] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
}


def inputs(kind: str) -> tuple[Array, list[Array | None]]:
    """Rows as large as activations are, every third far out; the weight and the bias."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((7, input_width(kind, K)))
    x[::3] = 6 * x[::3] + 2
    found = [rng.standard_normal(K).astype(np.float32) for _ in range(KINDS[kind].vectors)]
    return x.astype(np.float32), [*found, None, None][:2]


def reference(kind: str, x: Array, vectors: list[Array | None]) -> Array:
    """float64."""
    which = KINDS[kind]
    x = x.astype(np.float64)
    weight, bias = (np.zeros(K) if one is None else one.astype(np.float64) for one in vectors)
    if which.norm is not None:
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS) * weight + bias
    if not which.is_gated:
        return ACTIVATED[str(which.activation)](x + weight)
    gate, up = x[:, :K] + weight, x[:, K:] + bias
    if which.activation == "clamped_swiglu":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    return ACTIVATED[str(which.activation)](gate) * up


def bound_of(x: Array) -> Array:
    """Of float32: relative to the size of the row, and of its square where halves multiply."""
    return 2e-6 * (1 + np.abs(x.astype(np.float64)).max(axis=1, keepdims=True)) ** 2


@pytest.mark.one_of(8)
@pytest.mark.parametrize("fmt", [G32, G16, PLAIN, FIXED], ids=["g32", "g16", "floats", "fixed"])
@each_isa_and("kind", NEWER)
def test_against_float64(isa: Isa, kind: str, fmt: WeightFormat) -> None:
    if fmt.is_fixed_point and isa.sums != 2:
        pytest.skip("its planes are not bytes")
    x, vectors = inputs(kind)
    weight, bias = vectors
    prepared = prepare(isa, fmt, x, kind, weight=weight, bias=bias, eps=EPS)
    bound = bound_of(x) + HALF_STEP * steps(fmt, prepared, K)
    assert (np.abs(dequantised(isa, prepared, K) - reference(kind, x, vectors)) <= bound).all()


@pytest.mark.parametrize("kind", NEWER)
@each_isa(where=lambda isa: not isa.integer)
def test_not_a_number_is_not_lost(isa: Isa, kind: str) -> None:
    for at in (0, 40, -1):
        x, (weight, bias) = inputs(kind)
        x[1, at] = np.nan
        (values,) = prepare(isa, PLAIN, x, kind, weight=weight, bias=bias, eps=EPS)
        assert np.isnan(values[1]).any() and np.isfinite(values[[0, 2]]).all(), f"element {at}"


@pytest.mark.parametrize("kind", ["layer_norm", "gelu_alone_biased", "silu_biased"])
@each_isa(with_amx=True)
def test_fast_rows(isa: Isa, kind: str) -> None:
    """Fast rows are rounded to bfloat16; the others are as without fast rows."""
    x, vectors = inputs(kind)
    given = [one for one in vectors if one is not None]
    y = np.full((len(x) + TILE_ROWS, row_width(K)), -1, np.int32)
    build(isa, prepare_fast, kind, K, AMX, EPS)(x, *given, np.array([3], np.int32), y)
    (alone,) = prepare(isa, FIXED, x, kind, weight=vectors[0], bias=vectors[1], eps=EPS)
    assert y[3 + TILE_ROWS :, : K // 2].tobytes() == alone[3:, : K // 2].tobytes()
    found = rounded_rows(y, 3, K)
    expected = reference(kind, x[:3], vectors)
    assert (np.abs(found - expected) <= 2.0**-8 * np.abs(expected) + bound_of(x[:3])).all()


@each_isa(where=lambda isa: not isa.integer)
def test_a_layer_norm_of_a_large_mean(isa: Isa) -> None:
    """The mean is taken away before anything is squared."""
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal((2, K))).astype(np.float32)
    one, zero, y = np.ones(K, np.float32), np.zeros(K, np.float32), np.zeros((2, K), np.float32)
    build(isa, floats, "layer_norm", K, EPS)(x, one, zero, y)
    assert np.abs(y - reference("layer_norm", x, [one, zero])).max() <= 1e-3
