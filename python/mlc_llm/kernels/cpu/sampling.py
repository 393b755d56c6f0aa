"""From logits to a token, a row at a time, without sorting the vocabulary.

Thresholds (the k-th largest probability, the top-p cut) are found by bisection over the bits of a
non-negative float, which order as integers do: 31 counting passes give the exact value. Every sum
runs in a fixed order, so equal rows with equal numbers give equal tokens. Ties at a cut are kept.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import (
    LOG2E,
    SCHEDULED,
    exp2,
    fsplat,
    lanes_at,
    reduce_sum,
    splat,
)

L = 16
CHUNK = 32
"""Vocabulary entries a partial sum of the draw."""
GREEDY = 1e-5
"""At or below this temperature the most likely token is taken."""
NOT_FINITE = -1
"""In place of a token: NaN, +inf, or nothing but -inf."""
LARGEST = 3.4e38


@cache
def sample(vocab: int, padded: int) -> tvm.tirx.PrimFunc:
    """Arguments, for s rows (padded: a multiple of CHUNK, at least vocab):

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
                best = T.alloc_buffer((1,), "float32")
                total = T.alloc_buffer((1,), "float32")
                floor = T.alloc_buffer((1,), "int32")
                _largest(X, row, vocab, best, TOKEN)
                if T.And(TOKEN[row] != NOT_FINITE, OPT[row, 0] > T.float32(GREEDY)):
                    _weights(X, W, row, vocab, padded, best, T.float32(LOG2E) / OPT[row, 0], total)
                    floor[0] = T.int32(0)
                    if T.And(K[row] > 0, K[row] < vocab):
                        _raise_floor(W, row, padded, floor, T.cast(K[row], "float32"), _one_each)
                        _mass(W, row, padded, floor[0], _its_weight, total)
                    if OPT[row, 1] < T.float32(1):
                        _raise_floor(W, row, padded, floor, OPT[row, 1] * total[0], _its_weight)
                    floor[0] = T.max(floor[0], T.reinterpret(OPT[row, 2], dtype="int32"))
                    # The most likely token (weight exactly 1) always stays.
                    floor[0] = T.min(floor[0], T.reinterpret(T.float32(1), dtype="int32"))
                    _draw(W, row, padded, floor, OPT[row, 3], TOKEN)

    return sample_rows


def _as_float(bits: Any) -> Any:
    return splat(T.reinterpret(bits, dtype="float32"), L)


def _kept(value: Any, bits: Any) -> Any:
    """The weights at or above the floor, zero elsewhere."""
    return T.Select(value >= _as_float(bits), value, fsplat(0.0, L))


def _one_each(value: Any, bits: Any) -> Any:
    return T.Select(value >= _as_float(bits), fsplat(1.0, L), fsplat(0.0, L))


def _its_weight(value: Any, bits: Any) -> Any:
    return _kept(value, bits)


