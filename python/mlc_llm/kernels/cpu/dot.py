"""Dot products of packed weights and activations: what differs between instruction sets.

An integer kernel multiplies packed unsigned weights by activations of 16 bits. For a group of
columns:

    for j in words of the group:
      for part in nibbles of a byte:               one part where weights have 8 bits
        sums += bytes of W[j], part * X[plane, j + part * words]

W  int32 [words, rows]     weight words; the four bytes of a word belong to one row
X  int32 [planes, quads]   activation words, quads = group / 4

Byte `i` of word `j` belongs to element `quads * i + j` of the group (`backends/cpu/packing.py`), so
activations pack with plain vector arithmetic. Values of 5 or 6 bits are nibbles like those of 4
bits, and a first word has the bits above them: byte `i` those of all quads, the first ones lowest.
The planes are:

* VNNI and Arm: the signed high bytes, then the signed low bytes of the 16-bit values. Each plane
  has a sum of its own; the total is 256 * high + low. `vpdpbusd` and `usdot` (Arm's I8MM) add four
  products of unsigned and signed bytes to a 32-bit lane. `sdot` (Arm's DotProd) multiplies signed
  bytes only, so weights of 8 bits are made signed: they count 128 less (`bias`).
* AVX2: 16-bit pairs of bytes (0, 2), then pairs (1, 3), both added to one sum by `vpmaddwd`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tvm.script import tirx as T
from tvm.target import codegen

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import AMX, AVX2, AVX_VNNI, DOTPROD, I8MM, VNNI, VNNI_BF16, Isa
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.types import Expr, Index

Words: TypeAlias = Callable[[Index], Expr]
"""Words of one row and group by their number, or vectors of words by a vector of numbers; or
vectors of a group's weight words, by the number of the word."""
BYTES, PAIR, BYTE = 0x01010101, 0x00010001, 0x00000001
"""Where values that are taken out of a word begin: in each byte, in two of them, in one."""


def weight_values(
    fmt: WeightFormat, w: Words, j: Index, part: Index, lanes: int, places: int, byte: Index = 0
) -> Expr:
    """Unsigned values of low word j of weights: nibbles `part` (0 low, 1 high), or whole bytes.

    places: where they begin; byte: the first one that is taken, which is shifted down.
    """
    word = w(fmt.high_words + j)
    if fmt.bits == 8:
        return word if places == BYTES else _taken(word, 8 * byte, 8, places, lanes)
    low = _taken(word, 4 * part + 8 * byte, 4, places, lanes)
    if not fmt.high_bits:
        return low
    return low | _high_values(fmt, w, j + part * fmt.low_words, lanes, places, byte)


def _high_values(
    fmt: WeightFormat, w: Words, quad: Index, lanes: int, places: int, byte: Index = 0
) -> Expr:
    """The bits of a quad's values above the low four, where they belong."""
    start = fmt.high_bits * quad + 8 * byte
    high = _taken(w(0), start, fmt.high_bits, places, lanes)
    return T.shift_left(high, splat(T.int32(4), lanes))


def _taken(word: Expr, start: Index, bits: int, places: int, lanes: int) -> Expr:
    """So many bits from `start` on, in each of the places. The mask drops copies of the sign."""
    mask = splat(T.int32(places * ((1 << bits) - 1)), lanes)
    return _shift(word, start, lanes) & mask


def bias(isa: Isa, fmt: WeightFormat) -> int:
    """What `dot` subtracts from every weight of this format."""
    return 128 if isa.name == DOTPROD.name and fmt.bits == 8 else 0


def dot(
    isa: Isa, fmt: WeightFormat, sums: Expr, w: Words, x: Words, j: Index, part: int, plane: int
) -> Expr:
    """`sums` plus part `part` of low word `j` of a group's weights times its activations `x` in one
    plane."""
    return _STEPS[isa.name](fmt, sums, w, x, j, part, plane)


