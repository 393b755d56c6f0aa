"""Products of many rows with fixed-point weights, on tile registers (`amx.py`).

Weights become two bytes, as activations are: four products of tiles, whose sums of bytes count
65536, 256 (two of them) and 1. For 16 rows of weights and a section of columns, a job, the tiles of
weights are made once and lie in the first cache; then they meet all activations of a chunk, 16 rows
(a unit) at a time, which lie in the second. A unit takes as long as its tiles do: meanwhile the
vector units scale the sums of the unit before and make the tiles of the next job.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from mlc_llm.kernels import amx
from mlc_llm.kernels.formats import BLOCK, WeightFormat
from mlc_llm.kernels.prefetch import prefetch
from mlc_llm.kernels.scales import units_at
from mlc_llm.kernels.sections import QUADS, SECTION, scales_start, sections, sections_width
from mlc_llm.kernels.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.weight_tiles import STEPS, V, fill_word

ROWS = L = amx.ROWS
HALF = 8
"""Lanes of 64-bit sums."""
CHUNK_BYTES = 5 * 2**18
"""Activations that stay in the second cache."""
SEEN, NOW, NEXT, LAST = range(4)
"""What a worker remembers: how many blocks it has looked at, and the blocks that it works on, will
work on, and has worked on. NB is none."""


def section_sum(f: Any, exact: Any, units: Any, scale: Any) -> Any:
    """The sums f plus a section's; exact: float64, a whole number; scale: bits of float32."""
    x_scale = splat(T.reinterpret(scale, dtype="float32"), HALF)
    return f + T.cast(exact, f"float32x{HALF}") * (units * x_scale)


@T.inline
def put(Y, row, column, sums, accumulate):
    """Writes `HALF` results or adds them to what is there."""
    if accumulate:
        Y[row, lanes_at(column, HALF)] = Y[row, lanes_at(column, HALF)] + sums
    else:
        Y[row, lanes_at(column, HALF)] = sums


def take(taken: Any, i: Any) -> Any:
    """0 for the one thread that asks first for taken[i], which is 0 before."""
    return T.call_llvm_intrin("int32", "llvm.x86.atomic.bts", T.address_of(taken[i]), T.int8(0))


