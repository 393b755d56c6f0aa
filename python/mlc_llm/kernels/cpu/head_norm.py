"""RMS norms of single heads, as queries and keys have them in some models (Henry et al. 2020).

for each token, for each head of a range:
    x = head / sqrt(mean(head^2) + eps) * weight
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, reduce_sum, splat

L = 8
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


@cache
def head_norm(
    width: int, head_dim: int, ranges: tuple[tuple[int, int], ...], eps: float
) -> tvm.tirx.PrimFunc:
    """Arguments: one weight float32 [head_dim] a range (one or two); x float32 [m, width], changed
    in place.

    ranges: of each the first column, and the number of heads from there on.
    """
    (first, first_heads), (second, second_heads) = (*ranges, (0, 0))[:2]

    @T.inline
    def heads_of(X, weight, row, start, heads):
        squares = T.alloc_buffer((L,), "float32")
        inverse = T.alloc_buffer((1,), "float32")
        for h in T.serial(heads):
            squares[lanes_at(0, L)] = fsplat(0.0, L)
            for i in T.serial(head_dim // L):
                squares[lanes_at(0, L)] = (
                    squares[lanes_at(0, L)]
                    + X[row, lanes_at(start + h * head_dim + i * L, L)]
                    * X[row, lanes_at(start + h * head_dim + i * L, L)]
                )
            inverse[0] = T.float32(1) / T.sqrt(
                reduce_sum(squares, L) / T.float32(head_dim) + T.float32(eps)
            )
            for i in T.serial(head_dim // L):
                X[row, lanes_at(start + h * head_dim + i * L, L)] = (
                    X[row, lanes_at(start + h * head_dim + i * L, L)]
                    * splat(inverse[0], L)
                    * weight[lanes_at(i * L, L)]
                )

    @T.prim_func(private=True, s_tir=True)
    def one_range(weight: T.Buffer((head_dim,), "float32"), x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    heads_of(X, weight, row, first, first_heads)
            else:
                for row in T.serial(m):
                    heads_of(X, weight, row, first, first_heads)

    @T.prim_func(private=True, s_tir=True)
    def two_ranges(
        weight: T.Buffer((head_dim,), "float32"),
        other: T.Buffer((head_dim,), "float32"),
        x: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    heads_of(X, weight, row, first, first_heads)
                    heads_of(X, other, row, second, second_heads)
            else:
                for row in T.serial(m):
                    heads_of(X, weight, row, first, first_heads)
                    heads_of(X, other, row, second, second_heads)

    return one_range if len(ranges) == 1 else two_ranges
