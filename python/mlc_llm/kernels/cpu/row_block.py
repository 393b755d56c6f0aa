"""Row blocks on vectors: some rows of activations times one column block of weights, or several.

Sums are [rows, vectors of a column block, lanes] and stay in registers. Of several column blocks
those of the first come first, then those of the second.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm import DataType
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.types import Expr, Index
from mlc_llm.record import record

PREFETCH_BYTES = 10240
"""How far ahead weights are asked for, all streams together: the hardware's own prefetching stops
at each 4 KiB."""
LINE_WORDS = LINE_BYTES // 4


class RowBlock(NamedTuple):
    """Rows `row` to `row + rows`, and column blocks `block`, `block + apart`, ... (`streams`)."""

    block: Index
    streams: int
    row: Index
    rows: int

    @property
    def sums(self) -> int:
        """Rows of sums: row r of stream s has number s * rows + r."""
        return self.streams * self.rows


@record(eq=False)
class Turn:
    """The place of a row block among those of its task, which ask the memory in turns."""

    block: Index
    """The column block of the task."""
    number: Index
    count: Index
    """Row blocks of the task."""


def words_ahead(fmt: WeightFormat, streams: int) -> int:
    """How many words ahead each stream asks for weights: whole groups, or their share of a span."""
    return max(1, PREFETCH_BYTES // streams // (4 * fmt.group_stride)) * fmt.group_stride


@T.inline
def ask_for_group(fmt, W, block, span, group, ahead, cache):
    """Asks for as many weights as a group of a span has, so many words ahead of it, into that
    cache; past the end they are ignored."""
    for line in T.unroll(-(-fmt.group_stride // LINE_WORDS)):
        word = T.meta_var(group * fmt.group_stride + ahead + line * LINE_WORDS)
        T.evaluate(prefetch(W, block, span, word, cache=cache))


@T.inline
def ask_for_floats(W, block, column):
    """Asks for what lies PREFETCH_BYTES behind a column, or a pair of columns, of plain floats."""
    line = T.meta_var(LINE_BYTES * 8 // DataType(W.dtype).bits)
    lines = T.meta_var(int(W.shape[2]) // line)
    for i in T.unroll(lines):
        ahead = T.meta_var(column + PREFETCH_BYTES // (lines * LINE_BYTES))
        T.evaluate(prefetch(W, block, ahead, i * line, cache=2))


@T.inline
def each_block(compute, buffers, block, first, count, most):
    """compute(*buffers, block, row, rows) for `count` rows from number `first` on: row blocks of
    `most` rows (1, 2, 4 or 8), and of those left over four, two and one."""
    for t in T.serial(count // most):
        compute(*buffers, block, first + t * most, most)
    if most > 4:
        if count % most >= 4:
            compute(*buffers, block, first + count // most * most, 4)
    if most > 2:
        if count % 4 >= 2:
            compute(*buffers, block, first + count // 4 * 4, 2)
    if most > 1:
        if count % 2 == 1:
            compute(*buffers, block, first + count - 1, 1)


@T.inline
def clear(sums, count, lanes):
    """Sets the float32 sums of `count` rows to zero."""
    for i in T.unroll(count):
        for v in T.unroll(BLOCK // lanes):
            sums[i, v, lanes_at(0, lanes)] = fsplat(0.0, lanes)


def add_group(
    sums: Expr, whole: Expr, scale: Expr, minimum: Expr | None, x_scale: Expr, x_sum: Expr, L: int
) -> Expr:
    """`sums` plus a group's integer sums, scaled; x_scale, x_sum: bits of the scale of a row's
    activations, and of their scaled sum."""
    wide = splat(T.reinterpret(x_scale, dtype="float32"), L)
    sums = sums + T.cast(whole, f"float32x{L}") * (scale * wide)
    if minimum is None:
        return sums
    return sums + minimum * splat(T.reinterpret(x_sum, dtype="float32"), L)


@T.inline
def put(Y, row, column, values, lanes, accumulate):
    """Writes `lanes` results to Y, or adds them to what is there."""
    if accumulate:
        Y[row, lanes_at(column, lanes)] = Y[row, lanes_at(column, lanes)] + values
    else:
        Y[row, lanes_at(column, lanes)] = values


@T.inline
def store(Y, sums, first, block, row, rows, lanes, accumulate):
    """Puts the sums of `rows` rows, from number `first` on, into one column block of Y."""
    for r in T.unroll(rows):
        for v in T.unroll(BLOCK // lanes):
            put(
                *(Y, row + r, block * BLOCK + v * lanes),
                *(sums[first + r, v, lanes_at(0, lanes)], lanes, accumulate),
            )
