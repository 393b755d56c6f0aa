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
U  int32 [groups, quads, 32]               weights, a byte each. U and F stay in the first cache,
F  float32 [2, groups, 32]                 a part of a row panel of P in the second one
S  float32 [blocks, rows of a panel, 32]   sums so far
claims  int32 [tasks + 1]                  which tasks threads have claimed

The last row block may have rows of the one before, which it does not write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu.adapter_asks import ask_for_factors
from mlc_llm.kernels.cpu.claims import CLAIMED, SEEN, STATE, claim, clear_claims
from mlc_llm.kernels.cpu.dot import BYTES, multiply_bytes, weight_values
from mlc_llm.kernels.cpu.launches import all_meet, one_launch
from mlc_llm.kernels.cpu.prefetch import align_stack, prefetch
from mlc_llm.kernels.cpu.row_block import LINE_WORDS, Turn, add_group, clear, put
from mlc_llm.kernels.cpu.row_panels import ROWS, TURN, RowPanels
from mlc_llm.kernels.cpu.scales import minimum_at, scale_at, weight_words
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

LEAST_ROWS = 64
"""Fewer rows do not pay for unpacking (on Zen 5 there is little between them from 24 rows on)."""
Words: TypeAlias = Callable[[Index, Index, Index], Expr]
"""Words of a k block of a row block: by group, row and number."""
LANES, VECTORS = 16, BLOCK // 16


