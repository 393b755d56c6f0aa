"""Products of many rows: each row has the bits that it has among few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa, grouped, prepare
from test_matmul import activations

from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.packing import pack
from mlc_llm.kernels.cpu.activation import Source
from mlc_llm.kernels.cpu.matmul import leaves_quantised, matmul
from mlc_llm.kernels.cpu.row_panels import K_BLOCK, PART, TURN, RowPanels
from mlc_llm.kernels.cpu.unpacked_matmul import least_rows

N, EPS = 96, 1e-5
MANY = TURN + 67
"""A whole turn, and one whose last row block has rows of the one before."""


def packed(fmt: WeightFormat, k: int) -> Array:
    rng = np.random.default_rng(4)
    q = rng.integers(0, 2**fmt.bits, (N, k), dtype=np.uint8)
    scale, minimum = rng.standard_normal((2, N, k // fmt.group)).astype(np.float16)
    values = grouped(fmt, q, scale.astype(np.float32), minimum.astype(np.float32))
    return np.asarray(pack(values, fmt).tensor)


@pytest.mark.one_of(6)
@pytest.mark.parametrize("one_plane", [False, True])
@pytest.mark.parametrize("k", [K_BLOCK - 32, PART + 256])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
@each_isa(with_avx_vnni=True, where=lambda isa: not leaves_quantised(isa) and not isa.amx_tiles)
def test_rows_of_several_turns_and_panels(isa: Isa, kind: str, k: int, one_plane: bool) -> None:
    fmt, chosen = format_of_kind(kind, half=isa.half), replace(isa, one_plane=one_plane)
    panels = RowPanels(k, fmt, [chosen.planes], isa)
    assert (panels.k_blocks > 1) == (k > K_BLOCK)
    assert k < PART or panels.rows * panels.panel < TURN
    weights, x = packed(fmt, k), activations(MANY, k)
    options = {"accumulate": True}
    given = build(isa, matmul, N, k, fmt, chosen, **options)
    made = build(isa, matmul, N, k, fmt, chosen, **options, source=Source("plain", EPS))
    (quantised,) = prepare(isa, fmt, x)
    few, many, joined = np.ones((3, MANY, N), np.float32)
    most = least_rows(isa) - 1
    for start in range(0, MANY, most):
        rows = slice(start, start + most)
        given(quantised[rows], weights, few[rows])
    given(quantised, weights, many)
    made(x, x, np.zeros_like(quantised), weights, joined)
    assert many.tobytes() == few.tobytes()
    assert joined.tobytes() == few.tobytes()
    assert np.isfinite(few).all() and (few != 1).all()
