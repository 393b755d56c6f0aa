"""Numbers as sums of two float16, in units that are powers of two (`planes.py`)."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.cuda.planes import LARGEST_EXPONENT
from mlc_llm.kernels.types import Expr

_LEAST_EXPONENT = 16
"""Of a row's largest number, as it stands in the bits: so 1 / scale stays finite."""


def high(x: Expr) -> Expr:
    """The nearest float16."""
    return T.cast(x, "float16")


def low(x: Expr) -> Expr:
    """The float16 nearest to what `high` leaves."""
    return T.cast(x - T.cast(high(x), "float32"), "float16")


def two(first: Expr, second: Expr) -> Expr:
    """A word of two float16."""
    lower, upper = (T.cast(T.reinterpret(x, dtype="uint16"), "uint32") for x in (first, second))
    return T.bitwise_or(lower, T.shift_left(upper, T.uint32(16)))


def exponent_of(largest: Expr) -> Expr:
    """int32: the exponent of a row's largest number, as it stands in the bits."""
    bits = T.shift_right(T.reinterpret(largest, dtype="int32"), T.int32(23))
    return T.max(bits, _LEAST_EXPONENT)


def scale_bits(exponent: Expr) -> Expr:
    """uint32: the bits of a row's scale."""
    bits = T.shift_left(exponent - LARGEST_EXPONENT, T.int32(23))
    return T.reinterpret(bits, dtype="uint32")


def inverse_scale(exponent: Expr) -> Expr:
    """1 / scale. 2^-x has the exponent 254 - x where 2^x has x."""
    bits = T.shift_left(254 + LARGEST_EXPONENT - exponent, T.int32(23))
    return T.reinterpret(bits, dtype="float32")
