"""Numbers as two of bfloat16, which hold 16 of their bits, for products on AMX tiles.

    for row in rows of X:                             parallel, unless they are few
      v = what the kind makes of the row              `row_kinds.py`
      Y[row] = low part of v, high part of v

X, weight and bias: see `row_kinds.py`
Y      int32 [m + TILE_ROWS, k]
tiles  int32 [tiles, k/32, 2, TILE_ROWS, 16]  the same memory as AMX tiles: of 16 rows times a group
                                              of 32 columns the low parts, then the high ones. The
                                              last tiles may have rows that nobody has written.

Word i of a group holds columns i and i + 16 of it.
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS, L, round_pair, tiles_shape
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.quant_blocks import GROUP
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape
from mlc_llm.kernels.types import Expr, Index

LOW, HIGH = range(2)
"""Places of the parts of activations."""


@cache
def split_rows(kind: str, k: int, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kernel of (X, weight, bias, Y); kind and eps as in `activation.quantize`."""
    width = input_width(kind, k)

    @T.inline
    def one_row(given, tiles, row):
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        find_statistics(kind, given.x, row, k, eps, inv)
        for g in T.serial(k // GROUP):
            first: T.let[T.float32x16] = load(kind, given, row, g * GROUP, k, inv, L)
            second: T.let[T.float32x16] = load(kind, given, row, g * GROUP + L, k, inv, L)
            high: T.let[T.int32x16] = round_pair(first, second)
            at = T.meta_var((row // TILE_ROWS, g, row % TILE_ROWS))
            tiles[at[0], g, LOW, at[2], lanes_at(0, L)] = rest_of_pair(first, second, high)
            tiles[at[0], g, HIGH, at[2], lanes_at(0, L)] = high

    @T.prim_func(private=True, s_tir=True)
    def split_rows_of(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m + TILE_ROWS, k), "int32")
        with T.sblock("root"):
            tiles = T.decl_buffer(split_shape(m, k), "int32", data=Y.data, elem_offset=0)
            each_row(one_row, m, Given(X, N, BIAS), tiles)

    return without(split_rows_of, *KINDS[kind].unread)


def split_shape(m: Index, k: int) -> tuple[Index, ...]:
    """Shape of the tiles of m rows."""
    tiles, groups, *tile = tiles_shape(m, k)
    return tiles, groups, 2, *tile


def rest_of_pair(first: Expr, second: Expr, high: Expr) -> Expr:
    """What `round_pair(first, second)`, which is `high`, leaves of both, rounded in its turn."""
    rounded_first = T.shift_left(high, splat(T.int32(16), L))
    rounded_second = high & splat(T.int32(-0x10000), L)
    return round_pair(first - _floats(rounded_first), second - _floats(rounded_second))


def _floats(bits: Expr) -> Expr:
    """Floats of their bits."""
    return T.reinterpret(bits, dtype=f"float32x{L}")
