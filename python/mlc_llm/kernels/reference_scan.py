"""A selective state space over ragged rows, one number at a time: slow and obvious.

for row of rows:                        one sequence: `first`, `count`, slots `old` and `new`
    for head h, for p < head_dim:
        s = state[old, h, p]            a vector of `size` numbers
        for t < count:
            s = decay[t, h] * s + x[t, h, p] * dt[t, h] * B[t, group of h]
            out[t, h, p] = sum of s * C[t, group of h]
        state[new, h, p] = s
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.library.state_format import STATE_ROW


@cache
def selective_scan(heads: int, head_dim: int, size: int, groups: int) -> tvm.tirx.PrimFunc:
    """heads of one group are neighbours.

    x      float32 [m, heads, head_dim]
    dt     float32 [m, heads]
    decay  float32 [m, heads]: exp(dt * a)
    bc     float32 [m, 2 * groups, size]: B of each group, then C
    rows   int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
           another slot to write
    state  float32 [slots, heads, head_dim, size]
    out    float32 [m, heads, head_dim]
    """
    share = heads // groups

    @T.prim_func(private=True, s_tir=True)
    def scan(
        x: T.handle, dt: T.handle, decay: T.handle, bc: T.handle, rows: T.handle,
        state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr({"tirx.is_scheduled": True})
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(x, (m, heads, head_dim), "float32")
        D = T.match_buffer(dt, (m, heads), "float32")
        E = T.match_buffer(decay, (m, heads), "float32")
        B = T.match_buffer(bc, (m, 2 * groups, size), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, heads, head_dim, size), "float32")
        O = T.match_buffer(out, (m, heads, head_dim), "float32")
        with T.sblock("root"):
            for row in T.serial(r):
                for h, p, i in T.grid(heads, head_dim, size):
                    S[R[row, 3], h, p, i] = S[R[row, 2], h, p, i]
                for j, h, p in T.grid(R[row, 1], heads, head_dim):
                    t = T.meta_var(R[row, 0] + j)
                    O[t, h, p] = T.float32(0)
                    for i in T.serial(size):
                        S[R[row, 3], h, p, i] = (
                            S[R[row, 3], h, p, i] * E[t, h]
                            + X[t, h, p] * D[t, h] * B[t, h // share, i]
                        )
                        O[t, h, p] = (
                            O[t, h, p] + S[R[row, 3], h, p, i] * B[t, groups + h // share, i]
                        )

    return scan
