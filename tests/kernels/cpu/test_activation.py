"""Normalising, gating and 16-bit quantisation of activations, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import (
    Array,
    accumulated,
    build,
    dequantised,
    each_isa,
    high_parts,
    integers,
    parts,
    prepare,
    rows_alone,
    scaled_sums,
)

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.activation import floats
from mlc_llm.kernels.cpu.quantized_rows import LIMIT

G32, G16, PLAIN = WeightFormat(4, 32), WeightFormat(8, 16), WeightFormat(32)
FORMATS = [pytest.param(f, id=n) for f, n in ((G32, "g32"), (G16, "g16"), (PLAIN, "floats"))]
EPS = 1e-5
K = 96
HALF_STEP = 0.51
"""Of a quantisation step: half for rounding, the rest for the reciprocal's own rounding."""


def inputs(kind: str, m: int = 5) -> tuple[Array, Array | None]:
    """Rows of very different sizes, with outliers; weights for "norm"."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, 2 * K if kind == "silu" else K)) * np.exp(rng.normal(size=(m, 1)))
    x[:, 3] *= 100
    weight = rng.standard_normal(K).astype(np.float32) if kind == "norm" else None
    return x.astype(np.float32), weight


def reference(kind: str, x: Array, weight: Array | None) -> Array:
    """float64."""
    x = x.astype(np.float64)
    if kind == "norm":
        assert weight is not None
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * weight
    if kind == "silu":
        return x[:, :K] / (1 + np.exp(-x[:, :K])) * x[:, K:]
    return x


def rounding(kind: str, x: Array) -> Array | float:
    """Relative error of a float32 evaluation."""
    if kind == "silu":  # the exponent carries its own rounding into the result
        return 1e-6 + accumulated(3) * np.abs(x[:, :K])
    return accumulated(K // 8 + 12) if kind == "norm" else 0.0


@pytest.mark.one_of(6)
@pytest.mark.parametrize("m", [1, 2, 3, 5])
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", ["plain", "norm", "silu"])
@each_isa()
def test_against_float64(isa: Isa, kind: str, fmt: WeightFormat, m: int) -> None:
    x, weight = inputs(kind, m)
    prepared = prepare(isa, fmt, x, kind, weight=weight, eps=EPS)
    expected = reference(kind, x, weight)
    bound = rounding(kind, x) * np.abs(expected)
    if kind == "silu":  # a gate below -87 counts as -87
        bound += 1.01 * np.exp(-87) * np.abs(x[:, :K] * x[:, K:])
    if prepared[0].ndim == 3:
        step = np.repeat(parts(prepared[0])[1], fmt.group, axis=1)
        bound = bound + HALF_STEP * step
    assert (np.abs(dequantised(isa, prepared) - expected) <= bound).all()


@pytest.mark.parametrize("fmt", FORMATS[:2])
@pytest.mark.parametrize("kind", ["plain", "norm", "silu"])
@each_isa(where=lambda isa: not isa.integer)
def test_without_integers_rows_stay_floats(isa: Isa, kind: str, fmt: WeightFormat) -> None:
    x, weight = inputs(kind)
    (prepared,) = prepare(isa, fmt, x, kind, weight=weight)
    assert prepared.dtype == np.float32 and prepared.shape == (len(x), K)


@pytest.mark.parametrize("fmt", FORMATS[:2])
@pytest.mark.parametrize("kind", ["plain", "norm", "silu"])
@each_isa(where=lambda isa: isa.integer)
def test_sums_and_range(isa: Isa, kind: str, fmt: WeightFormat) -> None:
    x, weight = inputs(kind)
    words, scale, total = parts(prepare(isa, fmt, x, kind, weight=weight, eps=EPS)[0])
    q = integers(isa, words)
    assert (q.sum(axis=2) == total).all()
    # The largest magnitude of a group takes the whole range; its high byte must not overflow.
    assert (np.abs(q).max(axis=2) == LIMIT).all()
    assert (scale > 0).all()


@pytest.mark.parametrize("fmt", FORMATS[:2])
@each_isa(where=lambda isa: isa.integer)
def test_described_sums(isa: Isa, fmt: WeightFormat) -> None:
    (prepared,) = prepare(isa, fmt, inputs("plain")[0])
    _, scale, total = parts(prepared)
    scaled, _ = scaled_sums(prepared)
    assert (scaled == scale * total.astype(np.float32)).all()


@pytest.mark.parametrize("fmt", FORMATS[:2])
@each_isa(where=lambda isa: isa.sums == 2)
def test_described_sums_of_high_bytes(isa: Isa, fmt: WeightFormat) -> None:
    (prepared,) = prepare(isa, fmt, inputs("plain")[0])
    words, scale, _ = parts(prepared)
    _, high_scaled = scaled_sums(prepared)
    high, high_scale, high_total = high_parts(prepared)
    assert (high_scale == 256 * scale).all()
    assert (high.astype(np.int64).sum(axis=2) == high_total).all()
    assert (high_scaled == high_scale * high_total.astype(np.float32)).all()
    assert (
        np.abs(256 * np.sort(high, axis=2).astype(int) - np.sort(integers(isa, words))).max() <= 128
    )


@each_isa()
def test_rows_of_zeros_stay_zero(isa: Isa) -> None:
    x = np.zeros((3, K), np.float32)
    x[1, 40] = 2  # one group of one row
    values = dequantised(isa, prepare(isa, G32, x))
    expected = np.zeros((3, K))
    expected[1, 40] = 2
    assert np.abs(values - expected).max() <= 1e-6
    assert (values[:, :32] == 0).all()


@each_isa()
def test_silu_far_out(isa: Isa) -> None:
    """e^-x overflows float32 from 89 on: the gate must become 0 or x, never NaN."""
    gate = np.array([-3e38, -1e4, -100, -88, -50, 50, 89, 1e4], np.float32)
    x = np.concatenate([np.tile(gate, K // 8), np.ones(K, np.float32)])[None]
    y = np.zeros((1, K), np.float32)
    build(isa, floats, "silu", K)(x, x, y)
    assert (y[0, 5:8] == gate[5:]).all()
    assert (np.abs(y[0, 1:5]) <= 1e-19).all()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", ["plain", "norm", "silu"])
@each_isa()
def test_rows_do_not_know_each_other(isa: Isa, kind: str, fmt: WeightFormat) -> None:
    x, weight = inputs(kind, 9)
    rows_alone(lambda some: prepare(isa, fmt, some, kind, weight=weight, eps=EPS), x)


@pytest.mark.parametrize("kind", ["plain", "norm", "silu"])
@each_isa()
def test_not_a_number_is_not_lost(isa: Isa, kind: str) -> None:
    """A NaN must still be one after quantisation, or broken weights would give fluent nonsense."""
    for at in (0, 9, 17, 31, 40):
        x, weight = inputs(kind, 2)
        x[1, at] = np.nan
        values = dequantised(isa, prepare(isa, G32, x, kind, weight=weight, eps=EPS))
        assert np.isnan(values[1]).any(), f"element {at}"
        assert np.isfinite(values[0]).all()
