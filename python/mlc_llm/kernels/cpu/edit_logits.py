"""Changes logits before sampling: bias and penalties where a request names a token, then masks.

    for each edit i, in order:
        x = logits[row, token] + added;  x = x * factor if x < 0 else x / factor;  x - subtracted
    in parallel, for each masked row, for each token:
        logits += 0 if its bit is 1, else -inf

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

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat
from mlc_llm.kernels.types import Expr, Index

L = 16
WORD = 32
"""Tokens of a word of a mask."""


def _penalty(word: Expr, first_bit: Index) -> Expr:
    """0 for L tokens whose bits are 1, -inf for the others."""
    bits = T.shift_right(splat(word, L), T.ramp(T.int32(0) + first_bit, 1, L))
    is_allowed = T.bitwise_and(bits, splat(T.int32(1), L)) == splat(T.int32(1), L)
    return T.Select(is_allowed, fsplat(0.0, L), splat(-T.infinity("float32"), L))


@T.inline
def _edit(logits, number, row, token, i):
    """Carries out edit i."""
    logits[row, token] = logits[row, token] + number[i, 0]
    logits[row, token] = (
        T.Select(
            logits[row, token] < T.float32(0),
            logits[row, token] * number[i, 1],
            logits[row, token] / number[i, 1],
        )
        - number[i, 2]
    )


@T.inline
def _mask(logits, allowed, row, i, words):
    """Masks a row with row i of `allowed`."""
    for w in T.serial(words):
        for half in T.unroll(WORD // L):
            logits[row, lanes_at(w * WORD + half * L, L)] = logits[
                row, lanes_at(w * WORD + half * L, L)
            ] + _penalty(allowed[i, w], half * L)


@cache
def edit_logits(vocab: int, padded: int) -> PrimFunc:
    """Kernel arguments: place, number, masked, allowed, logits.

    A mask adds, so NaN stays and +inf becomes NaN: it must not hide that the model failed.
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
                _edit(X, N, P[i, 0], P[i, 1], i)
            for i in T.parallel(r):
                _mask(X, A, M[i], i, words)

    return edit
