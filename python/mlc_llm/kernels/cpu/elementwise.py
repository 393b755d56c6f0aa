"""Sums and functions of single numbers.

add:      x[:, :columns] += scale * (y + bias); y or bias may be missing
changed:  y = cap * tanh(factor * x / cap)
multiply: x *= factor
beside:   y = [some columns of gate, as many of up]

x, y      float32 [m, width]; `add` and `multiply` change x in place
bias      float32 [columns]
factor    float32 [1]
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.vectors import SCHEDULED, capped, fsplat, lanes_at, splat
from mlc_llm.kernels.types import Expr

L = 8
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""
STRETCH = 4096
"""Columns of a row that one task changes, at most."""


def _times(x: Expr, factor: float) -> Expr:
    """x * factor; nothing is computed for a factor of 1."""
    return x if factor == 1.0 else x * fsplat(factor, L)


@cache
def add(width: int, columns: int, scale: float, *, has_y: bool, has_bias: bool) -> PrimFunc:
    """Kernel arguments: y and bias, as far as it has them, then x. Both sizes are multiples of
    L."""
    assert has_y or has_bias

    @T.inline
    def one_row(X, Y, bias, row):
        """Changes a row."""
        for i in T.serial(columns // L):
            at = T.meta_var(lanes_at(i * L, L))
            if has_y and has_bias:
                X[row, at] = X[row, at] + _times(Y[row, at] + bias[at], scale)
            elif has_y:
                X[row, at] = X[row, at] + _times(Y[row, at], scale)
            else:
                X[row, at] = X[row, at] + _times(bias[at], scale)

    @T.prim_func(private=True, s_tir=True)
    def add_rows(y: T.handle, bias: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        Y = T.match_buffer(y, (m, width), "float32")
        BIAS = T.match_buffer(bias, (columns,), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    one_row(X, Y, BIAS, row)
            else:
                for row in T.serial(m):
                    one_row(X, Y, BIAS, row)

    return without(add_rows, *(() if has_y else ("Y",)), *(() if has_bias else ("BIAS",)))


@cache
def changed(width: int, factor: float = 1.0, cap: float | None = None) -> PrimFunc:
    """Kernel arguments: x, y. width is a multiple of L; without a cap nothing is capped."""
    stretches = -(-width // STRETCH)

    @T.prim_func(private=True, s_tir=True)
    def change(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        Y = T.match_buffer(y, (m, width), "float32")
        with T.sblock("root"):
            for u in T.parallel(m * stretches):
                for i in T.serial(
                    u % stretches * (STRETCH // L),
                    T.min((u % stretches + 1) * (STRETCH // L), width // L),
                ):
                    Y[u // stretches, lanes_at(i * L, L)] = capped(
                        _times(X[u // stretches, lanes_at(i * L, L)], factor), cap, L
                    )

    return change


@cache
def multiply(width: int) -> PrimFunc:
    """Kernel arguments: factor, x. width is a multiple of L."""

    @T.inline
    def one_row(X, factor, row):
        """Changes a row."""
        for i in T.serial(width // L):
            at = T.meta_var(lanes_at(i * L, L))
            X[row, at] = X[row, at] * splat(factor[0], L)

    @T.prim_func(private=True, s_tir=True)
    def multiply_rows(factor: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        F = T.match_buffer(factor, (1,), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    one_row(X, F, row)
            else:
                for row in T.serial(m):
                    one_row(X, F, row)

    return multiply_rows


@cache
def beside(widths: tuple[int, int], starts: tuple[int, int], columns: int) -> PrimFunc:
    """Kernel arguments: gate and up, of these widths, of which the columns from `starts` on are
    taken; y float32 [m, 2 * columns]. columns is a multiple of L."""

    @T.inline
    def one_row(gate, up, Y, row):
        """Copies to a row."""
        for i in T.serial(columns // L):
            Y[row, lanes_at(i * L, L)] = gate[row, lanes_at(starts[0] + i * L, L)]
            Y[row, lanes_at(columns + i * L, L)] = up[row, lanes_at(starts[1] + i * L, L)]

    @T.prim_func(private=True, s_tir=True)
    def put_beside(gate: T.handle, up: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        GATE = T.match_buffer(gate, (m, widths[0]), "float32")
        UP = T.match_buffer(up, (m, widths[1]), "float32")
        Y = T.match_buffer(y, (m, 2 * columns), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    one_row(GATE, UP, Y, row)
            else:
                for row in T.serial(m):
                    one_row(GATE, UP, Y, row)

    return put_beside