class ManyRows:
    """LEAST_ROWS rows or more times a matrix. parts: column blocks that follow each other, and how
    many planes count in them."""

    def __init__(
        self,
        parts: Sequence[tuple[range, int]],
        k: int,
        fmt: WeightFormat,
        sums: int,
        accumulate: bool,
    ) -> None:
        self.panels = RowPanels(k, fmt, [planes for _, planes in parts], sums)
        self.parts = [UnpackedProduct(*part, self.panels, accumulate) for part in parts]
        self.column_tasks = sum(part.column_tasks for part in self.parts)
        self.task_blocks = max(part.task_blocks for part in self.parts)
        self.most_tasks = self.column_tasks * -(-TURN // (ROWS * self.panels.panel))

    @T.inline
    def multiply(self, rows, W, Y, start, count, asked):
        """Rows `start` to `start + count`, quantised already or not (`integer_matmul.Rows`)."""
        claims = T.alloc_buffer((self.most_tasks + 1,), "int32")
        for turn in T.serial(T.ceildiv(count, TURN)):
            P = T.alloc_buffer(self.panels.shape(Y.shape[0]), "int32")
            first = T.meta_var(start + turn * TURN)
            row_blocks: T.let[T.int32] = T.ceildiv(T.min(TURN, count - turn * TURN), ROWS)
            panels: T.let[T.int32] = T.ceildiv(row_blocks, self.panels.panel)
            tasks: T.let[T.int32] = self.column_tasks * panels
            last = T.meta_var(start + count - ROWS)
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
        source = T.meta_var(lambda row: T.min(first + row // ROWS * ROWS, last) + row % ROWS)
        if rows.inputs is None:
            for row in T.parallel(row_blocks * ROWS):
                self.panels.copy(rows.quantised, P, row, source(row))
        else:
            rows.inputs.quantize_some(
                rows.given, self.panels.target(P), row_blocks * ROWS, source, lambda row: row
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
                U = T.alloc_buffer((self.panels.k_groups, self.panels.quads, BLOCK), "int32")
                F = T.alloc_buffer((2, self.panels.k_groups, BLOCK), "float32")
                S = T.alloc_buffer((self.task_blocks, size * ROWS, BLOCK), "float32")
                state[SEEN] = 0
                claim(claims, state, at, tasks)
                while state[CLAIMED] < tasks:
                    panel: T.let[T.int32] = state[CLAIMED] % panels
                    column: T.let[T.int32] = state[CLAIMED] // panels
                    self.do_task(
                        *(P, W, Y, U, F, S, column, panel),
                        T.min(size, row_blocks - panel * size),
                        *(first + panel * size * ROWS, last, asked, 0),
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


class UnpackedProduct:
    """The product of a row panel and some column blocks, by both planes of activations or by the
    high one alone."""

    def __init__(self, blocks: range, planes: int, panels: RowPanels, accumulate: bool) -> None:
        self.first_block, count = blocks.start, len(blocks)
        self.fmt, self.planes, self.accumulate = panels.fmt, planes, accumulate
        self.groups, self.quads, self.part = panels.groups, panels.quads, panels.part
        self.k_blocks, self.k_groups = panels.k_blocks, panels.k_groups
        self.scale, self.last_plane = panels.scale(planes), (planes - 1) * panels.quads
        self.task_blocks = next(
            c for c in (4, 2, 1) if c == 1 or (count % c == 0 and count >= 16 * c)
        )
        self.column_tasks = count // self.task_blocks

    @T.inline
    def add_panel(self, P, W, Y, U, F, S, column, panel, blocks, row, last, asked):
        """All columns of a panel of row blocks, for the column blocks of task `column`."""
        block: T.let[T.int32] = self.first_block + column * self.task_blocks
        size: T.let[T.int32] = blocks
        for part in T.serial(-(-self.k_blocks // self.part)):
            for c in T.serial(self.task_blocks):
                for i in T.serial(T.min(self.part, self.k_blocks - part * self.part)):
                    k_block = T.meta_var(part * self.part + i)
                    for g in T.serial(self.count(k_block)):
                        self.unpack(W, U, F, block + c, k_block * self.k_groups + g, g)
                    for b in T.serial(size):
                        self.ask(W, block + c, k_block + 1, b, size)
                        self.add_row_block(
                            *(P, U, F, S, Y, block, c, panel, b, k_block),
                            *(row + b * ROWS, last, Turn(block + c, b, size), asked),
                        )

    def count(self, k_block: Index) -> Expr:
        """Groups of a k block."""
        return T.min(self.k_groups, self.groups - k_block * self.k_groups)

    @T.inline
    def unpack(self, W, U, F, block, g, at):
        """Group g of a column block becomes bytes, scales and minima number `at`."""
        for v in T.unroll(VECTORS):
            lanes = T.meta_var(lanes_at(v * LANES, LANES))
            for j in T.unroll(self.fmt.low_words):
                for part in T.unroll(self.fmt.parts):
                    U[at, j + part * self.fmt.low_words, lanes] = self.values(
                        W, block, g, v, j, part
                    )
            F[0, at, lanes] = scale_at(self.fmt, W, block, g, v, LANES)
            if self.fmt.has_minimum:
                F[1, at, lanes] = minimum_at(self.fmt, W, block, g, v, LANES)

    def values(
        self, W: Buffer, block: Index, group: Index, vector: Index, j: Index, part: Index
    ) -> Expr:
        """A vector of weights, a byte each."""
        words = weight_words(self.fmt, W, block, group, vector * LANES, LANES)
        return weight_values(self.fmt, words, j, part, LANES, BYTES)

    @T.inline
    def ask(self, W, block, k_block, b, size):
        """Asks the memory for a share of the weights that are unpacked next."""
        lines = T.meta_var(-(-self.k_groups // self.fmt.span * self.fmt.stride // LINE_WORDS))
        share: T.let[T.int32] = T.ceildiv(lines, size)
        for i in T.serial(share):
            T.evaluate(
                prefetch(
                    W,
                    block,
                    k_block * (self.k_groups // self.fmt.span),
                    (b * share + i) * LINE_WORDS,
                )
            )

    @T.inline
    def add_row_block(self, P, U, F, S, Y, block, c, panel, b, k_block, row, last, turn, asked):
        """One k block of a row block, which begins with that row of Y, or with row `last` if that
        is an earlier one. The sums of the last k block go to Y."""
        sums = T.alloc_buffer((ROWS, VECTORS, LANES), "float32")
        high = T.alloc_buffer((ROWS, VECTORS, LANES), "int32")
        low = T.alloc_buffer((ROWS, VECTORS, LANES), "int32")
        lane = T.meta_var(lanes_at(0, LANES))
        x = T.meta_var(lambda g, r, word: P[panel, k_block, b, g, r, word])
        if k_block == 0:
            clear(sums, ROWS, LANES)
        else:
            for r in T.unroll(ROWS):
                for v in T.unroll(VECTORS):
                    sums[r, v, lane] = S[c, b * ROWS + r, lanes_at(v * LANES, LANES)]
        for g in T.serial(self.count(k_block)):
            if asked is not None:
                ask_for_factors(asked, turn, k_block * self.k_groups + g, self.groups)
            self.multiply_group(U, high, low, g, x)
            for r in T.unroll(ROWS):
                for v in T.unroll(VECTORS):
                    sums[r, v, lane] = self.added(
                        sums[r, v, lane],
                        self.joined(high[r, v, lane], low[r, v, lane]),
                        F,
                        g,
                        v,
                        r,
                        x,
                    )
        if k_block == self.k_blocks - 1:
            self.store(Y, sums, block + c, row, last)
        else:
            for r in T.unroll(ROWS):
                for v in T.unroll(VECTORS):
                    S[c, b * ROWS + r, lanes_at(v * LANES, LANES)] = sums[r, v, lane]

    @T.inline
    def multiply_group(self, U, high, low, g, x):
        """The integer sums of a group. Both planes of a word follow each other: with one plane
        behind the other, weights stayed in registers, and sums went to the stack for them."""
        lane = T.meta_var(lanes_at(0, LANES))
        for r in T.unroll(ROWS):
            for v in T.unroll(VECTORS):
                low[r, v, lane] = splat(self.begin(x, g, r), LANES)
                if self.planes == 2:
                    high[r, v, lane] = splat(T.int32(0), LANES)
        for q in T.unroll(self.quads):
            for r in T.unroll(ROWS):
                if self.planes == 2:
                    for v in T.unroll(VECTORS):
                        high[r, v, lane] = multiply_bytes(
                            high[r, v, lane], U[g, q, lanes_at(v * LANES, LANES)], x(g, r, q)
                        )
                for v in T.unroll(VECTORS):
                    low[r, v, lane] = multiply_bytes(
                        low[r, v, lane],
                        U[g, q, lanes_at(v * LANES, LANES)],
                        x(g, r, self.last_plane + q),
                    )

    def begin(self, x: Words, g: Index, r: Index) -> Expr:
        """What the sum of the last plane begins with: what an offset takes off."""
        return T.int32(0) if self.fmt.has_minimum else x(g, r, self.scale + 1)

    def joined(self, high: Expr, low: Expr) -> Expr:
        """The integer sum of all planes."""
        if self.planes == 1:
            return low
        return T.shift_left(high, splat(T.int32(8), LANES)) + low

    def added(
        self, sums: Expr, whole: Expr, F: Buffer, g: Index, v: Index, r: Index, x: Words
    ) -> Expr:
        """`sums` plus a group, scaled."""
        lanes = lanes_at(v * LANES, LANES)
        minimum = F[1, g, lanes] if self.fmt.has_minimum else None
        return add_group(
            *(sums, whole, F[0, g, lanes], minimum),
            *(x(g, r, self.scale), x(g, r, self.scale + 1), LANES),
        )

    @T.inline
    def store(self, Y, sums, block, row, last):
        """Writes the rows of a row block that the one before has not written."""
        for r in T.unroll(ROWS):
            if T.min(row, last) + r >= row:
                for v in T.unroll(VECTORS):
                    put(
                        *(Y, T.min(row, last) + r, block * BLOCK + v * LANES),
                        *(sums[r, v, lanes_at(0, LANES)], LANES, self.accumulate),
                    )
