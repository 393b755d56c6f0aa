"""Weights of 8-bit floats with a scale for each group of columns, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.formats import format_of_kind
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.packing import Packed, pack, unpack
from mlc_llm.kernels.cpu.embedding import embedding
from mlc_llm.kernels.cpu.expert_matmul import ExpertShape, expert_matmul
from mlc_llm.kernels.cpu.matmul import has_fast_rows, matmul
from mlc_llm.quantization.block_format import Floats, Grouped
from mlc_llm.quantization.float8 import E4M3

ROWS, COLUMNS = 64, 96
KIND = "float8_e4m3"
RNG = np.random.default_rng(0)


def packed(isa: Isa, seed: int) -> tuple[Packed, Floats]:
    """A matrix in which every number of the type stands, and its values."""
    rng = np.random.default_rng(seed)
    byte = rng.permutation(np.arange(ROWS * COLUMNS) % 256).astype(np.uint8)
    byte[(byte & 127) == 127] = 0
    byte = byte.reshape(ROWS, COLUMNS)
    scale = rng.uniform(1e-3, 2e-3, (ROWS, COLUMNS // 32)).astype(np.float32)
    fmt = format_of_kind(KIND, half=isa.half, fixed_point=isa.amx_tiles)
    assert not has_fast_rows(fmt, isa, COLUMNS)
    made = pack(Grouped(byte, 8, 32, scale, None, 128, half=False), fmt)
    values = E4M3[byte] * np.repeat(scale, 32, axis=1)
    assert (unpack(made) == values).all()
    return made, values


@each_isa()
def test_rows_of_a_table_are_exact(isa: Isa) -> None:
    made, values = packed(isa, 1)
    tokens = np.array([5, 0, 63], np.int32)
    rows = np.empty((3, COLUMNS), np.float32)
    build(isa, embedding, ROWS, COLUMNS, made.format)(tokens, made.tensor, rows)
    assert rows.tobytes() == values[tokens].tobytes()


@pytest.mark.parametrize("m", [1, 13])
@each_isa()
def test_products(isa: Isa, m: int) -> None:
    made, values = packed(isa, 2)
    x = RNG.standard_normal((m, COLUMNS)).astype(np.float32)
    y = np.empty((m, ROWS), np.float32)
    build(isa, matmul, ROWS, COLUMNS, made.format, isa, accumulate=False)(x, made.tensor, y)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    assert np.abs(y - exact).max() <= 1e-5 * np.abs(exact).max()


@each_isa()
def test_products_of_experts(isa: Isa) -> None:
    both = [packed(isa, seed) for seed in (3, 4)]
    starts = np.array([0, 2, 7], np.int32)
    x = RNG.standard_normal((7, COLUMNS)).astype(np.float32)
    y = np.zeros((7, ROWS), np.float32)
    shape = ExpertShape(2, ROWS, COLUMNS, both[0][0].format)
    stack = np.stack([one.tensor for one, _ in both])
    build(isa, expert_matmul, shape, isa, ROWS, 0)(starts, x, stack, y)
    for e, (_, values) in enumerate(both):
        own = slice(starts[e], starts[e + 1])
        exact = x[own].astype(np.float64) @ values.T.astype(np.float64)
        assert np.abs(y[own] - exact).max() <= 1e-5 * np.abs(exact).max()