@T.inline
def _largest(X, row, vocab, best, TOKEN):
    """best[0] = largest logit, TOKEN = the first that has it, or NOT_FINITE."""
    top = T.alloc_buffer((L,), "float32")
    at = T.alloc_buffer((L,), "int32")
    bad = T.alloc_buffer((L,), "float32")
    top[lanes_at(0, L)] = fsplat(-LARGEST, L)
    at[lanes_at(0, L)] = splat(T.int32(0), L)
    bad[lanes_at(0, L)] = fsplat(0.0, L)
    for i in T.serial(vocab // L):
        at[lanes_at(0, L)] = T.Select(
            X[row, lanes_at(i * L, L)] > top[lanes_at(0, L)],
            T.ramp(i * L, 1, L),
            at[lanes_at(0, L)],
        )
        top[lanes_at(0, L)] = T.max(top[lanes_at(0, L)], X[row, lanes_at(i * L, L)])
        bad[lanes_at(0, L)] = T.Select(
            X[row, lanes_at(i * L, L)] <= fsplat(LARGEST, L), bad[lanes_at(0, L)], fsplat(1.0, L)
        )
    best[0] = top[0]
    TOKEN[row] = at[0]
    for i in T.serial(L - 1):
        if T.Or(top[i + 1] > best[0], T.And(top[i + 1] == best[0], at[i + 1] < TOKEN[row])):
            best[0] = top[i + 1]
            TOKEN[row] = at[i + 1]
    bad[0] = reduce_sum(bad, L)
    for i in T.serial(vocab % L):
        if X[row, vocab - vocab % L + i] > best[0]:
            best[0] = X[row, vocab - vocab % L + i]
            TOKEN[row] = vocab - vocab % L + i
        bad[0] = T.Select(X[row, vocab - vocab % L + i] <= T.float32(LARGEST), bad[0], T.float32(1))
    if T.Or(bad[0] > T.float32(0), best[0] <= T.float32(-LARGEST)):
        TOKEN[row] = T.int32(NOT_FINITE)


@T.inline
def _weights(X, W, row, vocab, padded, best, factor, total):
    """W = 2^((x - best) * factor), zero in the padding and for -inf; total[0] = their sum."""
    power = T.alloc_buffer((L,), "float32")
    acc = T.alloc_buffer((L,), "float32")
    acc[lanes_at(0, L)] = fsplat(0.0, L)
    for i in T.serial(padded // L):
        power[lanes_at(0, L)] = (X[row, lanes_at(i * L, L)] - splat(best[0], L)) * splat(factor, L)
        W[row, lanes_at(i * L, L)] = T.Select(
            T.And(
                T.ramp(i * L, 1, L) < splat(T.int32(vocab), L),
                power[lanes_at(0, L)] > fsplat(-126.0, L),
            ),
            exp2(power[lanes_at(0, L)], L),
            fsplat(0.0, L),
        )
        acc[lanes_at(0, L)] = acc[lanes_at(0, L)] + W[row, lanes_at(i * L, L)]
    total[0] = reduce_sum(acc, L)


@T.inline
def _mass(W, row, padded, bits, measure, result):
    """result[0] = sum of measure(weight, bits) over the vocabulary."""
    acc = T.alloc_buffer((L,), "float32")
    acc[lanes_at(0, L)] = fsplat(0.0, L)
    for i in T.serial(padded // L):
        acc[lanes_at(0, L)] = acc[lanes_at(0, L)] + measure(W[row, lanes_at(i * L, L)], bits)
    result[0] = reduce_sum(acc, L)


@T.inline
def _raise_floor(W, row, padded, floor, wanted, measure):
    """floor[0] = the highest bits >= floor[0] at which the measure still reaches `wanted`."""
    cut = T.alloc_buffer((1,), "int32")
    tried = T.alloc_buffer((1,), "int32")
    mass = T.alloc_buffer((1,), "float32")
    cut[0] = T.int32(0)
    for bit in T.serial(31):
        tried[0] = cut[0] + T.shift_left(T.int32(1), 30 - bit)
        _mass(W, row, padded, T.max(floor[0], tried[0]), measure, mass)
        if mass[0] >= wanted:
            cut[0] = tried[0]
    floor[0] = T.max(floor[0], cut[0])


@T.inline
def _draw(W, row, padded, floor, uniform, TOKEN):
    """Inverse CDF in vocabulary order: first the chunk, then the entry inside it.

    A kept entry whatever `uniform` is: the last one for 1 or more, and for NaN.
    """
    acc = T.alloc_buffer((L,), "float32")
    total = T.alloc_buffer((1,), "float32")
    passed = T.alloc_buffer((1,), "float32")
    mass = T.alloc_buffer((1,), "float32")
    chunk = T.alloc_buffer((1,), "int32")
    done = T.alloc_buffer((1,), "int32")
    total[0] = T.float32(0)
    for c in T.serial(padded // CHUNK):
        acc[lanes_at(0, L)] = _kept(W[row, lanes_at(c * CHUNK, L)], floor[0]) + _kept(
            W[row, lanes_at(c * CHUNK + L, L)], floor[0]
        )
        W[row, padded + c] = reduce_sum(acc, L)
        total[0] = total[0] + W[row, padded + c]
    total[0] = total[0] * uniform
    passed[0] = T.float32(0)
    chunk[0] = T.int32(0)
    mass[0] = T.float32(0)
    done[0] = T.int32(0)
    for c in T.serial(padded // CHUNK):
        # The last chunk with a kept entry stands, whatever `uniform` is.
        if T.And(done[0] == 0, W[row, padded + c] > T.float32(0)):
            passed[0] = passed[0] + mass[0]
            mass[0] = W[row, padded + c]
            chunk[0] = c
            if passed[0] + mass[0] > total[0]:
                done[0] = T.int32(1)
    done[0] = T.int32(0)
    for i in T.serial(CHUNK):
        # The last kept entry stands if rounding lets the sum fall short.
        if T.And(
            done[0] == 0, T.reinterpret(W[row, chunk[0] * CHUNK + i], dtype="int32") >= floor[0]
        ):
            if W[row, chunk[0] * CHUNK + i] > T.float32(0):
                TOKEN[row] = chunk[0] * CHUNK + i
                passed[0] = passed[0] + W[row, chunk[0] * CHUNK + i]
                if passed[0] > total[0]:
                    done[0] = T.int32(1)
