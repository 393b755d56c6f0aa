"""Quantised rows in the order in which products of many rows read them (`unpacked_matmul.py`).

    P  int32 [panels, k blocks, row blocks, groups, ROWS, words]

ROWS is the kernels' row block. Of each row and group: the words of its planes, SCALE, and
SCALED_SUM or, for weights with an offset, what it takes off; then the same two of the high plane,
if some columns of the matrix count with that alone.

A panel is as many row blocks as stay in the second cache. The last row block ends with the last
row. It may have rows of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.dot import Words
from mlc_llm.kernels.cpu.quantized_rows import SCALE, SCALED_SUM, SUM, Target, description
from mlc_llm.kernels.cpu.vectors import lanes_at
from mlc_llm.kernels.types import Buffer, Expr, Index

TURN = 512
"""Rows that P holds at once."""
PANEL_BYTES = 400 * 2**10
"""How much of P should stay in the second cache."""
K_BLOCK, PART = 384, 2048
"""Columns of a k block, at most if a span is no more, and of a part."""


class RowPanels:
    """What P is made of, for a matrix of k columns.

    planes: the numbers of planes that count in some of its columns.
    """

    def __init__(self, k: int, fmt: WeightFormat, planes: Sequence[int], isa: Isa) -> None:
        self.fmt, self.sums, self.rows = fmt, isa.sums, isa.row_block
        self.planes = sorted(set(planes), reverse=True)
        self.groups, self.quads = k // fmt.group, fmt.group // 4
        spans = self.groups // fmt.span
        self.k_blocks = -(-spans // max(1, K_BLOCK // (fmt.span * fmt.group)))
        self.k_groups = -(-spans // self.k_blocks) * fmt.span
        self.part = max(1, PART // fmt.group // self.k_groups)
        self.stored = 2 if isa.sums == 1 else self.planes[0]  # pairs fill both
        self.plane_words = self.stored * self.quads
        self.words = self.plane_words + 2 * len(self.planes)
        row_bytes = min(k, PART) // fmt.group * 4 * self.words
        self.panel = min(PANEL_BYTES // row_bytes, TURN) // self.rows

    def shape(self, rows: Index) -> tuple[Index, ...]:
        """The shape of P for so many rows, TURN at most."""
        panels = T.ceildiv(T.min(rows, TURN), self.rows * self.panel)
        return panels, self.k_blocks, self.panel, self.k_groups, self.rows, self.words

    def scale(self, planes: int) -> int:
        """Which word is the scale for a product of so many planes. The second one follows it."""
        return self.plane_words + 2 * self.planes.index(planes)

    def at(self, row: Index, group: Index, word: Index) -> tuple[Index, ...]:
        """Where P has a word of a row of the turn."""
        block, r = row // self.rows, row % self.rows
        k_block, g = group // self.k_groups, group % self.k_groups
        return block // self.panel, k_block, block % self.panel, g, r, word

    def target(self, P: Buffer) -> Target:
        """P as that which rows are quantised into."""
        whole = self.scale(self.sums) if self.sums in self.planes else None
        lower = [planes for planes in self.planes if planes < self.sums]
        return Target(
            *(P, self.at, self.stored, whole, self.scale(lower[0]) if lower else None, self.fmt)
        )

    @T.inline
    def copy(self, X, P, row, source):
        """Row `row` of the turn: row `source` of X, which is quantised (`activation.quantize`)."""
        for g in T.serial(self.groups):
            words = T.meta_var(lanes_at(0, self.plane_words))
            P[self.at(row, g, words)] = X[source, g, words]
            self.copy_description(X, P, row, source, g, 0)

    @T.inline
    def copy_description(self, X, P, row, source, g, i):
        """The words that describe group g, from number i of `planes` on."""
        planes = T.meta_var(self.planes[i])
        x = T.meta_var(description(X, source, g, self.fmt.group, planes < self.sums))
        P[self.at(row, g, self.scale(planes))] = x(SCALE)
        P[self.at(row, g, self.scale(planes) + 1)] = self.second(x)
        if i + 1 < len(self.planes):
            self.copy_description(X, P, row, source, g, i + 1)

    def second(self, x: Words) -> Expr:
        """What stands behind a scale."""
        return x(SCALED_SUM) if self.fmt.has_minimum else x(SUM) * T.int32(-self.fmt.offset)
