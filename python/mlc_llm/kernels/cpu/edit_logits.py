"""Changes logits before sampling: bias and penalties where a request names a token, then masks."""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat

L = 16
WORD = 32
"""Tokens of a mask's word, the lowest bit first."""


@cache
def edit_logits(vocab: int, padded: int) -> tvm.tirx.PrimFunc:
    """Arguments, for e edits and r masked rows out of s:

    place     int32 [e, 2]: row and token; they are carried out in this order
    number    float32 [e, 3]: added; then multiplied with (a negative logit) or divided by; then
              subtracted
    masked    int32 [r], each row once
    allowed   int32 [r, ceil(vocab / WORD)]: a bit a token; where it is 0, -inf is added. So NaN
              stays and +inf becomes NaN: a mask must not hide that the model failed.
    logits    float32 [s, padded], changed in place
    """
    words = -(-vocab // WORD)
    assert words * WORD <= padded

    @T.prim_func(private=True, s_tir=True)
    def edit(
        place: T.handle, number: T.handle, masked: T.handle, allowed: T.handle, logits: T.handle
    ):
        T.func_attr(SCHEDULED)
        e = T.int32()
        r = T.int32()
        s = T.int32()
        P = T.match_buffer(place, (e, 2), "int32")
        N = T.match_buffer(number, (e, 3), "float32")
        M = T.match_buffer(masked, (r,), "int32")
        A = T.match_buffer(allowed, (r, words), "int32")
        X = T.match_buffer(logits, (s, padded), "float32")
        with T.sblock("root"):
            for i in T.serial(e):
                X[P[i, 0], P[i, 1]] = X[P[i, 0], P[i, 1]] + N[i, 0]
                X[P[i, 0], P[i, 1]] = (
                    T.Select(
                        X[P[i, 0], P[i, 1]] < T.float32(0),
                        X[P[i, 0], P[i, 1]] * N[i, 1],
                        X[P[i, 0], P[i, 1]] / N[i, 1],
                    )
                    - N[i, 2]
                )
            for i in T.parallel(r):
                for w in T.serial(words):
                    for half in T.unroll(WORD // L):
                        X[M[i], lanes_at(w * WORD + half * L, L)] = X[
                            M[i], lanes_at(w * WORD + half * L, L)
                        ] + T.Select(
                            T.bitwise_and(
                                T.shift_right(
                                    splat(A[i, w], L), T.ramp(T.int32(0) + half * L, 1, L)
                                ),
                                splat(T.int32(1), L),
                            )
                            == splat(T.int32(1), L),
                            fsplat(0.0, L),
                            splat(-T.infinity("float32"), L),
                        )

    return edit
