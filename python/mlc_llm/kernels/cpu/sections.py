"""Activations for fixed-point weights: 16 bits, with one scale for a section of 1,024 elements.

A sum over a section is a whole number then, whoever adds it up and in which order (`fixed.py`). A
row is int32 [sections_width(k)]:
* the high bytes of all its values, then the low bytes, each laid out as `dot.py` says
* the sum of each group of 32 values, then the float32 scale of each section
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.activation import (
    LIMIT,
    SERIAL_ROWS,
    input_width,
    inverse_rms,
    load,
    magnitude,
    pack_plane,
    rounded,
    weight_shape,
)
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, reduce_max, reduce_sum, splat

GROUP = 32
"""Elements whose integer sum the vector kernels take at once."""
SECTION = 32
"""Groups that share a scale. Their exact sums fit 32 bits, a plane by a plane."""
QUADS = GROUP // 4
_LINE = 16


def sections(k: int) -> int:
    """Sections of a row; the last may be shorter."""
    return -(-k // (GROUP * SECTION))


def sums_start(k: int) -> int:
    """Where the groups' sums begin in a row."""
    return k // 2


def scales_start(k: int) -> int:
    """Where the sections' scales begin in a row."""
    return k // 2 + k // GROUP


def sections_width(k: int) -> int:
    """32-bit words of a row: an odd number of cache lines, so that neighbouring rows do not fall
    on the same ways of a cache; a tile that begins at the last group ends before the row does."""
    lines = -(-max(scales_start(k) + sections(k), k // 2 + QUADS) // _LINE)
    return (lines | 1) * _LINE


@cache
def quantize_sections(kind: str, k: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kinds and arguments as those of `activation.quantize`."""
    width, section = input_width(kind, k), quantized_section(kind, k, isa)

    @T.prim_func(private=True, s_tir=True)
    def quantize_row_sections(x: T.handle, weight: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        Y = T.match_buffer(y, (m, sections_width(k)), "int32")

        @T.inline
        def one_row(row):
            inv = T.alloc_buffer((1,), "float32")
            if kind == "norm":
                inverse_rms(X, row, k, eps, inv)
            for s in T.serial(sections(k)):
                section(X, N, Y, row, s, inv)

        with T.sblock("root"):
            if m <= SERIAL_ROWS:
                for row in T.serial(m):
                    one_row(row)
            else:
                for row in T.parallel(m):
                    one_row(row)

    return quantize_row_sections


def quantized_section(kind: str, k: int, isa: Isa) -> Any:
    """Inline function of (X, N, Y, row, s, inv) that quantises section s of a row.

    X, N and Y are the arguments of `quantize_sections`, inv[0] what `inverse_rms` says of the row.
    """
    L, G = QUADS, k // GROUP
    lane, sums, scales = lanes_at(0, L), sums_start(k), scales_start(k)

    @T.inline
    def find_scale(X, N, Y, row, s, v, inv, scale, step):
        top = T.alloc_buffer((L,), "int32")
        top[lane] = splat(T.int32(0), L)
        for g in T.serial(T.min(SECTION, G - s * SECTION)):
            for i in T.unroll(4):
                v[g, i, lane] = load(kind, X, N, row, (s * SECTION + g) * GROUP + i * L, k, inv, L)
                top[lane] = T.max(top[lane], magnitude(v[g, i, lane], L))
        scale[0] = T.reinterpret(reduce_max(top, L), dtype="float32") * T.float32(1.0 / LIMIT)
        step[0] = T.if_then_else(scale[0] > T.float32(0), T.float32(1) / scale[0], T.float32(0))
        Y[row, scales + s] = T.reinterpret(scale[0], dtype="int32")

    @T.inline
    def store(Y, row, g, v, from_, step):
        q = T.alloc_buffer((4, L), "int32")
        total = T.alloc_buffer((L,), "int32")
        for i in T.unroll(4):
            q[i, lane] = rounded(v[from_, i, lane] * splat(step[0], L), L)
        total[lane] = q[0, lane] + q[1, lane] + q[2, lane] + q[3, lane]
        Y[row, lanes_at(g * L, L)] = pack_plane(isa, q, lane, 0, L)
        Y[row, lanes_at(k // 4 + g * L, L)] = pack_plane(isa, q, lane, 1, L)
        Y[row, sums + g] = reduce_sum(total, L)

    @T.inline
    def section(X, N, Y, row, s, inv):
        scale = T.alloc_buffer((1,), "float32")
        step = T.alloc_buffer((1,), "float32")
        v = T.alloc_buffer((SECTION, 4, L), "float32")
        find_scale(X, N, Y, row, s, v, inv, scale, step)
        for g in T.serial(T.min(SECTION, G - s * SECTION)):
            store(Y, row, s * SECTION + g, v, g, step)

    return section
