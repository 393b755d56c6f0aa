"""From logits to a token, a row at a time, without sorting the vocabulary.

    in parallel, for each row:
        best, token = the largest logit, or NOT_FINITE
        if temperature > GREEDY:
            weights = 2^((logits - best) * log2(e) / temperature)
            floor = the k-th largest weight
            floor = the weight at which the sum of larger ones reaches top_p
            floor = max(floor, min_p), at most 1
            token = the first at which the sum of weights >= floor passes uniform * total

A floor is found by bisection over the bits of a non-negative float, which order as integers do: 31
passes over the vocabulary give the exact value. Every sum runs in a fixed order, so equal rows with
equal numbers give equal tokens. Ties at a floor are kept.

logits    float32 [s, padded]
weights   float32 [s, padded + padded / CHUNK]: a weight for each token, then a sum for each chunk
floor     int32 [1]: the bits of the smallest weight that is kept
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import (
    LOG2E,
    SCHEDULED,
    exp2,
    fsplat,
    lanes_at,
    reduce_sum,
    splat,
)
from mlc_llm.kernels.types import Expr

L = 16
CHUNK = 32
"""Tokens of a partial sum of the draw."""
GREEDY = 1e-5
"""At or below this temperature the most likely token is taken."""
NOT_FINITE = -1
"""In place of a token: NaN, +inf, or nothing but -inf."""
LARGEST = 3.4e38


def _as_float(bits: Expr) -> Expr:
    """The float with these bits, in every lane."""
    return splat(T.reinterpret(bits, dtype="float32"), L)


def _kept(weight: Expr, bits: Expr) -> Expr:
    """The weights at or above the floor with these bits, 0 elsewhere."""
    return T.Select(weight >= _as_float(bits), weight, fsplat(0.0, L))


def _counted(weight: Expr, bits: Expr) -> Expr:
    """1 for each weight at or above the floor with these bits, 0 elsewhere."""
    return T.Select(weight >= _as_float(bits), fsplat(1.0, L), fsplat(0.0, L))


@T.inline
def _largest_of_lanes(logits, row, vocab, top, at, bad):
    """The largest logit of each lane, its first token, and 1 in `bad` where one is not finite; the
    last vocab % L tokens are left out. top, at, bad: [L]."""
    lane = T.meta_var(lanes_at(0, L))
    top[lane] = fsplat(-LARGEST, L)
    at[lane] = splat(T.int32(0), L)
    bad[lane] = fsplat(0.0, L)
    for i in T.serial(vocab // L):
        at[lane] = T.Select(
            logits[row, lanes_at(i * L, L)] > top[lane], T.ramp(i * L, 1, L), at[lane]
        )
        top[lane] = T.max(top[lane], logits[row, lanes_at(i * L, L)])
        bad[lane] = T.Select(
            logits[row, lanes_at(i * L, L)] <= fsplat(LARGEST, L), bad[lane], fsplat(1.0, L)
        )


@T.inline
def _largest(logits, row, vocab, best, token):
    """best[0] = the largest logit; token[row] = the first that has it, or NOT_FINITE."""
    top = T.alloc_buffer((L,), "float32")
    at = T.alloc_buffer((L,), "int32")
    bad = T.alloc_buffer((L,), "float32")
    _largest_of_lanes(logits, row, vocab, top, at, bad)
    best[0] = top[0]
    token[row] = at[0]
    for i in T.serial(L - 1):
        if T.Or(top[i + 1] > best[0], T.And(top[i + 1] == best[0], at[i + 1] < token[row])):
            best[0] = top[i + 1]
            token[row] = at[i + 1]
    bad[0] = reduce_sum(bad, L)
    for i in T.serial(vocab % L):
        last = T.meta_var(vocab - vocab % L + i)
        if logits[row, last] > best[0]:
            best[0] = logits[row, last]
            token[row] = last
        bad[0] = T.Select(logits[row, last] <= T.float32(LARGEST), bad[0], T.float32(1))
    if T.Or(bad[0] > T.float32(0), best[0] <= T.float32(-LARGEST)):
        token[row] = T.int32(NOT_FINITE)


@T.inline
def _weigh(logits, weights, row, vocab, padded, best, factor, total):
    """weights = 2^((logits - best) * factor), 0 in the padding and for -inf; total[0]: their
    sum."""
    power = T.alloc_buffer((L,), "float32")
    acc = T.alloc_buffer((L,), "float32")
    acc[lanes_at(0, L)] = fsplat(0.0, L)
    for i in T.serial(padded // L):
        power[lanes_at(0, L)] = (logits[row, lanes_at(i * L, L)] - splat(best[0], L)) * splat(
            factor, L
        )
        weights[row, lanes_at(i * L, L)] = T.Select(
            T.And(
                T.ramp(i * L, 1, L) < splat(T.int32(vocab), L),
                power[lanes_at(0, L)] > fsplat(-126.0, L),
            ),
            exp2(power[lanes_at(0, L)], L),
            fsplat(0.0, L),
        )
        acc[lanes_at(0, L)] = acc[lanes_at(0, L)] + weights[row, lanes_at(i * L, L)]
    total[0] = reduce_sum(acc, L)


@T.inline
def _mass(weights, row, padded, bits, measure, result):
    """result[0] = the sum of measure(weight, bits) over the vocabulary; measure: `_kept` or
    `_counted`."""
    acc = T.alloc_buffer((L,), "float32")
    acc[lanes_at(0, L)] = fsplat(0.0, L)
    for i in T.serial(padded // L):
        acc[lanes_at(0, L)] = acc[lanes_at(0, L)] + measure(weights[row, lanes_at(i * L, L)], bits)
    result[0] = reduce_sum(acc, L)


@T.inline
def _raise_floor(weights, row, padded, floor, wanted, measure):
    """floor[0] = the highest bits >= floor[0] at which the sum of the measure still reaches
    `wanted`."""
    cut = T.alloc_buffer((1,), "int32")
    tried = T.alloc_buffer((1,), "int32")
    mass = T.alloc_buffer((1,), "float32")
    cut[0] = T.int32(0)
    for bit in T.serial(31):
        tried[0] = cut[0] + T.shift_left(T.int32(1), 30 - bit)
        _mass(weights, row, padded, T.max(floor[0], tried[0]), measure, mass)
        if mass[0] >= wanted:
            cut[0] = tried[0]
    floor[0] = T.max(floor[0], cut[0])


@T.inline
def _sum_chunks(weights, row, padded, floor, total):
    """The sum of each chunk's kept weights, behind the weights; total[0] = the sum of all."""
    acc = T.alloc_buffer((L,), "float32")
    total[0] = T.float32(0)
    for c in T.serial(padded // CHUNK):
        acc[lanes_at(0, L)] = _kept(weights[row, lanes_at(c * CHUNK, L)], floor[0]) + _kept(
            weights[row, lanes_at(c * CHUNK + L, L)], floor[0]
        )
        weights[row, padded + c] = reduce_sum(acc, L)
        total[0] = total[0] + weights[row, padded + c]


@T.inline
def _find_chunk(weights, row, padded, wanted, passed, mass, chunk, done):
    """chunk[0] = the first chunk at which the sum passes wanted[0], passed[0] = the sum of those
    before it. Else it is the last chunk with a kept weight, whatever `wanted` is."""
    passed[0] = T.float32(0)
    chunk[0] = T.int32(0)
    mass[0] = T.float32(0)
    done[0] = T.int32(0)
    for c in T.serial(padded // CHUNK):
        if T.And(done[0] == 0, weights[row, padded + c] > T.float32(0)):
            passed[0] = passed[0] + mass[0]
            mass[0] = weights[row, padded + c]
            chunk[0] = c
            if passed[0] + mass[0] > wanted[0]:
                done[0] = T.int32(1)


@T.inline
def _find_token(weights, row, floor, wanted, passed, chunk, done, token):
    """token[row] = the token of the chunk at which the sum passes wanted[0]. Else it is the last
    kept one of the chunk: rounding may let the sum fall short."""
    done[0] = T.int32(0)
    for i in T.serial(CHUNK):
        weight = T.meta_var(weights[row, chunk[0] * CHUNK + i])
        if T.And(done[0] == 0, T.reinterpret(weight, dtype="int32") >= floor[0]):
            if weight > T.float32(0):
                token[row] = chunk[0] * CHUNK + i
                passed[0] = passed[0] + weight
                if passed[0] > wanted[0]:
                    done[0] = T.int32(1)


@T.inline
def _draw(weights, row, padded, floor, uniform, token):
    """Inverse CDF in vocabulary order: first the chunk, then the token inside it.

    It is a kept token whatever `uniform` is: the last one for 1 or more, and for NaN.
    """
    total = T.alloc_buffer((1,), "float32")
    passed = T.alloc_buffer((1,), "float32")
    mass = T.alloc_buffer((1,), "float32")
    chunk = T.alloc_buffer((1,), "int32")
    done = T.alloc_buffer((1,), "int32")
    _sum_chunks(weights, row, padded, floor, total)
    total[0] = total[0] * uniform
    _find_chunk(weights, row, padded, total, passed, mass, chunk, done)
    _find_token(weights, row, floor, total, passed, chunk, done, token)


@T.inline
def _find_floor(weights, options, top_k, row, vocab, padded, total, floor):
    """floor[0] from top_k, top_p and min_p; total[0]: the sum of all weights."""
    floor[0] = T.int32(0)
    if T.And(top_k[row] > 0, top_k[row] < vocab):
        _raise_floor(weights, row, padded, floor, T.cast(top_k[row], "float32"), _counted)
        _mass(weights, row, padded, floor[0], _kept, total)
    if options[row, 1] < T.float32(1):
        _raise_floor(weights, row, padded, floor, options[row, 1] * total[0], _kept)
    floor[0] = T.max(floor[0], T.reinterpret(options[row, 2], dtype="int32"))
    # The most likely token (weight exactly 1) always stays.
    floor[0] = T.min(floor[0], T.reinterpret(T.float32(1), dtype="int32"))


@T.inline
def _sample_row(logits, options, top_k, weights, row, vocab, padded, token):
    """The token of one row."""
    best = T.alloc_buffer((1,), "float32")
    total = T.alloc_buffer((1,), "float32")
    floor = T.alloc_buffer((1,), "int32")
    _largest(logits, row, vocab, best, token)
    if T.And(token[row] != NOT_FINITE, options[row, 0] > T.float32(GREEDY)):
        factor = T.meta_var(T.float32(LOG2E) / options[row, 0])
        _weigh(logits, weights, row, vocab, padded, best, factor, total)
        _find_floor(weights, options, top_k, row, vocab, padded, total, floor)
        _draw(weights, row, padded, floor, options[row, 3], token)


@cache
def sample(vocab: int, padded: int) -> PrimFunc:
    """Kernel arguments, for s rows (padded: a multiple of CHUNK, at least vocab):

    logits       float32 [s, padded]; entries from `vocab` on are ignored
    options      float32 [s, 4]: temperature, top_p, min_p, uniform in [0, 1)
    top_k        int32 [s], 0 for all
    scratch      float32 [s, padded + padded / CHUNK]
    token        int32 [s], or NOT_FINITE; the first of equals when greedy
    """

    @T.prim_func(private=True, s_tir=True)
    def sample_rows(
        logits: T.handle,
        options: T.handle,
        top_k: T.handle,
        scratch: T.handle,
        token: T.handle,
    ):
        T.func_attr(SCHEDULED)
        s = T.int32()
        X = T.match_buffer(logits, (s, padded), "float32")
        OPT = T.match_buffer(options, (s, 4), "float32")
        K = T.match_buffer(top_k, (s,), "int32")
        W = T.match_buffer(scratch, (s, padded + padded // CHUNK), "float32")
        TOKEN = T.match_buffer(token, (s,), "int32")
        with T.sblock("root"):
            for row in T.parallel(s):
                _sample_row(X, OPT, K, W, row, vocab, padded, TOKEN)

    return sample_rows
