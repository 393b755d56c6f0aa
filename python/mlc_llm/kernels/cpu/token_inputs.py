"""What layers read of a token beside the residual stream (Gemma 3n, 2025).

    in parallel, for each token, for each layer:
        part = context[token, layer] / sqrt(mean(context[token, layer]^2) + eps) * weight
        embedded[token, layer] = (embedded[token, layer] + part) / sqrt(2)

context   float32 [m, padded]: layers * width columns, which may be padded
weight    float32 [width]
embedded  float32 [m, layers * width], changed in place
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.head_norm import find_inverse
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat

L = 8


@cache
def token_inputs(layers: int, width: int, padded: int, eps: float) -> PrimFunc:
    """Kernel arguments: context, weight, embedded. width is a multiple of L."""

    @T.inline
    def one_row(context, weight, embedded, row):
        """The inputs of all layers by one token."""
        inverse = T.alloc_buffer((1,), "float32")
        for layer in T.serial(layers):
            find_inverse(context, row, layer * width, width, eps, inverse)
            for i in T.serial(width // L):
                at = T.meta_var(lanes_at(layer * width + i * L, L))
                embedded[row, at] = (
                    embedded[row, at]
                    + context[row, at] * splat(inverse[0], L) * weight[lanes_at(i * L, L)]
                ) * fsplat(0.5**0.5, L)

    @T.prim_func(private=True, s_tir=True)
    def add_context(context: T.handle, weight: T.handle, embedded: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        C = T.match_buffer(context, (m, padded), "float32")
        W = T.match_buffer(weight, (width,), "float32")
        E = T.match_buffer(embedded, (m, layers * width), "float32")
        with T.sblock("root"):
            each_row(one_row, m, C, W, E)

    return add_context
