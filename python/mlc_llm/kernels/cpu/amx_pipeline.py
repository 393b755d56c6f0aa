"""GEMM on AMX tiles (`amx.py`), whatever the tiles hold (`AmxProduct`).

    for chunk in chunks of rows:
      for task in column blocks of W:                     parallel: threads claim tasks
        for weight_block in weight blocks of the task:
          for row_block in row blocks of the chunk:
            sums = 0                                      in AMX tiles
            for step, for each pass of it:
              sums += two tiles of X * two tiles of W     four products; the vectors work meanwhile:
                  fill: tiles of the next weight block    one part behind each product
                  finish_row: rows of the row block before
            C = sums

`amx_blocking.py` says what the blocks are. Tiles of a weight block are made once and lie in the
first cache. They meet all row blocks of a chunk, which lie in the second cache.

X      int32                             activations, as the product says
W      int32 [n/32, groups + 1, stride]   packed weights (`backends/cpu/formats.py`)
Y      float32 [m, n]                     the result
B      int32 [2, steps, tiles, 16, 16]    W tiles: of the weight block in use, and of the next one
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

    def has(self, tile: Index, row: Index) -> Expr:
        """Whether a row of a tile is one of the chunk, and not one of the tile before."""
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
    x_row_bytes: int
    """Bytes from row to row of an X tile."""
    passes: int = 1
    """Passes of a step: each multiplies other tiles of the same columns."""
    w_tiles: int = 2
    """W tiles of a step."""

    @abstractmethod
    def multiply(self, x: Index, w: Index) -> Expr:
        """The instruction that multiplies X tile x and W tile w of a step (0 or 1 each)."""

    @abstractmethod
    def first_row(self, chunk: Chunk, tile: Index) -> Index:
        """The first row of a tile of rows of a chunk."""

    @abstractmethod
    def x_tile(
        self, X: Buffer, chunk: Chunk, row_block: Expr, k_block: Expr, step: Expr, turn: Index,
        x: Index,
    ) -> Expr:  # fmt: skip
        """Where X tile x (0 or 1) of a pass of a step begins."""

    def w_tile(self, turn: Index, w: Index) -> Index:
        """Which tile of a step in B is W tile w (0 or 1) of a pass."""
        return w

    def loads(self, turn: Index) -> tuple[Expr | bool, Expr | bool]:
        """Whether a pass has other X tiles, and other W tiles, than the one before."""
        return True, True

    @abstractmethod
    def fill(
        self, W: Buffer, B: Buffer, side: Index, place: Place, group: Index, part: Index
    ) -> None:
        """Inline: makes a part of the tiles of one group of a weight block in B[side]. Each product
        of a step has one, so 0 to 3 of the first pass."""

    @abstractmethod
    def finish_row(
        self, buffers: Buffers, place: Place, row: Index, partial: Index, tile: Index, r: Index
    ) -> None:
        """Inline: adds row r of a tile of rows in C to F[partial]; the sums of the last k block go
        to Y. row: its number in X and Y."""


def once(value: Expr) -> Expr:
    """The value, for `T.let`. TVM would write a pure one anew in the place of each use."""
    return T.call_llvm_intrin("int32", "llvm.expect", value, T.int32(0))


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
        rows: T.let[T.int32] = m  # it may be a load
        for chunk in T.serial(
            T.ceildiv(T.ceildiv(rows, self.blocking.rows), self.blocking.row_blocks)
        ):
            self.do_all(
                X, W, Y, claims, OneChunk(self.tasks, self.blocking, self.chunk(rows, chunk)), rows
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
        B = T.alloc_buffer((2, self.blocking.steps, self.product.w_tiles, ROWS, L), "int32")
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
            for part in T.unroll(4 * self.product.passes):
                self.product.fill(W, B, 0, work.place(state[CLAIMED], 0), g, part)

    @T.inline
    def finish_last(self, buffers, work):
        """Finishes the last row block, which no other follows."""
        for tile in T.serial(self.blocking.row_tiles):
            for r in T.serial(ROWS):
                self.finish_row(
                    buffers, work, buffers.state[NOW], self.blocking.weight_blocks - 1,
                    work.chunk(buffers.state[NOW]).blocks - 1, tile, r,
                )  # fmt: skip

    @T.inline
    def multiply_block(self, buffers, work, weight_block, u):
        """Multiplies row block u of a chunk by a weight block, and meanwhile does the vectors' work
        (`fill`, `finish_row`).

        What the steps need to know is bound before them: they would read `state`, which is memory,
        and compute all places anew for each row and each group.
        """
        state = T.meta_var(buffers.state)
        now: T.let[T.int32] = state[NOW]
        side: T.let[T.int32] = (state[BEGUN] + weight_block) % 2
        # The row block before.
        old: T.let[T.int32] = self.old_task(state, weight_block, u)
        old_block: T.let[T.int32] = once(self.old_block(weight_block, u))
        old_u: T.let[T.int32] = once(T.if_then_else(u > 0, u, work.chunk(old).blocks) - 1)
        # The next weight block: this row block fills the groups `low` to `high`, `some` a step.
        next: T.let[T.int32] = self.next_task(state, weight_block)
        after: T.let[T.int32] = once((weight_block + 1) % self.blocking.weight_blocks)
        groups: T.let[T.int32] = once(
            T.if_then_else(next < work.tasks, self.blocking.groups_of(after), 0)
        )
        low: T.let[T.int32] = once(T.floordiv(u * groups, work.chunk(now).blocks))
        high: T.let[T.int32] = once(T.floordiv((u + 1) * groups, work.chunk(now).blocks))
        some: T.let[T.int32] = once(T.ceildiv(high - low, self.blocking.steps_of(weight_block)))
        for i in T.unroll(self.blocking.sums):
            T.evaluate(amx.clear(amx.SUMS + i))
        for t in T.serial(self.blocking.steps_of(weight_block)):
            self.ask_for_results(buffers, work, now, weight_block, u, t)
            for turn in T.unroll(self.product.passes):
                self.load(buffers, work.chunk(now), weight_block, u, t, turn, side)
                for x in T.unroll(2):
                    for w in T.unroll(2):
                        T.evaluate(self.product.multiply(x, w))
                        for i in T.serial(T.min(some, high - low - t * some)):
                            self.product.fill(
                                buffers.W, buffers.B, 1 - side, work.place(next, after),
                                *(low + t * some + i, 4 * turn + 2 * x + w),
                            )  # fmt: skip
            if old < work.tasks:
                for tile in T.unroll(self.blocking.row_tiles):
                    for i in T.unroll(self.blocking.rows_a_step):
                        if t * self.blocking.rows_a_step + i < ROWS:
                            self.finish_row(
                                *(buffers, work, old, old_block, old_u, tile),
                                t * self.blocking.rows_a_step + i,
                            )
        for i in T.unroll(self.blocking.sums):
            T.evaluate(amx.store(amx.SUMS + i, T.address_of(buffers.C[i, 0, 0]), amx.ROW_BYTES))

    def old_task(self, state: Buffer, weight_block: Expr, u: Expr) -> Expr:
        """Task of the row block before."""
        return T.if_then_else(T.And(weight_block == 0, u == 0), state[LAST], state[NOW])

    def old_block(self, weight_block: Expr, u: Expr) -> Expr:
        """Weight block of the row block before."""
        blocks = self.blocking.weight_blocks
        return T.if_then_else(u > 0, weight_block, (weight_block + blocks - 1) % blocks)

    def next_task(self, state: Buffer, weight_block: Expr) -> Expr:
        """Task of the next weight block."""
        is_last = weight_block + 1 == self.blocking.weight_blocks
        return T.if_then_else(is_last, state[CLAIMED], state[NOW])

    @T.inline
    def load(self, buffers, chunk, weight_block, u, t, turn, side):
        """Loads the four tiles of a pass of step t."""
        loads = T.meta_var(self.product.loads(turn))
        for i in T.unroll(2):
            if loads[0]:
                T.evaluate(
                    amx.load(
                        amx.X_TILES + i,
                        self.product.x_tile(
                            *(buffers.X, chunk, u, weight_block // self.blocking.same_k),
                            *(t, turn, i),
                        ),
                        self.product.x_row_bytes,
                    )
                )
            if loads[1]:
                T.evaluate(
                    amx.load(
                        amx.W_TILES + i,
                        T.address_of(buffers.B[side, t, self.product.w_tile(turn, i), 0, 0]),
                        amx.ROW_BYTES,
                    )
                )

    @T.inline
    def finish_row(self, buffers, work, task, weight_block, u, tile, r):
        """Finishes row r of a tile of a row block, if it is a row of its own."""
        number = T.meta_var(u * self.blocking.row_tiles + tile)
        row = T.meta_var(self.product.first_row(work.chunk(task), number) + r)
        if work.chunk(task).has(number, row):
            self.product.finish_row(
                buffers,
                work.place(task, weight_block),
                row,
                weight_block % self.blocking.same_k * self.blocking.row_blocks + u,
                tile,
                r,
            )

    @T.inline
    def ask_for_results(self, buffers, work, task, weight_block, u, t):
        """Asks for the parts of Y that `finish_row` will write next."""
        if weight_block // self.blocking.same_k == self.blocking.k_blocks - 1:
            for tile in T.unroll(self.blocking.row_tiles):
                for i in T.unroll(self.blocking.rows_a_step):
                    for v in T.unroll(self.blocking.vectors):
                        T.evaluate(
                            prefetch(
                                buffers.Y,
                                self.product.first_row(
                                    work.chunk(task), u * self.blocking.row_tiles + tile
                                )
                                + t * self.blocking.rows_a_step
                                + i,
                                work.place(task, weight_block).column + v * L,
                                to_write=True,
                            )
                        )
