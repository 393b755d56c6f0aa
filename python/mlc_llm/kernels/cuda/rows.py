"""Picks rows of a matrix, or one number of each row.

take_rows:      for each i: y[i] = x[rows[i]]               a block for each i
chosen_logits:  for each i: y[i] = x[i, token[rows[i]]]     a thread for each i
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.threads import QUAD, SCHEDULED, block_size, grid

MANY = 128
"""Threads of a block of `chosen_logits`."""


@cache
def take_rows(k: int) -> PrimFunc:
    """Kernel arguments; k is a multiple of 4:

    x       float32 [m, k]
    rows    int32 [s]
    y       float32 [s, k]
    """
    threads = block_size(k // QUAD)

    @T.prim_func(private=True)
    def take(x: T.handle, rows: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        s = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        R = T.match_buffer(rows, (s,), "int32")
        Y = T.match_buffer(y, (s, k), "float32")
        T.device_entry()
        i = T.cta_id([grid(s)])
        thread = T.thread_id([threads])
        if i < s:
            for part in T.serial(T.ceildiv(k // QUAD, threads)):
                if part * threads + thread < k // QUAD:
                    for j in T.vectorized(QUAD):
                        Y[i, (part * threads + thread) * QUAD + j] = X[
                            R[i], (part * threads + thread) * QUAD + j
                        ]

    return take


@cache
def chosen_logits(k: int) -> PrimFunc:
    """Kernel arguments:

    x       float32 [r, k]
    rows    int32 [r]
    token   int32 [s]
    y       float32 [r]: 0 where token is not from 0 to k - 1
    """

    @T.prim_func(private=True)
    def chosen(x: T.handle, rows: T.handle, token: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        r = T.int32()
        s = T.int32()
        X = T.match_buffer(x, (r, k), "float32")
        R = T.match_buffer(rows, (r,), "int32")
        TOKEN = T.match_buffer(token, (s,), "int32")
        Y = T.match_buffer(y, (r,), "float32")
        T.device_entry()
        block = T.cta_id([grid(T.ceildiv(r, MANY))])
        thread = T.thread_id([MANY])
        i: T.let[T.int32] = block * MANY + thread
        if i < r:
            wanted: T.let[T.int32] = TOKEN[R[i]]
            Y[i] = T.float32(0)
            if T.And(wanted >= 0, wanted < k):
                Y[i] = X[i, wanted]

    return chosen
