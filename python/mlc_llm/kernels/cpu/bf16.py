"""Activations as bfloat16, for fast rows with AMX.

    for row in rows of X:                             parallel, unless they are few
      v = what the kind makes of the row              `row_kinds.py`
      tiles[row] = v as bfloat16                      row < fast_rows[0]
      Y[row + TILE_ROWS] = v quantised                the other rows: for fixed-point weights as in
                                                      `quant_blocks.py`, else as in `activation.py`

X, weight and bias: see `row_kinds.py`
fast_rows  int32 [1]                   number of the first rows that are fast
Y          int32 [m + TILE_ROWS, row_width(k)], or [m + TILE_ROWS, k/group, group/2 + 6]
tiles      int32 [tiles, k/32, TILE_ROWS, 16]  the same memory as AMX tiles: 16 rows times a group
                                       of 32 columns. A tile is read from end to end, so the next
                                       one is in the first cache when it is wanted. The last tile
                                       may have rows that nobody has written.

Word i of a group holds columns i and i + 16 of it, because the nibbles of a word of weights come
out two at a time in this order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.quant_blocks import GROUP, QuantizedBlocks, row_width
from mlc_llm.kernels.cpu.quantized_rows import QuantizedRows, quantized_width
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape
from mlc_llm.kernels.types import Expr, Index

L = GROUP // 2
"""Words of a group of bfloat16."""
TILE_ROWS = ROWS
"""Rows of a tile. Exact rows lie so many rows later than they would, behind all tiles."""


@cache
def prepare_fast(kind: str, k: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kernel of (X, weight, bias, fast_rows, Y) for weights in fixed point; kind and eps as in
    `activation.quantize`."""
    blocks = QuantizedBlocks(kind, k, isa)

    @T.inline
    def quantize(given, Y, row):
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        find_statistics(kind, given.x, row, k, eps, inv)
        blocks.quantize(given, Y, row, inv)

    return _prepared(kind, k, eps, (row_width(k),), quantize)


@cache
def prepare_fast_integers(
    kind: str, k: int, group: int, isa: Isa, eps: float = 0.0
) -> tvm.tirx.PrimFunc:
    """The same for packed integers."""
    rows = QuantizedRows(kind, k, group, isa, eps)
    return _prepared(kind, k, eps, (k // group, quantized_width(group)), rows.quantize)


def _prepared(
    kind: str, k: int, eps: float, inner: tuple[int, ...], quantize: Callable[..., None]
) -> tvm.tirx.PrimFunc:
    """inner: the shape of a row of Y. quantize: statements that write an exact row."""
    width = input_width(kind, k)

    @T.inline
    def round_row(given, tiles, row):
        """Writes a fast row."""
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        find_statistics(kind, given.x, row, k, eps, inv)
        for g in T.serial(k // GROUP):
            tiles[row // TILE_ROWS, g, row % TILE_ROWS, lanes_at(0, L)] = round_pair(
                load(kind, given, row, g * GROUP, k, inv, L),
                load(kind, given, row, g * GROUP + L, k, inv, L),
            )

    @T.inline
    def one_row(given, fast_rows, Y, tiles, row):
        """Rounds or quantises a row."""
        if row < fast_rows[0]:
            round_row(given, tiles, row)
        else:
            quantize(given, Y, row)

    @T.prim_func(private=True, s_tir=True)
    def prepare_fast_and_exact(
        x: T.handle,
        weight: T.handle,
        bias: T.handle,
        fast_rows: T.Buffer((1,), "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m + TILE_ROWS, *inner), "int32")
        with T.sblock("root"):
            exact = T.decl_buffer(
                (m, *inner), "int32", data=Y.data, elem_offset=TILE_ROWS * math.prod(inner)
            )
            tiles = T.decl_buffer(tiles_shape(m, k), "int32", data=Y.data, elem_offset=0)
            each_row(one_row, m, Given(X, N, BIAS), fast_rows, exact, tiles)

    return without(prepare_fast_and_exact, *KINDS[kind].unread)


def tiles_shape(m: Index, k: int) -> tuple[Index, ...]:
    """Shape of the tiles of m rows."""
    return T.ceildiv(m, TILE_ROWS), k // GROUP, TILE_ROWS, L


def round_pair(low: Expr, high: Expr) -> Expr:
    """Two vectors of floats as bfloat16 in the low and high halves of words; ties go outwards."""
    low = T.shift_right(_half_more(low), splat(T.int32(16), L))
    return (low & splat(T.int32(0xFFFF), L)) | (_half_more(high) & splat(T.int32(-0x10000), L))


def _half_more(x: Expr) -> Expr:
    """Bits of floats plus half a step of their upper half."""
    return T.reinterpret(x, dtype=f"int32x{L}") + splat(T.int32(0x8000), L)
