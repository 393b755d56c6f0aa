"""Dot products of packed weights and activations: what differs between instruction sets.

An integer kernel multiplies packed unsigned weights by activations of 16 bits. In memory a weight
word holds four bytes of one row (see `backends/cpu/packing.py`); with `quads` = group / 4 words of
activations, byte `i` of word `j` belongs to element `quads * i + j` of the group, so activations
pack with plain vector arithmetic. An activation group is two planes of `quads` words:

* VNNI and Arm: the signed high bytes, then the signed low bytes of the 16-bit values. Each plane
  has a sum of its own; the total is 256 * high + low. `vpdpbusd` and `usdot` (Arm's I8MM) add four
  products of unsigned and signed bytes to a 32-bit lane. `sdot` (Arm's DotProd) multiplies signed
  bytes only, so weights of 8 bits are made signed: they count 128 less (`bias`).
* AVX2: 16-bit pairs of bytes (0, 2), then pairs (1, 3), both added to one sum by `vpmaddwd`.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T
from tvm.target import codegen

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import AMX, AVX2, DOTPROD, I8MM, VNNI, Isa
from mlc_llm.kernels.cpu.vectors import lanes_at, splat


def weight_values(fmt: WeightFormat, word: Any, part: int, byte: int | None, lanes: int) -> Any:
    """Unsigned values of a weight word: nibbles `part` (0 low, 1 high) of 4-bit weights, or bytes.

    byte None: all four in place; else that byte alone (or pair of bytes, for AVX2) shifted down.
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
    """What `dot` takes off every weight of this format."""
    return 128 if isa is DOTPROD and fmt.bits == 8 else 0


def dot(isa: Isa, fmt: WeightFormat, acc: Any, word: Any, x: Any, j: Any, plane: Any) -> Any:
    """`acc` plus word `j` of a group times its activations; `x(i)` is activation word i."""
    step = _STEPS[isa.name]
    for part in range(word_parts(fmt)):
        acc = step(fmt, acc, word, x, j + part * fmt.words, part, plane)
    return acc


def _dot_vnni(
    fmt: WeightFormat, acc: Any, word: Any, x: Any, quad: Any, part: int, plane: Any
) -> Any:
    values = weight_values(fmt, word, part, None, 16)
    return T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
        acc,
        T.reinterpret(values, dtype="int8x64"),
        T.reinterpret(splat(x(plane * (fmt.group // 4) + quad), 16), dtype="int8x64"),
        dtype="int32x16",
    )


def _dot_avx2(
    fmt: WeightFormat, acc: Any, word: Any, x: Any, quad: Any, part: int, plane: Any
) -> Any:
    pair_mask = {4: 0x000F000F, 8: 0x00FF00FF}[fmt.bits]
    for odd in range(2):
        values = _shift(word, 4 * part + 8 * odd, 8) & splat(T.int32(pair_mask), 8)
        acc = acc + T.call_llvm_pure_intrin(
            codegen.llvm_lookup_intrinsic_id("llvm.x86.avx2.pmadd.wd"),
            T.reinterpret(values, dtype="int16x16"),
            T.reinterpret(splat(x(odd * (fmt.group // 4) + quad), 8), dtype="int16x16"),
            dtype="int32x8",
        )
    return acc


def _dot_i8mm(
    fmt: WeightFormat, acc: Any, word: Any, x: Any, quad: Any, part: int, plane: Any
) -> Any:
    values = _octets(fmt, word, part)
    return _dot_arm("llvm.aarch64.neon.usdot.v4i32.v16i8", fmt, acc, values, x, quad, plane)


def _dot_dotprod(
    fmt: WeightFormat, acc: Any, word: Any, x: Any, quad: Any, part: int, plane: Any
) -> Any:
    values = _octets(fmt, word, part)
    if fmt.bits == 8:
        values = values ^ splat(T.uint8(0x80), 16)
    return _dot_arm("llvm.aarch64.neon.sdot.v4i32.v16i8", fmt, acc, values, x, quad, plane)


def _octets(fmt: WeightFormat, word: Any, part: int) -> Any:
    """`weight_values` of all bytes: shifted as bytes they need no mask."""
    octets = T.reinterpret(word, dtype="uint8x16")
    if fmt.bits == 8:
        return octets
    return T.shift_right(octets, splat(T.uint8(4), 16)) if part else octets & splat(T.uint8(15), 16)


def _dot_arm(
    name: str, fmt: WeightFormat, acc: Any, values: Any, x: Any, quad: Any, plane: Any
) -> Any:
    """The instructions take a word out of a vector of four, so four words are loaded at once."""
    four = x(lanes_at(plane * (fmt.group // 4) + quad // 4 * 4, 4))
    return T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id(name),
        acc,
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


def _shift(word: Any, bits: int, lanes: int) -> Any:
    """Arithmetic shift right; the mask that follows drops the copies of the sign."""
    return word if bits == 0 else T.shift_right(word, splat(T.int32(bits), lanes))
