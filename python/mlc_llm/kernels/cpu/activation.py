"""Prepares a matrix's input: RMS normalisation or SiLU gating, then 16-bit quantisation.

For integer kernels it becomes int32 [m, k/group, group/2 + 6]; of each group (of `fmt.group`):
* group/2 words, two planes of 16-bit values, laid out as `dot.py` says
* SCALE, SUM and SCALED_SUM: the bits of the float32 scale (value = scale * integer); the sum of
  the integers, for weights with an offset; the bits of scale * sum, for weights with a minimum
* the same three of the rounded high bytes alone, where they have a plane of their own
For float kernels it stays float32 [m, k].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.vectors import (
    LOG2E,
    SCHEDULED,
    exp2,
    fsplat,
    lanes_at,
    reduce_max,
    reduce_sum,
    splat,
)

SERIAL_ROWS = 2
"""Up to here a thread-pool launch costs more than the rows."""

LIMIT = 32512
"""Largest 16-bit activation: its high byte, rounded, still fits a signed byte."""


def pack_plane(isa: Isa, buffer: Any, lane: Any, plane: int, lanes: int) -> Any:
    """Plane of words from the four quarter-group vectors of integers (bytes 0 to 3)."""
    q = [buffer[i, lane] for i in range(4)]

    def put(value: Any, mask: int, shift: int) -> Any:
        part = value & splat(T.int32(mask), lanes)
        return part if shift == 0 else T.shift_left(part, splat(T.int32(shift), lanes))

    if isa.sums == 1:
        return put(q[plane], 0xFFFF, 0) | put(q[plane + 2], 0xFFFF, 16)
    if plane == 0:
        q = [high_bytes(v, lanes) for v in q]
    return put(q[0], 255, 0) | put(q[1], 255, 8) | put(q[2], 255, 16) | put(q[3], 255, 24)


SCALE, SUM, SCALED_SUM = range(3)
"""The words that describe a group, or the high bytes of one."""


def quantized_width(group: int) -> int:
    """32-bit words of a quantised group: its values, then two descriptions."""
    return group // 2 + 6


def description(x: Any, row: Any, g: Any, group: int, is_high: bool) -> Callable[[int], Any]:
    """The words that describe a group of quantised rows x, or its high bytes alone."""
    start = group // 2 + (3 if is_high else 0)
    return lambda word: x[row, g, start + word]


@cache
def quantize(kind: str, k: int, group: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """kind "plain": x [m, k]; "norm": RMSNorm(x) * weight; a name in `GATES`: x [m, 2k] = gate, up.

    `weight` is [k] for "norm"; the others read none and get x again.
    """
    L, G, width = group // 4, k // group, input_width(kind, k)
    lane = lanes_at(0, L)

    @T.prim_func(private=True, s_tir=True)
    def quantize_rows(x: T.handle, weight: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        Y = T.match_buffer(y, (m, G, quantized_width(group)), "int32")

        @T.inline
        def one_row(row):
            inv = T.alloc_buffer((1,), "float32")
            scale = T.alloc_buffer((1,), "float32")
            step = T.alloc_buffer((1,), "float32")
            v = T.alloc_buffer((4, L), "float32")
            q = T.alloc_buffer((4, L), "int32")
            top = T.alloc_buffer((L,), "int32")
            total = T.alloc_buffer((L,), "int32")
            if kind == "norm":
                inverse_rms(X, row, k, eps, inv)
            for g in T.serial(G):
                for i in T.unroll(4):
                    v[i, lane] = load(kind, X, N, row, g * group + i * L, k, inv, L)
                top[lane] = T.max(
                    T.max(magnitude(v[0, lane], L), magnitude(v[1, lane], L)),
                    T.max(magnitude(v[2, lane], L), magnitude(v[3, lane], L)),
                )
                scale[0] = T.reinterpret(reduce_max(top, L), dtype="float32") * T.float32(
                    1.0 / LIMIT
                )
                step[0] = T.if_then_else(
                    scale[0] > T.float32(0), T.float32(1) / scale[0], T.float32(0)
                )
                for i in T.unroll(4):
                    q[i, lane] = rounded(v[i, lane] * splat(step[0], L), L)
                total[lane] = q[0, lane] + q[1, lane] + q[2, lane] + q[3, lane]
                Y[row, g, lane] = pack_plane(isa, q, lane, 0, L)
                Y[row, g, lanes_at(L, L)] = pack_plane(isa, q, lane, 1, L)
                _describe(Y, row, g, 2 * L, scale[0], reduce_sum(total, L))
                if isa.sums == 2:
                    for i in T.unroll(4):
                        q[i, lane] = high_bytes(q[i, lane], L)
                    total[lane] = q[0, lane] + q[1, lane] + q[2, lane] + q[3, lane]
                    _describe(Y, row, g, 2 * L + 3, scale[0] * T.float32(256), reduce_sum(total, L))

        with T.sblock("root"):
            if m <= SERIAL_ROWS:
                for row in T.serial(m):
                    one_row(row)
            else:
                for row in T.parallel(m):
                    one_row(row)

    return quantize_rows


@cache
def floats(kind: str, k: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """The same without quantisation: float32 [m, k]. k is a multiple of 8."""
    L, width = 8, input_width(kind, k)

    @T.prim_func(private=True, s_tir=True)
    def float_rows(x: T.handle, weight: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        Y = T.match_buffer(y, (m, k), "float32")

        @T.inline
        def one_row(row):
            inv = T.alloc_buffer((1,), "float32")
            if kind == "norm":
                inverse_rms(X, row, k, eps, inv)
            for i in T.serial(k // L):
                Y[row, lanes_at(i * L, L)] = load(kind, X, N, row, i * L, k, inv, L)

        with T.sblock("root"):
            if m <= SERIAL_ROWS:
                for row in T.serial(m):
                    one_row(row)
            else:
                for row in T.parallel(m):
                    one_row(row)

    return float_rows


@T.inline
def _describe(Y, row, g, at, scale, total):
    """Writes SCALE, SUM and SCALED_SUM."""
    Y[row, g, at + SCALE] = T.reinterpret(scale, dtype="int32")
    Y[row, g, at + SUM] = total
    Y[row, g, at + SCALED_SUM] = T.reinterpret(
        T.cast(Y[row, g, at + SUM], "float32") * scale, dtype="int32"
    )


@T.inline
def inverse_rms(X, row, k, eps, inv):
    """inv[0] = 1 / sqrt(mean(x^2) + eps), summed in a fixed order."""
    squares = T.alloc_buffer((8,), "float32")
    squares[lanes_at(0, 8)] = fsplat(0.0, 8)
    for i in T.serial(k // 8):
        squares[lanes_at(0, 8)] = (
            squares[lanes_at(0, 8)] + X[row, lanes_at(i * 8, 8)] * X[row, lanes_at(i * 8, 8)]
        )
    inv[0] = T.float32(1) / T.sqrt(reduce_sum(squares, 8) / T.float32(k) + T.float32(eps))


def load(kind: str, X: Any, weight: Any, row: Any, at: Any, k: int, inv: Any, lanes: int) -> Any:
    """`lanes` elements of the normalised, gated or plain row."""
    x = X[row, lanes_at(at, lanes)]
    if kind == "norm":
        return x * splat(inv[0], lanes) * weight[lanes_at(at, lanes)]
    if kind in GATES:
        return GATES[kind](x, lanes) * X[row, lanes_at(at + k, lanes)]
    return x


def _silu(gate: Any, lanes: int) -> Any:
    """x / (1 + e^-x); the exponent is bounded so that the denominator stays finite."""
    bounded = T.min(fsplat(0.0, lanes) - gate, fsplat(87.0, lanes))
    return gate / (fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes))


def _gelu_tanh(gate: Any, lanes: int) -> Any:
    """x / (1 + e^(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which is x (1 + tanh u) / 2
    (Hendrycks and Gimpel 2016)."""
    cubic = gate * gate * gate * fsplat(0.044715, lanes) + gate
    wanted = cubic * fsplat(-2.0 * (2.0 / math.pi) ** 0.5, lanes)
    bounded = T.min(wanted, fsplat(87.0, lanes))
    return gate / (fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes))


GATES = {"silu": _silu, "gelu_tanh": _gelu_tanh}
"""Activations of a gated feed-forward network."""


def magnitude(x: Any, lanes: int) -> Any:
    """Bits of |x|: they order as integers do, with NaN above all, so that no maximum loses one."""
    return T.reinterpret(T.abs(x), dtype=f"int32x{lanes}")


def high_bytes(q: Any, lanes: int) -> Any:
    """The high bytes of 16-bit integers, rounded so that the low bytes are signed."""
    return T.shift_right(q + splat(T.int32(128), lanes), splat(T.int32(8), lanes))


def rounded(x: Any, lanes: int) -> Any:
    return T.cast(T.nearbyint(x), f"int32x{lanes}")


def input_width(kind: str, k: int) -> int:
    return 2 * k if kind in GATES else k


def weight_shape(kind: str, k: int, m: Any) -> tuple[Any, ...]:
    return (k,) if kind == "norm" else (m, input_width(kind, k))
