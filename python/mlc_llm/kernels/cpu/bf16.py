"""Products of coarse rows with fixed-point weights: both as bfloat16, on tile registers.

A weight's whole number is rounded to bfloat16 and its row's unit is applied in the end. The sums
are float32, section by section in their order, so that a row's bits depend on nothing else.

A coarse row takes the place of an exact one (`sections.py`). Word i of a group holds columns i and
i + 16 of it, which is how nibbles come out of a word of weights two at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.activation import SERIAL_ROWS, input_width, inverse_rms, load, weight_shape
from mlc_llm.kernels.cpu.fixed import few_rows, least_tile_rows
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.cpu.scales import fixed_at, units_at
from mlc_llm.kernels.cpu.sections import GROUP, quantized_section, sections, sections_width
from mlc_llm.kernels.cpu.tile_pipeline import ROWS, Arithmetic, L, V, first_row, put, tiled_rows
from mlc_llm.kernels.cpu.tiles import exact_rows
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat
from mlc_llm.kernels.cpu.weight_tiles import AHEAD

MOST_GROUPS = 18
"""Of a section: their weights lie in the first cache."""
WHOLE = 1024
"""Columns up to which the rows of a usual prompt stay in the second cache."""
MOST_BLOCKS = 8
"""Blocks that a section of longer rows meets before the next section."""


@cache
def prepare_mixed(kind: str, k: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kinds and arguments as those of `activation.quantize`, but C int32 [1] comes before Y.

    Y is int32 [m, sections_width(k)]: the first C[0] rows are coarse.
    """
    width, words = input_width(kind, k), sections_width(k)
    exact, coarse = quantized_section(kind, k, isa), _coarse_row(kind, k)

    @T.prim_func(private=True, s_tir=True)
    def prepare_coarse_and_exact(
        x: T.handle, weight: T.handle, C: T.Buffer((1,), "int32"), y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        Y = T.match_buffer(y, (m, words), "int32")

        @T.inline
        def one_row(row):
            inv = T.alloc_buffer((1,), "float32")
            if kind == "norm":
                inverse_rms(X, row, k, eps, inv)
            if row < C[0]:
                coarse(X, N, Y, row, inv)
            else:
                for s in T.serial(sections(k)):
                    exact(X, N, Y, row, s, inv)

        with T.sblock("root"):
            if m <= SERIAL_ROWS:
                for row in T.serial(m):
                    one_row(row)
            else:
                for row in T.parallel(m):
                    one_row(row)

    return prepare_coarse_and_exact


def mixed_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it for coarse rows; X comes from `prepare_mixed`."""
    G, NB, words = k // fmt.group, n // BLOCK, sections_width(k)
    coarse = tiled_rows(n, fmt, _floats(n, k, fmt, accumulate))
    tasks, few = few_rows(n, k, fmt, isa, accumulate=accumulate)
    many = exact_rows(n, k, fmt, accumulate)

    @T.prim_func(private=True, s_tir=True)
    def coarse_and_exact_matmul(
        x: T.handle,
        W: T.Buffer((NB, G + 1, fmt.stride), "int32"),
        C: T.Buffer((1,), "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, words), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            E = T.decl_buffer((m - C[0], words), "int32", data=X.data, elem_offset=C[0] * words)
            R = T.decl_buffer((m - C[0], n), "float32", data=Y.data, elem_offset=C[0] * n)
            if C[0] > 0:
                coarse(X, W, Y, C[0])
            if m - C[0] >= least_tile_rows(n, k):
                many(E, W, R, m - C[0])
            elif C[0] < m:
                for task in T.parallel(tasks):
                    few(E, W, R, task, m - C[0])

    return coarse_and_exact_matmul


def _floats(n: int, k: int, fmt: WeightFormat, accumulate: bool) -> Arithmetic:
    """A step takes 32 columns of 32 rows and 32 weights."""
    groups = k // fmt.group
    section = -(-groups // -(-groups // MOST_GROUPS))
    return Arithmetic(
        groups=groups,
        section=section,
        step=1,
        tiles=2,
        vectors=V,
        sums=4,
        dtype="float32",
        stride=sections_width(k),
        multiply=lambda x, w: amx.multiply_floats(
            amx.SUMS + 2 * x + w, amx.X_TILES + x, amx.W_TILES + w
        ),
        row=lambda m, unit, x: first_row(m, 2 * unit + x),
        column=lambda s, t, x: (s * section + t) * (GROUP // 2),
        fill=_fill_word(section, fmt),
        finish_row=_finish_row(-(-groups // section), accumulate),
        blocks=_blocks_together(n // BLOCK) if k > WHOLE else 1,
    )


def _blocks_together(blocks: int) -> int:
    """Blocks of a task: as many as can be, and an even number of tasks if that can be."""
    fitting = [b for b in range(1, MOST_BLOCKS + 1) if blocks % b == 0]
    even = [b for b in fitting if blocks // b % 2 == 0]
    return max(even or fitting)


def _finish_row(S: int, accumulate: bool) -> Any:
    """`Arithmetic.finish_row`, of 32 rows and 32 weights."""

    def row_of(m: Any, unit: Any, r: Any) -> Any:
        return first_row(m, 2 * unit + r // ROWS) + r % ROWS

    def added(C: Any, F: Any, section: Any, u: Any, r: Any, v: Any) -> Any:
        sums = C[r // ROWS * 2 + v, r % ROWS, lanes_at(0, L)]
        if S == 1:
            return sums
        return sums + T.Select(section == 0, fsplat(0.0, L), F[u, r, v, lanes_at(0, L)])

    @T.inline
    def finish_row(X, W, Y, C, F, block, vector, section, m, unit, u, r):
        if section % S < S - 1:
            for v in T.unroll(V):
                F[u, r, v, lanes_at(0, L)] = added(C, F, section, u, r, v)
        elif row_of(m, unit, r) >= 2 * unit * ROWS + r // ROWS * ROWS:
            for v in T.unroll(V):
                put(
                    *(Y, row_of(m, unit, r), block * BLOCK + v * L),
                    added(C, F, section, u, r, v) * units_at(W, block, v * L, L),
                    *(L, accumulate),
                )

    return finish_row


def _fill_word(width: int, fmt: WeightFormat) -> Any:
    """`Arithmetic.fill`: of word j of a group bits 4 * t and 16 + 4 * t become row 4 * t + j of the
    tiles of both vectors in B, int32 [2, groups, 2, 16, 16]."""
    f32 = f"float32x{L}"

    def floats(integers: Any) -> Any:
        return T.cast(T.cast(integers, f"int32x{L}"), f32)

    def pair(word: Any, t: Any, scale: Any, low: Any) -> Any:
        def value(bits: Any) -> Any:
            q = T.shift_right(word, splat(bits, L)) & splat(T.int32(15), L)
            return T.cast(q, f32) * scale + low

        return round_pair(value(4 * t), value(4 * t + 16))

    def low(W: Any, at: Any, v: Any, scale: Any) -> Any:
        if fmt.has_minimum:
            return floats(fixed_at(fmt, W, at, 1, v, L))
        return scale * splat(T.float32(-fmt.offset), L)

    @T.inline
    def word(W, B, side, block, g, at, j):
        for v in T.unroll(V):
            T.evaluate(prefetch(W, block, at + AHEAD, j * BLOCK + v * L))
        if j == 0:
            T.evaluate(prefetch(W, block, at + AHEAD, fmt.words * BLOCK))
        for v in T.unroll(V):
            for t in T.unroll(4):
                B[side, g, v, 4 * t + j, lanes_at(0, L)] = pair(
                    W[block, at, lanes_at(j * BLOCK + v * L, L)],
                    t,
                    floats(fixed_at(fmt, W, (block, at), 0, v, L)),
                    low(W, (block, at), v, floats(fixed_at(fmt, W, (block, at), 0, v, L))),
                )

    @T.inline
    def fill(W, B, side, block, vector, section, g, j):
        word(W, B, side, block, g, section * width + g, j)

    return fill


def round_pair(low: Any, high: Any) -> Any:
    """Two vectors of floats as bfloat16 in the low and high halves of words; ties go outwards."""
    low = T.shift_right(_half_more(low), splat(T.int32(16), L))
    return (low & splat(T.int32(0xFFFF), L)) | (_half_more(high) & splat(T.int32(-0x10000), L))


def _half_more(x: Any) -> Any:
    """Bits of floats and half a step of their upper half."""
    return T.reinterpret(x, dtype=f"int32x{L}") + splat(T.int32(0x8000), L)


def _coarse_row(kind: str, k: int) -> Any:
    """Statements for one coarse row: an inline function of (X, N, Y, row, inv)."""

    @T.inline
    def coarse_row(X, N, Y, row, inv):
        for g in T.serial(k // GROUP):
            Y[row, lanes_at(g * L, L)] = round_pair(
                load(kind, X, N, row, g * GROUP, k, inv, L),
                load(kind, X, N, row, g * GROUP + L, k, inv, L),
            )

    return coarse_row
