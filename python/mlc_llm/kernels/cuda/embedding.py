"""Rows of a packed embedding table as float32.

    a block for each token; a thread has every `threads`-th column:
        y = weight(row, column) * factor

tokens    int32 [m]: rows of the table; a negative one stands for a token that could not be chosen,
          whose row of the step nobody reads
table     uint32 [n / 32, k / 32, stride] (see `backends/cuda/formats.py`)
y         float32 [m, k]
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import WeightFormat, tensor_shape
from mlc_llm.kernels.cuda.threads import SCHEDULED, block_size
from mlc_llm.kernels.cuda.tiles import weight


@cache
def embedding(n: int, k: int, fmt: WeightFormat, factor: float = 1.0) -> PrimFunc:
    """Kernel arguments: tokens, table (n rows), y. The rows are multiplied by `factor`."""
    shape, dtype = tensor_shape(fmt, n, k)
    threads = block_size(k)

    @T.prim_func(private=True)
    def packed_rows(tokens: T.handle, table: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        I = T.match_buffer(tokens, (m,), "int32")
        W = T.match_buffer(table, shape, dtype)
        Y = T.match_buffer(y, (m, k), "float32")
        T.device_entry()
        row = T.cta_id([m])
        thread = T.thread_id([threads])
        for i in T.serial(T.ceildiv(k, threads)):
            if i * threads + thread < k:
                Y[row, i * threads + thread] = weight(
                    fmt, W, T.max(I[row], 0), i * threads + thread
                ) * T.float32(factor)

    return packed_rows
