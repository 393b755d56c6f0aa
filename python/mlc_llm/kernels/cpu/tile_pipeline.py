"""Products of many rows on tile registers (`amx.py`), whatever the tiles hold (`Arithmetic`).

A worker takes tasks, of one block of weights or several. Of a block and a section of columns, a
job, the tiles of weights are made once and lie in the first cache; then they meet all activations
of a chunk, a unit of 16 or 32 rows at a time. These lie in the second cache, as whole rows or,
where rows are long, a section of them, which meets all blocks of a task before the next one. A unit
takes as long as its tiles do: meanwhile the vector units add up the unit before and make the tiles
of the next job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.cpu.vectors import lanes_at

ROWS = L = amx.ROWS
V = BLOCK // L
"""Vectors of a block."""
CHUNK_BYTES = 5 * 2**18
"""Activations that stay in the second cache."""
SEEN, NOW, NEXT, LAST, BEGUN = range(5)
"""What a worker remembers: how many tasks it has looked at, the tasks that it works on, will work
on, and has worked on (the number of all is none), and how many jobs it did before the task."""


@dataclass(frozen=True)
class Arithmetic:
    """What two tiles of activations (x) and two of weights (w) are to each other."""

    groups: int
    """Groups of a row."""
    section: int
    """Groups of a job; those of the last section may be fewer."""
    step: int
    """Groups of a step, which multiplies two tiles of activations by two of weights."""
    tiles: int
    """Tiles of rows in a unit."""
    vectors: int
    """Vectors of a block in a job."""
    sums: int
    """Registers of sums, and tiles in C."""
    dtype: str
    """Of the sums."""
    stride: int
    """32-bit words of a row of activations."""
    multiply: Callable[[Any, Any], Any]
    """(x, w): the instruction that multiplies these two of a step's tiles."""
    column: Callable[[Any, Any, Any], Any]
    """(section, t, x): the word of a row at which tile x of step t begins."""
    row: Callable[[Any, Any, Any], Any]
    """(m, unit, x): the first row of that tile (see `first_row`)."""
    fill: Any
    """Inline function of (W, B, side, block, vector, section, g, i): a fourth of group g of a
    section of a job's weights, which are a block's vectors from `vector` on, to B[side]."""
    finish_row: Any
    """Inline function of (X, W, Y, C, F, block, vector, section, m, unit, u, r): adds sums of row r
    of a unit, which are in C, to those in F[u], or puts them into Y if the section is the last."""
    blocks: int = 1
    """Of a task."""

    @property
    def sections(self) -> int:
        return -(-self.groups // self.section)

    @property
    def steps(self) -> int:
        """Of a job, at most."""
        return -(-self.section // self.step)

    @property
    def wide(self) -> int:
        """Jobs of a section."""
        return V // self.vectors * self.blocks

    @property
    def jobs(self) -> int:
        """Of a task."""
        return self.wide * self.sections

    @property
    def rows(self) -> int:
        """Of a unit."""
        return self.tiles * ROWS

    @property
    def rows_a_step(self) -> int:
        """Rows of the unit before that a step adds up, so that the fewest steps do it."""
        last = self.groups - (self.sections - 1) * self.section
        return -(-self.rows // -(-last // self.step))

    @property
    def units(self) -> int:
        """Of a chunk. With several blocks it is a section of the rows, and their sums, that stay
        in the second cache."""
        words = self.stride
        if self.blocks > 1:
            words = -(-self.stride // self.sections) + self.blocks * BLOCK
        return max(1, CHUNK_BYTES // (4 * words * self.rows))

    def groups_of(self, job: Any) -> Any:
        start = job // self.wide * self.section
        return T.min(T.int32(self.section), self.groups - start)

    def steps_of(self, job: Any) -> Any:
        return T.ceildiv(self.groups_of(job), self.step)

    def place(self, task: Any, job: Any) -> tuple[Any, Any, Any]:
        """Block, first vector in it, and section."""
        inner, apart = job % self.wide, V // self.vectors
        return (
            task * self.blocks + inner // apart,
            inner % apart * self.vectors,
            job // self.wide,
        )


def first_row(m: Any, tile: Any) -> Any:
    """Of a tile of rows. The last one may begin within the one before: what is known then is not
    stored again."""
    return T.max(T.min(tile * ROWS, m - ROWS), 0)


@T.inline
def put(Y, row, column, sums, lanes, accumulate):
    """Writes results or adds them to what is there."""
    if accumulate:
        Y[row, lanes_at(column, lanes)] = Y[row, lanes_at(column, lanes)] + sums
    else:
        Y[row, lanes_at(column, lanes)] = sums


def _take(taken: Any, i: Any) -> Any:
    """0 for the one thread that asks first for taken[i], which is 0 before."""
    return T.call_llvm_intrin("int32", "llvm.x86.atomic.bts", T.address_of(taken[i]), T.int8(0))


def tiled_rows(n: int, fmt: WeightFormat, how: Arithmetic) -> Any:
    """Statements for all m rows: an inline function of (X, W, Y, m)."""
    assert fmt.words == 4, "a word for each of the four products"
    tasks, units = n // BLOCK // how.blocks, how.units
    unit, finish_row, fill = _unit(tasks, how), how.finish_row, how.fill

    @T.inline
    def look(taken, at, start):
        """Takes a task that nobody has; threads whose own are done help the others."""
        at[NEXT] = tasks
        while at[NEXT] == tasks and at[SEEN] < tasks:
            if _take(taken, (start + at[SEEN]) % tasks) == 0:
                at[NEXT] = (start + at[SEEN]) % tasks
            at[SEEN] = at[SEEN] + 1

    @T.inline
    def work(X, W, Y, taken, at, start, m, first, count):
        shape = T.alloc_buffer((amx.SHAPE_WORDS,), "int32")
        B = T.alloc_buffer((2, how.steps, 2, ROWS, L), "int32")
        C = T.alloc_buffer((how.sums, ROWS, L), how.dtype)
        F = T.alloc_buffer((how.wide * units, how.rows, how.vectors, L), "float32")
        amx.configure(shape, T.min(m, ROWS))
        for g in T.serial(how.groups_of(0)):
            for i in T.unroll(4):
                fill(W, B, 0, *how.place(at[NEXT], 0), g, i)
        at[NOW] = tasks
        at[BEGUN] = -how.jobs
        while at[NEXT] < tasks:
            at[LAST] = at[NOW]
            at[NOW] = at[NEXT]
            at[BEGUN] = at[BEGUN] + how.jobs
            look(taken, at, start)
            for job in T.serial(how.jobs):
                for u in T.serial(count):
                    unit(X, W, Y, B, C, F, at, job, m, first, u, count)
        for r in T.serial(how.rows):
            if r % ROWS < T.min(m, ROWS):
                finish_row(
                    X, W, Y, C, F, *how.place(at[NOW], how.jobs - 1), m, first + count - 1,
                    (how.wide - 1) * units + count - 1, r,
                )  # fmt: skip
        T.evaluate(amx.release())

    @T.inline
    def rows(X, W, Y, m):
        """A thread's first turn takes tasks until none is left; its other turns find nothing."""
        taken = T.alloc_buffer((tasks + 1,), "int32")
        for chunk in T.serial(T.ceildiv(T.ceildiv(m, how.rows), units)):
            for i in T.serial(tasks + 1):
                taken[i] = T.int32(0)
            for start in T.parallel(tasks):
                if taken[tasks] == 0:
                    at = T.alloc_buffer((5,), "int32")
                    at[SEEN] = 0
                    look(taken, at, start)
                    if at[NEXT] < tasks:
                        work(
                            X, W, Y, taken, at, start, m, chunk * units,
                            T.min(units, T.ceildiv(m, how.rows) - chunk * units),
                        )  # fmt: skip
                    taken[tasks] = 1

    return rows


def _unit(tasks: int, how: Arithmetic) -> Any:
    """Inline function that multiplies a unit and does the vectors' work meanwhile, which is
    `finish_row` for rows of the unit before, and `fill` for words of the next job, one a product.
    """
    rows = how.rows_a_step
    finish_row, fill = how.finish_row, how.fill

    def before(at: Any, job: Any, u: Any, count: Any) -> Any:
        """Task, job and number of the unit before."""
        is_first = T.And(job == 0, u == 0)
        task = T.if_then_else(is_first, at[LAST], at[NOW])
        job = T.if_then_else(u > 0, job, (job + how.jobs - 1) % how.jobs)
        return task, job, T.if_then_else(u > 0, u, count) - 1

    def share(at: Any, job: Any, u: Any, count: Any) -> Any:
        """Task and job to fill, from which group and to which, and how many a step."""
        after = (job + 1) % how.jobs
        task = T.if_then_else(job + 1 < how.jobs, at[NOW], at[NEXT])
        low, high = (T.floordiv(i * how.groups_of(after), count) for i in (u, u + 1))
        high = T.if_then_else(task < tasks, high, 0)
        return task, after, low, high, T.ceildiv(T.max(high - low, 0), how.steps_of(job))

    @T.inline
    def load(X, B, side, m, unit, job, t):
        for i in T.unroll(2):
            T.evaluate(
                amx.load(
                    amx.X_TILES + i,
                    T.address_of(X[how.row(m, unit, i), how.column(job // how.wide, t, i)]),
                    4 * how.stride,
                )
            )
            T.evaluate(amx.load(amx.W_TILES + i, T.address_of(B[side, t, i, 0, 0]), amx.ROW_BYTES))

    @T.inline
    def finish(X, W, Y, C, F, task, job, m, first, u, r):
        """Some rows of the unit before from r on, if there was one."""
        if task < tasks:
            for i in T.unroll(rows):
                if T.And(r + i < how.rows, (r + i) % ROWS < T.min(m, ROWS)):
                    finish_row(
                        X, W, Y, C, F, *how.place(task, job), m, first + u,
                        job % how.wide * how.units + u, r + i,
                    )  # fmt: skip

    @T.inline
    def ask(Y, block, vector, section, row):
        """For what the next unit will write."""
        if section == how.sections - 1:
            for i in T.unroll(rows):
                for v in T.unroll(how.vectors):
                    T.evaluate(
                        prefetch(Y, row + i, block * BLOCK + (vector + v) * L, to_write=True)
                    )

    @T.inline
    def unit(X, W, Y, B, C, F, at, job, m, first, u, count):
        old_task, old_job, old_u = before(at, job, u, count)
        task, after, low, high, some = share(at, job, u, count)
        for i in T.unroll(how.sums):
            T.evaluate(amx.clear(amx.SUMS + i))
        for t in T.serial(how.steps_of(job)):
            load(X, B, (at[BEGUN] + job) % 2, m, first + u, job, t)
            ask(Y, *how.place(at[NOW], job), first_row(m, (first + u) * how.tiles) + t * rows)
            for x in T.unroll(2):
                for w in T.unroll(2):
                    T.evaluate(how.multiply(x, w))
                    for i in T.serial(some):
                        if low + t * some + i < high:
                            fill(
                                W, B, (at[BEGUN] + job + 1) % 2,
                                *how.place(task, after), low + t * some + i, 2 * x + w,
                            )  # fmt: skip
            finish(X, W, Y, C, F, old_task, old_job, m, first, old_u, t * rows)
        for i in T.unroll(how.sums):
            T.evaluate(amx.store(amx.SUMS + i, T.address_of(C[i, 0, 0]), amx.ROW_BYTES))

    return unit
