"""A kernel so small that tests of the way to a GPU may compile it many times."""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

COLUMNS = 256


@T.prim_func(private=True)
def _doubled(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
    rows = T.int32()
    A = T.match_buffer(a, (rows, COLUMNS), "float32")
    B = T.match_buffer(b, (rows, COLUMNS), "float32")
    T.device_entry()
    row = T.cta_id([rows])
    tx = T.thread_id([128])
    for i in range(COLUMNS // 128):
        B[row, i * 128 + tx] = A[row, i * 128 + tx] * T.float32(2)


def doubled_module() -> tvm.IRModule:
    """`doubled`: float32 [rows, COLUMNS], times two. Its kernel is `doubled_kernel`."""
    return tvm.IRModule({"doubled": _doubled})
