"""The residual stream plus a normalised result: x += norm(y).

    in parallel, for each row:
        inverse = 1 / sqrt(mean(y^2) + eps)
        x += y * inverse * weight

y, x      float32 [m, width]; x is changed in place
weight    float32 [width]
inverse   float32 [1]
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import SERIAL_ROWS
from mlc_llm.kernels.cpu.input_kinds import inverse_rms
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat

L = 8


@cache
def add_norm(width: int, eps: float) -> PrimFunc:
    """Kernel arguments: y, weight, x. width is a multiple of 8."""

    @T.prim_func(private=True, s_tir=True)
    def add_normalised(y: T.handle, weight: T.Buffer((width,), "float32"), x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        Y = T.match_buffer(y, (m, width), "float32")
        X = T.match_buffer(x, (m, width), "float32")

        @T.inline
        def one_row(row):
            """Adds one normalised row."""
            inverse = T.alloc_buffer((1,), "float32")
            inverse_rms(Y, row, width, eps, inverse)
            for i in T.serial(width // L):
                X[row, lanes_at(i * L, L)] = (
                    X[row, lanes_at(i * L, L)]
                    + Y[row, lanes_at(i * L, L)] * splat(inverse[0], L) * weight[lanes_at(i * L, L)]
                )

        with T.sblock("root"):
            if m <= SERIAL_ROWS:
                for row in T.serial(m):
                    one_row(row)
            else:
                for row in T.parallel(m):
                    one_row(row)

    return add_normalised
