"""A gated delta rule over ragged rows, one number at a time: slow and obvious.

for row of rows:                        one sequence: `first`, `count`, slots `old` and `new`
    for head h, for p < head_dim:
        s = state[old, h, p]            a vector of `key_dim` numbers
        for t < count:                  q and k of the head of keys that h has
            s = decay[t, h] * s
            s = s + beta[t, h] * (v[t, h, p] - s k) * k
            out[t, h, p] = s q
        state[new, h, p] = s
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.library.state_format import STATE_ROW


@cache
def delta_scan(
    key_heads: int, key_dim: int, heads: int, head_dim: int, in_turn: bool
) -> tvm.tirx.PrimFunc:
    """in_turn: as in `GatedDeltaSpec`.

    qk     float32 [m, 2, key_heads, key_dim]
    v      float32 [m, heads, head_dim]
    decay  float32 [m, heads]
    beta   float32 [m, heads]
    rows   int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
           another slot to write
    state  float32 [slots, heads, head_dim, key_dim]
    out    float32 [m, heads, head_dim]
    """

    @T.prim_func(private=True, s_tir=True)
    def scan(
        qk: T.handle, v: T.handle, decay: T.handle, beta: T.handle, rows: T.handle,
        state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr({"tirx.is_scheduled": True})
        m = T.int32()
        r = T.int32()
        n = T.int32()
        Q = T.match_buffer(qk, (m, 2, key_heads, key_dim), "float32")
        V = T.match_buffer(v, (m, heads, head_dim), "float32")
        E = T.match_buffer(decay, (m, heads), "float32")
        B = T.match_buffer(beta, (m, heads), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, heads, head_dim, key_dim), "float32")
        O = T.match_buffer(out, (m, heads, head_dim), "float32")
        with T.sblock("root"):
            change = T.alloc_buffer((1,), "float32")
            for row in T.serial(r):
                for h, p, i in T.grid(heads, head_dim, key_dim):
                    S[R[row, 3], h, p, i] = S[R[row, 2], h, p, i]
                for j, h, p in T.grid(R[row, 1], heads, head_dim):
                    t = T.meta_var(R[row, 0] + j)
                    k = T.meta_var(h % key_heads if in_turn else h // (heads // key_heads))
                    change[0] = V[t, h, p]
                    for i in T.serial(key_dim):
                        S[R[row, 3], h, p, i] = S[R[row, 3], h, p, i] * E[t, h]
                        change[0] = change[0] - S[R[row, 3], h, p, i] * Q[t, 1, k, i]
                    O[t, h, p] = T.float32(0)
                    for i in T.serial(key_dim):
                        S[R[row, 3], h, p, i] = (
                            S[R[row, 3], h, p, i] + B[t, h] * change[0] * Q[t, 1, k, i]
                        )
                        O[t, h, p] = O[t, h, p] + S[R[row, 3], h, p, i] * Q[t, 0, k, i]

    return scan