def _dot_vnni(
    lanes: int, fmt: WeightFormat, sums: Expr, w: Words, x: Words, j: Index, part: int, plane: int
) -> Expr:
    """VNNI: four products of bytes a lane."""
    values, quad = weight_values(fmt, w, j, part, lanes, BYTES), j + part * fmt.low_words
    return multiply_bytes(sums, values, x(plane * (fmt.group // 4) + quad), lanes)


def multiply_words(isa: Isa, sums: Expr, values: Expr, x: Expr) -> Expr:
    """x86: `sums` plus words of weights, as `isa` has them, times word x."""
    if isa.sums == 1:
        return multiply_pairs(sums, values, x)
    return multiply_bytes(sums, values, x, isa.lanes)


def multiply_bytes(sums: Expr, values: Expr, x: Expr, lanes: int) -> Expr:
    """VNNI: `sums` plus the unsigned bytes of words times the signed ones of word x."""
    return T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"),
        sums,
        T.reinterpret(values, dtype=f"int8x{4 * lanes}"),
        T.reinterpret(splat(x, lanes), dtype=f"int8x{4 * lanes}"),
        dtype=f"int32x{lanes}",
    )


def multiply_pairs(sums: Expr, values: Expr, x: Expr) -> Expr:
    """AVX2: `sums` plus both numbers of 16 bits of eight words times those of word x."""
    return sums + T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id("llvm.x86.avx2.pmadd.wd"),
        T.reinterpret(values, dtype="int16x16"),
        T.reinterpret(splat(x, 8), dtype="int16x16"),
        dtype="int32x8",
    )


def _dot_avx2(
    fmt: WeightFormat, sums: Expr, w: Words, x: Words, j: Index, part: int, plane: int
) -> Expr:
    """AVX2: two products of 16 bits a lane, for even and for odd bytes."""
    quad = j + part * fmt.low_words
    for odd in range(2):
        values = weight_values(fmt, w, j, part, 8, PAIR, odd)
        sums = multiply_pairs(sums, values, x(odd * (fmt.group // 4) + quad))
    return sums


def _dot_i8mm(
    fmt: WeightFormat, sums: Expr, w: Words, x: Words, j: Index, part: int, plane: int
) -> Expr:
    """Arm I8MM: unsigned times signed bytes."""
    values, quad = _octets(fmt, w, j, part), j + part * fmt.low_words
    return _dot_arm("llvm.aarch64.neon.usdot.v4i32.v16i8", fmt, sums, values, x, quad, plane)


def _dot_dotprod(
    fmt: WeightFormat, sums: Expr, w: Words, x: Words, j: Index, part: int, plane: int
) -> Expr:
    """Arm DotProd: signed bytes only, so weights of 8 bits count 128 less."""
    values, quad = _octets(fmt, w, j, part), j + part * fmt.low_words
    if fmt.bits == 8:
        values = values ^ splat(T.uint8(0x80), 16)
    return _dot_arm("llvm.aarch64.neon.sdot.v4i32.v16i8", fmt, sums, values, x, quad, plane)


def _octets(fmt: WeightFormat, w: Words, j: Index, part: int) -> Expr:
    """`weight_values` of all four bytes. They are shifted as bytes, which needs no mask."""
    octets = T.reinterpret(w(fmt.high_words + j), dtype="uint8x16")
    if fmt.bits == 8:
        return octets
    low = T.shift_right(octets, splat(T.uint8(4), 16)) if part else octets & splat(T.uint8(15), 16)
    if not fmt.high_bits:
        return low
    high = _high_values(fmt, w, j + part * fmt.low_words, 4, BYTES)
    return low | T.reinterpret(high, dtype="uint8x16")


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


_STEPS: dict[str, Callable[..., Expr]] = {
    **{isa.name: partial(_dot_vnni, isa.lanes) for isa in (AMX, VNNI_BF16, VNNI, AVX_VNNI)},
    AVX2.name: _dot_avx2,
    I8MM.name: _dot_i8mm,
    DOTPROD.name: _dot_dotprod,
}


def _shift(word: Expr, bits: Index, lanes: int) -> Expr:
    """Arithmetic shift right."""
    return (
        word
        if isinstance(bits, int) and bits == 0
        else T.shift_right(word, splat(T.int32(bits), lanes))
    )
