"""Prepares the input of a matrix: a norm or an activation, then two planes of float16.

    a block for each row of X; a thread has every `threads`-th group of 4 columns:
        v = what the kind makes of X[row]                     `row_kinds.py`
        scale = the power of two that brings max |v| to its place
        Y[row] = planes of v / scale, sums of v / scale, scale  `planes.py`

X, weight and bias: see `row_kinds.py`; most kinds have no bias
Y       uint32 [m, row_words(k)]
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.activations import activated
from mlc_llm.kernels.cuda.halves import exponent_of, high, inverse_scale, low, scale_bits, two
from mlc_llm.kernels.cuda.planes import (
    SUMMED,
    low_start,
    row_words,
    scale_word,
    sum_start,
)
from mlc_llm.kernels.cuda.threads import (
    QUAD,
    SCHEDULED,
    WARP,
    block_max,
    block_size,
    block_sum,
    grid,
)
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape
from mlc_llm.kernels.types import Expr


@cache
def prepare(kind: str, k: int, eps: float = 0.0) -> PrimFunc:
    """Kernel of (X, weight, bias, Y). k: a multiple of 32. eps: of a norm."""
    assert k % 32 == 0
    width, rows = input_width(kind, k), _Rows(kind, k, eps)

    @T.prim_func(private=True)
    def prepare_rows(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m, row_words(k)), "uint32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([rows.threads])
        v = T.alloc_buffer((rows.turns * QUAD,), "float32", scope="local")
        scratch = T.alloc_buffer((rows.warps,), "float32", scope="shared")
        if row < m:
            rows.load(Given(X, N, BIAS), row, thread, v, scratch)
            rows.store(Y, row, thread, v, scratch)

    return without(prepare_rows, *KINDS[kind].unread)


class _Rows:
    """Statements of `prepare`. v: the numbers of a thread, turn by turn; those behind the last
    column are 0."""

    def __init__(self, kind: str, k: int, eps: float) -> None:
        self.kind, self.k, self.eps = kind, k, eps
        self.norm = KINDS[kind].norm
        quads = k // QUAD
        self.threads = block_size(quads)
        self.warps = self.threads // WARP
        self.turns = -(-quads // self.threads)

    def number(self, given: Given, row: Expr, column: Expr) -> Expr:
        """What the kind makes of a column, but for the statistics of a norm."""
        which, x = KINDS[self.kind], given.x[row, column]
        if which.activation is None:
            return x
        gate = x + given.weight[column] if which.is_biased else x
        if not which.is_gated:
            return activated(self.kind, gate, None)
        up = given.x[row, column + self.k]
        return activated(self.kind, gate, up + given.bias[column] if which.is_biased else up)

    @T.inline
    def load(self, given, row, thread, v, scratch):
        """The numbers of a thread."""
        for i in T.unroll(self.turns):
            for j in T.vectorized(QUAD):
                v[i * QUAD + j] = T.float32(0)
            if (i * self.threads + thread) * QUAD < self.k:
                for j in T.vectorized(QUAD):
                    v[i * QUAD + j] = self.number(
                        given, row, (i * self.threads + thread) * QUAD + j
                    )
        if self.norm is not None:
            self.normalise(given, thread, v, scratch)

    @T.inline
    def normalise(self, given, thread, v, scratch):
        """v as the norm makes them."""
        total = T.alloc_buffer((1,), "float32", scope="local")
        mean = T.alloc_buffer((1,), "float32", scope="local")
        mean[0] = T.float32(0)
        if self.norm == "layer":
            total[0] = T.float32(0)
            for i in T.unroll(self.turns * QUAD):
                total[0] = total[0] + v[i]
            block_sum(total, thread, self.warps, scratch)
            mean[0] = total[0] / T.float32(self.k)
        total[0] = T.float32(0)
        for i in T.unroll(self.turns):
            if (i * self.threads + thread) * QUAD < self.k:
                for j in T.unroll(QUAD):
                    v[i * QUAD + j] = v[i * QUAD + j] - mean[0]
                    total[0] = total[0] + v[i * QUAD + j] * v[i * QUAD + j]
        block_sum(total, thread, self.warps, scratch)
        total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(self.k) + T.float32(self.eps))
        for i in T.unroll(self.turns):
            if (i * self.threads + thread) * QUAD < self.k:
                self.weigh(given, (i * self.threads + thread) * QUAD, i * QUAD, total, v)

    @T.inline
    def weigh(self, given, column, at, inverse, v):
        """Multiplies by the inverse and the weights, and adds the biases."""
        vector = T.alloc_buffer((QUAD,), "float32", scope="local")
        for j in T.vectorized(QUAD):
            vector[j] = given.weight[column + j]
        for j in T.unroll(QUAD):
            v[at + j] = v[at + j] * inverse[0] * vector[j]
        if self.norm == "layer":
            for j in T.vectorized(QUAD):
                vector[j] = given.bias[column + j]
            for j in T.unroll(QUAD):
                v[at + j] = v[at + j] + vector[j]

    @T.inline
    def store(self, Y, row, thread, v, scratch):
        """The planes, the sums and the scale of a row."""
        k = T.meta_var(self.k)
        top = T.alloc_buffer((1,), "float32", scope="local")
        exponent = T.alloc_buffer((1,), "int32", scope="local")
        top[0] = T.float32(0)
        for i in T.unroll(self.turns * QUAD):
            top[0] = T.max(top[0], T.abs(v[i]))
        block_max(top, thread, self.warps, scratch)
        exponent[0] = exponent_of(top[0])
        if thread == 0:
            Y[row, scale_word(k)] = scale_bits(exponent[0])
        top[0] = inverse_scale(exponent[0])
        for i in T.unroll(self.turns):
            self.store_quad(Y, row, (i * self.threads + thread) * QUAD, i * QUAD, top, v)

    @T.inline
    def store_quad(self, Y, row, column, at, step, v):
        """Four columns of both planes, and the sum of a group by its first thread."""
        words = T.alloc_buffer((QUAD,), "uint32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        total[0] = T.float32(0)
        for j in T.unroll(QUAD):
            v[at + j] = v[at + j] * step[0]
            total[0] = total[0] + v[at + j]
        total[0] = T.cuda.warp_sum(total[0], SUMMED // QUAD)
        if column < self.k:
            for j in T.unroll(QUAD // 2):
                words[j] = two(high(v[at + 2 * j]), high(v[at + 2 * j + 1]))
                words[QUAD // 2 + j] = two(low(v[at + 2 * j]), low(v[at + 2 * j + 1]))
            for j in T.vectorized(QUAD // 2):
                Y[row, column // 2 + j] = words[j]
            for j in T.vectorized(QUAD // 2):
                Y[row, low_start(self.k) + column // 2 + j] = words[QUAD // 2 + j]
            if column % SUMMED == 0:
                Y[row, sum_start(self.k) + column // SUMMED] = T.reinterpret(
                    total[0], dtype="uint32"
                )
