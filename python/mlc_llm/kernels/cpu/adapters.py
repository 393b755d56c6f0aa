"""LoRA adapters: two small products beside the product of a matrix.

    for each token t with an adapter a = slots[t]:
      for each part p of the matrix's rows, for j in ranks[a]:
        h[t, p, j] = sum over i of x[t, i] * down[a, p, j, i]
      for each row n of the matrix, in part p:
        y[t, n] += sum over j of h[t, p, j] * up[a, j, n]

x       float32 [m, k]
down    float32 [a, parts, r, k]: r is a multiple of STEP, and 0 from an adapter's rank on
up      float32 [a, r, rows]
ranks   int32 [a]: the largest rank of an adapter's parts
slots   int32 [m]: the adapter of a token, -1 for none
h       float32 [m, parts, r]
y       float32 [m, width], changed in place; width >= rows

A token's sums have one order, whatever else is in the step.
"""

from __future__ import annotations

import math
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Expr, Index

STEP = 4
"""Rows of `down` that a task multiplies."""
BLOCK = 64
"""Columns of y that a task changes, at most."""


@cache
def adapter_down(k: int, parts: int, lanes: int) -> PrimFunc:
    """Kernel arguments: x, down, ranks, slots, h."""
    size = math.gcd(k, lanes)
    lane = lanes_at(0, size)

    @T.inline
    def multiply(X, D, H, token, slot, part, first):
        """STEP numbers of h."""
        sums = T.alloc_buffer((STEP, size), "float32")
        for s in T.unroll(STEP):
            sums[s, lane] = fsplat(0.0, size)
        for i in T.serial(k // size):
            at = T.meta_var(lanes_at(i * size, size))
            for s in T.unroll(STEP):
                sums[s, lane] = sums[s, lane] + X[token, at] * D[slot, part, first + s, at]
        for s in T.unroll(STEP):
            H[token, part, first + s] = reduce_sum(sums, size, s)

    @T.prim_func(private=True, s_tir=True)
    def multiply_down(x: T.handle, d: T.handle, ranks: T.handle, slots: T.handle, h: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        a = T.int32()
        r = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        D = T.match_buffer(d, (a, parts, r, k), "float32")
        R = T.match_buffer(ranks, (a,), "int32")
        S = T.match_buffer(slots, (m,), "int32")
        H = T.match_buffer(h, (m, parts, r), "float32")
        with T.sblock("root"):
            for u in T.parallel(m * parts * (r // STEP)):
                token = T.meta_var(u // (parts * (r // STEP)))
                part = T.meta_var(u // (r // STEP) % parts)
                first = T.meta_var(u % (r // STEP) * STEP)
                if S[token] >= 0:
                    if first < R[S[token]]:
                        multiply(X, D, H, token, S[token], part, first)

    return multiply_down


@cache
def adapter_up(width: int, widths: tuple[int, ...], lanes: int) -> PrimFunc:
    """Kernel arguments: h, up, ranks, slots, y. widths: rows of each part."""
    rows, parts = sum(widths), len(widths)
    block = math.gcd(BLOCK, *widths)
    size = math.gcd(block, lanes)
    vectors, blocks = block // size, rows // block

    def part_of(column: Index) -> Expr | int:
        """The part that a column belongs to."""
        found: Expr | int = 0
        for p in range(1, parts):
            found = T.if_then_else(column >= sum(widths[:p]), p, found)
        return found

    @T.inline
    def add(H, U, Y, token, slot, rank, first):
        """The sums of a block of columns."""
        sums = T.alloc_buffer((vectors, size), "float32")
        for v in T.unroll(vectors):
            sums[v, lanes_at(0, size)] = Y[token, lanes_at(first + v * size, size)]
        for j in T.serial(rank):
            for v in T.unroll(vectors):
                sums[v, lanes_at(0, size)] = (
                    sums[v, lanes_at(0, size)]
                    + splat(H[token, part_of(first), j], size)
                    * U[slot, j, lanes_at(first + v * size, size)]
                )
        for v in T.unroll(vectors):
            Y[token, lanes_at(first + v * size, size)] = sums[v, lanes_at(0, size)]

    @T.prim_func(private=True, s_tir=True)
    def add_up(h: T.handle, up: T.handle, ranks: T.handle, slots: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        a = T.int32()
        r = T.int32()
        H = T.match_buffer(h, (m, parts, r), "float32")
        U = T.match_buffer(up, (a, r, rows), "float32")
        R = T.match_buffer(ranks, (a,), "int32")
        S = T.match_buffer(slots, (m,), "int32")
        Y = T.match_buffer(y, (m, width), "float32")
        with T.sblock("root"):
            for u in T.parallel(m * blocks):
                if S[u // blocks] >= 0:
                    add(
                        *(H, U, Y, u // blocks, S[u // blocks], R[S[u // blocks]]),
                        *(u % blocks * block,),
                    )

    return add_up
