"""A layer norm in place: x = (x - mean) * inverse * weight + bias.

    in parallel, for each row:
        inverse = 1 / sqrt(variance + eps)

x             float32 [m, width], changed in place
weight, bias  float32 [width]
inverse       float32 [2]: the inverse, and the mean
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import SERIAL_ROWS
from mlc_llm.kernels.cpu.input_kinds import inverse_deviation
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat

L = 8


@cache
def layer_norm(width: int, eps: float) -> PrimFunc:
    """Kernel arguments: weight, bias, x. width is a multiple of 8."""

    @T.prim_func(private=True, s_tir=True)
    def normalise(
        weight: T.Buffer((width,), "float32"), bias: T.Buffer((width,), "float32"), x: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")

        @T.inline
        def one_row(row):
            """Normalises one row."""
            inverse = T.alloc_buffer((2,), "float32")
            inverse_deviation(X, row, width, eps, inverse)
            for i in T.serial(width // L):
                X[row, lanes_at(i * L, L)] = (
                    X[row, lanes_at(i * L, L)] - splat(inverse[1], L)
                ) * splat(inverse[0], L) * weight[lanes_at(i * L, L)] + bias[lanes_at(i * L, L)]

        with T.sblock("root"):
            if m <= SERIAL_ROWS:
                for row in T.serial(m):
                    one_row(row)
            else:
                for row in T.parallel(m):
                    one_row(row)

    return normalise
