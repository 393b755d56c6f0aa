"""Picks rows of a matrix, or one number of each row; or puts rows into it, or its columns apart.

take_rows:      for each i: y[i] = x[rows[i]]
chosen_logits:  for each i: y[i] = x[i, token[rows[i]]]
put_rows:       for each i with at[i] >= 0: x[at[i]] = y[i]
spread:         for each i and j: y[i, j] = x[i, row[j]], or `lowest` where row[j] < 0
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at

L = 8
PART = 4096
"""Columns that one thread spreads; a multiple of L."""


@cache
def take_rows(k: int) -> PrimFunc:
    """Kernel arguments; k is a multiple of L:

    x       float32 [m, k]
    rows    int32 [s]
    y       float32 [s, k]
    """

    @T.prim_func(private=True, s_tir=True)
    def take(x: T.handle, rows: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        s = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        R = T.match_buffer(rows, (s,), "int32")
        Y = T.match_buffer(y, (s, k), "float32")
        with T.sblock("root"):
            for i in T.serial(s):
                for j in T.serial(k // L):
                    Y[i, lanes_at(j * L, L)] = X[R[i], lanes_at(j * L, L)]

    return take


@cache
def put_rows(k: int) -> PrimFunc:
    """Kernel arguments; k is a multiple of L:

    at      int32 [s]; -1 stands for no row
    y       float32 [s, k]
    x       float32 [m, k], changed in place
    """

    @T.prim_func(private=True, s_tir=True)
    def put(at: T.handle, y: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        s = T.int32()
        AT = T.match_buffer(at, (s,), "int32")
        Y = T.match_buffer(y, (s, k), "float32")
        X = T.match_buffer(x, (m, k), "float32")
        with T.sblock("root"):
            for i in T.serial(s):
                if AT[i] >= 0:
                    for j in T.serial(k // L):
                        X[AT[i], lanes_at(j * L, L)] = Y[i, lanes_at(j * L, L)]

    return put


@cache
def chosen_logits(k: int) -> PrimFunc:
    """Kernel arguments:

    x       float32 [r, k]
    rows    int32 [r]
    token   int32 [s]
    y       float32 [r]: 0 where token is not from 0 to k - 1
    """

    @T.prim_func(private=True, s_tir=True)
    def chosen(x: T.handle, rows: T.handle, token: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        r = T.int32()
        s = T.int32()
        X = T.match_buffer(x, (r, k), "float32")
        R = T.match_buffer(rows, (r,), "int32")
        TOKEN = T.match_buffer(token, (s,), "int32")
        Y = T.match_buffer(y, (r,), "float32")
        with T.sblock("root"):
            for i in T.serial(r):
                Y[i] = T.float32(0)
                if T.And(TOKEN[R[i]] >= 0, TOKEN[R[i]] < k):
                    Y[i] = X[i, TOKEN[R[i]]]

    return chosen


@cache
def spread(width: int, count: int, total: int, lowest: float) -> PrimFunc:
    """Kernel arguments; total is a multiple of L and at least `count`:

    x       float32 [m, width]
    row     float32 [count]: a whole number of each column, less than 0 if it has no row
    y       float32 [m, total]: 0 from column `count` on
    """
    parts = -(-total // PART)

    @T.prim_func(private=True, s_tir=True)
    def spread_columns(x: T.handle, row: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        ROW = T.match_buffer(row, (count,), "float32")
        Y = T.match_buffer(y, (m, total), "float32")
        with T.sblock("root"):
            for u in T.parallel(m * parts):
                first: T.let[T.int32] = u % parts * PART
                for j in T.serial(T.min(PART, total - first) // L):
                    Y[u // parts, lanes_at(first + j * L, L)] = fsplat(lowest, L)
                for j in T.serial(T.min(PART, count - first)):
                    if ROW[first + j] >= T.float32(0):
                        Y[u // parts, first + j] = X[u // parts, T.cast(ROW[first + j], "int32")]
            for i in T.serial(m):
                for j in T.serial(total - count):
                    Y[i, count + j] = T.float32(0)

    return spread_columns
