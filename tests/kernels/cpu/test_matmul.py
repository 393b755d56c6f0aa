"""Products with packed weights, in every format, against float64.

The integer kernels are held to two bounds: rounding of float32 sums against the 16-bit activations
that they were given, and half a step of those activations against the exact product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from format_floats import floats_of
from kernel_tools import (
    Array,
    accumulated,
    build,
    dequantised,
    each_isa,
    fixed_values,
    grouped,
    high_parts,
    prepare,
    row_counts,
    rows_alone,
    steps,
)

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, format_of_kind, padded_rows
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.packing import Packed, pack, pack_floats
from mlc_llm.kernels.cpu import integer_product
from mlc_llm.kernels.cpu.matmul import has_fast_rows, matmul
from mlc_llm.kernels.cpu.quant_blocks import quant_blocks
from mlc_llm.kernels.cpu.unpacked_matmul import unpacks

FLOATS = ("F16", "BF16", "F32")
PLAIN_KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", *FLOATS)
KINDS = (*PLAIN_KINDS, "Q2_K", "Q3_K", "IQ4_XS", "IQ2_XS", "MXFP4", "TQ2_0")
"""One of each packed format."""
ROWS, COLUMNS = 70, 160
"""Padded to 96 rows: three column blocks; five groups of 32."""
HALF_STEP = 0.51


@dataclass(frozen=True)
class Weights:
    """A packed matrix and, in float64 [padded rows, columns], what it means."""

    packed: Packed
    exact: Array
    magnitude: Array
    """|scale * q| + |minimum|: what rounding errors are relative to."""

    @property
    def format(self) -> WeightFormat:
        return self.packed.format

    @property
    def columns(self) -> int:
        return self.packed.columns

    def arguments(self) -> list[Array]:
        """As the kernel takes them."""
        return [np.asarray(self.packed.tensor)]


def weights(kind: str, isa: Isa) -> Weights:
    return _weights(format_of_kind(kind, half=isa.half, fixed_point=isa.amx_tiles))


@cache
def _weights(fmt: WeightFormat) -> Weights:
    return _floats(fmt) if fmt.is_float else _blocks(fmt)


def columns(fmt: WeightFormat) -> int:
    """Five groups of 32, or two spans."""
    return COLUMNS if fmt.span == 1 else 2 * fmt.span * fmt.group


def _floats(fmt: WeightFormat) -> Weights:
    w = floats_of(fmt, np.random.default_rng(3), ROWS, COLUMNS)
    exact = _padded(w.astype(np.float64))
    return Weights(pack_floats(w, fmt), exact, np.abs(exact))


def _blocks(fmt: WeightFormat) -> Weights:
    """Every stored number takes its extremes somewhere; scales have either sign."""
    rng, k = np.random.default_rng(3), columns(fmt)
    q = rng.integers(0, 2**fmt.bits, (ROWS, k), dtype=np.uint8)
    q[0], q[1] = 0, 2**fmt.bits - 1
    groups = (ROWS, k // fmt.group)
    stored = "float32" if fmt.scale_dtype == "float32" else "float16"
    scale = (rng.standard_normal(groups) * 0.1).astype(stored).astype(np.float32)
    minimum = (-rng.random(groups)).astype(stored).astype(np.float32)
    values = grouped(fmt, q, scale, minimum)
    packed = pack(values, fmt)
    wide = np.repeat(values.scale.astype(np.float64), fmt.group, axis=1)
    low = values.minimum
    shift = -fmt.offset * wide if low is None else np.repeat(low, fmt.group, axis=1)
    magnitude = np.abs(wide * q) + np.abs(shift)
    exact = fixed_values(packed, q) if fmt.is_fixed_point else wide * q + shift
    return Weights(packed, _padded(exact), _padded(magnitude))


def _padded(matrix: Array) -> Array:
    return np.pad(matrix, ((0, padded_rows(ROWS) - ROWS), (0, 0)))


def activations(m: int, k: int = COLUMNS) -> npt.NDArray[np.float32]:
    """Columns of very different sizes, as in a real model."""
    rng = np.random.default_rng(m)
    spread = np.exp(rng.standard_normal((1, k)))
    return (rng.standard_normal((m, k)) * spread).astype(np.float32)


def product(
    isa: Isa, w: Weights, x: Array, *, into: Array | None = None, fast: int | None = None
) -> Array:
    """The kernel's Y, from floats x. fast: rows for the kernel that knows such rows."""
    n, add = padded_rows(ROWS), into is not None
    shape, with_fast = (n, w.columns, w.format, isa), fast is not None
    kernel = build(isa, matmul, *shape, accumulate=add, fast=with_fast)
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    rows = [] if fast is None else [np.array([fast], np.int32)]
    kernel(*prepare(isa, w.format, x), *w.arguments(), *rows, y)
    return y


