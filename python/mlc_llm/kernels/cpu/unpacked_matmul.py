"""Products of many rows on AVX-512 VNNI: weights are unpacked once for all rows.

    for turn in turns of TURN rows:                                     a launch; threads meet
      P = rows of the turn, quantised, in the order in which they       parallel
          are read (`row_panels.py`)
      for task in some column blocks times a row panel of the turn:       parallel; threads claim
        S = 0                                                             tasks (`claims.py`)
        for part in parts of the columns:
          for block in column blocks of the task:
            for k_block in k blocks of the part:
              U, F = bytes of W[block, k_block]; its scales and minima
              for row_block in row blocks of the panel:
                sums = S[block, row_block]                                in registers
                for g in groups of the k block:
                  sums += a group, as in `integer_product.py`             the same bits
                S[block, row_block] = sums
        Y[panel, blocks] (+)= S

X, W, Y  see `integer_matmul.py`
U  int32 [groups, words, 32]               weights of a byte each, or of 16 bits for `vpmaddwd`. U
F  float32 [2, groups, 32]                 and F stay in the first cache, a part of P in the second
S  float32 [blocks, rows of a panel, 32]   sums so far
claims  int32 [tasks + 1]                  which tasks threads have claimed

The last row block may have rows of the one before, which it does not write.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.claims import CLAIMED, SEEN, STATE, can_claim, claim, clear_claims
from mlc_llm.kernels.cpu.launches import all_meet, one_launch
from mlc_llm.kernels.cpu.prefetch import align_stack, prefetch
from mlc_llm.kernels.cpu.row_panels import TURN, RowPanels
from mlc_llm.kernels.cpu.unpacked_product import WIDE, UnpackedProduct

LEAST_ROWS, LEAST_NARROW_ROWS = 64, 16
"""Fewer rows do not pay for unpacking, on AVX-512 and with half as many lanes. (On Zen 5 there is
little between them on AVX-512 from 24 rows on.)"""


def unpacks(isa: Isa) -> bool:
    """Whether weights are unpacked once for many rows. Such products quantise what they read for
    themselves alone."""
    return can_claim(isa)


def least_rows(isa: Isa) -> int:
    """How many rows are many."""
    return LEAST_ROWS if isa.lanes == WIDE else LEAST_NARROW_ROWS


class ManyRows:
    """Many rows times a matrix. parts: column blocks that follow each other, and how
    many planes count in them."""

    def __init__(
        self,
        parts: Sequence[tuple[range, int]],
        k: int,
        fmt: WeightFormat,
        isa: Isa,
        accumulate: bool,
    ) -> None:
        self.panels = RowPanels(k, fmt, [planes for _, planes in parts], isa)
        self.rows, self.least_rows = self.panels.rows, least_rows(isa)
        self.parts = [UnpackedProduct(*part, self.panels, isa, accumulate) for part in parts]
        self.column_tasks = sum(part.column_tasks for part in self.parts)
        self.task_blocks = max(part.task_blocks for part in self.parts)
        self.most_tasks = self.column_tasks * -(-TURN // (self.rows * self.panels.panel))

    @T.inline
    def multiply(self, rows, W, Y, start, count, asked):
        """Rows `start` to `start + count`, quantised already or not (`integer_matmul.Rows`)."""
        claims = T.alloc_buffer((self.most_tasks + 1,), "int32")
        for turn in T.serial(T.ceildiv(count, TURN)):
            P = T.alloc_buffer(self.panels.shape(Y.shape[0]), "int32")
            first = T.meta_var(start + turn * TURN)
            row_blocks: T.let[T.int32] = T.ceildiv(T.min(TURN, count - turn * TURN), self.rows)
            panels: T.let[T.int32] = T.ceildiv(row_blocks, self.panels.panel)
            tasks: T.let[T.int32] = self.column_tasks * panels
            last = T.meta_var(start + count - self.rows)
            # Buffers that all threads share are touched outside the launch: TVM makes them there.
            T.evaluate(prefetch(P, 0, 0, 0, 0, 0, 0))
            clear_claims(claims, tasks)
            with one_launch():
                with all_meet():
                    self.fill(rows, P, first, row_blocks, last)
                self.do_all(P, W, Y, claims, first, row_blocks, panels, last, asked)

    @T.inline
    def fill(self, rows, P, first, row_blocks, last):
        """The rows of a turn that begins with row `first`, into P."""
        source = T.meta_var(
            lambda row: T.min(first + row // self.rows * self.rows, last) + row % self.rows
        )
        if rows.inputs is None:
            for row in T.parallel(row_blocks * self.rows):
                self.panels.copy(rows.quantised, P, row, source(row))
        else:
            rows.inputs.quantize_some(
                rows.given, self.panels.target(P), row_blocks * self.rows, source, lambda row: row
            )

    @T.inline
    def do_all(self, P, W, Y, claims, first, row_blocks, panels, last, asked):
        """All tasks of the turn. In its first one a thread does tasks until none is free; its
        others find nothing."""
        tasks = T.meta_var(self.column_tasks * panels)
        size = T.meta_var(self.panels.panel)
        for at in T.parallel(tasks):
            align_stack()
            if claims[tasks] == 0:
                state = T.alloc_buffer((STATE,), "int32")
                U = T.alloc_buffer((self.panels.k_groups, self.parts[0].words, BLOCK), "int32")
                F = T.alloc_buffer((2, self.panels.k_groups, BLOCK), "float32")
                S = T.alloc_buffer((self.task_blocks, size * self.rows, BLOCK), "float32")
                state[SEEN] = 0
                claim(claims, state, at, tasks)
                while state[CLAIMED] < tasks:
                    panel: T.let[T.int32] = state[CLAIMED] % panels
                    column: T.let[T.int32] = state[CLAIMED] // panels
                    self.do_task(
                        *(P, W, Y, U, F, S, column, panel),
                        T.min(size, row_blocks - panel * size),
                        *(first + panel * size * self.rows, last, asked, 0),
                    )
                    claim(claims, state, at, tasks)
                claims[tasks] = 1

    @T.inline
    def do_task(self, P, W, Y, U, F, S, column, panel, blocks, row, last, asked, i):
        """The columns of task `column`, counted from the first one of part i on, times a panel."""
        part = T.meta_var(self.parts[i])
        if i + 1 == len(self.parts) or column < part.column_tasks:
            part.add_panel(P, W, Y, U, F, S, column, panel, blocks, row, last, asked)
        else:
            self.do_task(
                *(P, W, Y, U, F, S, column - part.column_tasks, panel),
                *(blocks, row, last, asked, i + 1),
            )
