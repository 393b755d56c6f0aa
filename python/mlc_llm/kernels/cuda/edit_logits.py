"""Changes logits before sampling: bias and penalties where a request names a token, then masks.

    a block for each row of logits; a thread has every `THREADS`-th token:
        for each edit i of the row, in order:
            x = logits[row, token] + added;  x = x * factor if x < 0 else x / factor
            logits[row, token] = x - subtracted
        if the row is masked:  logits += 0 if the token's bit is 1, else -inf

A token's edits and its mask belong to one thread, so they keep their order.

place     int32 [e, 2]: row and token
number    float32 [e, 3]: added, factor, subtracted
masked    int32 [r], each row once
allowed   int32 [r, ceil(vocab / WORD)]: a bit for each token, the lowest first
logits    float32 [s, padded], changed in place
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.threads import SCHEDULED, grid

THREADS = 256
WORD = 32
"""Tokens of a word of a mask."""


@cache
def edit_logits(vocab: int, padded: int) -> PrimFunc:
    """Kernel arguments: place, number, masked, allowed, logits.

    A mask adds, so NaN stays and +inf becomes NaN: it must not hide that the model failed.
    """
    words = -(-vocab // WORD)
    assert words * WORD <= padded

    @T.prim_func(private=True)
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
        T.device_entry()
        row = T.cta_id([grid(s)])
        thread = T.thread_id([THREADS])
        x = T.alloc_buffer((1,), "float32", scope="local")
        if row < s:
            for i in T.serial(e):
                if T.And(P[i, 0] == row, P[i, 1] % THREADS == thread):
                    x[0] = X[row, P[i, 1]] + N[i, 0]
                    x[0] = T.if_then_else(x[0] < T.float32(0), x[0] * N[i, 1], x[0] / N[i, 1])
                    X[row, P[i, 1]] = x[0] - N[i, 2]
            for i in T.serial(r):
                if M[i] == row:
                    for part in T.serial(T.ceildiv(words * WORD, THREADS)):
                        token: T.let[T.int32] = part * THREADS + thread
                        if token < words * WORD:
                            if (
                                T.bitwise_and(T.shift_right(A[i, token // WORD], token % WORD), 1)
                                == 0
                            ):
                                X[row, token] = X[row, token] - T.infinity("float32")

    return edit