def operations(isa: Isa, fmt: WeightFormat) -> int:
    """Longest chain of float32 roundings behind one result, the last addition included."""
    if fmt.is_fixed_point:
        return 2 * quant_blocks(columns(fmt)) + 5
    if isa.integer and not fmt.is_float:
        return 2 * (columns(fmt) // fmt.group) + 5
    return columns(fmt) + 5


@pytest.mark.one_of(8)
@pytest.mark.parametrize("kind", KINDS)
@each_isa(with_avx_vnni=True)
def test_product(isa: Isa, kind: str) -> None:
    w = weights(kind, isa)
    for m in row_counts(isa):
        x = activations(m, w.columns)
        y = product(isa, w, x)
        prepared = prepare(isa, w.format, x)
        given = dequantised(isa, prepared, w.columns)
        rounding = accumulated(operations(isa, w.format)) * (np.abs(given) @ w.magnitude.T)
        assert (np.abs(y - given @ w.exact.T) <= rounding).all(), f"{m} rows"
        bound = HALF_STEP * steps(w.format, prepared, w.columns) @ np.abs(w.exact.T) + rounding
        assert (np.abs(y - x.astype(np.float64) @ w.exact.T) <= bound).all(), f"{m} rows"
        assert (y[:, ROWS:] == 0).all(), "padding"


@pytest.mark.one_of(12)
@pytest.mark.parametrize("kind", KINDS)
@each_isa()
def test_accumulating_adds_the_very_same_product(isa: Isa, kind: str) -> None:
    w = weights(kind, isa)
    for m in row_counts(isa):
        x = activations(m, w.columns)
        residual = np.random.default_rng(9).standard_normal((m, padded_rows(ROWS)))
        residual = residual.astype(np.float32)
        summed = product(isa, w, x, into=residual)
        plain = product(isa, w, x)
        assert np.abs(summed - (residual.astype(np.float64) + plain)).max() <= (
            2 * accumulated(1) * (np.abs(residual) + np.abs(plain)).max()
        )


@pytest.mark.one_of(16)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@each_isa(with_avx_vnni=True)
def test_rows_do_not_know_each_other(isa: Isa, kind: str, add: bool) -> None:
    w = weights(kind, isa)
    most = max(row_counts(isa))
    ones = np.ones((most, padded_rows(ROWS)), np.float32)
    for m in (9, most):
        rows_alone(
            lambda x: [product(isa, w, x, into=ones[: len(x)] if add else None)],
            activations(m, w.columns),
        )


def many(isa: Isa, kind: str, m: int) -> tuple[Weights, Array]:
    """A matrix with several k blocks, and m rows of activations, of which only a few differ."""
    fmt = format_of_kind(kind, half=isa.half, fixed_point=isa.amx_tiles)
    rng, k = np.random.default_rng(4), 2560
    q = rng.integers(0, 2**fmt.bits, (ROWS, k), dtype=np.uint8)
    scale = rng.random((ROWS, k // fmt.group), np.float32)
    exact = np.zeros((padded_rows(ROWS), k))
    few = activations(7, k)
    packed = pack(grouped(fmt, q, scale, -scale), fmt)
    return Weights(packed, exact, exact), few[np.arange(m) * 3 % 7]


@pytest.mark.one_of(8)
@pytest.mark.parametrize(
    ("kind", "m", "add"),
    [("Q4_0", 64, False), ("Q4_1", 67, True), ("Q6_K", 70, False), ("Q8_0", 530, True)],
)
@each_isa(with_avx_vnni=True, where=lambda isa: isa.sums == 2 and not isa.amx_tiles)
def test_many_fast_rows_have_the_bits_of_few(isa: Isa, kind: str, m: int, add: bool) -> None:
    """Their weights are unpacked once for all; a few exact rows may follow."""
    w, x = many(isa, kind, m)
    into = np.ones((m, padded_rows(ROWS)), np.float32) if add else None
    few = product(isa, w, x[:7], into=None if into is None else into[:7], fast=7)
    for fast in (m, m - 3):
        y = product(isa, w, x, into=into, fast=fast)
        assert y[:fast].tobytes() == few[np.arange(fast) % 7].tobytes(), f"{fast} fast rows"


@pytest.mark.one_of(8)
@pytest.mark.parametrize(
    ("kind", "m", "add"),
    [
        ("Q6_K", 70, False),
        ("Q5_1", 530, True),
        ("Q5_0", 64, True),
        ("Q4_K", 67, False),
        ("Q8_0", 65, True),
    ],
)
@each_isa(with_avx_vnni=True, where=unpacks)
def test_many_rows_have_the_bits_of_few(isa: Isa, kind: str, m: int, add: bool) -> None:
    """Their weights are unpacked once for all."""
    w, x = many(isa, kind, m)
    into = np.ones((m, padded_rows(ROWS)), np.float32) if add else None
    few = product(isa, w, x[:7], into=None if into is None else into[:7])
    assert product(isa, w, x, into=into).tobytes() == few[np.arange(m) % 7].tobytes()


@pytest.mark.one_of(6)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q6_K"])
@each_isa()
def test_blocks_do_not_know_each_other(isa: Isa, kind: str, add: bool) -> None:
    """Of four blocks a row goes through two side by side; of three through one at a time."""
    fmt = format_of_kind(kind, half=isa.half, fixed_point=isa.amx_tiles)
    rng, k = np.random.default_rng(5), columns(fmt)
    q = rng.integers(0, 2**fmt.bits, (4 * BLOCK, k), dtype=np.uint8)
    scale = rng.standard_normal((4 * BLOCK, k // fmt.group)).astype(np.float16).astype(np.float32)
    tensor = np.asarray(pack(grouped(fmt, q, scale, scale), fmt).tensor)
    kernels = {n: build(isa, matmul, n * BLOCK, k, fmt, isa, accumulate=add) for n in (3, 4)}
    for m in (1, 2, 5):
        prepared = prepare(isa, fmt, activations(m, k))
        ys = []
        for first, count in ((0, 4), (0, 3), (1, 3)):
            y = np.ones((m, count * BLOCK), np.float32)
            kernels[count](*prepared, np.ascontiguousarray(tensor[first:][:count]), y)
            ys.append(y)
        assert ys[0][:, : 3 * BLOCK].tobytes() == ys[1].tobytes(), f"{m} rows"
        assert ys[0][:, BLOCK:].tobytes() == ys[2].tobytes(), f"{m} rows"


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q6_K"])
@each_isa(with_avx_vnni=True)
def test_largest_numbers_do_not_overflow(isa: Isa, kind: str) -> None:
    """All weights and all activations at the end of their ranges, with the same sign."""
    fmt = format_of_kind(kind, half=isa.half, fixed_point=isa.amx_tiles)
    top, k = 2**fmt.bits - 1, columns(fmt)
    q = np.full((ROWS, k), top, np.uint8)
    q[1] = 0
    values = grouped(fmt, q, np.ones((ROWS, k // fmt.group), np.float32))
    packed = pack(values, fmt)
    scale = np.repeat(values.scale.astype(np.float64), fmt.group, axis=1)
    exact = _padded(scale * (q.astype(np.float64) - fmt.offset))
    w = Weights(packed, exact, np.abs(exact))
    x = np.full((3, k), 3.0, np.float32)
    x[1] = -3
    y = product(isa, w, x)
    assert np.abs(y / 3 - x / 3 @ exact.T).max() <= 1e-4 * k * top


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
@each_isa()
def test_not_a_number_stays_in_its_row(isa: Isa, kind: str) -> None:
    w = weights(kind, isa)
    x = activations(5, w.columns)
    clean = product(isa, w, x)
    x[2, 77] = np.nan
    y = product(isa, w, x)
    assert np.isnan(y[2, :ROWS]).all()
    others = [0, 1, 3, 4]
    assert y[others].tobytes() == clean[others].tobytes()


@pytest.mark.parametrize("kind", KINDS)
@each_isa(where=lambda isa: isa.sums != 2)
def test_no_fast_rows_without_planes(isa: Isa, kind: str) -> None:
    refuses_fast_rows(isa, kind)


@pytest.mark.parametrize("kind", FLOATS)
@each_isa()
def test_an_odd_number_of_columns(isa: Isa, kind: str) -> None:
    """A word of bfloat16 has two."""
    k, fmt = 147, format_of_kind(kind, half=isa.half)
    w = floats_of(format_of_kind(kind, half=True), np.random.default_rng(3), 32, k)
    x, y = activations(5, k), np.full((5, 32), np.nan, np.float32)
    packed = np.asarray(pack_floats(w, fmt).tensor)
    build(isa, matmul, 32, k, fmt, isa, accumulate=False)(x, packed, y)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    sums = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T
    assert (np.abs(y - exact) <= accumulated(k) * sums).all()


@pytest.mark.parametrize("kind", FLOATS)
@each_isa(where=lambda isa: isa.sums == 2)
def test_no_fast_rows_of_floats(isa: Isa, kind: str) -> None:
    refuses_fast_rows(isa, kind)


def refuses_fast_rows(isa: Isa, kind: str) -> None:
    fmt = weights(kind, isa).format
    assert not has_fast_rows(fmt, isa, COLUMNS)
    with pytest.raises(AssertionError):
        matmul(padded_rows(ROWS), columns(fmt), fmt, isa, accumulate=False, fast=True)


@pytest.mark.one_of(12)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FLOATS])
@each_isa(with_avx_vnni=True, where=lambda isa: isa.sums == 2 and not isa.amx_tiles)
def test_fast_rows(isa: Isa, kind: str) -> None:
    """They are the product of the activations' high bytes; all others keep every bit. On AMX tiles
    they are bfloat16, which has tests of its own."""
    w = weights(kind, isa)
    x = activations(9, w.columns)
    exact, fast = product(isa, w, x), product(isa, w, x, fast=9)
    given = _high_values(isa, w, x)
    rounding = accumulated(operations(isa, w.format)) * (np.abs(given) @ w.magnitude.T)
    assert (np.abs(fast - given @ w.exact.T) <= rounding).all()
    assert (fast[:, :ROWS] != exact[:, :ROWS]).any(axis=1).all()
    for count in (0, 1, 3, 4, 6):
        y = product(isa, w, x, fast=count)
        assert y[:count].tobytes() == fast[:count].tobytes(), f"{count} fast rows"
        assert y[count:].tobytes() == exact[count:].tobytes(), f"{count} fast rows"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
@each_isa(where=lambda isa: isa.sums == 2 and not isa.amx_tiles)
def test_one_plane_is_what_fast_rows_are(isa: Isa, kind: str) -> None:
    """All rows, whatever their number."""
    w, one_plane = weights(kind, isa), replace(isa, one_plane=True)
    x = activations(9, w.columns)
    fast = product(isa, w, x, fast=9)
    for count in (1, 4, 9):
        assert product(one_plane, w, x[:count]).tobytes() == fast[:count].tobytes(), f"{count} rows"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K"])
@each_isa(where=lambda isa: isa.lanes == 16 and not isa.amx_tiles)
def test_a_row_that_asks_ahead_keeps_its_bits(
    isa: Isa, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer_product, "LEAST_ASKED", 1)
    w, asking = weights(kind, isa), replace(isa, asks=True)
    x = activations(9, w.columns)
    for count in (1, 5):
        asked = product(asking, w, x[:count])
        assert asked.tobytes() == product(isa, w, x[:count]).tobytes(), f"{count} rows"


def _high_values(isa: Isa, w: Weights, x: Array) -> Array:
    """float64: what the high bytes of activations stand for, in the order of the columns."""
    high, scale, _ = high_parts(*prepare(isa, w.format, x))
    quads = w.format.group // 4
    ordered = high.reshape(*high.shape[:2], quads, 4).transpose(0, 1, 3, 2)
    values = ordered.reshape(high.shape) * scale.astype(np.float64)[..., None]
    return values.reshape(x.shape)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@each_isa(where=lambda isa: isa.sums == 2 and not isa.amx_tiles)
def test_fast_rows_are_added_too(isa: Isa, kind: str) -> None:
    w = weights(kind, isa)
    x = activations(9, w.columns)
    ones = np.ones((9, padded_rows(ROWS)), np.float32)
    summed = product(isa, w, x, into=ones, fast=6)
    assert np.abs(summed - 1 - product(isa, w, x, fast=6)).max() <= 1e-4
    alone = [product(isa, w, x[i : i + 1], into=ones[:1], fast=int(i < 6)) for i in range(9)]
    assert np.concatenate(alone).tobytes() == summed.tobytes()
