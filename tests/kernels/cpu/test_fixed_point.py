"""Fixed-point weights and activations with quant blocks: which sums are exact, and how exact."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import (
    Array,
    accumulated,
    block_integers,
    block_scales,
    build,
    dequantised,
    each_isa,
    fixed_values,
    prepare,
)
from pairs import every_other

from mlc_llm.backends.cpu.formats import format_of_kind, padded_rows
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.packing import LARGEST, Packed, pack, unpack
from mlc_llm.kernels.cpu.fixed_point import LARGE, least_gemm_rows
from mlc_llm.kernels.cpu.matmul import matmul
from mlc_llm.kernels.cpu.quant_blocks import BLOCK_GROUPS, GROUP, quant_blocks, sums_start
from mlc_llm.kernels.cpu.quantized_rows import LIMIT
from mlc_llm.quantization.block_format import Grouped

WIDTH = GROUP * BLOCK_GROUPS
COLUMNS = (32, 96, WIDTH, WIDTH + 32, 2 * WIDTH + 320)
"""An odd group, a whole quant block, ends in the middle of an AMX tile and of a quant block."""


def random_weights(kind: str, n: int, k: int) -> Grouped:
    rng = np.random.default_rng(k)
    fmt = format_of_kind(kind, half=True)
    q = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scale = (rng.standard_normal((n, k // 32)) * np.exp(rng.normal(size=(n, 1)))).astype(np.float16)
    low = -rng.random((n, k // 32)).astype(np.float16) * 8
    minimum = low.astype(np.float32) if fmt.has_minimum else None
    return Grouped(q, 4, 32, scale.astype(np.float32), minimum, fmt.offset, half=True)


def rows(m: int, k: int) -> Array:
    rng = np.random.default_rng(m)
    x = rng.standard_normal((m, k)) * np.exp(rng.normal(size=(1, k)))
    return x.astype(np.float32)


def units(packed: Packed) -> Array:
    """float32 [padded rows]."""
    return np.ascontiguousarray(packed.tensor[:, -1, :32]).view(np.float32).reshape(-1)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_values_keep_sixteen_bits_of_their_row(kind: str) -> None:
    grouped = random_weights(kind, 70, 256)
    fixed = pack(grouped, format_of_kind(kind, half=True, fixed_point=True))
    exact = unpack(pack(grouped, format_of_kind(kind, half=False))).astype(np.float64)
    found = fixed_values(fixed, grouped.q)
    unit = units(fixed)[:70, None].astype(np.float64)
    ends = np.abs(exact).max(axis=1, keepdims=True)
    assert (unit * LARGEST >= ends * 0.999).all() and (unit * LARGEST <= 2.2 * ends).all()
    furthest = 15 / 4 + 1 / 2 if grouped.minimum is not None else 8 / 2
    assert (np.abs(found - exact) <= furthest * unit * (1 + 1e-5)).all()
    assert np.abs(unpack(fixed) - found).max() <= 1e-6 * np.abs(found).max()


def test_rows_of_zeros_and_padding_have_no_unit() -> None:
    grouped = random_weights("Q4_0", 40, 64)
    grouped.scale[3] = 0
    fixed = pack(grouped, format_of_kind("Q4_0", half=True, fixed_point=True))
    found = units(fixed)
    assert found[3] == 0 and (found[40:] == 0).all() and (found[:3] > 0).all()
    assert (unpack(fixed)[3] == 0).all()


@pytest.mark.parametrize("kind", ["Q5_0", "Q8_0", "Q6_K", "F16"])
def test_other_formats_stay_as_they_are(kind: str) -> None:
    assert format_of_kind(kind, half=True, fixed_point=True) == format_of_kind(kind, half=True)


def run(isa: Isa, packed: Packed, x: Array, into: Array | None = None) -> Array:
    n, k = padded_rows(packed.rows), x.shape[1]
    kernel = build(isa, matmul, n, k, packed.format, isa, accumulate=into is not None)
    y = np.full((len(x), n), np.nan, np.float32) if into is None else into.copy()
    kernel(*prepare(isa, packed.format, x), np.asarray(packed.tensor), y)
    return y


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("kind", "k"), every_other(["Q4_0", "Q4_1"], COLUMNS))
@each_isa(with_amx=True)
def test_gemv_and_gemm_have_the_same_bits(isa: Isa, kind: str, k: int) -> None:
    """Vectors and AMX tiles, row blocks that overlap, chunks: all against each row by itself."""
    grouped = random_weights(kind, 70, k)
    packed = pack(grouped, format_of_kind(kind, half=True, fixed_point=True))
    x = rows(49, k)
    alone = np.concatenate([run(isa, packed, x[i : i + 1]) for i in range(len(x))])
    for m in (2, 4, 7, 9, 10, 12, 15, 16, 31, 32, 49):
        assert run(isa, packed, x[:m]).tobytes() == alone[:m].tobytes(), f"{m} rows"
    ones = np.ones_like(alone)
    added = np.concatenate([run(isa, packed, x[i : i + 1], ones[:1]) for i in range(len(x))])
    for m in (3, 13, 49):
        assert run(isa, packed, x[:m], ones[:m]).tobytes() == added[:m].tobytes(), f"{m} rows"


@each_isa(with_amx=True)
def test_a_large_matrix_uses_tiles_earlier(isa: Isa) -> None:
    n, k = 1024, LARGE // 1024
    packed = pack(random_weights("Q4_0", n, k), format_of_kind("Q4_0", half=True, fixed_point=True))
    x = rows(least_gemm_rows(n, k), k)
    assert len(x) < least_gemm_rows(n, k - GROUP)
    alone = np.concatenate([run(isa, packed, x[i : i + 1]) for i in range(len(x))])
    for m in (len(x) - 1, len(x)):
        assert run(isa, packed, x[:m]).tobytes() == alone[:m].tobytes(), f"{m} rows"


@pytest.mark.parametrize("n", [33, 100])
@each_isa(with_amx=True)
def test_long_rows(isa: Isa, n: int) -> None:
    """Of two column blocks: more rows than a chunk of activations holds. Of four: two of them are a
    task."""
    packed = pack(
        random_weights("Q4_0", n, 8192), format_of_kind("Q4_0", half=True, fixed_point=True)
    )
    x = rows(150, 8192)
    whole = run(isa, packed, x)
    for i in (0, 63, 64, 80, 137, 149):
        assert whole[i].tobytes() == run(isa, packed, x[i : i + 1])[0].tobytes(), f"row {i}"


@pytest.mark.timing
@pytest.mark.parametrize("m", [13, 16, 40])
@each_isa(with_amx=True)
def test_each_block_is_taken_once(isa: Isa, m: int) -> None:
    """Threads share hundreds of blocks; one that two of them took would be added twice."""
    packed = pack(
        random_weights("Q4_1", 9000, 96), format_of_kind("Q4_1", half=True, fixed_point=True)
    )
    x, ones = rows(m, 96), np.ones((m, padded_rows(9000)), np.float32)
    alone = np.concatenate([run(isa, packed, x[i : i + 1], ones[:1]) for i in range(m)])
    for _ in range(3):
        assert run(isa, packed, x, ones).tobytes() == alone.tobytes()


@pytest.mark.parametrize("k", COLUMNS)
@pytest.mark.parametrize("m", [1, 4, 20])
@each_isa(with_amx=True)
def test_sums_of_quant_blocks_are_exact(isa: Isa, m: int, k: int) -> None:
    """Only scaling and adding of quant blocks rounds: a few roundings, however many columns."""
    grouped = random_weights("Q4_1", 70, k)
    packed = pack(grouped, format_of_kind("Q4_1", half=True, fixed_point=True))
    x = rows(m, k)
    given = dequantised(isa, prepare(isa, packed.format, x), k)
    weights = fixed_values(packed, grouped.q)
    sums = np.zeros((m, 70))
    for start in range(0, k, WIDTH):
        part = slice(start, start + WIDTH)
        sums += np.abs(given[:, part] @ weights[:, part].T)
    error = np.abs(run(isa, packed, x)[:, :70] - given @ weights.T)
    assert (error <= accumulated(4 + quant_blocks(k)) * sums + 1e-30).all()


@pytest.mark.parametrize("sign", [1, -1])
@each_isa(with_amx=True)
def test_largest_quant_blocks_do_not_overflow(isa: Isa, sign: int) -> None:
    k = 2 * WIDTH
    q = np.full((32, k), 0 if sign < 0 else 15, np.uint8)
    scale, low = np.ones((32, k // 32), np.float32), np.zeros((32, k // 32), np.float32)
    for kind, minimum in (("Q4_0", None), ("Q4_1", low)):
        fmt = format_of_kind(kind, half=True, fixed_point=True)
        packed = pack(Grouped(q, 4, 32, scale, minimum, fmt.offset, half=True), fmt)
        expected = 3.0 * fixed_values(packed, q).sum(axis=1)
        for m in (1, 16):
            y = run(isa, packed, np.full((m, k), 3.0, np.float32))
            assert np.abs(y - expected).max() <= 1e-6 * 15 * 3 * k


@pytest.mark.parametrize("k", COLUMNS)
@each_isa(with_amx=True)
def test_quant_blocks_of_activations(isa: Isa, k: int) -> None:
    fmt = format_of_kind("Q4_0", half=True, fixed_point=True)
    x = rows(5, k)
    x[2, 7] *= 1000
    x[3] = 0
    (prepared,) = prepare(isa, fmt, x)
    q, scale = block_integers(prepared, k), block_scales(prepared, k)
    groups = q.reshape(5, -1, GROUP).sum(axis=2)
    assert (prepared[:, sums_start(k) : sums_start(k) + k // GROUP] == groups).all()
    for b in range(quant_blocks(k)):
        largest = np.abs(q[:, b * WIDTH : (b + 1) * WIDTH]).max(axis=1)
        assert (largest == [LIMIT, LIMIT, LIMIT, 0, LIMIT]).all()
    wide = np.repeat(scale.astype(np.float64), WIDTH, axis=1)[:, :k]
    assert (np.abs(q * wide - x) <= 0.51 * wide).all()
