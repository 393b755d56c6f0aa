"""Adds up squares of activations: what enters a matrix, column by column.

    for i in rows of X, for j in columns:
      S[j] += X[i, j]^2

X  float32 [m, k]; it is not changed, and is an output too, so that whatever reads it comes after
S  float32 [k], in place
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import SCHEDULED


@cache
def add_squares(k: int) -> tvm.tirx.PrimFunc:
    """Kernel of (X, S)."""

    @T.prim_func(private=True, s_tir=True)
    def add_squares_of_rows(x: T.handle, squares: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        S = T.match_buffer(squares, (k,), "float32")
        with T.sblock("root"):
            for i, j in T.grid(m, k):
                S[j] = S[j] + X[i, j] * X[i, j]

    return add_squares_of_rows
