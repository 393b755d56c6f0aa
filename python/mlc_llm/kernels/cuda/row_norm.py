"""Norms of whole rows that are not the input of a product. A block for each row:

    norm_rows   x = x / sqrt(mean(x^2) + eps) * weight
    layer_rows  x = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
    add_norm    x = x + y / sqrt(mean(y^2) + eps) * weight

x, y      float32 [m, width]; x is changed in place
weight    float32 [width]; bias as well
"""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size, block_sum, grid

Way: TypeAlias = Literal["rms", "layer", "add"]


@cache
def row_norm(width: int, eps: float, way: Way = "rms", y_width: int = 0) -> PrimFunc:
    """Kernel of (y, weight, bias, x): y is there where it is added, a bias in a layer norm.

    y_width: of y's rows, if they are longer than those of x."""
    threads = block_size(width)
    turns, warps = -(-width // threads), threads // WARP
    own = y_width or width

    @T.prim_func(private=True)
    def norm_rows(y: T.handle, weight: T.handle, bias: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        Y = T.match_buffer(y, (m, own), "float32")
        N = T.match_buffer(weight, (width,), "float32")
        BIAS = T.match_buffer(bias, (width,), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        v = T.alloc_buffer((turns,), "float32", scope="local")
        mean = T.alloc_buffer((1,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((warps,), "float32", scope="shared")
        if row < m:
            mean[0] = T.float32(0)
            for i in T.unroll(turns):
                v[i] = T.float32(0)
                if i * threads + thread < width:
                    if way == "add":
                        v[i] = Y[row, i * threads + thread]
                    else:
                        v[i] = X[row, i * threads + thread]
                mean[0] = mean[0] + v[i]
            if way == "layer":
                block_sum(mean, thread, warps, scratch)
                mean[0] = mean[0] / T.float32(width)
            else:
                mean[0] = T.float32(0)
            total[0] = T.float32(0)
            for i in T.unroll(turns):
                if i * threads + thread < width:
                    v[i] = v[i] - mean[0]
                    total[0] = total[0] + v[i] * v[i]
            block_sum(total, thread, warps, scratch)
            total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(width) + T.float32(eps))
            for i in T.unroll(turns):
                column: T.let[T.int32] = i * threads + thread
                if column < width:
                    v[i] = v[i] * total[0] * N[column]
                    if way == "layer":
                        v[i] = v[i] + BIAS[column]
                    if way == "add":
                        v[i] = X[row, column] + v[i]
                    X[row, column] = v[i]

    unread = {"rms": ("Y", "BIAS"), "layer": ("Y",), "add": ("BIAS",)}
    return without(norm_rows, *unread[way])
