"""The most likely tokens of a row of raw logits, with their log-probabilities.

    in parallel, for each row:
        for each column: value, place = its best entry
        log_total = log(sum(exp(logits)))
        MOST times:
            take the best of all columns;  look through its column alone for the next

A column has DEEP entries, every 16th of 512 neighbours. The lower id comes first
of equal entries.

logits      float32 [s, padded]
value       float32 [columns]: the best entry of each column that is not taken
place       int32 [columns]: its token
best, at    float32 [1], int32 [1]: the best entry of all columns, and its token
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import LOG2E, SCHEDULED, exp2, fsplat, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

L = 16
DEEP = 32
"""Entries of a column."""
MOST = 20
"""Tokens found for each row."""
LOWEST = -3.4e38
"""Stands for -inf."""
NONE = -3.402e38
"""Below LOWEST: nothing is left."""


def _entries(logits: Buffer, row: Expr, start: Index, vocab: int) -> Expr:
    """L logits from token `start` on: at least LOWEST; NONE from `vocab` on."""
    inside = T.ramp(start, 1, L) < splat(T.int32(vocab), L)
    logit = logits[row, lanes_at(start, L)]
    return T.Select(inside, T.max(logit, fsplat(LOWEST, L)), fsplat(NONE, L))


def _is_before(
    value: Buffer, place: Buffer, i: Index, other: Buffer, other_place: Buffer, j: Index
) -> Expr:
    """Whether entry i comes before entry j of another pair of buffers."""
    is_first = T.And(value[i] == other[j], place[i] < other_place[j])
    return T.Or(value[i] > other[j], is_first)


@T.inline
def _keep_better(logits, row, start, vocab, value, place, column):
    """L new entries, from token `start` on, against the best so far of L columns."""
    new = T.alloc_buffer((L,), "float32")
    new[lanes_at(0, L)] = _entries(logits, row, start, vocab)
    place[lanes_at(column, L)] = T.Select(
        new[lanes_at(0, L)] > value[lanes_at(column, L)],
        T.ramp(start, 1, L),
        place[lanes_at(column, L)],
    )
    value[lanes_at(column, L)] = T.max(new[lanes_at(0, L)], value[lanes_at(column, L)])


@T.inline
def _best(value, place, groups, best, at):
    """best, at = the best of all columns; of equals the one with the lowest place."""
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
def _log_total(logits, row, vocab, vectors, best, log_total, i):
    """log_total[i] = log(sum(exp(logits))) of the row; best: its largest logit."""
    power = T.alloc_buffer((L,), "float32")
    acc = T.alloc_buffer((L,), "float32")
    acc[lanes_at(0, L)] = fsplat(0.0, L)
    for v in T.serial(vectors):
        power[lanes_at(0, L)] = (_entries(logits, row, v * L, vocab) - splat(best[0], L)) * fsplat(
            LOG2E, L
        )
        acc[lanes_at(0, L)] = acc[lanes_at(0, L)] + T.Select(
            power[lanes_at(0, L)] > fsplat(-126.0, L),
            exp2(power[lanes_at(0, L)], L),
            fsplat(0.0, L),
        )
    log_total[i] = best[0] + T.log(reduce_sum(acc, L))


@T.inline
def _next(logits, row, vocab, vectors, value, place, taken, at):
    """The token `at` with the logit `taken` is taken: its column has the next one now."""
    column: T.let[T.int32] = at // (DEEP * L) * L + at % L
    new = T.alloc_buffer((1,), "float32")
    value[column] = T.float32(NONE)
    for j in T.serial(T.min(DEEP, vectors - column // L * DEEP)):
        entry: T.let[T.int32] = (column // L * DEEP + j) * L + column % L
        if entry < vocab:
            new[0] = T.max(logits[row, entry], T.float32(LOWEST))
            if T.And(
                T.Or(new[0] < taken, T.And(new[0] == taken, entry > at)), new[0] > value[column]
            ):
                value[column] = new[0]
                place[column] = entry


@T.inline
def _fill_columns(logits, row, vocab, vectors, groups, value, place):
    """The best entry of every column."""
    for g in T.serial(groups):
        value[lanes_at(g * L, L)] = fsplat(NONE, L)
        place[lanes_at(g * L, L)] = splat(T.int32(0), L)
        for j in T.serial(T.min(DEEP, vectors - g * DEEP)):
            _keep_better(logits, row, (g * DEEP + j) * L, vocab, value, place, g * L)


@cache
def top_tokens(vocab: int, padded: int) -> PrimFunc:
    """Kernel arguments, for r rows out of s (padded: a multiple of 16, at least vocab):

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
                _fill_columns(X, R[i], vocab, vectors, groups, value, place)
                _best(value, place, groups, best, at)
                _log_total(X, R[i], vocab, vectors, best, TOTAL, i)
                for k in T.serial(MOST):
                    TOKEN[i, k] = T.Select(best[0] > T.float32(NONE), at[0], -1)
                    LOGPROB[i, k] = best[0] - TOTAL[i]
                    _next(X, R[i], vocab, vectors, value, place, best[0], at[0])
                    _best(value, place, groups, best, at)

    return top_rows
