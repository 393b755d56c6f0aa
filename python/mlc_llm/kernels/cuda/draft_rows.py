"""What a draft head needs beside the operations of a layer. All floats are float32.

put_columns   y[:, start:] = x            a block for each row
at_most_one   y = min(x, 1)               a thread for each number
spread        y[t, i] = x[t, row[i]]      a block for each row; `lowest` where there is no row
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.threads import SCHEDULED, block_size, grid

MANY = 128


@cache
def put_columns(width: int, start: int, total: int) -> PrimFunc:
    """Kernel of x [m, width], and y [m, total], which is changed in place."""
    threads = block_size(width)

    @T.prim_func(private=True)
    def put(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        Y = T.match_buffer(y, (m, total), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if row < m:
            for part in T.serial(T.ceildiv(width, threads)):
                if part * threads + thread < width:
                    Y[row, start + part * threads + thread] = X[row, part * threads + thread]

    return put


@cache
def at_most_one() -> PrimFunc:
    """Kernel of x and y, int32 [m]."""

    @T.prim_func(private=True)
    def bound(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m,), "int32")
        Y = T.match_buffer(y, (m,), "int32")
        T.device_entry()
        block = T.cta_id([grid(T.ceildiv(m, MANY))])
        thread = T.thread_id([MANY])
        i: T.let[T.int32] = block * MANY + thread
        if i < m:
            Y[i] = T.min(X[i], 1)

    return bound


@cache
def spread(width: int, count: int, total: int, lowest: float) -> PrimFunc:
    """Kernel arguments:

    x     float32 [m, width]
    row   float32 [count]: a whole number of each column, less than 0 if it has no row
    y     float32 [m, total]: 0 from column `count` on
    """
    threads = block_size(total)

    @T.prim_func(private=True)
    def spread_columns(x: T.handle, row: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        ROW = T.match_buffer(row, (count,), "float32")
        Y = T.match_buffer(y, (m, total), "float32")
        T.device_entry()
        t = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if t < m:
            for part in T.serial(T.ceildiv(total, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < total:
                    Y[t, i] = T.float32(0)
                    if i < count:
                        Y[t, i] = T.float32(lowest)
                        if ROW[i] >= T.float32(0):
                            Y[t, i] = X[t, T.cast(ROW[i], "int32")]

    return spread_columns
