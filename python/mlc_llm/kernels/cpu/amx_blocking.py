"""How a product on AMX tiles is cut into blocks, each of which lies in some cache.

    row block     16 or 32 rows of X
    chunk         row blocks whose activations lie in the second cache
    k block       groups of columns whose sums stay in AMX tiles
    weight block  one k block of one column block of W, or of one vector (16 rows) of it
    task          one column block or several, with all their weight blocks
    step          groups of columns of four products: two tiles of X times two tiles of W

A task's weight blocks are numbered k block by k block: first all its column blocks with the first
k block, then all with the second one.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.types import Expr, Index
from mlc_llm.record import record

VECTORS = BLOCK // ROWS
"""Vectors of a column block."""
CHUNK_BYTES = 5 * 2**18
"""Activations that stay in the second cache."""


class Place(NamedTuple):
    """Which weights a weight block has."""

    block: Index
    """Column block."""
    vector: Index
    """The first vector of it."""
    k_block: Index
    column: Index
    """The column of Y of its first row of weights."""


@record()
class Blocking:
    """The sizes of all blocks of a product."""

    groups: int
    """Groups of a row."""
    k_block_groups: int
    """Groups of a k block; the last one may have fewer."""
    step_groups: int
    """Groups of a step."""
    row_tiles: int
    """Tiles of X that stand for the rows of a row block: one, or two."""
    vectors: int
    """Vectors of a weight block."""
    sums: int
    """Tiles of sums."""
    dtype: str
    """Type of the sums."""
    row_words: int
    """32-bit words of a row of X that are read."""
    task_blocks: int = 1
    """Column blocks of a task."""

    @property
    def k_blocks(self) -> int:
        """K blocks of a row."""
        return -(-self.groups // self.k_block_groups)

    @property
    def steps(self) -> int:
        """Steps of a k block, at most."""
        return -(-self.k_block_groups // self.step_groups)

    @property
    def same_k(self) -> int:
        """Weight blocks of a task that have the same k block."""
        return VECTORS // self.vectors * self.task_blocks

    @property
    def weight_blocks(self) -> int:
        """Weight blocks of a task."""
        return self.same_k * self.k_blocks

    @property
    def rows(self) -> int:
        """Rows of a row block."""
        return self.row_tiles * ROWS

    @property
    def rows_a_step(self) -> int:
        """Rows of each tile of the row block before that a step finishes, so that the fewest steps
        do it."""
        last = self.groups - (self.k_blocks - 1) * self.k_block_groups
        return -(-ROWS // -(-last // self.step_groups))

    @property
    def row_blocks(self) -> int:
        """Row blocks of a chunk.

        With several column blocks a task, it is one k block of the rows, and their sums, that stay
        in the second cache.
        """
        words = self.row_words
        if self.task_blocks > 1:
            words = -(-self.row_words // self.k_blocks) + self.task_blocks * BLOCK
        return max(1, CHUNK_BYTES // (4 * words * self.rows))

    def groups_of(self, weight_block: Index) -> Expr:
        """Groups of a weight block."""
        start = weight_block // self.same_k * self.k_block_groups
        return T.min(T.int32(self.k_block_groups), self.groups - start)

    def steps_of(self, weight_block: Index) -> Expr:
        """Steps of a weight block."""
        return T.ceildiv(self.groups_of(weight_block), self.step_groups)

    def place(self, task: Index, weight_block: Index) -> Place:
        """The weights of a task's weight block."""
        inner, apart = weight_block % self.same_k, VECTORS // self.vectors
        block, vector = task * self.task_blocks + inner // apart, inner % apart * self.vectors
        column = block * BLOCK + vector * ROWS
        return Place(block, vector, weight_block // self.same_k, column)


def blocks_together(blocks: int, most: int) -> int:
    """Column blocks of a task: as many as can be, and an even number of tasks if that can be."""
    fitting = [b for b in range(1, most + 1) if blocks % b == 0]
    even = [b for b in fitting if blocks // b % 2 == 0]
    return max(even or fitting)
