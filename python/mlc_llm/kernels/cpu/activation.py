"""Prepares the input of a matrix: a norm or an activation, then quantisation to 16 bits.

    for row in rows of X:                             parallel, unless they are few
      for stretch in stretches of the columns:
        for g in groups of the stretch:
          v[g] = what the kind makes of X[row, g]     `row_kinds.py`
          top[g] = max |v[g]|
        scale = top / LIMIT                           of all its groups at once
        for g in groups of the stretch:
          q = round(v[g] / scale[g])
          Y[row, g] = planes of q; scale[g], sum of q, scale[g] * sum of q

Each of these loops has short chains of instructions, so that a processor works on several groups at
a time: with one loop it waited for maxima and quotients.

X, weight and bias: see `row_kinds.py`; most kinds have no bias
Y       int32 [m, k/group, group/2 + 6] for integer kernels (`quantize`), of each group:
        * group/2 words, two planes of 16-bit values in the order of `dot.py`
        * SCALE, SUM and SCALED_SUM: the bits of the float32 scale (value = scale * integer); the
          sum of the integers, for weights with an offset; the bits of scale * sum, for weights
          with a minimum
        * the same three of the rounded high plane alone, where the planes are bytes
        float32 [m, k] for float kernels (`floats`), which holds v
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.dot import Words
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, halved_sum, lanes_at, reduce_max, splat
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape
from mlc_llm.kernels.types import Buffer, Expr, Index

SERIAL_ROWS = 2
"""Up to here a thread-pool launch costs more than the rows."""
LIMIT = 32512
"""Largest 16-bit activation: its high byte, rounded, still fits a signed byte."""
SCALE, SUM, SCALED_SUM = range(3)
"""The words that describe a group, or the high plane of one."""
DESCRIPTION = 3
"""How many they are."""

STRETCH, SCALES = 128, 4
"""Columns of a stretch (they stay in the first cache, and on the stack), and scales that are
found at once."""
PART, NORM_PART, MOST_PARTS = 256, 512, 16
"""Columns of a part of a row, of one whose norm is looked for, and parts at most."""


class Source(NamedTuple):
    """Of which rows a product makes what it reads: their kind; eps belongs to a norm."""

    kind: str
    eps: float


@cache
def quantize(kind: str, k: int, group: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kernel of (X, weight, bias, Y) for integer kernels; eps: of a norm."""
    width, rows = input_width(kind, k), QuantizedRows(kind, k, group, isa, eps)

    @T.prim_func(private=True, s_tir=True)
    def quantize_rows(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m, k // group, quantized_width(group)), "int32")
        with T.sblock("root"):
            each_row(rows.quantize, m, Given(X, N, BIAS), Y)

    return without(quantize_rows, *KINDS[kind].unread)


def quantized_width(group: int) -> int:
    """32-bit words of a quantised group: its values, then two descriptions."""
    return group // 2 + 2 * DESCRIPTION


def description(X: Buffer, row: Index, group: Index, size: int, is_high: bool) -> Words:
    """The words that describe a group (of `size` columns) of quantised rows, or its high plane."""
    start = size // 2 + (DESCRIPTION if is_high else 0)
    return lambda word: X[row, group, start + word]


@cache
def floats(kind: str, k: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kernel of (X, weight, bias, Y) for float kernels. k is a multiple of 8."""
    L, width = 8, input_width(kind, k)

    @T.inline
    def one_row(given, Y, row):
        """What the kind makes of a row."""
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        find_statistics(kind, given.x, row, k, eps, inv)
        for i in T.serial(k // L):
            Y[row, lanes_at(i * L, L)] = load(kind, given, row, i * L, k, inv, L)

    @T.prim_func(private=True, s_tir=True)
    def float_rows(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m, k), "float32")
        with T.sblock("root"):
            each_row(one_row, m, Given(X, N, BIAS), Y)

    return without(float_rows, *KINDS[kind].unread)


@T.inline
def each_row(compute, m, *buffers):
    """compute(*buffers, row) for all m rows, in parallel unless they are few."""
    if m <= SERIAL_ROWS:
        for row in T.serial(m):
            compute(*buffers, row)
    else:
        for row in T.parallel(m):
            compute(*buffers, row)


@T.inline
def set_scale(top, lanes, scale, step):
    """scale[0] = the largest magnitude in `top` / LIMIT; step[0] = 1 / scale[0], or 0 for zeros."""
    scale[0] = T.reinterpret(reduce_max(top, lanes), dtype="float32") * T.float32(1.0 / LIMIT)
    step[0] = T.if_then_else(scale[0] > T.float32(0), T.float32(1) / scale[0], T.float32(0))


@T.inline
def _describe(Y, row, g, start, scale, total):
    """Writes SCALE, SUM and SCALED_SUM of group g from word `start` on."""
    Y[row, g, start + SCALE] = T.reinterpret(scale, dtype="int32")
    Y[row, g, start + SUM] = total
    Y[row, g, start + SCALED_SUM] = T.reinterpret(
        T.cast(Y[row, g, start + SUM], "float32") * scale, dtype="int32"
    )


def magnitude(x: Expr, lanes: int) -> Expr:
    """Bits of |x|. They order as integers do, with NaN above all, so a maximum keeps each NaN."""
    return T.reinterpret(T.abs(x), dtype=f"int32x{lanes}")


def high_bytes(q: Expr, lanes: int) -> Expr:
    """The high bytes of 16-bit integers, rounded so that the low bytes are signed."""
    return T.shift_right(q + splat(T.int32(128), lanes), splat(T.int32(8), lanes))


def rounded(x: Expr, lanes: int) -> Expr:
    """The nearest integers; of two that are as near the even one."""
    return T.cast(T.nearbyint(x), f"int32x{lanes}")


def pack_plane(isa: Isa, integers: Buffer, lane: Expr, plane: int, lanes: int) -> Expr:
    """The words of a plane; integers: [4, lanes], a vector for each byte of a word."""
    q = [integers[i, lane] for i in range(4)]

    def put(value: Expr, mask: int, shift: int) -> Expr:
        """The bits of `mask`, moved to their place in a word."""
        part = value & splat(T.int32(mask), lanes)
        return part if shift == 0 else T.shift_left(part, splat(T.int32(shift), lanes))

    if isa.sums == 1:
        return put(q[plane], 0xFFFF, 0) | put(q[plane + 2], 0xFFFF, 16)
    if plane == 0:
        q = [high_bytes(v, lanes) for v in q]
    return put(q[0], 255, 0) | put(q[1], 255, 8) | put(q[2], 255, 16) | put(q[3], 255, 24)


class QuantizedRows:
    """Statements of `quantize`. A group is four vectors, one for each byte of a word."""

    def __init__(self, kind: str, k: int, group: int, isa: Isa, eps: float) -> None:
        self.kind, self.k, self.group, self.isa, self.eps = kind, k, group, isa, eps
        self.lanes = group // 4
        self.lane = lanes_at(0, self.lanes)
        self.wide = min(isa.lanes, group)
        self.together = max(1, STRETCH // group)

    @T.inline
    def quantize(self, given, Y, row):
        """One row."""
        self.quantize_groups(given, Y, row, 0, self.k // self.group)

    @T.inline
    def quantize_groups(self, given, Y, row, first, count):
        """`count` groups of a row, from number `first` on."""
        inv = T.alloc_buffer((KINDS[self.kind].statistics,), "float32")
        v = T.alloc_buffer((self.together, self.group), "float32")
        top = T.alloc_buffer((self.together,), "int32")
        scale = T.alloc_buffer((self.together,), "float32")
        step = T.alloc_buffer((self.together,), "float32")
        find_statistics(self.kind, given.x, row, self.k, self.eps, inv)
        for stretch in T.serial(T.ceildiv(count, self.together)):
            start = T.meta_var(stretch * self.together)
            for i in T.serial(T.min(self.together, count - start)):
                self.load_group(given, row, first + start + i, inv, v, i, top)
            self.find_scales(top, scale, step)
            for i in T.serial(T.min(self.together, count - start)):
                self.store_group(Y, row, first + start + i, v, i, scale, step)

    @T.inline
    def load_group(self, given, row, g, inv, v, i, top):
        """Loads group g to v[i]; top[i]: the bits of its largest magnitude."""
        most = T.alloc_buffer((self.wide,), "int32")
        all_lanes = T.meta_var(lanes_at(0, self.wide))
        for j in T.unroll(self.group // self.wide):
            lanes = T.meta_var(lanes_at(j * self.wide, self.wide))
            v[i, lanes] = load(
                *(self.kind, given, row, g * self.group + j * self.wide),
                *(self.k, inv, self.wide),
            )
            if j == 0:
                most[all_lanes] = magnitude(v[i, lanes], self.wide)
            else:
                most[all_lanes] = T.max(most[all_lanes], magnitude(v[i, lanes], self.wide))
        top[i] = reduce_max(most, self.wide)

    @T.inline
    def find_scales(self, top, scale, step):
        """The scales of all groups of a stretch; step: 1 / scale, or 0 for zeros."""
        for at in T.unroll(-(-self.together // SCALES)):
            lanes = T.meta_var(min(SCALES, self.together))
            here = T.meta_var(lanes_at(at * lanes, lanes))
            scale[here] = T.reinterpret(top[here], dtype=f"float32x{lanes}") * fsplat(
                1.0 / LIMIT, lanes
            )
            step[here] = T.Select(
                scale[here] > fsplat(0.0, lanes), fsplat(1.0, lanes) / scale[here], fsplat(0.0, lanes)
            )

    @T.inline
    def store_group(self, Y, row, g, v, i, scale, step):
        """Rounds v[i] and writes it as group g."""
        q = T.alloc_buffer((4, self.lanes), "int32")
        total = T.alloc_buffer((self.lanes,), "int32")
        self.store_planes(Y, row, g, v, i, q, total, scale[i], step[i])
        if self.isa.sums == 2:
            self.describe_high_plane(Y, row, g, q, total, scale[i])

    @T.inline
    def store_planes(self, Y, row, g, v, i, q, total, scale, step):
        """Rounds v[i] to integers q; writes their planes and describes them."""
        for part in T.unroll(4):
            q[part, self.lane] = rounded(
                v[i, lanes_at(part * self.lanes, self.lanes)] * splat(step, self.lanes), self.lanes
            )
        total[self.lane] = q[0, self.lane] + q[1, self.lane] + q[2, self.lane] + q[3, self.lane]
        Y[row, g, self.lane] = pack_plane(self.isa, q, self.lane, 0, self.lanes)
        Y[row, g, lanes_at(self.lanes, self.lanes)] = pack_plane(
            self.isa, q, self.lane, 1, self.lanes
        )
        _describe(Y, row, g, 2 * self.lanes, scale, halved_sum(total[self.lane], self.lanes, "int32"))

    @T.inline
    def describe_high_plane(self, Y, row, g, q, total, scale):
        """Describes the high plane of the integers q, which are overwritten."""
        for i in T.unroll(4):
            q[i, self.lane] = high_bytes(q[i, self.lane], self.lanes)
        total[self.lane] = q[0, self.lane] + q[1, self.lane] + q[2, self.lane] + q[3, self.lane]
        _describe(
            *(Y, row, g, 2 * self.lanes + DESCRIPTION),
            *(scale * T.float32(256), halved_sum(total[self.lane], self.lanes, "int32")),
        )


class SharedRows(QuantizedRows):
    """The same within a launch: few rows are cut into parts, so that all threads have some."""

    @property
    def parts(self) -> int:
        """Parts of a row. Each looks for the statistics of a norm anew."""
        per = NORM_PART if KINDS[self.kind].norm else PART
        return max(1, min(self.k // per, MOST_PARTS))

    @T.inline
    def quantize_all(self, given, Y, m):
        """All m rows, on the threads of a launch."""
        parts: T.let[T.int32] = T.if_then_else(m < MOST_PARTS, self.parts, 1)
        groups: T.let[T.int32] = T.ceildiv(self.k // self.group, parts)
        for u in T.parallel(m * parts):
            first = T.meta_var(u % parts * groups)
            self.quantize_groups(
                *(given, Y, u // parts, first),
                T.min(groups, self.k // self.group - first),
            )
