"""Exact products with fixed-point weights, on AMX tiles of bytes (`amx_pipeline.py`).

Weights become two planes of bytes, as activations are:

    C[0] = high plane of X * high plane of W
    C[1] = high plane of X * low plane of W + low plane of X * high plane of W
    C[2] = low plane of X * low plane of W
    exact = 65536 * C[0] + 256 * C[1] + C[2]              int64, for each quant block
    Y = sum over quant blocks of exact * (W.unit * X.scale)

X  int32 [m, row_width(k)]             quantised activations (`quant_blocks.py`)
W  int32 [n/32, k/group + 1, stride]   packed weights (`backends/cpu/formats.py`)
Y  float32 [m, n]                      the result
B  int32 [2, steps, 2, 16, 16]         tiles of the high plane, then of the low plane of W
C  int32 [3, 16, 16]                   the sums above

A row block is 16 rows, a weight block 16 rows of weights and a quant block, a step 64 columns.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_blocking import Blocking, Place, blocks_together
from mlc_llm.kernels.cpu.amx_pipeline import (
    AHEAD,
    AmxProduct,
    Buffers,
    Chunk,
    L,
    ask_for_word,
)
from mlc_llm.kernels.cpu.fixed_point_gemv import HALF, quant_block_sum
from mlc_llm.kernels.cpu.quant_blocks import (
    BLOCK_GROUPS,
    QUADS,
    quant_blocks,
    row_width,
    scales_start,
)
from mlc_llm.kernels.cpu.row_block import put
from mlc_llm.kernels.cpu.scales import MINIMA, SCALES, unit_at, whole_at
from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

LONG = 4096
"""Columns from which on too few whole rows fit into the second cache to unpack weights for them."""
MOST_BLOCKS = 16
"""Column blocks that a k block of such rows meets before the next one, at most."""


class ExactProduct(AmxProduct):
    """See `AmxProduct`."""

    def __init__(self, k: int, fmt: WeightFormat, accumulate: bool, blocks: int = 1) -> None:
        """blocks: column blocks of which a task may have some."""
        assert fmt.words == 4, "a word for each of the four products of a step"
        self.k, self.fmt, self.accumulate = k, fmt, accumulate
        self.x_row_bytes = 4 * row_width(k)
        self.groups, self.quant_blocks = k // fmt.group, quant_blocks(k)
        self.blocking = Blocking(
            groups=self.groups,
            k_block_groups=BLOCK_GROUPS,
            step_groups=2,
            row_tiles=1,
            vectors=1,
            sums=3,
            dtype="int32",
            row_words=row_width(k),
            task_blocks=blocks_together(blocks, MOST_BLOCKS) if k >= LONG else 1,
        )

    def multiply(self, x: Index, w: Index) -> Expr:
        """X tiles are the planes of the same rows, W tiles those of the same weights."""
        return amx.multiply(amx.SUMS + x + w, amx.X_TILES + x, amx.W_TILES + w)

    def first_row(self, chunk: Chunk, tile: Index) -> Index:
        """The last tile of all m rows may begin within the tile before."""
        return T.max(T.min(chunk.start + tile * ROWS, chunk.m - ROWS), 0)

    def x_tile(
        self, X: Buffer, chunk: Chunk, row_block: Expr, k_block: Expr, step: Expr, turn: Index,
        x: Index,
    ) -> Expr:  # fmt: skip
        """Plane x begins at word x * k / 4."""
        word = x * (self.k // 4) + (k_block * BLOCK_GROUPS + 2 * step) * QUADS
        return T.address_of(X[self.first_row(chunk, row_block), word])

    @T.inline
    def finish_row(self, buffers, place, row, partial, tile, r):
        """Row r of C: 16 sums of three kinds."""
        if place.k_block % self.quant_blocks < self.quant_blocks - 1:
            for h in T.unroll(2):
                buffers.F[partial, r, 0, lanes_at(h * HALF, HALF)] = self.added(
                    buffers, place, row, partial, r, h
                )
        else:
            for h in T.unroll(2):
                put(
                    *(buffers.Y, row, place.column + h * HALF),
                    *(self.added(buffers, place, row, partial, r, h), HALF, self.accumulate),
                )

    def added(
        self, buffers: Buffers, place: Place, row: Expr, partial: Index, r: Index, half: Index
    ) -> Expr:
        """Half of row r of F plus that of C, in units and scaled; row: its number in X."""
        known = zero = fsplat(0.0, HALF)
        if self.quant_blocks > 1:
            so_far = buffers.F[partial, r, 0, lanes_at(half * HALF, HALF)]
            known = T.Select(place.k_block == 0, zero, so_far)
        return quant_block_sum(
            known,
            _exact(buffers.C, r, half),
            unit_at(buffers.W, place.block, place.vector * L + half * HALF, HALF),
            buffers.X[row, scales_start(self.k) + place.k_block],
        )

    @T.inline
    def fill(self, W, B, side, place, group, part):
        """Word `part` of a group becomes two rows of both tiles."""
        self.fill_word(
            W, B, side, place.block, place.vector, group,
            *(place.k_block * BLOCK_GROUPS + group, part),
        )  # fmt: skip

    @T.inline
    def fill_word(self, W, B, side, block, v, g, group, j):
        """Word j of a group, which is group g of the quant block and two groups make a tile.

        Row `part` * words + j of a group in a tile has the values of its word j as `dot.py`
        describes it, a byte a value. Behind an odd last group the tile has zeros.
        """
        ask_for_word(W, block, group + AHEAD, j, self.fmt.words)
        for part in T.unroll(2):
            B[side, g // 2, 0, g % 2 * QUADS + part * self.fmt.words + j, lanes_at(0, L)] = (
                self.plane(W, block, group, v, j, part, 0)
            )
            B[side, g // 2, 1, g % 2 * QUADS + part * self.fmt.words + j, lanes_at(0, L)] = (
                self.plane(W, block, group, v, j, part, 1)
            )
        if self.groups % 2 == 1 and group + 1 == self.groups:
            for part in T.unroll(2):
                for plane in T.unroll(2):
                    B[side, g // 2, plane, QUADS + part * self.fmt.words + j, lanes_at(0, L)] = (
                        splat(T.int32(0), L)
                    )

    def plane(
        self, W: Buffer, block: Index, group: Index, v: Index, j: Index, part: Index, plane: int
    ) -> Expr:
        """The high (0) or low (1) plane of word j: a byte a value."""
        even, odd = (self.rounded(W, block, group, v, j, part, i) for i in range(2))
        low, high = splat(T.int32(0x00FF00FF), L), splat(T.int32(-0x00FF0100), L)
        if plane == 0:
            return (T.shift_right(even, splat(T.int32(8), L)) & low) | (odd & high)
        octets = (even & low) | (T.shift_left(odd, splat(T.int32(8), L)) & high)
        return octets ^ splat(T.int32(-0x7F7F7F80), L)

    def rounded(
        self, W: Buffer, block: Index, group: Index, v: Index, j: Index, part: Index, odd: int
    ) -> Expr:
        """The weights of bytes 0 and 2, or 1 and 3, of word j, plus half a step of the high
        byte."""
        word = W[block, group, lanes_at(j * BLOCK + v * L, L)]
        q = T.shift_right(word, splat(4 * part + 8 * odd, L)) & splat(T.int32(0x000F000F), L)
        scale = _twice(whole_at(self.fmt, W, block, group, SCALES, v, L))
        scaled = T.reinterpret(q, dtype="int16x32") * scale
        return T.reinterpret(scaled + self.shift(W, block, group, v), dtype=f"int32x{L}")

    def shift(self, W: Buffer, block: Index, group: Index, v: Index) -> Expr:
        """What is added to q * scale: minimum or offset, and half a step of the high byte."""
        half = splat(T.int16(128), 2 * L)
        if self.fmt.has_minimum:
            return half + _twice(whole_at(self.fmt, W, block, group, MINIMA, v, L))
        scale = _twice(whole_at(self.fmt, W, block, group, SCALES, v, L))
        return half - splat(T.int16(self.fmt.offset), 2 * L) * scale


def _exact(C: Buffer, r: Index, half: Index) -> Expr:
    """Half of row r of the sums, int64: what the three kinds of products count together. While
    tiles multiply, one unit does all work with floats, so there is none here."""
    at = lanes_at(half * HALF, HALF)
    high, middle, low = (T.cast(C[i, r, at], f"int64x{HALF}") for i in range(3))
    high = T.shift_left(high, splat(T.int64(16), HALF))
    return high + (T.shift_left(middle, splat(T.int64(8), HALF)) + low)


def _twice(integers: Expr) -> Expr:
    """16 lanes of 16 bits, each of them two times side by side."""
    wide = T.cast(T.reinterpret(integers, dtype=f"uint16x{L}"), f"int32x{L}")
    return T.reinterpret(wide | T.shift_left(wide, splat(T.int32(16), L)), dtype="int16x32")
