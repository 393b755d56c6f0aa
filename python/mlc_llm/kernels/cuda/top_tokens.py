"""The most likely tokens of a row of raw logits, with their log-probabilities. A block for each:

    each thread: value, place = the best of every `THREADS`-th entry
    log_total = log(sum(exp(logits)))
    MOST times:
        take the best of all threads;  its thread alone looks for its next one

The lower id comes first of equal entries.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.sampling import LOG2E, MOST_VOCAB, THREADS
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_first, block_sum, grid
from mlc_llm.kernels.types import Buffer, Expr

MOST = 20
"""Tokens found for each row."""
LOWEST = -3.4e38
"""Stands for -inf."""
NONE = -3.402e38
"""Below LOWEST: nothing is left."""


@cache
def top_tokens(vocab: int, padded: int) -> PrimFunc:
    """Kernel arguments, for r rows out of s:

    logits    float32 [s, padded]; entries from `vocab` on are ignored
    rows      int32 [r]
    token     int32 [r, MOST]: most likely first; -1 where there are no more
    logprob   float32 [r, MOST]: natural log-softmax of those tokens
    log_total float32 [r]: log of the sum of exp(logits)

    NaN and +inf give any ids and no number: `sample` says so of the row.
    """
    assert vocab <= MOST_VOCAB
    columns = _Columns(vocab)

    @T.prim_func(private=True)
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
        T.device_entry()
        i = T.cta_id([grid(r)])
        thread = T.thread_id([THREADS])
        shared = T.alloc_buffer((THREADS // WARP,), "float32", scope="shared")
        value = T.alloc_buffer((1,), "float32", scope="local")
        place = T.alloc_buffer((1,), "int32", scope="local")
        best = T.alloc_buffer((1,), "float32", scope="local")
        at = T.alloc_buffer((1,), "int32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        if i < r:
            columns.find(X, R[i], thread, T.float32(-LOWEST), -1, value, place)
            best[0] = value[0]
            at[0] = place[0]
            block_first(best, at, thread, columns.warps, shared)
            columns.add_up(X, R[i], thread, best[0], shared, total)
            if thread == 0:
                TOTAL[i] = total[0]
            for k in T.serial(MOST):
                if thread == 0:
                    TOKEN[i, k] = T.if_then_else(best[0] > T.float32(NONE), at[0], -1)
                    LOGPROB[i, k] = best[0] - total[0]
                if T.And(place[0] == at[0], value[0] > T.float32(NONE)):
                    columns.find(X, R[i], thread, best[0], at[0], value, place)
                best[0] = value[0]
                at[0] = place[0]
                block_first(best, at, thread, columns.warps, shared)

    return top_rows


class _Columns:
    """Statements of `top_tokens`."""

    def __init__(self, vocab: int) -> None:
        self.vocab, self.turns, self.warps = vocab, -(-vocab // THREADS), THREADS // WARP

    def entry(self, X: Buffer, row: Expr, column: Expr) -> Expr:
        """A logit: at least LOWEST."""
        return T.max(X[row, column], T.float32(LOWEST))

    @T.inline
    def find(self, X, row, thread, taken, at, value, place):
        """value, place: the best entry of a thread behind one that is taken."""
        new = T.alloc_buffer((1,), "float32", scope="local")
        value[0] = T.float32(NONE)
        place[0] = T.int32(0)
        for i in T.serial(self.turns):
            column: T.let[T.int32] = i * THREADS + thread
            if column < self.vocab:
                new[0] = self.entry(X, row, column)
                if T.And(
                    T.Or(new[0] < taken, T.And(new[0] == taken, column > at)), new[0] > value[0]
                ):
                    value[0] = new[0]
                    place[0] = column

    @T.inline
    def add_up(self, X, row, thread, best, shared, total):
        """total[0] = log(sum(exp(logits))) of the row; best: its largest logit."""
        total[0] = T.float32(0)
        for i in T.serial(self.turns):
            if i * THREADS + thread < self.vocab:
                total[0] = total[0] + T.exp2(
                    (self.entry(X, row, i * THREADS + thread) - best) * T.float32(LOG2E)
                )
        block_sum(total, thread, self.warps, shared)
        total[0] = best + T.log(total[0])
