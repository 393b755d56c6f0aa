"""RMS norms of queries and keys (Henry et al. 2020): of single heads, or of all of a token.

    in parallel, for each token, for each head of a range:
        head = head / sqrt(mean(head^2) + eps) * weight

All heads of a token together are one long head. `copied_heads` has no weights and does not change
x.

x         float32 [m, width], changed in place
weight    float32 [head_dim], one for each range of heads
squares   float32 [L]: partial sums of a head's squares
inverse   float32 [1]: 1 / sqrt(mean + eps)
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, reduce_sum, splat

L = 8
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


@T.inline
def find_inverse(x, row, head, head_dim, eps, inverse):
    """inverse[0] of the head that begins at that column."""
    squares = T.alloc_buffer((L,), "float32")
    squares[lanes_at(0, L)] = fsplat(0.0, L)
    for i in T.serial(head_dim // L):
        squares[lanes_at(0, L)] = (
            squares[lanes_at(0, L)]
            + x[row, lanes_at(head + i * L, L)] * x[row, lanes_at(head + i * L, L)]
        )
    inverse[0] = T.float32(1) / T.sqrt(
        reduce_sum(squares, L) / T.float32(head_dim) + T.float32(eps)
    )


@T.inline
def _norm_heads(x, weight, row, first_column, heads, eps):
    """Normalises the heads of a row that begin at that column."""
    head_dim = T.meta_var(int(weight.shape[0]))
    inverse = T.alloc_buffer((1,), "float32")
    for h in T.serial(heads):
        head = T.meta_var(first_column + h * head_dim)
        find_inverse(x, row, head, head_dim, eps, inverse)
        for i in T.serial(head_dim // L):
            x[row, lanes_at(head + i * L, L)] = (
                x[row, lanes_at(head + i * L, L)]
                * splat(inverse[0], L)
                * weight[lanes_at(i * L, L)]
            )


class NormedHeads(NamedTuple):
    """Heads side by side, from column `start` on, which are normalised each on its own."""

    start: int
    heads: int
    head_dim: int


@cache
def head_norm(
    width: int, first: NormedHeads, second: NormedHeads | None = None, *, eps: float
) -> PrimFunc:
    """Kernel arguments: a weight float32 [head_dim] for `first`, and one for `second` if there is
    one; x float32 [m, width], changed in place."""
    sizes = first.head_dim, (second or first).head_dim

    @T.inline
    def one_row(x, weight, other, row):
        """Normalises the heads of a row."""
        _norm_heads(x, weight, row, first.start, first.heads, eps)
        if second is not None:
            _norm_heads(x, other, row, second.start, second.heads, eps)

    @T.prim_func(private=True, s_tir=True)
    def norm_heads(
        weight: T.Buffer((sizes[0],), "float32"),
        other: T.Buffer((sizes[1],), "float32"),
        x: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    align_stack()
                    one_row(X, weight, other, row)
            else:
                for row in T.serial(m):
                    one_row(X, weight, other, row)

    return without(norm_heads, *(() if second else ("other",)))


@cache
def copied_heads(width: int, heads: NormedHeads, eps: float | None) -> PrimFunc:
    """Kernel arguments: x float32 [m, width], which does not change; y float32 [m, heads *
    head_dim], its heads, each divided by sqrt(mean(head^2) + eps); None: as they are."""
    dim = heads.head_dim

    @T.inline
    def one_row(x, y, row):
        """The heads of a row."""
        inverse = T.alloc_buffer((1,), "float32")
        inverse[0] = T.float32(1)
        for h in T.serial(heads.heads):
            first = T.meta_var(heads.start + h * dim)
            if eps is not None:
                find_inverse(x, row, first, dim, eps, inverse)
            for i in T.serial(dim // L):
                y[row, lanes_at(h * dim + i * L, L)] = x[row, lanes_at(first + i * L, L)] * splat(
                    inverse[0], L
                )

    @T.prim_func(private=True, s_tir=True)
    def copy_heads(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        Y = T.match_buffer(y, (m, heads.heads * dim), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    align_stack()
                    one_row(X, Y, row)
            else:
                for row in T.serial(m):
                    one_row(X, Y, row)

    return copy_heads
