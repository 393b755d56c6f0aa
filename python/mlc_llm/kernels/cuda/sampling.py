"""From logits to a token, without sorting the vocabulary. A block for each row:

    best, token = the largest logit, or NOT_FINITE
    if temperature > GREEDY:
        weights = 2^((logits - best) * log2(e) / temperature)
        floor = the k-th largest weight
        floor = the weight at which the sum of larger ones reaches top_p
        floor = max(floor, min_p), at most 1
        token = the first at which the sum of weights >= floor passes uniform * total

A floor is found digit by digit in the bits of a non-negative float, which order as integers do: ten
passes over the vocabulary, three bits each. Every sum runs in a fixed order, so equal rows with
equal numbers give equal tokens. Equals at a floor are kept.

logits    float32 [s, padded]
options   float32 [s, 4]: temperature, top_p, min_p, uniform
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.threads import (
    SCHEDULED,
    WARP,
    block_first,
    block_max,
    block_sum,
    grid,
)
from mlc_llm.kernels.types import Buffer, Expr

THREADS = 512
GREEDY = 1e-5
"""At or below this temperature the most likely token is taken."""
LARGEST = 3.4028234663852886e38
"""The largest finite float32."""
NOT_FINITE = -1
LOG2E = 1.4426950408889634
ONE = 0x3F800000
"""The bits of 1, the largest weight. They are 30."""
DIGIT, DIGITS = 3, 10
"""Bits that a pass decides, and passes."""
TRIED = (1 << DIGIT) - 1
MOST_VOCAB = 1 << 24
"""Above it a float32 does not tell all tokens apart."""


@cache
def sample(vocab: int, padded: int) -> PrimFunc:
    """Kernel arguments, for s rows:

    logits       float32 [s, padded]; entries from `vocab` on are ignored
    options      float32 [s, 4]: temperature, top_p, min_p, uniform in [0, 1)
    top_k        int32 [s], 0 for all
    scratch      float32 [s, padded]
    token        int32 [s], or NOT_FINITE; the first of equals when greedy
    """
    assert vocab <= MOST_VOCAB
    rows = _Rows(vocab)

    @T.prim_func(private=True)
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
        W = T.match_buffer(scratch, (s, padded), "float32")
        TOKEN = T.match_buffer(token, (s,), "int32")
        T.device_entry()
        row = T.cta_id([grid(s)])
        thread = T.thread_id([THREADS])
        shared = T.alloc_buffer((THREADS,), "float32", scope="shared")
        best = T.alloc_buffer((1,), "float32", scope="local")
        first = T.alloc_buffer((1,), "int32", scope="local")
        floor = T.alloc_buffer((1,), "int32", scope="local")
        if row < s:
            rows.find_largest(X, row, thread, shared, best, first)
            if thread == 0:
                TOKEN[row] = first[0]
            if T.And(first[0] != NOT_FINITE, OPT[row, 0] > T.float32(GREEDY)):
                rows.weigh_and_cut(X, W, OPT, K, row, thread, shared, best[0], floor)
                rows.draw(W, TOKEN, row, thread, shared, floor[0], OPT[row, 3])

    return sample_rows


def _bits(weight: Expr) -> Expr:
    return T.reinterpret(weight, dtype="int32")


def _kept(weight: Expr, floor: Expr) -> Expr:
    """A weight whose bits are at or above the floor; else 0."""
    return T.if_then_else(_bits(weight) >= floor, weight, T.float32(0))


def _counted(weight: Expr, floor: Expr) -> Expr:
    """1 for a weight whose bits are at or above the floor, else 0."""
    return T.if_then_else(_bits(weight) >= floor, T.float32(1), T.float32(0))


class _Rows:
    """Statements of `sample`. A thread has every `THREADS`-th weight, but for the draw, in which it
    has some that lie side by side."""

    def __init__(self, vocab: int) -> None:
        self.vocab, self.turns = vocab, -(-vocab // THREADS)
        self.warps = THREADS // WARP

    def weight(self, W: Buffer, row: Expr, column: Expr) -> Expr:
        """0 behind the last token."""
        return T.if_then_else(column < self.vocab, W[row, column], T.float32(0))

    @T.inline
    def find_largest(self, X, row, thread, shared, best, first):
        """best[0]: the largest logit. first[0]: the first token that has it, or NOT_FINITE."""
        bad = T.alloc_buffer((1,), "float32", scope="local")
        best[0] = T.float32(-LARGEST)
        first[0] = T.int32(0)
        bad[0] = T.float32(0)
        for i in T.serial(self.turns):
            column: T.let[T.int32] = i * THREADS + thread
            if column < self.vocab:
                if X[row, column] > best[0]:
                    best[0] = X[row, column]
                    first[0] = column
                # Not `if x > LARGEST`, which TVM would make of the opposite: a NaN is neither.
                bad[0] = T.if_then_else(X[row, column] <= T.float32(LARGEST), bad[0], T.float32(1))
        block_max(bad, thread, self.warps, shared)
        block_first(best, first, thread, self.warps, shared)
        if T.Or(bad[0] > T.float32(0), best[0] <= T.float32(-LARGEST)):
            first[0] = T.int32(NOT_FINITE)

    @T.inline
    def weigh_and_cut(self, X, W, OPT, K, row, thread, shared, best, floor):
        """W: the weights. floor[0]: the bits of the least one that may be drawn."""
        total = T.alloc_buffer((1,), "float32", scope="local")
        power = T.alloc_buffer((1,), "float32", scope="local")
        total[0] = T.float32(0)
        for i in T.serial(self.turns):
            column: T.let[T.int32] = i * THREADS + thread
            if column < self.vocab:
                power[0] = (X[row, column] - best) * (T.float32(LOG2E) / OPT[row, 0])
                W[row, column] = T.if_then_else(
                    power[0] > T.float32(-126), T.exp2(power[0]), T.float32(0)
                )
                total[0] = total[0] + W[row, column]
        block_sum(total, thread, self.warps, shared)
        floor[0] = T.int32(0)
        if T.And(K[row] > 0, K[row] < self.vocab):
            self.raise_floor(W, row, thread, shared, floor, T.cast(K[row], "float32"), _counted)
            self.add_kept(W, row, thread, shared, floor[0], total)
        if OPT[row, 1] < T.float32(1):
            self.raise_floor(W, row, thread, shared, floor, OPT[row, 1] * total[0], _kept)
        floor[0] = T.max(floor[0], _bits(OPT[row, 2]))
        # The most likely token, whose weight is exactly 1, always stays.
        floor[0] = T.min(floor[0], ONE)

    @T.inline
    def add_kept(self, W, row, thread, shared, floor, total):
        """total[0]: the sum of the weights at or above the floor."""
        total[0] = T.float32(0)
        for i in T.serial(self.turns):
            total[0] = total[0] + _kept(self.weight(W, row, i * THREADS + thread), floor)
        block_sum(total, thread, self.warps, shared)

    @T.inline
    def raise_floor(self, W, row, thread, shared, floor, wanted, measure):
        """floor[0]: the highest bits >= floor[0] at which the sum of the measure still reaches
        `wanted`."""
        cut = T.alloc_buffer((2,), "int32", scope="local")
        sums = T.alloc_buffer((TRIED,), "float32", scope="local")
        one = T.alloc_buffer((1,), "float32", scope="local")
        cut[0] = T.int32(0)
        for digit in T.serial(DIGITS):
            unit: T.let[T.int32] = T.shift_left(T.int32(1), DIGIT * (DIGITS - 1 - digit))
            for j in T.unroll(TRIED):
                sums[j] = T.float32(0)
            for i in T.serial(self.turns):
                one[0] = self.weight(W, row, i * THREADS + thread)
                for j in T.unroll(TRIED):
                    sums[j] = sums[j] + measure(one[0], T.max(floor[0], cut[0] + (j + 1) * unit))
            cut[1] = cut[0]
            for j in T.unroll(TRIED):
                one[0] = sums[j]
                block_sum(one, thread, self.warps, shared)
                if one[0] >= wanted:
                    cut[1] = cut[0] + (j + 1) * unit
            cut[0] = cut[1]
        floor[0] = T.max(floor[0], cut[0])

    @T.inline
    def draw(self, W, TOKEN, row, thread, shared, floor, uniform):
        """Inverse CDF in vocabulary order: first whose weights, then which of them. It is a kept
        token whatever `uniform` is: the last one for 1 or more, and for NaN."""
        own = T.alloc_buffer((1,), "float32", scope="local")
        T.cuda.cta_sync()
        own[0] = T.float32(0)
        for i in T.serial(self.turns):
            own[0] = own[0] + _kept(self.weight(W, row, thread * self.turns + i), floor)
        shared[thread] = own[0]
        T.cuda.cta_sync()
        if thread == 0:
            self.find(W, TOKEN, row, shared, floor, uniform)

    @T.inline
    def find(self, W, TOKEN, row, shared, floor, uniform):
        """Adds up the sums of all threads, then the weights of the one at which the sum passes what
        is wanted. Rounding may let a sum fall short: then it is the last one with a weight."""
        passed = T.alloc_buffer((1,), "float32", scope="local")
        mass = T.alloc_buffer((1,), "float32", scope="local")
        wanted = T.alloc_buffer((1,), "float32", scope="local")
        state = T.alloc_buffer((2,), "int32", scope="local")  # which thread, and whether it is done
        wanted[0] = T.float32(0)
        for i in T.serial(THREADS):
            wanted[0] = wanted[0] + shared[i]
        wanted[0] = wanted[0] * uniform
        passed[0] = T.float32(0)
        mass[0] = T.float32(0)
        state[0] = T.int32(0)
        state[1] = T.int32(0)
        for i in T.serial(THREADS):
            if T.And(state[1] == 0, shared[i] > T.float32(0)):
                passed[0] = passed[0] + mass[0]
                mass[0] = shared[i]
                state[0] = i
                if passed[0] + mass[0] > wanted[0]:
                    state[1] = T.int32(1)
        state[1] = T.int32(0)
        for i in T.serial(self.turns):
            mass[0] = _kept(self.weight(W, row, state[0] * self.turns + i), floor)
            if T.And(state[1] == 0, mass[0] > T.float32(0)):
                TOKEN[row] = state[0] * self.turns + i
                passed[0] = passed[0] + mass[0]
                if passed[0] > wanted[0]:
                    state[1] = T.int32(1)
