"""GEMM on AMX tiles (`amx.py`), whatever the tiles hold (`AmxProduct`).

    for chunk in chunks of rows:
      for task in column blocks of W:                     parallel: threads take tasks that are free
        for weight_block in weight blocks of the task:
          for row_block in row blocks of the chunk:
            sums = 0                                      in AMX tiles
            for step in steps of the weight block:
              sums += two tiles of X * two tiles of W     four products; the vectors work meanwhile:
                  fill: tiles of the next weight block    one part behind each product
                  finish_row: rows of the row block before
            C = sums

`amx_blocking.py` says what the blocks are. Tiles of a weight block are made once and lie in the
first cache. They meet all row blocks of a chunk, which lie in the second cache.

X      int32 [m, row_words]               activations
W      int32 [n/32, groups + 1, stride]   packed weights (`backends/cpu/formats.py`)
Y      float32 [m, n]                     the result
B      int32 [2, steps, 2, 16, 16]        W tiles: of the weight block in use, and of the next one
C      int32 or float32 [sums, 16, 16]    sums of the row block before
F      float32 [partial sums, rows, vectors, 16]  sums over the k blocks so far
taken  int32 [tasks + 1]                  1 for a task that a thread has taken; last: one is done
state  int32 [5]                          what a thread remembers (SEEN, NOW, NEXT, LAST, BEGUN)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_blocking import Blocking, Place
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.types import Buffer, Expr, Index

L = ROWS
"""Lanes of a vector: a row of a tile of sums."""
AHEAD = 17
"""Groups of weights between the one that `fill` reads and the one that it asks for."""
SEEN, NOW, NEXT, LAST, BEGUN = range(5)
"""Places in `state`: how many tasks the thread has looked at; the task that it works on, will work
on, and has worked on (the number of tasks means none); how many weight blocks came before the
task."""


class Buffers(NamedTuple):
    """The buffers of a thread, as the legend above says."""

    X: Buffer
    W: Buffer
    Y: Buffer
    B: Buffer
    C: Buffer
    F: Buffer
    state: Buffer


class Chunk(NamedTuple):
    """Row blocks `first` to `first + blocks` of m rows."""

    m: Index
    first: Index
    blocks: Index


class AmxProduct(ABC):
    """What tiles of activations and tiles of weights are to each other."""

    blocking: Blocking

    @abstractmethod
    def multiply(self, x: Index, w: Index) -> Expr:
        """The instruction that multiplies X tile x and W tile w of a step (0 or 1 each)."""

    @abstractmethod
    def first_row(self, m: Index, row_block: Index, x: Index) -> Expr:
        """The first row of X tile x of a row block."""

    @abstractmethod
    def first_word(self, k_block: Index, step: Index, x: Index) -> Index:
        """The word of a row of X at which tile x of a step begins."""

    @abstractmethod
    def fill(
        self, W: Buffer, B: Buffer, side: Index, place: Place, group: Index, part: Index
    ) -> None:
        """Inline: makes a part (0 to 3) of the tiles of one group of a weight block in B[side]."""

    @abstractmethod
    def finish_row(
        self, buffers: Buffers, place: Place, m: Index, row_block: Index, partial: Index, r: Index
    ) -> None:
        """Inline: adds row r of C to F[partial]; the sums of the last k block go to Y."""


def first_row(m: Index, tile: Index) -> Expr:
    """The first row of a tile of rows.

    The last tile may begin within the tile before: rows that are known then are not stored again.
    """
    return T.max(T.min(tile * ROWS, m - ROWS), 0)


@T.inline
def ask_for_word(W, block, group, j, words):
    """Asks for word j of a group of weights that is needed soon, and for the scales with word 0."""
    for v in T.unroll(BLOCK // L):
        T.evaluate(prefetch(W, block, group, j * BLOCK + v * L))
    if j == 0:
        T.evaluate(prefetch(W, block, group, words * BLOCK))


def _take(taken: Buffer, task: Index) -> Expr:
    """0 for the one thread that asks first for taken[task], which is 0 before."""
    return T.call_llvm_intrin("int32", "llvm.x86.atomic.bts", T.address_of(taken[task]), T.int8(0))


class Pipeline:
    """Statements of a product of m rows, n rows of weights."""

    def __init__(self, n: int, product: AmxProduct) -> None:
        self.product, self.blocking = product, product.blocking
        self.tasks = n // BLOCK // product.blocking.task_blocks

    @T.inline
    def multiply(self, X, W, Y, m):
        """All m rows. In its first turn a thread takes tasks until none is free; its other turns
        find nothing."""
        taken = T.alloc_buffer((self.tasks + 1,), "int32")
        for chunk in T.serial(
            T.ceildiv(T.ceildiv(m, self.blocking.rows), self.blocking.row_blocks)
        ):
            for i in T.serial(self.tasks + 1):
                taken[i] = T.int32(0)
            for start in T.parallel(self.tasks):
                if taken[self.tasks] == 0:
                    state = T.alloc_buffer((5,), "int32")
                    state[SEEN] = 0
                    self.take_task(taken, state, start)
                    if state[NEXT] < self.tasks:
                        self.work(X, W, Y, taken, state, start, self.chunk(m, chunk))
                    taken[self.tasks] = 1

    def chunk(self, m: Expr, chunk: Expr) -> Chunk:
        """The row blocks of a chunk."""
        most, first = self.blocking.row_blocks, chunk * self.blocking.row_blocks
        return Chunk(m, first, T.min(most, T.ceildiv(m, self.blocking.rows) - first))

    @T.inline
    def take_task(self, taken, state, start):
        """Takes a task that nobody has; threads whose own are done help the others."""
        state[NEXT] = self.tasks
        while state[NEXT] == self.tasks and state[SEEN] < self.tasks:
            if _take(taken, (start + state[SEEN]) % self.tasks) == 0:
                state[NEXT] = (start + state[SEEN]) % self.tasks
            state[SEEN] = state[SEEN] + 1

    @T.inline
    def work(self, X, W, Y, taken, state, start, chunk):
        """One thread's tasks of a chunk."""
        shape = T.alloc_buffer((amx.SHAPE_WORDS,), "int32")
        B = T.alloc_buffer((2, self.blocking.steps, 2, ROWS, L), "int32")
        C = T.alloc_buffer((self.blocking.sums, ROWS, L), self.blocking.dtype)
        F = T.alloc_buffer(
            (
                self.blocking.same_k * self.blocking.row_blocks,
                *(self.blocking.rows, self.blocking.vectors, L),
            ),
            "float32",
        )
        amx.configure(shape, T.min(chunk.m, ROWS))
        self.fill_first(W, B, state)
        self.do_tasks(taken, start, Buffers(X, W, Y, B, C, F, state), chunk)
        self.finish_last(Buffers(X, W, Y, B, C, F, state), chunk)
        T.evaluate(amx.release())

    @T.inline
    def fill_first(self, W, B, state):
        """Makes the tiles of the first weight block, while nothing is multiplied."""
        for g in T.serial(self.blocking.groups_of(0)):
            for part in T.unroll(4):
                self.product.fill(W, B, 0, self.blocking.place(state[NEXT], 0), g, part)

    @T.inline
    def do_tasks(self, taken, start, buffers, chunk):
        """Takes and does tasks until none is free."""
        buffers.state[NOW] = self.tasks
        buffers.state[BEGUN] = -self.blocking.weight_blocks
        while buffers.state[NEXT] < self.tasks:
            buffers.state[LAST] = buffers.state[NOW]
            buffers.state[NOW] = buffers.state[NEXT]
            buffers.state[BEGUN] = buffers.state[BEGUN] + self.blocking.weight_blocks
            self.take_task(taken, buffers.state, start)
            for weight_block in T.serial(self.blocking.weight_blocks):
                for u in T.serial(chunk.blocks):
                    self.multiply_block(buffers, chunk, weight_block, u)

    @T.inline
    def finish_last(self, buffers, chunk):
        """Finishes the last row block, which no other follows."""
        for r in T.serial(self.blocking.rows):
            if r % ROWS < T.min(chunk.m, ROWS):
                self.product.finish_row(
                    buffers,
                    self.blocking.place(buffers.state[NOW], self.blocking.weight_blocks - 1),
                    chunk.m,
                    chunk.first + chunk.blocks - 1,
                    (self.blocking.same_k - 1) * self.blocking.row_blocks + chunk.blocks - 1,
                    r,
                )

    @T.inline
    def multiply_block(self, buffers, chunk, weight_block, u):
        """Multiplies row block u of a chunk by a weight block, and meanwhile does the vectors' work
        (`fill`, `finish_row`)."""
        old_task, old_block, old_u = self.before(buffers.state, weight_block, u, chunk.blocks)
        task, after, low, high, some = self.share(buffers.state, weight_block, u, chunk.blocks)
        for i in T.unroll(self.blocking.sums):
            T.evaluate(amx.clear(amx.SUMS + i))
        for t in T.serial(self.blocking.steps_of(weight_block)):
            self.load(buffers, chunk, weight_block, u, t)
            self.ask_for_results(buffers, chunk, weight_block, u, t)
            for x in T.unroll(2):
                for w in T.unroll(2):
                    T.evaluate(self.product.multiply(x, w))
                    for i in T.serial(some):
                        if low + t * some + i < high:
                            self.product.fill(
                                buffers.W, buffers.B, (buffers.state[BEGUN] + weight_block + 1) % 2,
                                *(self.blocking.place(task, after), low + t * some + i, 2 * x + w),
                            )  # fmt: skip
            self.finish_rows(buffers, chunk, old_task, old_block, old_u, t)
        for i in T.unroll(self.blocking.sums):
            T.evaluate(amx.store(amx.SUMS + i, T.address_of(buffers.C[i, 0, 0]), amx.ROW_BYTES))

    def before(
        self, state: Buffer, weight_block: Expr, u: Expr, count: Index
    ) -> tuple[Expr, Expr, Expr]:
        """Task, weight block and number of the row block before."""
        blocks = self.blocking.weight_blocks
        is_first = T.And(weight_block == 0, u == 0)
        task = T.if_then_else(is_first, state[LAST], state[NOW])
        block = T.if_then_else(u > 0, weight_block, (weight_block + blocks - 1) % blocks)
        return task, block, T.if_then_else(u > 0, u, count) - 1

    def share(
        self, state: Buffer, weight_block: Expr, u: Expr, count: Index
    ) -> tuple[Expr, Expr, Expr, Expr, Expr]:
        """What row block u fills of the next weight block: its task and number, from which group to
        which, and how many groups a step."""
        blocks = self.blocking.weight_blocks
        after = (weight_block + 1) % blocks
        task = T.if_then_else(weight_block + 1 < blocks, state[NOW], state[NEXT])
        low, high = (T.floordiv(i * self.blocking.groups_of(after), count) for i in (u, u + 1))
        high = T.if_then_else(task < self.tasks, high, 0)
        steps = self.blocking.steps_of(weight_block)
        return task, after, low, high, T.ceildiv(T.max(high - low, 0), steps)

    @T.inline
    def load(self, buffers, chunk, weight_block, u, t):
        """Loads the four tiles of step t."""
        for i in T.unroll(2):
            T.evaluate(
                amx.load(
                    amx.X_TILES + i,
                    self.x_address(buffers.X, chunk.m, chunk.first + u, weight_block, t, i),
                    4 * self.blocking.row_words,
                )
            )
            T.evaluate(
                amx.load(
                    amx.W_TILES + i,
                    T.address_of(buffers.B[(buffers.state[BEGUN] + weight_block) % 2, t, i, 0, 0]),
                    amx.ROW_BYTES,
                )
            )

    def x_address(
        self, X: Buffer, m: Index, row_block: Index, weight_block: Expr, t: Expr, i: Index
    ) -> Expr:
        """Where X tile i of step t begins."""
        row = self.product.first_row(m, row_block, i)
        word = self.product.first_word(weight_block // self.blocking.same_k, t, i)
        return T.address_of(X[row, word])

    @T.inline
    def finish_rows(self, buffers, chunk, task, weight_block, u, t):
        """Finishes the rows of step t of the row block before, if there was one."""
        if task < self.tasks:
            for i in T.unroll(self.blocking.rows_a_step):
                if T.And(
                    t * self.blocking.rows_a_step + i < self.blocking.rows,
                    (t * self.blocking.rows_a_step + i) % ROWS < T.min(chunk.m, ROWS),
                ):
                    self.product.finish_row(
                        buffers,
                        self.blocking.place(task, weight_block),
                        chunk.m,
                        chunk.first + u,
                        weight_block % self.blocking.same_k * self.blocking.row_blocks + u,
                        t * self.blocking.rows_a_step + i,
                    )

    @T.inline
    def ask_for_results(self, buffers, chunk, weight_block, u, t):
        """Asks for the parts of Y that `finish_row` will write next."""
        if weight_block // self.blocking.same_k == self.blocking.k_blocks - 1:
            for i in T.unroll(self.blocking.rows_a_step):
                for v in T.unroll(self.blocking.vectors):
                    T.evaluate(
                        prefetch(
                            buffers.Y,
                            first_row(chunk.m, (chunk.first + u) * self.blocking.row_tiles)
                            + t * self.blocking.rows_a_step
                            + i,
                            self.column(buffers.state, weight_block, v),
                            to_write=True,
                        )
                    )

    def column(self, state: Buffer, weight_block: Expr, vector: Index) -> Index:
        """The column of Y of a weight block's vector."""
        place = self.blocking.place(state[NOW], weight_block)
        return place.block * BLOCK + (place.vector + vector) * L
