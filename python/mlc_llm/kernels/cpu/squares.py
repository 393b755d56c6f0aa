"""Adds up squares of activations: what enters a matrix, column by column.

    for i in rows of X, for j in columns:
      S[j] += X[i, j]^2

X  float32 [m, k]; it is not changed, and is an output too, so that whatever reads it comes after
S  float32 [k], in place

Where X has the rows of experts, sorted by expert, each expert has sums of its own, and behind them
the number of its rows:

starts  int32 [experts + 1]     rows starts[e] to starts[e + 1] are those of expert e
S       float32 [experts, k + 1], in place
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


@cache
def add_expert_squares(experts: int, k: int) -> tvm.tirx.PrimFunc:
    """Kernel of (starts, X, S)."""

    @T.prim_func(private=True, s_tir=True)
    def add_squares_by_expert(
        starts: T.Buffer((experts + 1,), "int32"),
        x: T.handle,
        S: T.Buffer((experts, k + 1), "float32"),
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        with T.sblock("root"):
            for e in T.serial(experts):
                for i in T.serial(starts[e + 1] - starts[e]):
                    for j in T.serial(k):
                        S[e, j] = S[e, j] + X[starts[e] + i, j] * X[starts[e] + i, j]
                    S[e, k] = S[e, k] + T.float32(1)

    return add_squares_by_expert
