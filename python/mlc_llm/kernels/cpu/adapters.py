"""LoRA adapters: two small products beside the product of a matrix.

    groups = tokens of a token block that have the same adapter
    for each group with an adapter a:                                       parallel
      for each part p of the matrix's rows, for j in ranks[a], for each token t of the group:
        h[t, p, j] = sum over i of x[t, i] * down[a, p, j, i]
    for each group with an adapter a:                                       parallel
      for each token t of the group, for each row n of the matrix, in part p:
        y[t, n] += sum over j of h[t, p, j] * up[a, j, n]

x       float32 [m, k]
down    dtype [a, parts, r, k]: r is a multiple of STEP, and 0 from an adapter's rank on
up      dtype [a, r, rows]
ranks   int32 [a]: the largest rank of an adapter's parts
slots   int32 [m]: the adapter of a token, -1 for none
h       float32 [m, parts, r]
y       float32 [m, width], changed in place; width >= rows
order   int32 [m]: the tokens with an adapter, group by group
starts  int32 [m + 1]: where in `order` a group begins, and behind the last one
count   int32 [1]: groups

So a piece of an adapter is read once for all tokens of a group, while the memory is asked for that
of the next one. A token's sums have one order, whatever else is in the step.
"""

from __future__ import annotations

import math
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, halved_sum, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.page_format import element_bytes

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
    line = LINE_BYTES // element_bytes(dtype)

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
    def group_tokens(S, m, order, starts, count):
        """Fills `order`, `starts` and `count`."""
        is_first = T.alloc_buffer((1,), "int32")
        count[0] = 0
        starts[0] = 0
        for t in T.serial(m):
            is_first[0] = T.if_then_else(S[t] >= 0, 1, 0)
            for i in T.serial(t % TOKENS):
                if S[t - t % TOKENS + i] == S[t]:
                    is_first[0] = 0
            if is_first[0] > 0:
                count[0] = count[0] + 1
                starts[count[0]] = starts[count[0] - 1]
                for i in T.serial(T.min(m - t, TOKENS - t % TOKENS)):
                    if S[t + i] == S[t]:
                        order[starts[count[0]]] = t + i
                        starts[count[0]] = starts[count[0]] + 1

    @T.inline
    def ask_down(D, slot, part, first):
        """Asks the memory for the rows that `multiply_down` reads."""
        for s in T.unroll(STEP):
            for i in T.serial(T.ceildiv(k, line)):
                T.evaluate(prefetch(D, slot, part, first + s, i * line))

    @T.inline
    def ask_up(U, R, slot, first):
        """Asks the memory for the block that `add_up` reads."""
        for j in T.serial(R[slot]):
            for i in T.unroll(-(-block // line)):
                T.evaluate(prefetch(U, slot, j, first + i * line))

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
            H[token, part, first + s] = halved_sum(sums[s, lanes_at(0, down_lanes)], down_lanes)

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
            order = T.alloc_buffer((m,), "int32")
            starts = T.alloc_buffer((m + 1,), "int32")
            count = T.alloc_buffer((1,), "int32")
            group_tokens(S, m, order, starts, count)
            if count[0] > 0:
                H = T.alloc_buffer((m, parts, r), "float32")
                for u in T.parallel(parts * (r // STEP) * count[0]):
                    group, piece = T.meta_var((u % count[0], u // count[0]))
                    part, first = T.meta_var((piece // (r // STEP), piece % (r // STEP) * STEP))
                    slot = T.meta_var(S[order[starts[group]]])
                    if group < count[0] - 1:
                        ask_down(D, S[order[starts[group + 1]]], part, first)
                    if first < R[slot]:
                        for i in T.serial(starts[group + 1] - starts[group]):
                            multiply_down(X, D, H, order[starts[group] + i], slot, part, first)
                for u in T.parallel(blocks * count[0]):
                    group, piece = T.meta_var((u % count[0], u // count[0]))
                    slot = T.meta_var(S[order[starts[group]]])
                    if group < count[0] - 1:
                        ask_up(U, R, S[order[starts[group + 1]]], piece * block)
                    for i in T.serial(starts[group + 1] - starts[group]):
                        add_up(H, U, Y, order[starts[group] + i], slot, R[slot], piece * block)

    return add
