"""Products with the matrices of chosen experts, one number at a time: slow and obvious.

for i < m, c < chosen, r < rows:        a token, one of its experts, an output
    for k < columns:
        out[i, c, r] += matrices[experts[i, c], r, k] * x[i, c, k]
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T


@cache
def expert_product(
    num_experts: int, rows: int, columns: int, chosen: int, *, is_shared: bool
) -> tvm.tirx.PrimFunc:
    """out[i, c] = matrices[experts[i, c]] x[i, c], or x[i, 0] if `is_shared`.

    x         float32 [m, chosen, columns], or [m, 1, columns]
    experts   int32 [m, chosen]
    matrices  float32 [num_experts, rows, columns]
    out       float32 [m, chosen, rows]
    """
    inputs = 1 if is_shared else chosen

    @T.prim_func(private=True, s_tir=True)
    def product(x: T.handle, experts: T.handle, matrices: T.handle, out: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        m = T.int32()
        X = T.match_buffer(x, (m, inputs, columns), "float32")
        E = T.match_buffer(experts, (m, chosen), "int32")
        W = T.match_buffer(matrices, (num_experts, rows, columns), "float32")
        O = T.match_buffer(out, (m, chosen, rows), "float32")
        with T.sblock("root"):
            for i, c, r in T.grid(m, chosen, rows):
                O[i, c, r] = T.float32(0)
                for k in T.serial(columns):
                    O[i, c, r] = O[i, c, r] + W[E[i, c], r, k] * X[i, T.min(c, inputs - 1), k]

    return product
