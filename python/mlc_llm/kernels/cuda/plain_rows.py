"""What a few rows need that are not tokens of a layer: those of draft heads, pairs and images.

activate        x = act(x)                                  a block for each row
zeros           y = 0                                       one block
first_columns   y = the first columns of x                  a block for each row
float_product   y[i, j] = x[i] . weight[j] + bias[j]        a block for each row, a warp for each j
joined_squares  y = squares of patches, each as one row     a block for each row of y

All tensors are float32.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.activations import activated
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size, grid


@cache
def activate(width: int, activation: str) -> PrimFunc:
    """Kernel of x [m, width], which is changed in place. activation: one of a single number."""
    threads, kind = block_size(width), f"{activation}_alone"

    @T.prim_func(private=True)
    def activate_rows(x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if row < m:
            for part in T.serial(T.ceildiv(width, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < width:
                    X[row, i] = activated(kind, X[row, i], None)

    return activate_rows


@cache
def zeros(width: int) -> PrimFunc:
    """Kernel of y [width]."""
    threads = block_size(width)

    @T.prim_func(private=True)
    def fill(y: T.handle):
        T.func_attr(SCHEDULED)
        Y = T.match_buffer(y, (width,), "float32")
        T.device_entry()
        T.cta_id([1])
        thread = T.thread_id([threads])
        for part in T.serial(T.ceildiv(width, threads)):
            if part * threads + thread < width:
                Y[part * threads + thread] = T.float32(0)

    return fill


@cache
def first_columns(width: int, count: int) -> PrimFunc:
    """Kernel of x [m, width] and y [m, count]."""
    threads = block_size(count)

    @T.prim_func(private=True)
    def take_columns(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        Y = T.match_buffer(y, (m, count), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if row < m:
            for part in T.serial(T.ceildiv(count, threads)):
                if part * threads + thread < count:
                    Y[row, part * threads + thread] = X[row, part * threads + thread]

    return take_columns


@cache
def float_product(k: int, rows: int) -> PrimFunc:
    """Kernel of x [m, k], weight [rows, k], bias [rows] and y [m, rows]."""
    warps = block_size(rows * WARP) // WARP

    @T.prim_func(private=True)
    def multiply(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        N = T.match_buffer(weight, (rows, k), "float32")
        BIAS = T.match_buffer(bias, (rows,), "float32")
        Y = T.match_buffer(y, (m, rows), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        lane, warp = T.thread_id([WARP, warps])
        total = T.alloc_buffer((1,), "float32", scope="local")
        if row < m:
            for turn in T.serial(T.ceildiv(rows, warps)):
                j: T.let[T.int32] = turn * warps + warp
                total[0] = T.float32(0)
                if j < rows:
                    for part in T.serial(T.ceildiv(k, WARP)):
                        if part * WARP + lane < k:
                            total[0] = (
                                total[0] + X[row, part * WARP + lane] * N[j, part * WARP + lane]
                            )
                total[0] = T.cuda.warp_sum(total[0])
                if T.And(j < rows, lane == 0):
                    Y[row, j] = total[0] + BIAS[j]

    return multiply


@cache
def joined_squares(side: int, size: int, width: int, join: Literal["mean", "beside"]) -> PrimFunc:
    """Kernel of x [(side * size)^2, width], patches row by row, and y [side^2, columns]: of each
    square of size * size patches the mean, or all vectors side by side."""
    threads, across = block_size(width), side * size
    columns = width if join == "mean" else width * size**2

    @T.prim_func(private=True)
    def join_patches(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        X = T.match_buffer(x, (across**2, width), "float32")
        Y = T.match_buffer(y, (side**2, columns), "float32")
        T.device_entry()
        row = T.cta_id([side**2])
        thread = T.thread_id([threads])
        total = T.alloc_buffer((1,), "float32", scope="local")
        first: T.let[T.int32] = row // side * size * across + row % side * size
        for part in T.serial(T.ceildiv(width, threads)):
            i: T.let[T.int32] = part * threads + thread
            if i < width:
                total[0] = T.float32(0)
                for at in T.serial(size**2):
                    patch: T.let[T.int32] = first + at // size * across + at % size
                    if join == "mean":
                        total[0] = total[0] + X[patch, i]
                    else:
                        Y[row, at * width + i] = X[patch, i]
                if join == "mean":
                    Y[row, i] = total[0] * T.float32(1.0 / size**2)

    return join_patches
