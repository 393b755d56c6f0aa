"""A short causal convolution over ragged rows, one number at a time: slow and obvious.

for row of rows:                        one sequence: `first`, `count`, slots `old` and `new`
    for t < count, d < width:
        for j < kernel:                 i = t + j - (kernel - 1), the input's index in the row
            out[first + t, d] += weight[d, j] * (x[first + i, d], or of `old` where i < 0)
    for p < kernel - 1, d < width:      the last inputs of the row
        state[new, p, d] = input count + p - (kernel - 1) of the row, or of `old`
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.library.state_format import STATE_ROW


@cache
def causal_conv(width: int, kernel: int) -> tvm.tirx.PrimFunc:
    """out[t] = sum over j of weight[:, j] * x[t - (kernel - 1) + j], for t and x in one sequence.

    x       float32 [m, width]
    weight  float32 [width, kernel]
    rows    int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
            another slot to write
    state   float32 [slots, kernel - 1, width]: what comes before a row, the oldest first. The slot
            to write gets what comes before the next row.
    out     float32 [m, width]
    """
    kept = kernel - 1

    @T.prim_func(private=True, s_tir=True)
    def conv(x: T.handle, weight: T.handle, rows: T.handle, state: T.handle, out: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        W = T.match_buffer(weight, (width, kernel), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, kept, width), "float32")
        O = T.match_buffer(out, (m, width), "float32")
        with T.sblock("root"):
            for row in T.serial(r):
                for t, d in T.grid(R[row, 1], width):
                    O[R[row, 0] + t, d] = T.float32(0)
                    for j in T.serial(kernel):
                        if t + j < kept:
                            O[R[row, 0] + t, d] = (
                                O[R[row, 0] + t, d] + W[d, j] * S[R[row, 2], t + j, d]
                            )
                        else:
                            O[R[row, 0] + t, d] = (
                                O[R[row, 0] + t, d] + W[d, j] * X[R[row, 0] + t + j - kept, d]
                            )
                for p, d in T.grid(kept, width):
                    if R[row, 1] + p < kept:
                        S[R[row, 3], p, d] = S[R[row, 2], R[row, 1] + p, d]
                    else:
                        S[R[row, 3], p, d] = X[R[row, 0] + R[row, 1] + p - kept, d]

    return conv
