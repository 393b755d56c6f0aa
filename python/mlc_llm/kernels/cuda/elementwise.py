"""What changes rows number by number. A block for each row; a thread has every `threads`-th column.

add         x = x + factor * (y + bias): the columns of the bias, if there is one
changed     y = cap * tanh(factor * x / cap)
multiply    x = x * factor[0]
beside      y = columns of two tensors, side by side

All tensors are float32 [m, width]; factor is [1], a bias has one number a column.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.threads import SCHEDULED, block_size, grid


@cache
def add(
    width: int,
    columns: int,
    factor: float = 1.0,
    *,
    has_y: bool,
    has_bias: bool,
    y_width: int = 0,
    start: int = 0,
) -> PrimFunc:
    """Kernel of (y, bias, x), which changes some columns of x in place, from `start` on; y and bias
    are there if said so. y_width: of y's rows, if it is not that of x."""
    threads = block_size(columns)
    own = y_width or width

    @T.prim_func(private=True)
    def add_rows(y: T.handle, bias: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        Y = T.match_buffer(y, (m, own), "float32")
        BIAS = T.match_buffer(bias, (columns,), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        v = T.alloc_buffer((1,), "float32", scope="local")
        if row < m:
            for part in T.serial(T.ceildiv(columns, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < columns:
                    v[0] = T.float32(0)
                    if has_y:
                        v[0] = Y[row, i]
                    if has_bias:
                        v[0] = v[0] + BIAS[i]
                    X[row, start + i] = X[row, start + i] + T.float32(factor) * v[0]

    return without(add_rows, *(() if has_y else ("Y",)), *(() if has_bias else ("BIAS",)))


@cache
def changed(width: int, factor: float = 1.0, cap: float | None = None) -> PrimFunc:
    """Kernel of (x, y)."""
    threads = block_size(width)

    @T.prim_func(private=True)
    def change_rows(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        Y = T.match_buffer(y, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        v = T.alloc_buffer((1,), "float32", scope="local")
        if row < m:
            for part in T.serial(T.ceildiv(width, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < width:
                    v[0] = X[row, i] * T.float32(factor)
                    if cap is not None:
                        v[0] = T.tanh(v[0] / T.float32(cap)) * T.float32(cap)
                    Y[row, i] = v[0]

    return change_rows


@cache
def multiply(width: int) -> PrimFunc:
    """Kernel of (factor, x), which changes x in place."""
    threads = block_size(width)

    @T.prim_func(private=True)
    def multiply_rows(factor: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        F = T.match_buffer(factor, (1,), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if row < m:
            for part in T.serial(T.ceildiv(width, threads)):
                if part * threads + thread < width:
                    X[row, part * threads + thread] = X[row, part * threads + thread] * F[0]

    return multiply_rows


@cache
def beside(widths: tuple[int, int], starts: tuple[int, int], width: int) -> PrimFunc:
    """Kernel of (a, b, y): `width` columns of each, from its start on. widths: of their rows."""
    threads = block_size(width)

    @T.prim_func(private=True)
    def join_rows(a: T.handle, b: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        A = T.match_buffer(a, (m, widths[0]), "float32")
        B = T.match_buffer(b, (m, widths[1]), "float32")
        Y = T.match_buffer(y, (m, 2 * width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if row < m:
            for part in T.serial(T.ceildiv(width, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < width:
                    Y[row, i] = A[row, starts[0] + i]
                    Y[row, width + i] = B[row, starts[1] + i]

    return join_rows
