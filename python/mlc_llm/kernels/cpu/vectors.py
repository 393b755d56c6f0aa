"""Small vector expressions that kernels share. Python evaluates them while TVMScript is parsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.script import tirx as T
from tvm.tirx import Let, Shuffle, Var

from mlc_llm.kernels import tvm_patches
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


def named(value: Expr, use: Callable[[Expr], Expr]) -> Expr:
    """use(value), with the value written once however often `use` has it.

    TVM walks through every copy of an expression: a sum of halves of halves, written out, has 31
    copies of its vector. A result that has a name in it must not be copied either: TVM refuses a
    second definition.
    """
    name = Var("x", value.ty)
    bound: Expr = Let(name, value, use(name))
    return bound


def polynomial(x: Expr, factors: Sequence[float], lanes: int) -> Expr:
    """factors[0] x^n + factors[1] x^(n - 1) + ... in float32; x: best a name."""
    power = fsplat(factors[0], lanes)
    for factor in factors[1:]:
        power = power * x + fsplat(factor, lanes)
    return power


def exp2(x: Expr, lanes: int) -> Expr:
    """2**x for float32 lanes, x <= 127, relative error below 2e-7; exactly 1 at 0.

    As in the Cephes library: 2**round(x) goes into the exponent bits, and a polynomial computes
    2**(the rest), from -1/2 to 1/2. Below -126 the result is 2**-126; a NaN may be lost.
    """
    factors = (1.5353362e-4, 1.3398874e-3, 9.6184373e-3, 5.5503324e-2, 2.4022648e-1, 6.9314720e-1)

    def scaled(x: Expr, whole: Expr) -> Expr:
        power = named(x - whole, lambda rest: polynomial(rest, (*factors, 1.0), lanes))
        bits = T.shift_left(
            T.cast(whole, f"int32x{lanes}") + splat(T.int32(127), lanes), splat(T.int32(23), lanes)
        )
        return power * T.reinterpret(bits, dtype=f"float32x{lanes}")

    return named(
        T.max(x, fsplat(-126.0, lanes)),
        lambda x: named(T.nearbyint(x), lambda whole: scaled(x, whole)),
    )


def tanh(x: Expr, lanes: int) -> Expr:
    """tanh(x) for float32 lanes, relative error below 3e-7; a NaN stays.

    As in the Cephes library: a polynomial below 0.625, 1 - 2 / (e^(2x) + 1) above.
    """
    zero, one = fsplat(0.0, lanes), fsplat(1.0, lanes)
    factors = -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1

    def small(x: Expr) -> Expr:
        return named(
            x * x,
            lambda square: (
                polynomial(square, (*factors, -3.33332819422e-1), lanes) * square * x + x
            ),
        )

    def large(x: Expr, size: Expr) -> Expr:
        power = exp2(T.min(size * fsplat(2 * LOG2E, lanes), fsplat(64.0, lanes)), lanes)
        size = one - fsplat(2.0, lanes) / (power + one)
        return named(size, lambda size: T.Select(x < zero, zero - size, size))

    def both(x: Expr, size: Expr) -> Expr:
        return T.Select(size > fsplat(0.625, lanes), large(x, size), small(x))

    return named(x, lambda x: named(T.abs(x), lambda size: both(x, size)))


def capped(x: Expr, cap: float | None, lanes: int) -> Expr:
    """cap * tanh(x / cap); x itself where there is no cap."""
    if cap is None:
        return x
    return tanh(x * fsplat(1.0 / cap, lanes), lanes) * fsplat(cap, lanes)


def normal_tail(size: Expr, lanes: int) -> Expr:
    """How likely a normal number is above `size`, from 0 to 1e4: erfc(size / sqrt(2)) / 2, error
    below 3e-7.

    Abramowitz and Stegun (1964), 7.1.26.
    """
    factors = 1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592

    def tail(size: Expr) -> Expr:
        t = fsplat(1.0, lanes) / (fsplat(0.3275911 * 0.5**0.5, lanes) * size + fsplat(1.0, lanes))
        power = named(t, lambda t: polynomial(t, [factor / 2 for factor in factors], lanes) * t)
        return power * exp2(size * size * fsplat(-LOG2E / 2, lanes), lanes)

    return named(size, tail)


def reduce_max(buffer: Buffer, lanes: int, row: Index | None = None) -> Expr:
    """Largest of the first `lanes` elements (of a row), in a fixed order."""
    return _fold(T.max, _elements(buffer, lanes, row))


def maxima(x: Expr, lanes: int, block: int) -> Expr:
    """The largest lane of each block of a vector; both counts are powers of two. Blocks are folded
    side by side, which takes fewer instructions than one by one."""
    return _fold_blocks(T.max, x, lanes, block)


def block_sums(x: Expr, lanes: int, block: int) -> Expr:
    """The sums of the blocks of a vector, as `maxima`; of whole numbers, in whatever order."""
    return _fold_blocks(lambda a, b: a + b, x, lanes, block)


def _fold_blocks(combine: Callable[[Expr, Expr], Expr], x: Expr, lanes: int, block: int) -> Expr:
    """Combines the halves of each block, until one lane of it is left."""
    if block == 1:
        return x
    half = block // 2
    lower = [start + i for start in range(0, lanes, block) for i in range(half)]
    upper = [lane + half for lane in lower]

    def folded(x: Expr) -> Expr:
        halves = combine(Shuffle([x], lower), Shuffle([x], upper))
        return _fold_blocks(combine, halves, lanes // 2, half)

    return named(x, folded)


def reduce_sum(buffer: Buffer, lanes: int, row: Index | None = None) -> Expr:
    """Sum of the first `lanes` elements (of a row) as a balanced tree: the order never changes."""
    return _fold(lambda a, b: a + b, _elements(buffer, lanes, row))


def halved_sum(x: Expr, lanes: int, dtype: str = "float32") -> Expr:
    """Sum of the lanes of a vector, whose number is a power of two: halves are added until one lane
    is left. It takes fewer instructions than `reduce_sum`, and adds in another order."""
    if lanes == 2:
        return named(x, lambda x: Shuffle([x], [0]) + Shuffle([x], [1]))
    half = f"{dtype}x{lanes // 2}"
    return named(
        x,
        lambda x: halved_sum(T.vectorlow(half, x) + T.vectorhigh(half, x), lanes // 2, dtype),
    )


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
