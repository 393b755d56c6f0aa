"""Rows of a packed embedding table as float32."""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.kernels.cpu.scales import minimum_of, scale_of
from mlc_llm.kernels.cpu.vectors import SCHEDULED


@cache
def embedding(n: int, k: int, fmt: WeightFormat, scale: float = 1.0) -> tvm.tirx.PrimFunc:
    """Arguments: tokens int32 [m], W (see `formats.py`, n rows), Y float32 [m, k]: the rows times
    `scale`."""
    return _float_rows(n, k, fmt, scale) if fmt.is_float else _packed_rows(n, k, fmt, scale)


def _packed_rows(n: int, k: int, fmt: WeightFormat, factor: float) -> tvm.tirx.PrimFunc:
    G, words, quads = k // fmt.group, fmt.words, fmt.group // 4
    shape, _ = tensor_shape(fmt, n, k)
    parts = 8 // fmt.bits
    mask = (1 << fmt.bits) - 1

    def value(word: Any, scale: Any, minimum: Any, part: Any, byte: Any) -> Any:
        q = T.bitwise_and(T.shift_right(word, byte * 8 + part * 4), T.int32(mask))
        if fmt.has_minimum:
            return T.cast(q, "float32") * scale + minimum
        return T.cast(q - T.int32(fmt.offset), "float32") * scale

    @T.prim_func(private=True, s_tir=True)
    def packed_rows(
        tokens: T.handle,
        W: T.Buffer(shape, "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        I = T.match_buffer(tokens, (m,), "int32")
        Y = T.match_buffer(y, (m, k), "float32")
        with T.sblock("root"):
            for row in T.serial(m):
                for g in T.serial(G):
                    for j in T.serial(words):
                        for part in T.unroll(parts):
                            for byte in T.unroll(4):
                                Y[row, g * fmt.group + quads * byte + part * words + j] = times(
                                    value(
                                        W[I[row] // BLOCK, g, j * BLOCK + I[row] % BLOCK],
                                        scale_of(fmt, W, I[row] // BLOCK, g, I[row] % BLOCK),
                                        minimum_of(fmt, W, I[row] // BLOCK, g, I[row] % BLOCK),
                                        part,
                                        byte,
                                    ),
                                    factor,
                                )

    return packed_rows


def times(value: Any, factor: float) -> Any:
    """value * factor; nothing is computed for a factor of 1."""
    return value if factor == 1.0 else value * T.float32(factor)


def _float_rows(n: int, k: int, fmt: WeightFormat, factor: float) -> tvm.tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def float_rows(
        tokens: T.handle, W: T.Buffer((n // BLOCK, k, BLOCK), f"float{fmt.bits}"), y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        I = T.match_buffer(tokens, (m,), "int32")
        Y = T.match_buffer(y, (m, k), "float32")
        with T.sblock("root"):
            for row in T.serial(m):
                for i in T.serial(k):
                    Y[row, i] = times(
                        T.cast(W[I[row] // BLOCK, i, I[row] % BLOCK], "float32"), factor
                    )

    return float_rows
