"""A state of a head, [head_dim, size], behind one token more:

    state = decay * state + change x^T
    given = state q

Each row of the state has a lane of a vector. So nothing is added across lanes, and `wide` rows, a
block, go through some tokens while they lie in the nearest cache. In memory a state is

    float32 [blocks, size, wide]

The sums of a row are PARTS sums of every fourth number, which are added in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

PARTS = 4
"""Sums of a row side by side: one alone would wait for each of its additions."""
Numbers = Callable[[Index], Expr]
"""Numbers of a token, which every row meets: by their place."""


@record()
class Blocks:
    """How the states of heads lie. size is a multiple of PARTS."""

    head_dim: int
    size: int
    machine: int
    """Lanes of a vector of the machine: the sums of a block fit its registers."""

    @property
    def lanes(self) -> int:
        return gcd(self.head_dim, self.machine)

    @property
    def vectors(self) -> int:
        """Of a block."""
        return 2 if self.head_dim % (2 * self.lanes) == 0 else 1

    @property
    def wide(self) -> int:
        """Rows of a block."""
        return self.lanes * self.vectors

    @property
    def count(self) -> int:
        """Blocks of a head."""
        return self.head_dim // self.wide

    def shape(self, slots: Index, heads: int) -> tuple[Index, ...]:
        """Of all states, as they lie."""
        return slots, heads, self.count, self.size, self.wide

    def new_sums(self) -> Buffer:
        """Scratch: float32 [PARTS, vectors, lanes]."""
        return T.alloc_buffer((PARTS, self.vectors, self.lanes), "float32")

    def new_vectors(self) -> Buffer:
        """Scratch: float32 [vectors, lanes], a number of each row."""
        return T.alloc_buffer((self.vectors, self.lanes), "float32")

    def lane(self, u: Index) -> Expr:
        """Vector u of a block."""
        return lanes_at(u * self.lanes, self.lanes)

    def whole(self, sums: Buffer, u: Index) -> Expr:
        """The sums of vector u."""
        parts = [sums[a, u, lanes_at(0, self.lanes)] for a in range(PARTS)]
        return (parts[0] + parts[1]) + (parts[2] + parts[3])


@T.inline
def clear(blocks, sums):
    """Sums become 0."""
    for a in T.unroll(PARTS):
        for u in T.unroll(blocks.vectors):
            sums[a, u, lanes_at(0, blocks.lanes)] = fsplat(0.0, blocks.lanes)


@T.inline
def multiply(blocks, state, at, x, sums):
    """sums = the rows of a block times x. at: slot, head and block."""
    clear(blocks, sums)
    for i in T.serial(blocks.size // PARTS):
        for a in T.unroll(PARTS):
            for u in T.unroll(blocks.vectors):
                sums[a, u, lanes_at(0, blocks.lanes)] = sums[a, u, lanes_at(0, blocks.lanes)] + (
                    state[at[0], at[1], at[2], i * PARTS + a, blocks.lane(u)]
                    * splat(x(i * PARTS + a), blocks.lanes)
                )


@T.inline
def advance(blocks, state, at, slot, decay, change, x, q, sums):
    """A block behind one token more, in `slot`; sums = its rows times q. change: float32
    [vectors, lanes]."""
    lane = T.meta_var(lanes_at(0, blocks.lanes))
    clear(blocks, sums)
    for i in T.serial(blocks.size // PARTS):
        for a in T.unroll(PARTS):
            for u in T.unroll(blocks.vectors):
                place = T.meta_var((at[1], at[2], i * PARTS + a, blocks.lane(u)))
                state[slot, place[0], place[1], place[2], place[3]] = state[
                    at[0], place[0], place[1], place[2], place[3]
                ] * splat(decay, blocks.lanes) + change[u, lane] * splat(
                    x(i * PARTS + a), blocks.lanes
                )
                sums[a, u, lane] = sums[a, u, lane] + state[
                    slot, place[0], place[1], place[2], place[3]
                ] * splat(q(i * PARTS + a), blocks.lanes)
