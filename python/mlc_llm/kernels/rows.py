"""Picks rows of a matrix."""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.vectors import SCHEDULED, lanes_at


@cache
def take_rows(k: int) -> tvm.tirx.PrimFunc:
    """y[i] = x[rows[i]]: x float32 [m, k] with k a multiple of 8, rows int32 [s], y [s, k]."""

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
                for j in T.serial(k // 8):
                    Y[i, lanes_at(j * 8, 8)] = X[R[i], lanes_at(j * 8, 8)]

    return take
