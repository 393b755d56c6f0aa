"""Products of a warp with tiles of a packed matrix, on tensor cores.

    for each tile of 32 rows and 32 columns of W: its values become float16, exactly
        for each 8 rows of x: for each of two planes:     mma.m16n8k16, W being the first operand
            acc += scale * (values . x)  [+ minimum * (sum of x)]

What tiles and rows of x are read from is up to the kernel. All kernels that multiply use these
statements in the same order of tiles, so that a number has the same bits in each of them.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from mlc_llm.backends.cuda.formats import (
    GROUP,
    PART_WORDS,
    UNIT_WORDS,
    WeightFormat,
)
from mlc_llm.kernels.cuda.planes import low_start, sum_start
from mlc_llm.kernels.cuda.tensor_cores import mma
from mlc_llm.kernels.cuda.tiles import byte_of, half_of, unit_at, word_at
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

COLUMNS = 8
"""Rows of x that the tensor cores multiply at once."""
SUMS = GROUP // 16
"""Sums of x for a tile."""
_TILE_WORDS = GROUP // 2
_FMA = "fma.rn.f16x2"
_ADD = "fma.rn.f32"
_SCALES = {"float16": 2, "float32": 4, "int8": 1}
"""Words of scales of a tile and group of columns that a thread reads."""


@record(eq=False)
class GlobalTile:
    """A tile of a packed matrix where it lies."""

    fmt: WeightFormat
    table: Buffer
    block: Expr
    tile: Expr

    def word(self, i: Index) -> Expr:
        """Word i of the tile."""
        return word_at(self.fmt, self.table, self.block, self.tile, i)

    def unit(self, i: Index) -> Expr:
        """Word i of the units of its span."""
        return unit_at(self.fmt, self.table, self.block, self.tile, i)


@record(eq=False)
class SharedTile:
    """A copy of a tile in shared memory, behind the units of its span."""

    fmt: WeightFormat
    memory: Buffer
    start: Expr

    def word(self, i: Index) -> Expr:
        """As `GlobalTile`."""
        return self.memory[self.start + self.fmt.unit_words + i]

    def unit(self, i: Index) -> Expr:
        """As `GlobalTile`."""
        return self.memory[self.start + i]


@record(eq=False)
class GlobalRows:
    """Rows of x where they lie, from `first` on, and how many of them there are (`end` of all).
    tokens: which rows of x they are; None: they lie side by side. fast: of so many of the first
    rows of x the high plane is read alone; None: of none. skipped: so many of the first rows of x
    get no result."""

    x: Buffer
    k: int
    first: Expr
    end: Expr
    tokens: Buffer | None = None
    fast: Expr | None = None
    skipped: Expr | int = 0

    def is_exact(self, i: Index) -> Expr | bool:
        """Whether the low plane of row i is read."""
        return True if self.fast is None else T.Not(self.first + i < self.fast)

    def is_there(self, i: Index) -> Expr:
        """Whether there is a row i behind the first one."""
        return T.Not(self.first + i >= self.end)

    def is_wanted(self, i: Index) -> Expr:
        """Whether row i is there and gets a result."""
        return T.And(self.is_there(i), T.Not(self.first + i < self.skipped))

    def row(self, i: Index) -> Expr:
        """The number of a row of x."""
        return self.first + i if self.tokens is None else self.tokens[self.first + i]

    def word(self, i: Index, plane: Index, tile: Expr, at: Index) -> Expr:
        """A word of the columns of a tile in a plane."""
        return self.x[self.row(i), plane * low_start(self.k) + tile * _TILE_WORDS + at]

    def sum(self, i: Index, tile: Expr, group: Index) -> Expr:
        """A sum of 16 columns of a tile."""
        bits = self.x[self.row(i), sum_start(self.k) + tile * SUMS + group]
        return T.reinterpret(bits, dtype="float32")


@record(eq=False)
class SharedRows:
    """Copies of the columns of a tile in shared memory: of `count` rows the high plane, the low
    one, and the sums. The rows of a warp begin with `first`. Rows that are not there are zeros.
    fast: of so many of the first rows the high plane is read alone; None: of none. planes: that
    were copied; with 1 there is no low one."""

    memory: Buffer
    start: Expr
    count: int
    first: Expr
    fast: Expr | None = None
    planes: int = 2

    def is_exact(self, i: Index) -> Expr | bool:
        """As `GlobalRows`."""
        return True if self.fast is None else T.Not(self.first + i < self.fast)

    def is_there(self, i: Index) -> Expr:
        """As `GlobalRows`."""
        return T.Not(self.first + i < 0)

    def word(self, i: Index, plane: Index, tile: Expr, at: Index) -> Expr:
        """As `GlobalRows`."""
        row = plane * self.count + self.first + i
        return self.memory[self.start + row * _TILE_WORDS + at]

    def sum(self, i: Index, tile: Expr, group: Index) -> Expr:
        """As `GlobalRows`."""
        start = self.start + self.planes * self.count * _TILE_WORDS
        return T.reinterpret(self.memory[start + (self.first + i) * SUMS + group], dtype="float32")


def _moved(word: Expr, down: int) -> Expr:
    """A word, so many bits further down, or up if that is negative."""
    if down < 0:
        return T.shift_left(word, T.uint32(-down))
    return T.shift_right(word, T.uint32(down)) if down else word


def _field(word: Expr, mask: int) -> Expr:
    """Some bits of both halves of a word."""
    return T.bitwise_and(word, T.uint32(mask * 0x10001))


def _pair(number: float) -> Expr:
    """The float16 of a number, twice in a word."""
    return T.uint32(np.float16(number).view(np.uint16).item() * 0x10001)


class TileProduct:
    """Statements of products. acc: of each 8 rows of x the numbers that a thread has of two results
    of mma, as "Matrix Fragments for mma.m16n8k16" says: rows g and g + 8 of both halves of a
    tile."""

    def __init__(self, fmt: WeightFormat, planes: int = 2) -> None:
        """planes: of x, that are multiplied; with 1 the low one is left out."""
        self.fmt, self.planes = fmt, planes
        self.words = fmt.parts * 4 + fmt.high_bits
        self.scales = fmt.kinds * (fmt.groups * _SCALES[fmt.scales] + 2 * int(fmt.has_units))
        self.factors = fmt.kinds * fmt.groups * 4

    @T.inline
    def load(self, source, lane, words, of_words, scales, of_scales):
        """What a thread reads of a tile."""
        several = T.meta_var(_SCALES[self.fmt.scales])
        for part in T.unroll(self.fmt.parts):
            for j in T.vectorized(4):
                words[of_words + part * 4 + j] = source.word(part * PART_WORDS + lane * 4 + j)
        if self.fmt.high_bits > 0:
            for j in T.vectorized(self.fmt.high_bits):
                words[of_words + self.fmt.parts * 4 + j] = source.word(
                    self.fmt.high_start + lane * self.fmt.high_bits + j
                )
        for group in T.unroll(self.fmt.kinds * self.fmt.groups):
            for j in T.vectorized(several):
                scales[of_scales + group * several + j] = source.word(
                    self.fmt.scale_start + group * self.fmt.scale_words + lane // 4 * several + j
                )
        if self.fmt.has_units:
            for kind in T.unroll(self.fmt.kinds):
                for j in T.vectorized(2):
                    scales[
                        of_scales + self.fmt.kinds * self.fmt.groups * several + kind * 2 + j
                    ] = source.unit(kind * UNIT_WORDS + lane // 4 * 2 + j)

    @T.inline
    def find_factors(self, scales, at, factors):
        """factors: scales, then minima; of each group of columns those of rows g, g + 8, g + 16
        and g + 24."""
        for kind in T.unroll(self.fmt.kinds):
            for group in T.unroll(self.fmt.groups):
                for row in T.unroll(4):
                    factors[(kind * self.fmt.groups + group) * 4 + row] = self.scale(
                        scales, at, kind, group, row
                    )

    def scale(self, scales: Buffer, at: Index, kind: Index, group: Index, row: Index) -> Expr:
        """float32: a scale, or a minimum, of a row; half and h are row // 2 and row % 2."""
        several, groups = _SCALES[self.fmt.scales], self.fmt.groups
        first = at + (kind * groups + group) * several
        if self.fmt.scales == "float32":
            return T.reinterpret(scales[first + row], dtype="float32")
        if self.fmt.scales == "float16":
            return half_of(scales[first + row // 2], row % 2)
        unit = scales[at + self.fmt.kinds * groups * several + kind * 2 + row // 2]
        return byte_of(scales[first], row) * half_of(unit, row % 2)

    @T.inline
    def unpack_tile(self, words, start, plane, a):
        """a: the values of a thread, of one plane of a tile of floats."""
        if self.fmt.is_float:
            for i in T.unroll(16):
                a[i] = words[start + plane * 16 + i]
        else:
            self.unpack(words, start, 0, a)

    @T.inline
    def unpack(self, words, start, at, a):
        """a[at:]: two values each, less the offset, as float16. at: 8 * half + 4 * step + 2 * pair
        + h, as `formats.py` says.

        In float16 the bits 0x6400 are 1,024, and the last bit is 1: a value put below them is added
        to that, or 16 times it if it is put 4 bits higher.
        """
        if self.fmt.float8:
            T.ptx[_FMA](a[at], self.float8(words, start, at), _pair(256), T.uint32(0))
        else:
            factor = T.meta_var(1 if at % 2 == 0 or self.fmt.bits == 8 else 16)
            T.ptx[_FMA](
                *(a[at], self.with_1024(words, start, at)),
                *(_pair(1 / factor), _pair(-1024.0 / factor - self.fmt.offset)),
            )
        if at < 15:
            self.unpack(words, start, at + 1, a)

    def with_1024(self, words: Buffer, start: Index, at: int) -> Expr:
        """A pair of values below the bits of 1,024."""
        if self.fmt.bits == 8:
            bits = self._bytes(words, start, at)
        else:
            pair, h = at // 2 % 2, at % 2
            bits = _field(_moved(words[start + at // 4], 8 * pair), 0xF * 16**h)
        if self.fmt.high_bits:
            bits = T.bitwise_or(bits, self._above(words, start, at))
        return T.bitwise_or(bits, T.uint32(0x64006400))

    def _bytes(self, words: Buffer, start: Index, at: int) -> Expr:
        """A byte in each half of a word."""
        pair, h = at // 2 % 2, at % 2
        return _field(_moved(words[start + at // 4 + 4 * pair], 8 * h), 0xFF)

    def _above(self, words: Buffer, start: Index, at: int) -> Expr:
        """The bits above the low four of both values, where they belong."""
        several, wanted = self.fmt.high_bits, 4 + 4 * (at % 2)
        first = start + self.fmt.parts * 4
        word, place = (words[first], at) if several == 1 else (words[first + at // 8], at % 8 * 2)
        return _field(_moved(word, place - wanted), ((1 << several) - 1) << wanted)

    def float8(self, words: Buffer, start: Index, at: int) -> Expr:
        """A pair of 8-bit floats as float16, times 2^-8, because the exponent of the same number is
        8 higher there."""
        word = self._bytes(words, start, at)
        return T.bitwise_or(_moved(_field(word, 0x80), -8), _moved(_field(word, 0x7F), -7))

    @T.inline
    def add_tile(self, rows, i, tile, lane, a, factors, acc, at):
        """acc[at:at + 8]: with the products of a tile and 8 rows of x from i on.

        Zeros stand for a low plane that is not read: they change no bit of a sum."""
        b = T.alloc_buffer((8,), "uint32", scope="local")
        d = T.alloc_buffer((8,), "float32", scope="local")
        for j in T.unroll(8):
            b[j] = T.uint32(0)
        if rows.is_there(i + lane // 4):
            self.read_rows(rows, i + lane // 4, 0, tile, lane, b)
            if self.planes == 2:
                if rows.fast is None or rows.is_exact(i + lane // 4):
                    self.read_rows(rows, i + lane // 4, 1, tile, lane, b)
        for group in T.unroll(self.fmt.groups):
            for j in T.unroll(8):
                d[j] = T.float32(0)
            self.multiply(a, b, 0, group, d)
            if self.planes == 2:
                if rows.fast is None or rows.is_exact(i + COLUMNS - 1):
                    self.multiply(a, b, 1, group, d)
            for j in T.unroll(8):
                T.ptx[_ADD](acc[at + j], d[j], factors[group * 4 + j // 2], acc[at + j])
        if self.fmt.has_minimum:
            self.add_minima(rows, i, tile, lane, factors, acc, at)

    @T.inline
    def read_rows(self, rows, i, plane, tile, lane, b):
        """b: what a thread gives of a plane of row i."""
        if self.fmt.groups == 1:
            for j in T.vectorized(4):
                b[plane * 4 + j] = rows.word(i, plane, tile, lane % 4 * 4 + j)
        else:
            for step in T.unroll(2):
                for j in T.vectorized(2):
                    b[plane * 4 + step * 2 + j] = rows.word(
                        i, plane, tile, step * 8 + lane % 4 * 2 + j
                    )

    @T.inline
    def multiply(self, a, b, plane, group, d):
        """d: with the products of a plane and a group of columns."""
        for one in T.unroll(2 // self.fmt.groups):
            step = T.meta_var(group if self.fmt.groups == 2 else one)
            for half in T.unroll(2):
                mma(d, half * 4, a, (half * 2 + step) * 4, b, plane * 4 + step * 2)

    @T.inline
    def add_minima(self, rows, i, tile, lane, factors, acc, at):
        """acc[at:at + 8]: with the minima of a tile times the sums of its columns of x."""
        total = T.alloc_buffer((4,), "float32", scope="local")
        for c in T.unroll(2):
            for group in T.unroll(2):
                total[group * 2 + c] = T.float32(0)
                if rows.is_there(i + lane % 4 * 2 + c):
                    total[group * 2 + c] = rows.sum(i + lane % 4 * 2 + c, tile, group)
            if self.fmt.groups == 1:
                total[c] = total[c] + total[2 + c]
        for group in T.unroll(self.fmt.groups):
            for j in T.unroll(8):
                T.ptx[_ADD](
                    *(acc[at + j], total[group * 2 + j % 2]),
                    *(factors[(self.fmt.groups + group) * 4 + j // 2], acc[at + j]),
                )
