"""Products of pairs of bfloat16 on vectors (AVX-512 BF16): twice as many as of float32.

    dot:         sums[lane] += x[lane].low * y.low + x[lane].high * y.high
    power:       2^x, to a twentieth of a step of bfloat16
    neighbours:  words of elements 0 and 1, 2 and 3, ... of 32 that follow each other

A word of 32 bits holds two bfloat16, the first one in its low half. `bf16.round_pair` makes words
of two vectors, lane by lane. Numbers below 2^-126 count as 0.

TVM has no vectors of bfloat16, so two of these functions are in LLVM's own language. A kernel that
calls them stands within `imported`, and LLVM puts them where they are called.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, `VDPBF16PS`,
`VCVTNE2PS2BF16`, `VREDUCEPS`, `VSCALEFPS`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tvm.script import tirx as T
from tvm.target import codegen

from mlc_llm.kernels.cpu.vectors import fsplat, splat
from mlc_llm.kernels.types import Expr

L = 16
"""Lanes of a vector."""
_TEXT = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)

define <16 x float> @mlc_llm_dot(<16 x float> %sums, <16 x i32> %x, <16 x i32> %y) {
  %a = bitcast <16 x i32> %x to <32 x bfloat>
  %b = bitcast <16 x i32> %y to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
    <16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}

define <16 x i32> @mlc_llm_neighbours(<16 x float> %first, <16 x float> %second) {
  %r = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(
    <16 x float> %second, <16 x float> %first)
  %words = bitcast <32 x bfloat> %r to <16 x i32>
  ret <16 x i32> %words
}
"""


def imported(used: bool) -> AbstractContextManager[Any]:
    """What stands within it may call the functions below, if they are `used`."""
    return T.attr({"pragma_import_llvm": _TEXT}) if used else nullcontext()


def dot(sums: Expr, x: Expr, y: Expr) -> Expr:
    """float32x16 `sums` plus both products of each word of x, int32x16, with those of word y, which
    is kept as a float32."""
    words = T.reinterpret(splat(y, L), dtype=f"int32x{L}")
    found: Expr = T.call_pure_extern("float32x16", "mlc_llm_dot", sums, x, words)
    return found


def neighbours(first: Expr, second: Expr) -> Expr:
    """The 32 numbers of two vectors of floats, rounded to the nearest, ties to even: words, kept as
    float32x16."""
    words = T.call_pure_extern("int32x16", "mlc_llm_neighbours", first, second)
    found: Expr = T.reinterpret(words, dtype=f"float32x{L}")
    return found


def power(x: Expr) -> Expr:
    """2**x for float32x16, x <= 127, relative error below 1.1e-4; exactly 1 at 0, and 0 far below.

    A polynomial computes 2**(x - floor(x)), and the exponent gets floor(x).
    """
    fraction = _avx512("reduce", x, T.int32(_FLOOR))
    found = fsplat(0.07826797, L)
    for term in (0.22630768, 0.69542435, 1.0):
        found = found * fraction + fsplat(term, L)
    return _avx512("scalef", found, x)


_FLOOR = 9
"""Tells `VREDUCEPS` to take off the whole number below, and to raise no exception."""


def _avx512(name: str, *arguments: Expr) -> Expr:
    """The intrinsic `llvm.x86.avx512.mask.NAME.ps.512` for all lanes, rounding as usual."""
    found: Expr = T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id(f"llvm.x86.avx512.mask.{name}.ps.512"),
        *arguments,
        *(fsplat(0.0, L), T.int16(-1), T.int32(4)),
        dtype="float32x16",
    )
    return found
