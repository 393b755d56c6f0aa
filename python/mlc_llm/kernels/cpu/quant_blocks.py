"""Activations for fixed-point weights: 16 bits, with one scale for a quant block of 1,024 columns.

    for row in rows of X:                             parallel, unless they are few
      for b in quant blocks of the row:
        v = what the kind makes of the columns of b   `row_kinds.py`
        scale = max |v| / LIMIT
        q = round(v / scale)
        Y[row] = planes of q, sums of q by group of 32, scale

X, weight and bias: see `row_kinds.py`
Y       int32 [m, row_width(k)], of each row:
        * the high plane of all its values, then the low plane, each group as in `dot.py`
        * the sum of each group of 32 values, from `sums_start` on
        * the float32 scale of each quant block, from `scales_start` on

A sum over a quant block is a whole number, so its order does not matter (`fixed_point.py`).
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.quantized_rows import LIMIT, magnitude, pack_plane, rounded
from mlc_llm.kernels.cpu.vectors import SCHEDULED, halved_sum, lanes_at, reduce_max, splat
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape

GROUP = 32
"""Columns whose integer sum the vector kernels take at once."""
BLOCK_GROUPS = 32
"""Groups of a quant block. Their exact sums fit 32 bits, a plane by a plane."""
QUADS = GROUP // 4
"""Words of a group and plane."""
_LINE_WORDS = 16


def quant_blocks(k: int) -> int:
    """Quant blocks of a row; the last one may be shorter."""
    return -(-k // (GROUP * BLOCK_GROUPS))


def sums_start(k: int) -> int:
    """Where the sums of the groups begin in a row."""
    return k // 2


def scales_start(k: int) -> int:
    """Where the scales of the quant blocks begin in a row."""
    return k // 2 + k // GROUP


def row_width(k: int) -> int:
    """32-bit words of a row.

    They are an odd number of cache lines, so that neighbouring rows do not fall on the same ways of
    a cache. An AMX tile that begins at the last group ends before the row does.
    """
    lines = -(-max(scales_start(k) + quant_blocks(k), k // 2 + QUADS) // _LINE_WORDS)
    return (lines | 1) * _LINE_WORDS


@cache
def quantize_blocks(kind: str, k: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kernel of (X, weight, bias, Y); kind and eps as in `activation.quantize`."""
    width, blocks = input_width(kind, k), QuantizedBlocks(kind, k, isa)

    @T.inline
    def one_row(given, Y, row):
        """Quantises a row."""
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        find_statistics(kind, given.x, row, k, eps, inv)
        blocks.quantize(given, Y, row, inv)

    @T.prim_func(private=True, s_tir=True)
    def quantize_row_blocks(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m, row_width(k)), "int32")
        with T.sblock("root"):
            each_row(one_row, m, Given(X, N, BIAS), Y)

    return without(quantize_row_blocks, *KINDS[kind].unread)


class QuantizedBlocks:
    """Statements that quantise the blocks of a row; inv: what `find_statistics` says of the row."""

    def __init__(self, kind: str, k: int, isa: Isa) -> None:
        self.kind, self.k, self.isa = kind, k, isa
        self.lane = lanes_at(0, QUADS)

    @T.inline
    def quantize(self, given, Y, row, inv):
        """All quant blocks of a row."""
        for block in T.serial(quant_blocks(self.k)):
            self.quantize_block(given, Y, row, block, inv)

    @T.inline
    def quantize_block(self, given, Y, row, block, inv):
        """Finds the scale of a quant block, then writes its groups."""
        scale = T.alloc_buffer((1,), "float32")
        step = T.alloc_buffer((1,), "float32")
        v = T.alloc_buffer((BLOCK_GROUPS, 4, QUADS), "float32")
        self.find_scale(given, Y, row, block, v, inv, scale, step)
        for g in T.serial(T.min(BLOCK_GROUPS, self.k // GROUP - block * BLOCK_GROUPS)):
            self.store_group(Y, row, block * BLOCK_GROUPS + g, v, g, step)

    @T.inline
    def find_scale(self, given, Y, row, block, v, inv, scale, step):
        """Loads a quant block to v and writes its scale; step[0] = 1 / scale[0] or 0."""
        top = T.alloc_buffer((QUADS,), "int32")
        top[self.lane] = splat(T.int32(0), QUADS)
        for g in T.serial(T.min(BLOCK_GROUPS, self.k // GROUP - block * BLOCK_GROUPS)):
            for i in T.unroll(4):
                v[g, i, self.lane] = load(
                    *(self.kind, given, row, (block * BLOCK_GROUPS + g) * GROUP + i * QUADS),
                    *(self.k, inv, QUADS),
                )
                top[self.lane] = T.max(top[self.lane], magnitude(v[g, i, self.lane], QUADS))
        scale[0] = T.reinterpret(reduce_max(top, QUADS), dtype="float32") * T.float32(1.0 / LIMIT)
        step[0] = T.if_then_else(scale[0] > T.float32(0), T.float32(1) / scale[0], T.float32(0))
        Y[row, scales_start(self.k) + block] = T.reinterpret(scale[0], dtype="int32")

    @T.inline
    def store_group(self, Y, row, group, v, place, step):
        """Writes the planes and the sum of group `group` of a row, which is v[place]."""
        q = T.alloc_buffer((GROUP,), "int32")
        all_lanes = T.meta_var(lanes_at(0, GROUP))
        for i in T.unroll(4):
            q[lanes_at(i * QUADS, QUADS)] = rounded(
                v[place, i, self.lane] * splat(step[0], QUADS), QUADS
            )
        Y[row, lanes_at(group * QUADS, QUADS)] = pack_plane(self.isa, q[all_lanes], 0, GROUP)
        Y[row, lanes_at(self.k // 4 + group * QUADS, QUADS)] = pack_plane(
            self.isa, q[all_lanes], 1, GROUP
        )
        Y[row, sums_start(self.k) + group] = halved_sum(q[all_lanes], GROUP, "int32")
