"""A product asks the memory for what the adapters of its matrix are read of next (`adapters.py`).

A few rows of tokens take many times as long to multiply as their weights to come from the memory,
and the factors of several adapters are as large as the weights: so they come meanwhile. The task of
a column block asks for its columns of `up`, and for as large a share of `down`, which all groups
have one after the other; so threads ask for about what they will read. Its row blocks ask in turns,
each for other adapters, and for a line or two at each group of columns: asked for all at once, the
lines keep the product waiting.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.formats import BLOCK
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.adapter_groups import Groups
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.types import Buffer, Index
from mlc_llm.library.adapter_format import block_rows
from mlc_llm.library.page_format import element_bytes
from mlc_llm.record import record

ARGUMENTS = ("D", "U", "R", "S", "G")
"""Of a product that asks, before its result."""


class Factors(NamedTuple):
    """The shapes of the adapters of a matrix: columns, rows of each part, element type."""

    k: int
    widths: tuple[int, ...]
    dtype: str

    @property
    def line(self) -> int:
        """Elements of a cache line."""
        return LINE_BYTES // element_bytes(self.dtype)

    @property
    def blocks(self) -> int:
        """Column blocks of the matrix."""
        return -(-sum(self.widths) // BLOCK)


@record(eq=False)
class Asked:
    """The buffers of `adapters.py` that a product asks for."""

    factors: Factors
    down: Buffer
    up: Buffer
    ranks: Buffer
    groups: Groups


@T.inline
def ask_for_factors(asked, turn, step, steps):
    """What a row block asks for in its turn, at one of its steps; past the ends nothing happens."""
    line, blocks = T.meta_var((asked.factors.line, asked.factors.blocks))
    together = T.meta_var(block_rows(asked.factors.widths))
    groups: T.let[T.int32] = asked.groups.count
    for i in T.serial(T.ceildiv(groups - turn.number, turn.count)):
        number: T.let[T.int32] = turn.number + i * turn.count
        piece: T.let[T.int32] = turn.block * groups + number
        other: T.let[T.int32] = asked.groups.slot(piece // blocks)
        lines = T.meta_var(asked.ranks[other] * -(-asked.factors.k // line))
        share: T.let[T.int32] = T.ceildiv(lines, blocks)
        for n in T.serial(T.ceildiv(share - step, steps)):
            for part in T.unroll(len(asked.factors.widths)):
                at = T.meta_var(piece % blocks * share + step + n * steps)
                T.evaluate(prefetch(asked.down, other, part, 0, at * line))
        slot: T.let[T.int32] = asked.groups.slot(number)
        rank: T.let[T.int32] = asked.ranks[slot]
        for n in T.serial(T.ceildiv(T.ceildiv(rank * together, line) - step, steps)):
            for b in T.unroll(BLOCK // together):
                at = T.meta_var(turn.block * (BLOCK // together) + b)
                T.evaluate(prefetch(asked.up, slot, at, 0, (step + n * steps) * line))


def asking(kernel: PrimFunc, asks: Factors | None) -> PrimFunc:
    """The kernel without these arguments, unless it asks."""
    return kernel if asks is not None else without(kernel, *ARGUMENTS)


def down_shape(asks: Factors | None, a: Index, r: Index) -> tuple[Index, ...]:
    """Kernels that do not ask have any."""
    return (a, 1, r, 1) if asks is None else (a, len(asks.widths), r, asks.k)


def up_shape(asks: Factors | None, a: Index, r: Index) -> tuple[Index, ...]:
    """Kernels that do not ask have any."""
    if asks is None:
        return a, 1, r, 1
    block = block_rows(asks.widths)
    return a, sum(asks.widths) // block, r, block


def dtype_of(asks: Factors | None) -> str:
    """Kernels that do not ask have any."""
    return "float16" if asks is None else asks.dtype


def asked_of(
    asks: Factors | None, down: Buffer, up: Buffer, ranks: Buffer, slots: Buffer, table: Buffer
) -> Asked | None:
    """What a kernel asks for."""
    return None if asks is None else Asked(asks, down, up, ranks, Groups(slots, table))
