"""How the elements of queries and keys turn with their positions (Su et al. 2021).

With cosines and sines of a position, elements i and i + dim/2 of the first `dim` elements of a head
are a pair; the others stay:

    low, high = low * cos - high * sin, high * cos + low * sin
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import LOG2E, lanes_at
from mlc_llm.kernels.heads import Heads
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

L = 8


def turn_lanes(sizes: Heads) -> int:
    """Pairs that turn at once."""
    return gcd(sizes.half, L)


def rest_lanes(sizes: Heads) -> int:
    """Elements that stay and are copied at once."""
    return gcd(sizes.rest, L)


@record(eq=False)
class Columns:
    """Columns of a tensor from `start` on, and the bias that is added to them."""

    x: Buffer
    start: int
    bias: Buffer | None

    def at(self, row: Expr, column: Index, lanes: int) -> Expr:
        """Elements from that column of the tensor on."""
        x = self.x[row, lanes_at(column, lanes)]
        return x if self.bias is None else x + self.bias[lanes_at(column - self.start, lanes)]


class Turn(NamedTuple):
    """A table float32 [n, 2, half], cosines, then sines; and the row that is used."""

    table: Buffer
    position: Expr


def turned(
    sizes: Heads, x: Columns, row: Expr, head: Index, turn: Turn, i: Expr, is_low: bool
) -> Expr:
    """Elements i on of the low or high half of the turned head that begins at column `head`."""
    lanes = turn_lanes(sizes)
    low, high = x.at(row, head + i, lanes), x.at(row, head + sizes.half + i, lanes)
    cos, sin = (turn.table[turn.position, kind, lanes_at(i, lanes)] for kind in (0, 1))
    return low * cos - high * sin if is_low else high * cos + low * sin


def query_factor(sizes: Heads, position: Expr | None = None) -> Expr:
    """What queries are multiplied by; position: of the token, if queries are scaled by it."""
    factor = T.float32(LOG2E * sizes.scale)
    if sizes.query_scaling is None or position is None:
        return factor
    beta, context = sizes.query_scaling
    turns = T.cast(T.floordiv(position, context) + 1, "float32")
    return (T.log(turns) * T.float32(beta) + T.float32(1)) * factor
