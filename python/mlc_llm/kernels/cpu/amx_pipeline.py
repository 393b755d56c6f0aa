"""GEMM on AMX tiles (`amx.py`), whatever the tiles hold (`AmxProduct`).

    for chunk in chunks of rows:
      for task in column blocks of W:                     parallel: threads claim tasks
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
claims int32 [tasks + 1]                  which tasks threads have claimed (`claims.py`)
state  int32 [5]                          what a thread remembers: of claims, NOW, LAST and BEGUN
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_blocking import Blocking, Place
from mlc_llm.kernels.cpu.claims import CLAIMED, SEEN, STATE, claim, clear_claims
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.types import Buffer, Expr, Index

L = ROWS
"""Lanes of a vector: a row of a tile of sums."""
AHEAD = 17
"""Groups of weights between the one that `fill` reads and the one that it asks for."""
NOW, LAST, BEGUN = range(STATE, STATE + 3)
"""Places in `state`: the task that the thread works on, and the one before (the number of tasks
means none); how many weight blocks came before the task. The task that it has claimed is next."""


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
    """`blocks` row blocks, which are the rows `start` to `end` of m rows."""

    m: Index
    start: Index
    end: Index
    blocks: Index

    def row(self, tile: Index) -> Expr:
        """The first row of a tile of rows.

        The last tile of all m rows may begin within the tile before.
        """
        return T.max(T.min(self.start + tile * ROWS, self.m - ROWS), 0)

    def has(self, tile: Index, r: Index) -> Expr:
        """Whether row r of a tile is a row of the chunk, and not one of the tile before."""
        row = self.row(tile) + r
        return T.And(row >= self.start + tile * ROWS, row < self.end)


class Work(Protocol):
    """The tasks of a product: each is some column blocks times a chunk of rows."""

    @property
    def tasks(self) -> Index: ...

    def chunk(self, task: Index) -> Chunk: ...

    def place(self, task: Index, weight_block: Index) -> Place: ...


class OneChunk(NamedTuple):
    """All column blocks, times one and the same chunk."""

    tasks: int
    blocking: Blocking
    rows: Chunk

    def chunk(self, task: Index) -> Chunk:
        return self.rows

    def place(self, task: Index, weight_block: Index) -> Place:
        return self.blocking.place(task, weight_block)


class AmxProduct(ABC):
    """What tiles of activations and tiles of weights are to each other."""

    blocking: Blocking

    @abstractmethod
    def multiply(self, x: Index, w: Index) -> Expr:
        """The instruction that multiplies X tile x and W tile w of a step (0 or 1 each)."""

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
        self, buffers: Buffers, place: Place, row: Index, partial: Index, r: Index
    ) -> None:
        """Inline: adds row r of C to F[partial]; the sums of the last k block go to Y. row: its
        number in X and Y."""


@T.inline
def ask_for_word(W, block, group, j, words):
    """Asks for word j of a group of weights that is needed soon, and for the scales with word 0."""
    for v in T.unroll(BLOCK // L):
        T.evaluate(prefetch(W, block, group, j * BLOCK + v * L))
    if j == 0:
        T.evaluate(prefetch(W, block, group, words * BLOCK))


class Pipeline:
    """Statements of a product with n rows of weights."""

    def __init__(self, n: int, product: AmxProduct) -> None:
        self.product, self.blocking = product, product.blocking
        self.tasks = n // BLOCK // product.blocking.task_blocks

    @T.inline
    def multiply(self, X, W, Y, m):
        """All m rows."""
        claims = T.alloc_buffer((self.tasks + 1,), "int32")
        for chunk in T.serial(
            T.ceildiv(T.ceildiv(m, self.blocking.rows), self.blocking.row_blocks)
        ):
            self.do_all(
                X, W, Y, claims, OneChunk(self.tasks, self.blocking, self.chunk(m, chunk)), m
            )

    def chunk(self, m: Expr, chunk: Expr) -> Chunk:
        """The row blocks of a chunk."""
        most = self.blocking.row_blocks
        blocks = T.min(most, T.ceildiv(m, self.blocking.rows) - chunk * most)
        return Chunk(m, chunk * (most * self.blocking.rows), m, blocks)

    @T.inline
    def do_all(self, X, W, Y, claims, work, m):
        """All tasks of `work`, in parallel; X and Y have m rows. In its first turn a thread does
        tasks until none is free; its other turns find nothing."""
        clear_claims(claims, work.tasks)
        for start in T.parallel(work.tasks):
            if claims[work.tasks] == 0:
                state = T.alloc_buffer((STATE + 3,), "int32")
                state[SEEN] = 0
                claim(claims, state, start, work.tasks)
                if state[CLAIMED] < work.tasks:
                    self.do_tasks(X, W, Y, claims, state, start, work, m)
                claims[work.tasks] = 1

    @T.inline
    def do_tasks(self, X, W, Y, claims, state, start, work, m):
        """One thread's tasks, until none is free."""
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
        buffers = T.meta_var(Buffers(X, W, Y, B, C, F, state))
        amx.configure(shape, T.min(m, ROWS))
        self.fill_first(W, B, state, work)
        state[NOW] = work.tasks
        state[BEGUN] = -self.blocking.weight_blocks
        while state[CLAIMED] < work.tasks:
            state[LAST] = state[NOW]
            state[NOW] = state[CLAIMED]
            state[BEGUN] = state[BEGUN] + self.blocking.weight_blocks
            claim(claims, state, start, work.tasks)
            for weight_block in T.serial(self.blocking.weight_blocks):
                for u in T.serial(work.chunk(state[NOW]).blocks):
                    self.multiply_block(buffers, work, weight_block, u)
        self.finish_last(buffers, work)
        T.evaluate(amx.release())

    @T.inline
    def fill_first(self, W, B, state, work):
        """Makes the tiles of the first weight block, while nothing is multiplied."""
        for g in T.serial(self.blocking.groups_of(0)):
            for part in T.unroll(4):
                self.product.fill(W, B, 0, work.place(state[CLAIMED], 0), g, part)

    @T.inline
    def finish_last(self, buffers, work):
        """Finishes the last row block, which no other follows."""
        for r in T.serial(self.blocking.rows):
            self.finish_row(
                buffers, work, buffers.state[NOW], self.blocking.weight_blocks - 1,
                work.chunk(buffers.state[NOW]).blocks - 1, r,
            )  # fmt: skip

    @T.inline
    def multiply_block(self, buffers, work, weight_block, u):
        """Multiplies row block u of a chunk by a weight block, and meanwhile does the vectors' work
        (`fill`, `finish_row`)."""
        old_task, old_block, old_u = self.before(buffers.state, work, weight_block, u)
        task, after, low, high, some = self.share(buffers.state, work, weight_block, u)
        for i in T.unroll(self.blocking.sums):
            T.evaluate(amx.clear(amx.SUMS + i))
        for t in T.serial(self.blocking.steps_of(weight_block)):
            self.load(buffers, work.chunk(buffers.state[NOW]), weight_block, u, t)
            self.ask_for_results(buffers, work, weight_block, u, t)
            for x in T.unroll(2):
                for w in T.unroll(2):
                    T.evaluate(self.product.multiply(x, w))
                    for i in T.serial(some):
                        if low + t * some + i < high:
                            self.product.fill(
                                buffers.W, buffers.B, (buffers.state[BEGUN] + weight_block + 1) % 2,
                                *(work.place(task, after), low + t * some + i, 2 * x + w),
                            )  # fmt: skip
            if old_task < work.tasks:
                for i in T.unroll(self.blocking.rows_a_step):
                    if t * self.blocking.rows_a_step + i < self.blocking.rows:
                        self.finish_row(
                            buffers, work, old_task, old_block, old_u,
                            t * self.blocking.rows_a_step + i,
                        )  # fmt: skip
        for i in T.unroll(self.blocking.sums):
            T.evaluate(amx.store(amx.SUMS + i, T.address_of(buffers.C[i, 0, 0]), amx.ROW_BYTES))

    def before(
        self, state: Buffer, work: Work, weight_block: Expr, u: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Task, weight block and number of the row block before."""
        blocks = self.blocking.weight_blocks
        is_first = T.And(weight_block == 0, u == 0)
        task = T.if_then_else(is_first, state[LAST], state[NOW])
        block = T.if_then_else(u > 0, weight_block, (weight_block + blocks - 1) % blocks)
        return task, block, T.if_then_else(u > 0, u, work.chunk(task).blocks) - 1

    def share(
        self, state: Buffer, work: Work, weight_block: Expr, u: Expr
    ) -> tuple[Expr, Expr, Expr, Expr, Expr]:
        """What row block u fills of the next weight block: its task and number, from which group to
        which, and how many groups a step."""
        blocks, count = self.blocking.weight_blocks, work.chunk(state[NOW]).blocks
        after = (weight_block + 1) % blocks
        task = T.if_then_else(weight_block + 1 < blocks, state[NOW], state[CLAIMED])
        low, high = (T.floordiv(i * self.blocking.groups_of(after), count) for i in (u, u + 1))
        high = T.if_then_else(task < work.tasks, high, 0)
        steps = self.blocking.steps_of(weight_block)
        return task, after, low, high, T.ceildiv(T.max(high - low, 0), steps)

    @T.inline
    def load(self, buffers, chunk, weight_block, u, t):
        """Loads the four tiles of step t."""
        for i in T.unroll(2):
            T.evaluate(
                amx.load(
                    amx.X_TILES + i,
                    self.x_address(buffers.X, chunk, weight_block, u, t, i),
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
        self, X: Buffer, chunk: Chunk, weight_block: Expr, u: Expr, t: Expr, i: Index
    ) -> Expr:
        """Where X tile i of step t begins. One tile of rows stands for both, or they are apart."""
        row = chunk.row(u * self.blocking.row_tiles + i % self.blocking.row_tiles)
        word = self.product.first_word(weight_block // self.blocking.same_k, t, i)
        return T.address_of(X[row, word])

    @T.inline
    def finish_row(self, buffers, work, task, weight_block, u, r):
        """Finishes row r of a row block, if it is a row of its own."""
        tile = T.meta_var(u * self.blocking.row_tiles + r // ROWS)
        if work.chunk(task).has(tile, r % ROWS):
            self.product.finish_row(
                buffers,
                work.place(task, weight_block),
                work.chunk(task).row(tile) + r % ROWS,
                weight_block % self.blocking.same_k * self.blocking.row_blocks + u,
                r,
            )

    @T.inline
    def ask_for_results(self, buffers, work, weight_block, u, t):
        """Asks for the parts of Y that `finish_row` will write next."""
        if weight_block // self.blocking.same_k == self.blocking.k_blocks - 1:
            for i in T.unroll(self.blocking.rows_a_step):
                for v in T.unroll(self.blocking.vectors):
                    T.evaluate(
                        prefetch(
                            buffers.Y,
                            work.chunk(buffers.state[NOW]).row(u * self.blocking.row_tiles)
                            + t * self.blocking.rows_a_step
                            + i,
                            work.place(buffers.state[NOW], weight_block).column + v * L,
                            to_write=True,
                        )
                    )
