"""Dot products of packed weights and activations: what differs between instruction sets.

An integer kernel multiplies packed unsigned weights by activations of 16 bits. For a group of
columns:

    for j in words of the group:
      for part in nibbles of a byte:               one part where weights have 8 bits
        sums += bytes of W[j], part * X[plane, j + part * words]

W  int32 [words, rows]     weight words; the four bytes of a word belong to one row
X  int32 [planes, quads]   activation words, quads = group / 4

Byte `i` of word `j` belongs to element `quads * i + j` of the group (`backends/cpu/packing.py`), so
activations pack with plain vector arithmetic. The planes are:

* VNNI and Arm: the signed high bytes, then the signed low bytes of the 16-bit values. Each plane
  has a sum of its own; the total is 256 * high + low. `vpdpbusd` and `usdot` (Arm's I8MM) add four
  products of unsigned and signed bytes to a 32-bit lane. `sdot` (Arm's DotProd) multiplies signed
  bytes only, so weights of 8 bits are made signed: they count 128 less (`bias`).
* AVX2: 16-bit pairs of bytes (0, 2), then pairs (1, 3), both added to one sum by `vpmaddwd`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tvm.script import tirx as T
from tvm.target import codegen

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import AMX, AVX2, DOTPROD, I8MM, VNNI, Isa
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.types import Expr, Index

Words: TypeAlias = Callable[[Index], Expr]
"""Words of one row and group by their number, or vectors of words by a vector of numbers."""


def weight_values(
    fmt: WeightFormat, word: Expr, part: Index, byte: Index | None, lanes: int
) -> Expr:
    """Unsigned values of a weight word: nibbles `part` (0 low, 1 high) of 4-bit weights, or bytes.

    byte: the number of one byte, which is shifted down; None: all four in place.
    """
    mask = {4: 0x0F, 8: 0xFF}[fmt.bits]
    if byte is None:
        if fmt.bits == 8:
            return word
        return _shift(word, 4 * part, lanes) & splat(T.int32(mask * 0x01010101), lanes)
    return _shift(word, 4 * part + 8 * byte, lanes) & splat(T.int32(mask), lanes)


def word_parts(fmt: WeightFormat) -> int:
    """Values that share a byte: two nibbles, or one byte."""
    return 8 // fmt.bits


def bias(isa: Isa, fmt: WeightFormat) -> int:
    """What `dot` subtracts from every weight of this format."""
    return 128 if isa is DOTPROD and fmt.bits == 8 else 0


def dot(
    isa: Isa, fmt: WeightFormat, sums: Expr, word: Expr, x: Words, j: Index, plane: int
) -> Expr:
    """`sums` plus weight word `j` of a group times its activations `x` in one plane."""
    step = _STEPS[isa.name]
    for part in range(word_parts(fmt)):
        sums = step(fmt, sums, word, x, j + part * fmt.words, part, plane)
    return sums


def _dot_vnni(
    fmt: WeightFormat, sums: Expr, word: Expr, x: Words, quad: Index, part: int, plane: int
) -> Expr:
    """AVX-512 VNNI: four products of bytes a lane."""
    values = weight_values(fmt, word, part, None, 16)
    return T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
        sums,
        T.reinterpret(values, dtype="int8x64"),
        T.reinterpret(splat(x(plane * (fmt.group // 4) + quad), 16), dtype="int8x64"),
        dtype="int32x16",
    )


def _dot_avx2(
    fmt: WeightFormat, sums: Expr, word: Expr, x: Words, quad: Index, part: int, plane: int
) -> Expr:
    """AVX2: two products of 16 bits a lane, for even and for odd bytes."""
    pair_mask = {4: 0x000F000F, 8: 0x00FF00FF}[fmt.bits]
    for odd in range(2):
        values = _shift(word, 4 * part + 8 * odd, 8) & splat(T.int32(pair_mask), 8)
        sums = sums + T.call_llvm_pure_intrin(
            codegen.llvm_lookup_intrinsic_id("llvm.x86.avx2.pmadd.wd"),
            T.reinterpret(values, dtype="int16x16"),
            T.reinterpret(splat(x(odd * (fmt.group // 4) + quad), 8), dtype="int16x16"),
            dtype="int32x8",
        )
    return sums


def _dot_i8mm(
    fmt: WeightFormat, sums: Expr, word: Expr, x: Words, quad: Index, part: int, plane: int
) -> Expr:
    """Arm I8MM: unsigned times signed bytes."""
    values = _octets(fmt, word, part)
    return _dot_arm("llvm.aarch64.neon.usdot.v4i32.v16i8", fmt, sums, values, x, quad, plane)


def _dot_dotprod(
    fmt: WeightFormat, sums: Expr, word: Expr, x: Words, quad: Index, part: int, plane: int
) -> Expr:
    """Arm DotProd: signed bytes only, so weights of 8 bits count 128 less."""
    values = _octets(fmt, word, part)
    if fmt.bits == 8:
        values = values ^ splat(T.uint8(0x80), 16)
    return _dot_arm("llvm.aarch64.neon.sdot.v4i32.v16i8", fmt, sums, values, x, quad, plane)


def _octets(fmt: WeightFormat, word: Expr, part: int) -> Expr:
    """`weight_values` of all four bytes. They are shifted as bytes, which needs no mask."""
    octets = T.reinterpret(word, dtype="uint8x16")
    if fmt.bits == 8:
        return octets
    return T.shift_right(octets, splat(T.uint8(4), 16)) if part else octets & splat(T.uint8(15), 16)


def _dot_arm(
    name: str, fmt: WeightFormat, sums: Expr, values: Expr, x: Words, quad: Index, plane: int
) -> Expr:
    """The instructions take a word out of a vector of four, so four words are loaded at once."""
    four = x(lanes_at(plane * (fmt.group // 4) + quad // 4 * 4, 4))
    return T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id(name),
        sums,
        T.reinterpret(values, dtype="int8x16"),
        T.reinterpret(T.Shuffle([four], [quad % 4] * 4), dtype="int8x16"),
        dtype="int32x4",
    )


_STEPS = {
    AMX.name: _dot_vnni,
    VNNI.name: _dot_vnni,
    AVX2.name: _dot_avx2,
    I8MM.name: _dot_i8mm,
    DOTPROD.name: _dot_dotprod,
}


def _shift(word: Expr, bits: Index, lanes: int) -> Expr:
    """Arithmetic shift right; the caller's mask drops the copies of the sign."""
    return word if bits == 0 else T.shift_right(word, splat(T.int32(bits), lanes))
