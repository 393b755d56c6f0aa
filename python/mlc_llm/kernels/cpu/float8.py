"""8-bit floats (E4M3) as float32, without a table.

The exponent and the fraction go to the lowest places of those of a float32, which is then too small
by 2^120: the two types differ so much in the bias of their exponents. Numbers below the normal ones
come out right too.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.types import Expr

_FACTOR = 2.0**120


def e4m3(byte: Expr, lanes: int) -> Expr:
    """The float32 numbers of int32 lanes in 0 .. 255; lanes 1: of one integer."""

    def number(value: int) -> Expr:
        return T.int32(value) if lanes == 1 else T.broadcast(T.int32(value), lanes)

    size = T.shift_left(T.bitwise_and(byte, number(127)), number(20))
    sign = T.shift_left(T.bitwise_and(byte, number(128)), number(24))
    factor = T.float32(_FACTOR) if lanes == 1 else T.broadcast(T.float32(_FACTOR), lanes)
    kind = "float32" if lanes == 1 else f"float32x{lanes}"
    return T.reinterpret(T.bitwise_or(size, sign), dtype=kind) * factor
