"""Weights as float32, in the order in which tiles of bfloat16 are made of them.

Row i of the tiles of 32 columns holds columns i and i + 16. They are made in four parts.
"""

from __future__ import annotations

from typing import Protocol

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.float_matmul import float_weights, weight_floats
from mlc_llm.kernels.cpu.quant_blocks import GROUP
from mlc_llm.kernels.cpu.scales import minimum_at, scale_at, weight_words
from mlc_llm.kernels.types import Buffer, Expr, Index

PARTS = 4
PART_ROWS = ROWS // PARTS


class TileWeights(Protocol):
    """A format of weights."""

    def row(self, part: Index, i: Index) -> Index:
        """Row i (0 to 3) of those of a part."""
        ...

    def value(self, W: Buffer, block: Index, group: Index, v: Index, column: Index) -> Expr:
        """16 weights of a column of a group of 32 columns: vector v of a column block."""
        ...


def tile_weights(fmt: WeightFormat) -> TileWeights:
    """The weights of a format that is not in fixed point."""
    return FloatWeights(fmt) if fmt.is_float else PackedWeights(fmt)


class PackedWeights:
    """Packed integers, with their scales. Rows of a part share the words of weights."""

    def __init__(self, fmt: WeightFormat) -> None:
        self.fmt = fmt
        self.quads, self.joined = fmt.group // 4, GROUP // fmt.group

    def row(self, part: Index, i: Index) -> Index:
        quads = self.quads // PARTS
        return i // quads * self.quads + part * quads + i % quads

    def value(self, W: Buffer, block: Index, group: Index, v: Index, column: Index) -> Expr:
        own = group * self.joined + column // self.fmt.group
        byte, quad = column % self.fmt.group // self.quads, column % self.quads
        return weight_floats(
            *(self.fmt, ROWS),
            weight_words(self.fmt, W, block, own, v * ROWS, ROWS),
            scale_at(self.fmt, W, block, own, v, ROWS),
            minimum_at(self.fmt, W, block, own, v, ROWS),
            *(quad % self.fmt.low_words, quad // self.fmt.low_words, byte),
        )


class FloatWeights:
    """Plain floats."""

    def __init__(self, fmt: WeightFormat) -> None:
        self.fmt = fmt

    def row(self, part: Index, i: Index) -> Index:
        return part * PART_ROWS + i

    def value(self, W: Buffer, block: Index, group: Index, v: Index, column: Index) -> Expr:
        return float_weights(self.fmt, W, block, group * GROUP + column, v * ROWS, ROWS)
