"""LoRA adapters: two small products beside the product of a matrix.

    for each token t with an adapter:                              parallel; threads meet
      f[t] = what the kind makes of X[t]                                    `row_kinds.py`
    for each group with an adapter a:                              parallel; threads meet
      for each part p of the matrix's rows, for j in ranks[a], for each token t of the group:
        h[t, p, j] = sum over i of f[t, i] * down[a, p, j, i]
    for each group with an adapter a:                                       parallel
      for each token t of the group, for each row n of the matrix, in part p:
        y[t, n] += sum over j of h[t, p, j] * up[a, n / b, j, n % b]

X, weight and bias: see `row_kinds.py`
down    dtype [a, parts, r, k]: r is a multiple of STEP, and 0 from an adapter's rank on
up      dtype [a, rows / b, r, b]: row n is in block n / b (`library/adapter_format.py`)
ranks   int32 [a]: the largest rank of an adapter's parts
slots   int32 [m]: the adapter of a token, -1 for none
groups  int32 [2 m + 2]: which tokens have the same one (`adapter_groups.py`)
y       float32 [m, width], changed in place; width >= rows
f       float32 [m, k]; X itself where the kind is "plain"
h       float32 [m, parts, r]

So a piece of an adapter is read once for all tokens of a group, and converted once for up to four
tokens. The memory is asked for it before, by the product (`adapter_asks.py`) or a task ahead. The
thread that makes f of a token multiplies it by `down`, unless its group is at the border between
two threads; as many columns of y are a thread's as the product gives it. A token's sums have one
order, whatever else is in the step.
"""

from __future__ import annotations

import math
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.adapter_groups import Groups, table_size
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.launches import all_meet, one_launch
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, halved_sum, lanes_at, splat
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.adapter_format import block_rows
from mlc_llm.library.page_format import element_bytes

STEP = 4
"""Rows of `down` that a task multiplies."""
NEVER = 2**31 - 1
"""More tokens than a step has."""
BLOCK, SUMS = 256, 64
"""Columns of y that a task changes, and whose sums are in registers, at most."""


def numbers(factor: Buffer, at: tuple[Index, ...], first: Index, size: int) -> Expr:
    """Neighbours in a row of `down` or `up`."""
    place = (*at, lanes_at(first, size))
    return T.cast(factor[place], f"float32x{size}")


def task(u: Expr, pieces: Expr) -> tuple[Expr, Expr]:
    """The group of a task that multiplies `down`, and its piece."""
    return u // pieces, u % pieces


