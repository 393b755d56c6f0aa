"""Keys and values as bytes with scales (`library/page_format.py`), alike in all kernels."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.page_format import SCALE_BYTES

LARGEST = 127
_NOTHING = 8 << 23
"""The bits of 2^-119: smaller scales count as 0, and so do the elements of their group."""
_NAN = 0x7FFF0000


def scales_at(page_size: int, head_dim: int, group: Index, token: Index) -> Index:
    """Where in a block the scale of a token's group lies."""
    return page_size * head_dim + SCALE_BYTES * (group * page_size + token)


def read_scales(
    pages: Buffer, page: Expr, head: Index, kind: Index, start: Index, lanes: int
) -> Expr:
    """float32: so many neighbouring scales from element `start` of a block on."""
    several = "" if lanes == 1 else f"x{lanes}"
    halves = T.reinterpret(
        pages[page, head, kind, T.ramp(start, 1, SCALE_BYTES * lanes)], dtype=f"uint16{several}"
    )
    shift = T.uint32(16) if lanes == 1 else T.broadcast(T.uint32(16), lanes)
    bits = T.shift_left(T.cast(halves, f"uint32{several}"), shift)
    return T.reinterpret(bits, dtype=f"float32{several}")


def scale_bits(largest: Expr) -> Expr:
    """int32: the bits of a scale, the lower half 0. largest: the bits of the largest size of the
    group's elements, as a whole number, so that a NaN is the largest of all."""
    scale = T.reinterpret(largest, dtype="float32") / T.float32(LARGEST)
    exact = T.reinterpret(scale, dtype="int32")
    rounded = T.bitwise_and(T.min(exact, T.int32(_NAN)) + T.int32(0xFFFF), T.int32(-0x10000))
    return T.Select(rounded < T.int32(_NOTHING), T.int32(0), rounded)


def inverse(bits: Expr) -> Expr:
    """float32: what elements are multiplied by to become whole numbers."""
    size = T.reinterpret(T.max(bits, T.int32(_NOTHING)), dtype="float32")
    return T.Select(bits < T.int32(_NOTHING), T.float32(0), T.float32(1) / size)


def two_bytes(bits: Expr) -> Expr:
    """int8x2: a scale as it is stored."""
    upper = T.cast(T.shift_right(bits, T.int32(16)), "uint16")
    return T.reinterpret(upper, dtype="int8x2")


def whole(x: Expr, lanes: int = 1) -> Expr:
    """int8: x, an element times `inverse`, rounded to the nearest even; a NaN becomes some number,
    and its scale says that it was one."""
    several = "" if lanes == 1 else f"x{lanes}"
    low, high = T.float32(-LARGEST), T.float32(LARGEST)
    if lanes > 1:
        low, high = T.broadcast(low, lanes), T.broadcast(high, lanes)
    return T.cast(T.min(T.max(T.nearbyint(x), low), high), f"int8{several}")