def tiled_rows(n: int, k: int, fmt: WeightFormat, accumulate: bool) -> Any:
    """Statements for all m rows: an inline function of (X, W, Y, m)."""
    NB, S, units = n // BLOCK, sections(k), _chunk_units(k)
    unit, finish_row, fill = _unit(n, k, fmt, accumulate)

    @T.inline
    def look(taken, at, start):
        """Takes a block that nobody has; threads whose own are done help the others."""
        at[NEXT] = NB
        while at[NEXT] == NB and at[SEEN] < NB:
            if take(taken, (start + at[SEEN]) % NB) == 0:
                at[NEXT] = (start + at[SEEN]) % NB
            at[SEEN] = at[SEEN] + 1

    @T.inline
    def work(X, W, Y, taken, at, start, m, first, count):
        shape = T.alloc_buffer((amx.SHAPE_WORDS,), "int32")
        B = T.alloc_buffer((2, STEPS, 2, ROWS, L), "int32")
        C = T.alloc_buffer((3, ROWS, L), "int32")
        F = T.alloc_buffer((units, ROWS, L), "float32")
        amx.configure(shape, T.min(m, ROWS))
        for g in T.serial(min(SECTION, k // fmt.group)):
            for j in T.unroll(fmt.words):
                fill(W, B, at[NEXT], 0, g, j)
        at[NOW] = NB
        while at[NEXT] < NB:
            at[LAST] = at[NOW]
            at[NOW] = at[NEXT]
            look(taken, at, start)
            for job in T.serial(V * S):
                for u in T.serial(count):
                    unit(X, W, Y, B, C, F, at, job, m, first, u, count)
        for r in T.serial(T.min(m, ROWS)):
            finish_row(X, W, Y, C, F, at[NOW], V * S - 1, m, first, count - 1, r)
        T.evaluate(amx.release())

    @T.inline
    def rows(X, W, Y, m):
        """A thread's first turn takes blocks until none is left; its other turns find nothing."""
        taken = T.alloc_buffer((NB + 1,), "int32")
        for chunk in T.serial(T.ceildiv(T.ceildiv(m, ROWS), units)):
            for i in T.serial(NB + 1):
                taken[i] = T.int32(0)
            for start in T.parallel(NB):
                if taken[NB] == 0:
                    at = T.alloc_buffer((4,), "int32")
                    at[SEEN] = 0
                    look(taken, at, start)
                    if at[NEXT] < NB:
                        work(
                            X, W, Y, taken, at, start, m, chunk * units,
                            T.min(units, T.ceildiv(m, ROWS) - chunk * units),
                        )  # fmt: skip
                    taken[NB] = 1

    return rows


def _chunk_units(k: int) -> int:
    """Units of rows that `CHUNK_BYTES` hold."""
    return max(1, CHUNK_BYTES // (4 * sections_width(k) * ROWS))


def first_row(m: Any, unit: Any) -> Any:
    """Of a unit. The last one may begin within the one before: what is known then is not stored
    again."""
    return T.max(T.min(unit * ROWS, m - ROWS), 0)


def _unit(n: int, k: int, fmt: WeightFormat, accumulate: bool) -> Any:
    """Inline functions: `unit` multiplies a unit and does the vectors' work meanwhile, which is
    `finish_row` for rows of the unit before, and `fill` for words of the next job, one a product.
    """
    assert fmt.words == 4, "a word for each of the four products"
    G, NB, S = k // fmt.group, n // BLOCK, sections(k)
    jobs, shortest = V * S, -(-(G - (S - 1) * SECTION) // 2)
    rows = -(-ROWS // shortest)
    fill, load = fill_word(k, fmt), _load(k)
    finish_row = _finish_row(k, accumulate)

    def groups(job: Any) -> Any:
        """Of the section that a job multiplies."""
        return T.min(SECTION, G - job % S * SECTION)

    def before(at: Any, job: Any, u: Any, count: Any) -> Any:
        """Block, job and number of the unit before."""
        is_first = T.And(job == 0, u == 0)
        block = T.if_then_else(is_first, at[LAST], at[NOW])
        job = T.if_then_else(u > 0, job, (job + jobs - 1) % jobs)
        return block, job, T.if_then_else(u > 0, u, count) - 1

    def share(at: Any, job: Any, u: Any, count: Any) -> Any:
        """Block and job to fill, from which group and to which, and how many a step."""
        after = (job + 1) % jobs
        block = T.if_then_else(job + 1 < jobs, at[NOW], at[NEXT])
        low, high = (T.floordiv(i * groups(after), count) for i in (u, u + 1))
        high = T.if_then_else(block < NB, high, 0)
        return block, after, low, high, T.ceildiv(T.max(high - low, 0), T.ceildiv(groups(job), 2))

    @T.inline
    def finish(X, W, Y, C, F, block, job, m, first, u, r):
        """Some rows of the unit before from r on, if there was one."""
        if block < NB:
            for i in T.unroll(rows):
                if r + i < T.min(m, ROWS):
                    finish_row(X, W, Y, C, F, block, job, m, first, u, r + i)

    @T.inline
    def ask(Y, block, job, row, r):
        """For what the next unit will write."""
        if job % S == S - 1:
            for i in T.unroll(rows):
                T.evaluate(prefetch(Y, row + r + i, block * BLOCK + job // S * L, to_write=True))

    @T.inline
    def unit(X, W, Y, B, C, F, at, job, m, first, u, count):
        old_block, old_job, old_u = before(at, job, u, count)
        block, after, low, high, some = share(at, job, u, count)
        for i in T.unroll(3):
            T.evaluate(amx.clear(amx.SUMS + i))
        for t in T.serial(T.ceildiv(groups(job), 2)):
            load(X, B, first_row(m, first + u), job, t)
            ask(Y, at[NOW], job, first_row(m, first + u), t * rows)
            for p in T.unroll(2):
                for q in T.unroll(2):
                    T.evaluate(amx.multiply(amx.SUMS + p + q, amx.X_TILES + p, amx.W_TILES + q))
                    for i in T.serial(some):
                        if low + t * some + i < high:
                            fill(W, B, block, after, low + t * some + i, 2 * p + q)
            finish(X, W, Y, C, F, old_block, old_job, m, first, old_u, t * rows)
        for i in T.unroll(3):
            T.evaluate(amx.store(amx.SUMS + i, T.address_of(C[i, 0, 0]), amx.ROW_BYTES))

    return unit, finish_row, fill


def _load(k: int) -> Any:
    """Inline function that loads the tiles of 64 columns of a unit's section."""
    stride, S = 4 * sections_width(k), sections(k)

    @T.inline
    def load(X, B, row, job, t):
        for p in T.unroll(2):
            T.evaluate(
                amx.load(
                    amx.X_TILES + p,
                    T.address_of(X[row, p * (k // 4) + (job % S * STEPS + t) * 2 * QUADS]),
                    stride,
                )
            )
            T.evaluate(
                amx.load(amx.W_TILES + p, T.address_of(B[job % 2, t, p, 0, 0]), amx.ROW_BYTES)
            )

    return load


def _finish_row(k: int, accumulate: bool) -> Any:
    """Inline function that adds a section to a row's sums, which lie in F until the last one."""
    S = sections(k)

    def exact(C: Any, r: Any, h: Any) -> Any:
        planes = [T.cast(C[p, r, lanes_at(h * HALF, HALF)], f"float64x{HALF}") for p in range(3)]
        high, middle = (splat(T.float64(factor), HALF) for factor in (65536, 256))
        return planes[0] * high + (planes[1] * middle + planes[2])

    def added(
        X: Any, W: Any, known: Any, total: Any, block: Any, job: Any, row: Any, h: Any
    ) -> Any:
        zero = fsplat(0.0, HALF)
        return section_sum(
            T.Select(job % S == 0, zero, known) if S > 1 else zero,
            total,
            units_at(W, block, job // S * L + h * HALF, HALF),
            X[row, scales_start(k) + job % S],
        )

    @T.inline
    def finish_row(X, W, Y, C, F, block, job, m, first, u, r):
        if job % S < S - 1:
            for h in T.unroll(2):
                F[u, r, lanes_at(h * HALF, HALF)] = added(
                    *(X, W, F[u, r, lanes_at(h * HALF, HALF)], exact(C, r, h), block, job),
                    *(first_row(m, first + u) + r, h),
                )
        elif first_row(m, first + u) + r >= (first + u) * ROWS:
            for h in T.unroll(2):
                put(
                    *(Y, first_row(m, first + u) + r),
                    block * BLOCK + job // S * L + h * HALF,
                    added(
                        *(X, W, F[u, r, lanes_at(h * HALF, HALF)], exact(C, r, h), block, job),
                        *(first_row(m, first + u) + r, h),
                    ),
                    accumulate,
                )

    return finish_row
