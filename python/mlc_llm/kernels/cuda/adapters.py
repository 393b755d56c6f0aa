"""What LoRA adapters (Hu et al. 2021) add to the result of a matrix.

adapter_down:  a warp for each token, part and number of the adapter's rank
    small[t, part, r] = down[a, part, r] . x[t]
adapter_up:    a block for each token
    y[t, row] += sum over r of small[t, part of the row, r] * up of the row and r

a is the adapter of token t; nothing happens to a token without one. Sums have the same order for
every token. How factors lie: `library/adapter_format.py`.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.planes import row_words
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size, grid
from mlc_llm.kernels.cuda.token_rows import number, row_scale
from mlc_llm.kernels.types import Expr, Index
from mlc_llm.library.adapter_format import block_rows

WARPS = 8


@cache
def adapter_down(k: int, parts: int) -> PrimFunc:
    """Kernel arguments:

    x      uint32 [m, row_words(k)], planes
    down   float32 [adapters, parts, rank, k]
    ranks  int32 [adapters]
    slots  int32 [m]: the adapter of each token, or -1
    small  float32 [m, parts, rank]
    """

    @T.prim_func(private=True)
    def multiply(x: T.handle, down: T.handle, ranks: T.handle, slots: T.handle, small: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        rank = T.int32()
        X = T.match_buffer(x, (m, row_words(k)), "uint32")
        D = T.match_buffer(down, (n, parts, rank, k), "float32")
        RANKS = T.match_buffer(ranks, (n,), "int32")
        S = T.match_buffer(slots, (m,), "int32")
        Y = T.match_buffer(small, (m, parts, rank), "float32")
        T.device_entry()
        row, part, block = T.cta_id([grid(m), parts, T.ceildiv(rank, WARPS)])
        lane, warp = T.thread_id([WARP, WARPS])
        total = T.alloc_buffer((1,), "float32", scope="local")
        r: T.let[T.int32] = block * WARPS + warp
        if row < m:
            if S[row] >= 0:
                if r < RANKS[S[row]]:
                    total[0] = T.float32(0)
                    for i in T.serial(T.ceildiv(k, WARP)):
                        if i * WARP + lane < k:
                            total[0] = (
                                total[0]
                                + number(X, k, row, i * WARP + lane)
                                * D[S[row], part, r, i * WARP + lane]
                            )
                    total[0] = T.cuda.warp_sum(total[0]) * row_scale(X, k, row)
                    if lane == 0:
                        Y[row, part, r] = total[0]

    return multiply


@cache
def adapter_up(width: int, widths: tuple[int, ...]) -> PrimFunc:
    """Kernel of (small, up float32, ranks, slots, y float32 [m, width]).

    widths: rows of each part."""
    rows, starts, rows_together = sum(widths), list(accumulate(widths))[:-1], block_rows(widths)
    threads = block_size(rows)

    def part_of(i: Expr) -> Index:
        """Of a row."""
        part: Index = 0
        for start in starts:
            part = part + T.cast(T.Not(i < start), "int32")
        return part

    @T.prim_func(private=True)
    def multiply(small: T.handle, up: T.handle, ranks: T.handle, slots: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        rank = T.int32()
        X = T.match_buffer(small, (m, len(widths), rank), "float32")
        U = T.match_buffer(up, (n, rows // rows_together, rank, rows_together), "float32")
        RANKS = T.match_buffer(ranks, (n,), "int32")
        S = T.match_buffer(slots, (m,), "int32")
        Y = T.match_buffer(y, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        total = T.alloc_buffer((1,), "float32", scope="local")
        if row < m:
            if S[row] >= 0:
                if RANKS[S[row]] > 0:
                    for turn in T.serial(T.ceildiv(rows, threads)):
                        i: T.let[T.int32] = turn * threads + thread
                        if i < rows:
                            total[0] = T.float32(0)
                            for r in T.serial(RANKS[S[row]]):
                                total[0] = (
                                    total[0]
                                    + X[row, part_of(i), r]
                                    * U[S[row], i // rows_together, r, i % rows_together]
                                )
                            Y[row, i] = Y[row, i] + total[0]

    return multiply
