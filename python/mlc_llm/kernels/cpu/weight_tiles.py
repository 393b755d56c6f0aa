"""Fixed-point weights as tiles of bytes, made while other tiles are multiplied (`tiles.py`)."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.cpu.scales import fixed_at
from mlc_llm.kernels.cpu.sections import QUADS, SECTION
from mlc_llm.kernels.cpu.tile_pipeline import L
from mlc_llm.kernels.cpu.vectors import lanes_at, splat

AHEAD = 17
"""Groups that weights are asked for before they are needed."""


def fill_word(k: int, fmt: WeightFormat) -> Any:
    """`Arithmetic.fill`: word j of group g of a job's section becomes rows of tiles of high and of
    low bytes in B, int32 [2, SECTION / 2, 2, 16, 16].

    Job v * sections + s is about vector v of the block. Row `part` * words + j of a group holds its
    word j as `dot.py` describes it, a byte a value.
    """
    words, G = fmt.words, k // fmt.group

    def twice(integers: Any) -> Any:
        """16 lanes of 16 bits, each of them two times side by side."""
        wide = T.cast(T.reinterpret(integers, dtype=f"uint16x{L}"), f"int32x{L}")
        return T.reinterpret(wide | T.shift_left(wide, splat(T.int32(16), L)), dtype="int16x32")

    def rounding(W: Any, at: Any, v: Any) -> Any:
        """What is added to q * s: minimum or offset, and half a step of the high byte."""
        half = splat(T.int16(128), 2 * L)
        if fmt.has_minimum:
            return half + twice(fixed_at(fmt, W, at, 1, v, L))
        return half - splat(T.int16(fmt.offset), 2 * L) * twice(fixed_at(fmt, W, at, 0, v, L))

    def rounded(W: Any, at: Any, v: Any, j: Any, part: Any, odd: int) -> Any:
        """Half a step more than the weights of bytes 0 and 2, or 1 and 3, of word j."""
        word = W[at[0], at[1], lanes_at(j * BLOCK + v * L, L)]
        q = T.shift_right(word, splat(4 * part + 8 * odd, L)) & splat(T.int32(0x000F000F), L)
        scaled = T.reinterpret(q, dtype="int16x32") * twice(fixed_at(fmt, W, at, 0, v, L))
        return T.reinterpret(scaled + rounding(W, at, v), dtype=f"int32x{L}")

    def plane(W: Any, at: Any, v: Any, j: Any, part: Any, p: int) -> Any:
        even, odd = (rounded(W, at, v, j, part, i) for i in range(2))
        low, high = splat(T.int32(0x00FF00FF), L), splat(T.int32(-0x00FF0100), L)
        if p == 0:
            return (T.shift_right(even, splat(T.int32(8), L)) & low) | (odd & high)
        octets = (even & low) | (T.shift_left(odd, splat(T.int32(8), L)) & high)
        return octets ^ splat(T.int32(-0x7F7F7F80), L)

    @T.inline
    def word(W, B, side, block, v, g, at, j):
        for i in T.unroll(BLOCK // L):
            T.evaluate(prefetch(W, block, at + AHEAD, j * BLOCK + i * L))
        if j == 0:
            T.evaluate(prefetch(W, block, at + AHEAD, words * BLOCK))
        for part in T.unroll(2):
            B[side, g // 2, 0, g % 2 * QUADS + part * words + j, lanes_at(0, L)] = plane(
                W, (block, at), v, j, part, 0
            )
            B[side, g // 2, 1, g % 2 * QUADS + part * words + j, lanes_at(0, L)] = plane(
                W, (block, at), v, j, part, 1
            )
        if G % 2 == 1 and at + 1 == G:
            for part in T.unroll(2):
                for p in T.unroll(2):
                    B[side, g // 2, p, QUADS + part * words + j, lanes_at(0, L)] = splat(
                        T.int32(0), L
                    )

    @T.inline
    def fill(W, B, side, block, vector, section, g, j):
        word(W, B, side, block, vector, g, section * SECTION + g, j)

    return fill