@T.inline
def in_fours(compute, group, buffers, G, *rest):
    """compute(size, *buffers, G, at, *rest) for the tokens of a group."""
    first: T.let[T.int32] = G.first(group)
    size: T.let[T.int32] = G.first(group + 1) - first
    for i in T.serial(size // 4):
        compute(4, *buffers, G, first + i * 4, *rest)
    if size % 4 >= 2:
        compute(2, *buffers, G, first + size // 4 * 4, *rest)
    if size % 2 == 1:
        compute(1, *buffers, G, first + size - 1, *rest)


@T.inline
def load_sums(sums, count, vectors, lanes, Y, G, at, first):
    """Columns of y from the first on, of the tokens from number `at` of the list on."""
    for t in T.unroll(count):
        for v in T.unroll(vectors):
            sums[t, v, lanes_at(0, lanes)] = Y[G.token(at + t), lanes_at(first + v * lanes, lanes)]


@T.inline
def store_sums(sums, count, vectors, lanes, Y, G, at, first):
    """The same columns are the sums."""
    for t in T.unroll(count):
        for v in T.unroll(vectors):
            Y[G.token(at + t), lanes_at(first + v * lanes, lanes)] = sums[t, v, lanes_at(0, lanes)]


@cache
def add_adapters(
    kind: str,
    k: int,
    width: int,
    widths: tuple[int, ...],
    dtype: str,
    lanes: int,
    eps: float = 0.0,
    *,
    asked_from: int = NEVER,
) -> PrimFunc:
    """Kernel of (X, weight, bias, down, up, ranks, slots, groups, y). widths: rows of each part;
    eps: of a norm; asked_from: tokens of a step from which on the product has asked the memory for
    the factors."""
    rows, parts = sum(widths), len(widths)
    block = math.gcd(BLOCK, *widths)
    sums_columns = math.gcd(SUMS, block)
    together, line = block_rows(widths), LINE_BYTES // element_bytes(dtype)
    down_lanes, up_lanes = math.gcd(k, lanes), math.gcd(together, lanes)
    vectors, blocks = sums_columns // up_lanes, rows // block

    def part_of(column: Index) -> Expr | int:
        """The part that a column belongs to."""
        found: Expr | int = 0
        for p in range(1, parts):
            found = T.if_then_else(column >= sum(widths[:p]), p, found)
        return found

    @T.inline
    def make_floats(given, F, token):
        """A row of f."""
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        find_statistics(kind, given.x, token, k, eps, inv)
        for i in T.serial(k // down_lanes):
            at = T.meta_var(i * down_lanes)
            F[token, lanes_at(at, down_lanes)] = load(kind, given, token, at, k, inv, down_lanes)

    @T.inline
    def add_products(sums, count, s, F, D, G, at, slot, part, first, i):
        """Adds vector i of row `first + s` of `down`, times those of the tokens from `at` on."""
        lane = T.meta_var(lanes_at(0, down_lanes))
        for t in T.unroll(count):
            sums[t, s, lane] = sums[t, s, lane] + F[
                G.token(at + t), lanes_at(i * down_lanes, down_lanes)
            ] * numbers(D, (slot, part, first + s), i * down_lanes, down_lanes)

    @T.inline
    def multiply_down(size, F, D, H, G, at, slot, part, first):
        """STEP numbers of h for the tokens from number `at` of the list on. Their sums are in two
        buffers: TVM takes one of 1 KiB from the heap, for each task anew."""
        half, lane = T.meta_var((-(-size // 2), lanes_at(0, down_lanes)))
        sums = T.alloc_buffer((half, STEP, down_lanes), "float32")
        more = T.alloc_buffer((half, STEP, down_lanes), "float32")
        for t in T.unroll(half):
            for s in T.unroll(STEP):
                sums[t, s, lane] = fsplat(0.0, down_lanes)
                more[t, s, lane] = fsplat(0.0, down_lanes)
        for i in T.serial(k // down_lanes):
            for s in T.unroll(STEP):
                add_products(sums, half, s, F, D, G, at, slot, part, first, i)
                add_products(more, size // 2, s, F, D, G, at + half, slot, part, first, i)
        for s in T.unroll(STEP):
            for t in T.unroll(half):
                H[G.token(at + t), part, first + s] = halved_sum(sums[t, s, lane], down_lanes)
            for t in T.unroll(size // 2):
                H[G.token(at + half + t), part, first + s] = halved_sum(
                    more[t, s, lane], down_lanes
                )

    @T.inline
    def add_row(sums, count, H, U, G, at, slot, first, j):
        """Adds row j of `up`, times h of the tokens from number `at` on."""
        for v in T.unroll(vectors):
            for t in T.unroll(count):
                sums[t, v, lanes_at(0, up_lanes)] = sums[t, v, lanes_at(0, up_lanes)] + splat(
                    H[G.token(at + t), part_of(first), j], up_lanes
                ) * numbers(
                    U,
                    (slot, first // together + v * up_lanes // together, j),
                    *(v * up_lanes % together, up_lanes),
                )

    @T.inline
    def add_up(size, H, U, Y, G, at, slot, rank, first):
        """Some columns of a block for the tokens from number `at` of the list on."""
        half = T.meta_var(-(-size // 2))
        sums = T.alloc_buffer((half, vectors, up_lanes), "float32")
        more = T.alloc_buffer((half, vectors, up_lanes), "float32")
        load_sums(sums, half, vectors, up_lanes, Y, G, at, first)
        load_sums(more, size // 2, vectors, up_lanes, Y, G, at + half, first)
        for j in T.serial(rank):
            add_row(sums, half, H, U, G, at, slot, first, j)
            add_row(more, size // 2, H, U, G, at + half, slot, first, j)
        store_sums(sums, half, vectors, up_lanes, Y, G, at, first)
        store_sums(more, size // 2, vectors, up_lanes, Y, G, at + half, first)

    def place(piece: Index) -> tuple[Index, Index]:
        """The part that a piece of `down` belongs to, and its first row."""
        return piece % parts, piece // parts * STEP

    @T.inline
    def ask_for_down(D, slot, piece):
        """Asks the memory for what the thread reads next."""
        part, first = T.meta_var(place(piece))
        for i in T.serial(T.ceildiv(STEP * k, line)):
            T.evaluate(prefetch(D, slot, part, first, i * line, cache=2))

    @T.inline
    def ask_for_up(U, slot, rank, piece):
        """The same for columns of y."""
        first = T.meta_var(piece * (block // together))
        for b in T.serial(block // together):
            for i in T.serial(T.ceildiv(rank * together, line)):
                T.evaluate(prefetch(U, slot, first + b, 0, i * line, cache=2))

    @T.inline
    def multiply_all_down(F, D, R, H, G, pieces, asks):
        """h of all groups; asks: no product has asked."""
        for u in T.parallel(pieces * G.count):
            group, piece = T.meta_var(task(u, pieces))
            part, first = T.meta_var(place(piece))
            if asks:
                next_group, next_piece = T.meta_var(task(u + 1, pieces))
                ask_for_down(D, G.slot(T.min(next_group, G.count - 1)), next_piece)
            if first < R[G.slot(group)]:
                in_fours(multiply_down, group, (F, D, H), G, G.slot(group), part, first)

    @T.inline
    def add_all_up(H, U, R, Y, G, asks):
        """y of all groups."""
        groups: T.let[T.int32] = G.count
        for u in T.parallel(blocks * groups):
            group, piece = T.meta_var((u % groups, u // groups))
            if asks:
                ask_for_up(
                    U, G.slot((u + 1) % groups), R[G.slot((u + 1) % groups)], (u + 1) // groups
                )
            for i in T.serial(block // sums_columns):
                in_fours(
                    *(add_up, group, (H, U, Y), G),
                    *(G.slot(group), R[G.slot(group)], piece * block + i * sums_columns),
                )

    @T.inline
    def add_to(F, D, U, R, H, Y, G, pieces, asks):
        """Both products."""
        with all_meet():
            multiply_all_down(F, D, R, H, G, pieces, asks)
        add_all_up(H, U, R, Y, G, asks)

    @T.inline
    def count_pieces(R, G, pieces):
        """pieces[0] = those of `down` that a group has at most."""
        pieces[0] = 0
        for group in T.serial(G.count):
            pieces[0] = T.max(pieces[0], parts * T.ceildiv(R[G.slot(group)], STEP))

    @T.prim_func(private=True, s_tir=True)
    def add(
        x: T.handle, weight: T.handle, bias: T.handle, down: T.handle, up: T.handle,
        ranks: T.handle, slots: T.handle, groups: T.handle, y: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        a = T.int32()
        r = T.int32()
        X = T.match_buffer(x, (m, input_width(kind, k)), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        D = T.match_buffer(down, (a, parts, r, k), dtype)
        U = T.match_buffer(up, (a, rows // together, r, together), dtype)
        R = T.match_buffer(ranks, (a,), "int32")
        S = T.match_buffer(slots, (m,), "int32")
        TABLE = T.match_buffer(groups, (table_size(m),), "int32")
        Y = T.match_buffer(y, (m, width), "float32")
        with T.sblock("root"):
            G = T.meta_var(Groups(S, TABLE))
            if G.count > 0:
                H = T.alloc_buffer((m, parts, r), "float32")
                pieces = T.alloc_buffer((1,), "int32")
                count_pieces(R, G, pieces)
                asks: T.let[T.bool] = m < asked_from
                if kind == "plain":
                    with one_launch():
                        add_to(X, D, U, R, H, Y, G, pieces[0], asks)
                else:
                    F = T.alloc_buffer((m, k), "float32")
                    with one_launch():
                        with all_meet():
                            for i in T.parallel(G.tokens):
                                make_floats(Given(X, N, BIAS), F, G.token(i))
                        add_to(F, D, U, R, H, Y, G, pieces[0], asks)

    return without(add, *KINDS[kind].unread)
