"""RMS norms of single heads, as queries and keys have them in some models (Henry et al. 2020).

    in parallel, for each token, for each head of a range:
        head = head / sqrt(mean(head^2) + eps) * weight

x         float32 [m, width], changed in place
weight    float32 [head_dim], one for each range of heads
squares   float32 [L]: partial sums of a head's squares
inverse   float32 [1]: 1 / sqrt(mean + eps)
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, reduce_sum, splat

L = 8
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


@T.inline
def _norm_heads(x, weight, row, first_column, heads, eps):
    """Normalises the heads of a row that begin at that column."""
    head_dim = T.meta_var(int(weight.shape[0]))
    squares = T.alloc_buffer((L,), "float32")
    inverse = T.alloc_buffer((1,), "float32")
    for h in T.serial(heads):
        head = T.meta_var(first_column + h * head_dim)
        squares[lanes_at(0, L)] = fsplat(0.0, L)
        for i in T.serial(head_dim // L):
            squares[lanes_at(0, L)] = (
                squares[lanes_at(0, L)]
                + x[row, lanes_at(head + i * L, L)] * x[row, lanes_at(head + i * L, L)]
            )
        inverse[0] = T.float32(1) / T.sqrt(
            reduce_sum(squares, L) / T.float32(head_dim) + T.float32(eps)
        )
        for i in T.serial(head_dim // L):
            x[row, lanes_at(head + i * L, L)] = (
                x[row, lanes_at(head + i * L, L)]
                * splat(inverse[0], L)
                * weight[lanes_at(i * L, L)]
            )


@cache
def head_norm(
    width: int, head_dim: int, ranges: tuple[tuple[int, int], ...], eps: float
) -> PrimFunc:
    """Kernel arguments: a weight float32 [head_dim] for each range (one or two); x float32
    [m, width], changed in place.

    ranges: the first column, and the number of heads from there on.
    """
    if len(ranges) == 1:
        return _one_range(width, head_dim, ranges[0], eps)
    return _two_ranges(width, head_dim, ranges[0], ranges[1], eps)


def _one_range(width: int, head_dim: int, heads: tuple[int, int], eps: float) -> PrimFunc:
    """`head_norm` of one range."""

    @T.prim_func(private=True, s_tir=True)
    def one_range(weight: T.Buffer((head_dim,), "float32"), x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    _norm_heads(X, weight, row, heads[0], heads[1], eps)
            else:
                for row in T.serial(m):
                    _norm_heads(X, weight, row, heads[0], heads[1], eps)

    return one_range


def _two_ranges(
    width: int, head_dim: int, first: tuple[int, int], second: tuple[int, int], eps: float
) -> PrimFunc:
    """`head_norm` of two ranges."""

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
                    _norm_heads(X, weight, row, first[0], first[1], eps)
                    _norm_heads(X, other, row, second[0], second[1], eps)
            else:
                for row in T.serial(m):
                    _norm_heads(X, weight, row, first[0], first[1], eps)
                    _norm_heads(X, other, row, second[0], second[1], eps)

    return two_ranges
