"""The most likely tokens of a row of raw logits, with their log-probabilities.

A first pass keeps the best entry of each column of 32; the best of those is taken MOST times, and
each time its column alone is looked through again. Of equal entries the lower id comes first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import LOG2E, SCHEDULED, exp2, fsplat, lanes_at, reduce_sum, splat

L = 16
DEEP = 32
"""Entries of a column: every 16th of 512 neighbours."""
MOST = 20
"""Tokens found for each row."""
LOWEST = -3.4e38
"""Stands for -inf."""
NONE = -3.402e38
"""Below LOWEST: nothing is left."""


@cache
def top_tokens(vocab: int, padded: int) -> tvm.tirx.PrimFunc:
    """Arguments, for r rows out of s (padded: a multiple of 16, at least vocab):

    logits    float32 [s, padded]; entries from `vocab` on are ignored
    rows      int32 [r]
    token     int32 [r, MOST]: most likely first; -1 where there are no more
    logprob   float32 [r, MOST]: natural log-softmax of those tokens
    log_total float32 [r]: log of the sum of exp(logits)

    NaN and +inf give any ids and no number: `sample` says so of the row.
    """
    vectors = padded // L
    groups = -(-vectors // DEEP)

    @T.prim_func(private=True, s_tir=True)
    def top_rows(
        logits: T.handle, rows: T.handle, token: T.handle, logprob: T.handle, log_total: T.handle
    ):
        T.func_attr(SCHEDULED)
        s = T.int32()
        r = T.int32()
        X = T.match_buffer(logits, (s, padded), "float32")
        R = T.match_buffer(rows, (r,), "int32")
        TOKEN = T.match_buffer(token, (r, MOST), "int32")
        LOGPROB = T.match_buffer(logprob, (r, MOST), "float32")
        TOTAL = T.match_buffer(log_total, (r,), "float32")
        with T.sblock("root"):
            for i in T.parallel(r):
                value = T.alloc_buffer((groups * L,), "float32")
                place = T.alloc_buffer((groups * L,), "int32")
                best = T.alloc_buffer((1,), "float32")
                at = T.alloc_buffer((1,), "int32")
                for g in T.serial(groups):
                    value[lanes_at(g * L, L)] = fsplat(NONE, L)
                    place[lanes_at(g * L, L)] = splat(T.int32(0), L)
                    for j in T.serial(T.min(DEEP, vectors - g * DEEP)):
                        _keep_better(X, R[i], (g * DEEP + j) * L, vocab, value, place, g * L)
                _best(value, place, groups, best, at)
                _log_total(X, R[i], vocab, vectors, best, TOTAL, i)
                for k in T.serial(MOST):
                    TOKEN[i, k] = T.Select(best[0] > T.float32(NONE), at[0], -1)
                    LOGPROB[i, k] = best[0] - TOTAL[i]
                    _next(X, R[i], vocab, vectors, value, place, best[0], at[0])
                    _best(value, place, groups, best, at)

    return top_rows


def _entries(X: Any, row: Any, start: Any, vocab: int) -> Any:
    inside = T.ramp(start, 1, L) < splat(T.int32(vocab), L)
    return T.Select(inside, T.max(X[row, lanes_at(start, L)], fsplat(LOWEST, L)), fsplat(NONE, L))


def _is_before(value: Any, place: Any, i: Any, other: Any, other_place: Any, j: Any) -> Any:
    return T.Or(value[i] > other[j], T.And(value[i] == other[j], place[i] < other_place[j]))


@T.inline
def _keep_better(X, row, start, vocab, value, place, column):
    """The best entries of L columns so far, and where they are, against L new ones."""
    new = T.alloc_buffer((L,), "float32")
    new[lanes_at(0, L)] = _entries(X, row, start, vocab)
    place[lanes_at(column, L)] = T.Select(
        new[lanes_at(0, L)] > value[lanes_at(column, L)],
        T.ramp(start, 1, L),
        place[lanes_at(column, L)],
    )
    value[lanes_at(column, L)] = T.max(new[lanes_at(0, L)], value[lanes_at(column, L)])


@T.inline
def _best(value, place, groups, best, at):
    """The best of all columns; of equals the one with the lowest place."""
    top = T.alloc_buffer((L,), "float32")
    lowest = T.alloc_buffer((L,), "int32")
    top[lanes_at(0, L)] = value[lanes_at(0, L)]
    lowest[lanes_at(0, L)] = place[lanes_at(0, L)]
    for g in T.serial(groups - 1):
        lowest[lanes_at(0, L)] = T.Select(
            _is_before(value, place, lanes_at((g + 1) * L, L), top, lowest, lanes_at(0, L)),
            place[lanes_at((g + 1) * L, L)],
            lowest[lanes_at(0, L)],
        )
        top[lanes_at(0, L)] = T.max(top[lanes_at(0, L)], value[lanes_at((g + 1) * L, L)])
    best[0] = top[0]
    at[0] = lowest[0]
    for i in T.serial(L - 1):
        if _is_before(top, lowest, i + 1, best, at, 0):
            best[0] = top[i + 1]
            at[0] = lowest[i + 1]


@T.inline
def _log_total(X, row, vocab, vectors, best, TOTAL, i):
    power = T.alloc_buffer((L,), "float32")
    acc = T.alloc_buffer((L,), "float32")
    acc[lanes_at(0, L)] = fsplat(0.0, L)
    for v in T.serial(vectors):
        power[lanes_at(0, L)] = (_entries(X, row, v * L, vocab) - splat(best[0], L)) * fsplat(
            LOG2E, L
        )
        acc[lanes_at(0, L)] = acc[lanes_at(0, L)] + T.Select(
            power[lanes_at(0, L)] > fsplat(-126.0, L),
            exp2(power[lanes_at(0, L)], L),
            fsplat(0.0, L),
        )
    TOTAL[i] = best[0] + T.log(reduce_sum(acc, L))


@T.inline
def _next(X, row, vocab, vectors, value, place, taken, at):
    """The entry at `at` is taken: its column's next one stands for the column."""
    column: T.let[T.int32] = at // (DEEP * L) * L + at % L
    new = T.alloc_buffer((1,), "float32")
    value[column] = T.float32(NONE)
    for j in T.serial(T.min(DEEP, vectors - column // L * DEEP)):
        entry: T.let[T.int32] = (column // L * DEEP + j) * L + column % L
        if entry < vocab:
            new[0] = T.max(X[row, entry], T.float32(LOWEST))
            if T.And(
                T.Or(new[0] < taken, T.And(new[0] == taken, entry > at)), new[0] > value[column]
            ):
                value[column] = new[0]
                place[column] = entry
