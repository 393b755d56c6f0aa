"""Time mixing of RWKV-7 over ragged rows, one number at a time: slow and obvious.

for row of rows:                        one sequence: `first`, `count`, slots `old` and `new`
    for head h, for p < head_dim:
        s = state[old, h, :, p]         a vector of `head_dim` numbers
        for t < count:
            s = w[t, h] * s - (a[t, h] * u[t, h]) * (s u[t, h]) + k[t, h] * v[t, h, p]
            out[t, h, p] = s r[t, h]
        state[new, h, :, p] = s
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.library.state_format import STATE_ROW


@cache
def wkv_scan(heads: int, head_dim: int) -> tvm.tirx.PrimFunc:
    """r, w, k, v, u, a  float32 [m, heads, head_dim]
    rows                 int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
                         another slot to write
    state                float32 [slots, heads, head_dim, head_dim]: by key, then by value
    out                  float32 [m, heads, head_dim]
    """

    @T.prim_func(private=True, s_tir=True)
    def scan(
        r: T.handle, w: T.handle, k: T.handle, v: T.handle, u: T.handle, a: T.handle,
        rows: T.handle, state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr({"tirx.is_scheduled": True})
        m = T.int32()
        count = T.int32()
        n = T.int32()
        R = T.match_buffer(r, (m, heads, head_dim), "float32")
        W = T.match_buffer(w, (m, heads, head_dim), "float32")
        K = T.match_buffer(k, (m, heads, head_dim), "float32")
        V = T.match_buffer(v, (m, heads, head_dim), "float32")
        U = T.match_buffer(u, (m, heads, head_dim), "float32")
        A = T.match_buffer(a, (m, heads, head_dim), "float32")
        ROWS = T.match_buffer(rows, (count, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, heads, head_dim, head_dim), "float32")
        O = T.match_buffer(out, (m, heads, head_dim), "float32")
        with T.sblock("root"):
            seen = T.alloc_buffer((1,), "float32")
            for row in T.serial(count):
                new = T.meta_var(ROWS[row, 3])
                for h, j, p in T.grid(heads, head_dim, head_dim):
                    S[new, h, j, p] = S[ROWS[row, 2], h, j, p]
                for i, h, p in T.grid(ROWS[row, 1], heads, head_dim):
                    t = T.meta_var(ROWS[row, 0] + i)
                    seen[0] = T.float32(0)
                    for j in T.serial(head_dim):
                        seen[0] = seen[0] + S[new, h, j, p] * U[t, h, j]
                    O[t, h, p] = T.float32(0)
                    for j in T.serial(head_dim):
                        S[new, h, j, p] = (
                            S[new, h, j, p] * W[t, h, j]
                            - A[t, h, j] * U[t, h, j] * seen[0]
                            + K[t, h, j] * V[t, h, p]
                        )
                        O[t, h, p] = O[t, h, p] + S[new, h, j, p] * R[t, h, j]

    return scan
