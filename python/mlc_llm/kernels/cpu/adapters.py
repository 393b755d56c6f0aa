"""LoRA adapters: two small products beside the product of a matrix.

    unless no token has an adapter:
      for each token t with an adapter a = slots[t]:                        parallel
        for each part p of the matrix's rows, for j in ranks[a]:
          h[t, p, j] = sum over i of x[t, i] * down[a, p, j, i]
      for each token t with an adapter a = slots[t]:                        parallel
        for each row n of the matrix, in part p:
          y[t, n] += sum over j of h[t, p, j] * up[a, j, n]

x       float32 [m, k]
down    dtype [a, parts, r, k]: r is a multiple of STEP, and 0 from an adapter's rank on
up      dtype [a, r, rows]
ranks   int32 [a]: the largest rank of an adapter's parts
slots   int32 [m]: the adapter of a token, -1 for none
h       float32 [m, parts, r]
y       float32 [m, width], changed in place; width >= rows

A piece of an adapter is read once for all tokens of a token block that have it: the first of them
computes the others too. A token's sums have one order, whatever else is in the step.
"""

from __future__ import annotations

import math
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

STEP = 4
"""Rows of `down` that a task multiplies."""
BLOCK = 64
"""Columns of y that a task changes, at most."""
TOKENS = 32
"""Tokens of a token block."""


@cache
def add_adapters(k: int, width: int, widths: tuple[int, ...], dtype: str, lanes: int) -> PrimFunc:
    """Kernel arguments: x, down, up, ranks, slots, y. widths: rows of each part."""
    rows, parts = sum(widths), len(widths)
    block = math.gcd(BLOCK, *widths)
    down_lanes, up_lanes = math.gcd(k, lanes), math.gcd(block, lanes)
    vectors, blocks = block // up_lanes, rows // block

    def part_of(column: Index) -> Expr | int:
        """The part that a column belongs to."""
        found: Expr | int = 0
        for p in range(1, parts):
            found = T.if_then_else(column >= sum(widths[:p]), p, found)
        return found

    def numbers(factor: Buffer, at: tuple[Index, ...], first: Index, size: int) -> Expr:
        """Neighbours in a row of `down` or `up`."""
        place = (*at, lanes_at(first, size))
        return T.cast(factor[place], f"float32x{size}")

    @T.inline
    def find_any(S, m, any_):
        """any_[0]: whether a token has an adapter."""
        any_[0] = 0
        for t in T.serial(m):
            if S[t] >= 0:
                any_[0] = 1

    @T.inline
    def find_first(S, token, first):
        """first[0]: whether no earlier token of the block has the adapter of this one."""
        first[0] = T.if_then_else(S[token] >= 0, 1, 0)
        for i in T.serial(token % TOKENS):
            if S[token - token % TOKENS + i] == S[token]:
                first[0] = 0

    @T.inline
    def multiply_down(X, D, H, token, slot, part, first):
        """STEP numbers of h."""
        sums = T.alloc_buffer((STEP, down_lanes), "float32")
        for s in T.unroll(STEP):
            sums[s, lanes_at(0, down_lanes)] = fsplat(0.0, down_lanes)
        for i in T.serial(k // down_lanes):
            for s in T.unroll(STEP):
                sums[s, lanes_at(0, down_lanes)] = sums[s, lanes_at(0, down_lanes)] + X[
                    token, lanes_at(i * down_lanes, down_lanes)
                ] * numbers(D, (slot, part, first + s), i * down_lanes, down_lanes)
        for s in T.unroll(STEP):
            H[token, part, first + s] = reduce_sum(sums, down_lanes, s)

    @T.inline
    def add_up(H, U, Y, token, slot, rank, first):
        """The sums of a block of columns."""
        sums = T.alloc_buffer((vectors, up_lanes), "float32")
        for v in T.unroll(vectors):
            sums[v, lanes_at(0, up_lanes)] = Y[token, lanes_at(first + v * up_lanes, up_lanes)]
        for j in T.serial(rank):
            for v in T.unroll(vectors):
                sums[v, lanes_at(0, up_lanes)] = sums[v, lanes_at(0, up_lanes)] + splat(
                    H[token, part_of(first), j], up_lanes
                ) * numbers(U, (slot, j), first + v * up_lanes, up_lanes)
        for v in T.unroll(vectors):
            Y[token, lanes_at(first + v * up_lanes, up_lanes)] = sums[v, lanes_at(0, up_lanes)]

    @T.prim_func(private=True, s_tir=True)
    def add(
        x: T.handle, down: T.handle, up: T.handle, ranks: T.handle, slots: T.handle, y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        a = T.int32()
        r = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        D = T.match_buffer(down, (a, parts, r, k), dtype)
        U = T.match_buffer(up, (a, r, rows), dtype)
        R = T.match_buffer(ranks, (a,), "int32")
        S = T.match_buffer(slots, (m,), "int32")
        Y = T.match_buffer(y, (m, width), "float32")
        with T.sblock("root"):
            any_ = T.alloc_buffer((1,), "int32")
            find_any(S, m, any_)
            if any_[0] > 0:
                H = T.alloc_buffer((m, parts, r), "float32")
                for u in T.parallel(parts * (r // STEP) * m):
                    first = T.alloc_buffer((1,), "int32")
                    token = T.meta_var(u % m)
                    step: T.let[T.int32] = u // m % (r // STEP) * STEP
                    find_first(S, token, first)
                    if first[0] > 0:
                        if step < R[S[token]]:
                            for t in T.serial(T.min(m - token, TOKENS - token % TOKENS)):
                                if S[token + t] == S[token]:
                                    multiply_down(
                                        *(X, D, H, token + t, S[token]),
                                        *(u // m // (r // STEP), step),
                                    )
                for u in T.parallel(blocks * m):
                    first = T.alloc_buffer((1,), "int32")
                    token = T.meta_var(u % m)
                    find_first(S, token, first)
                    if first[0] > 0:
                        for t in T.serial(T.min(m - token, TOKENS - token % TOKENS)):
                            if S[token + t] == S[token]:
                                add_up(
                                    *(H, U, Y, token + t, S[token], R[S[token]]),
                                    *(u // m * block,),
                                )

    return add
