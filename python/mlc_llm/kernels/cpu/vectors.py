"""Small vector expressions that kernels share. Python evaluates them while TVMScript is parsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.script import tirx as T

from mlc_llm.kernels.cpu import tvm_patches
from mlc_llm.kernels.types import Buffer, Expr, Index

tvm_patches.apply()  # every kernel imports this module

LOG2E = 1.4426950408889634
SCHEDULED = {"tirx.noalias": True, "op_pattern": 8, "tirx.is_scheduled": True}
"""Attributes of every kernel: our loops are final, and no fusion may touch them."""


def lanes_at(offset: Index, lanes: int) -> Expr:
    """Index of `lanes` neighbouring elements from `offset` on."""
    return T.ramp(offset, 1, lanes)


def splat(value: Index, lanes: int) -> Expr:
    """The same scalar in every lane."""
    return T.broadcast(value, lanes)


def fsplat(value: float, lanes: int) -> Expr:
    """A float32 constant in every lane."""
    return T.broadcast(T.float32(value), lanes)


def exp2(x: Expr, lanes: int) -> Expr:
    """2**x for float32 lanes, x <= 127, relative error below 2e-7; exactly 1 at 0.

    As in the Cephes library: 2**round(x) goes into the exponent bits, and a polynomial computes
    2**(the rest), from -1/2 to 1/2. Below -126 the result is 2**-126; a NaN may be lost.
    """
    x = T.max(x, fsplat(-126.0, lanes))
    whole = T.nearbyint(x)
    fraction = x - whole
    power = fsplat(1.5353362e-4, lanes)
    for term in (1.3398874e-3, 9.6184373e-3, 5.5503324e-2, 2.4022648e-1, 6.9314720e-1, 1.0):
        power = power * fraction + fsplat(term, lanes)
    bits = T.shift_left(
        T.cast(whole, f"int32x{lanes}") + splat(T.int32(127), lanes), splat(T.int32(23), lanes)
    )
    return power * T.reinterpret(bits, dtype=f"float32x{lanes}")


def reduce_max(buffer: Buffer, lanes: int, row: Index | None = None) -> Expr:
    """Largest of the first `lanes` elements (of a row), in a fixed order."""
    return _fold(T.max, _elements(buffer, lanes, row))


def reduce_sum(buffer: Buffer, lanes: int, row: Index | None = None) -> Expr:
    """Sum of the first `lanes` elements (of a row) as a balanced tree: the order never changes."""
    return _fold(lambda a, b: a + b, _elements(buffer, lanes, row))


def _elements(buffer: Buffer, lanes: int, row: Index | None) -> list[Expr]:
    """The first `lanes` elements (of a row), one by one."""
    return [buffer[i] if row is None else buffer[row, i] for i in range(lanes)]


def _fold(combine: Callable[[Expr, Expr], Expr], items: Sequence[Expr]) -> Expr:
    """Combines neighbours, then neighbours of the results, until one is left."""
    while len(items) > 1:
        items = [
            combine(items[i], items[i + 1]) if i + 1 < len(items) else items[i]
            for i in range(0, len(items), 2)
        ]
    return items[0]
