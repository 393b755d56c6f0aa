"""Intel's AMX: eight tile registers of 16 rows of 64 bytes, multiplied as small matrices.

The instructions are LLVM intrinsics with the register's number as an immediate. A thread shapes its
tiles before it uses them and releases them afterwards, so that nothing else that it runs carries
8 KB of registers along. A process asks Linux for them first (`backends/cpu/amx.py`).

Registers:
0 to 3  SUMS     int32 or float32 [16, 16]
4, 5    X_TILES  activations: 16 rows of 64 int8 or 32 bfloat16
6, 7    W_TILES  weights: 16 rows, each with 4 int8 or 2 bfloat16 of 16 columns

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.types import Expr, Index

ROWS = 16
"""Most rows of a tile, and 32-bit elements of a row."""
ROW_BYTES = 4 * ROWS
SUMS, X_TILES, W_TILES = 0, 4, 6
"""Number of the first register of each kind."""
SHAPE_WORDS = 16
"""32-bit words of what `configure` writes and loads."""


def _instruction(name: str, *arguments: Expr) -> Expr:
    """The intrinsic `llvm.x86.NAME`, as an expression to evaluate."""
    return T.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments)


@T.inline
def configure(words, rows):
    """Shapes sums and activations to `rows` rows, weights to 16; words: int32 [16], scratch."""
    for i in T.unroll(SHAPE_WORDS):
        words[i] = T.int32(0)
    words[0] = T.int32(1)
    for i in T.unroll(4):
        words[4 + i] = T.int32(ROW_BYTES * 0x10001)
    words[12] = rows * T.int32(0x01010101)
    words[13] = rows * T.int32(0x0101) + T.int32(ROWS * 0x01010000)
    T.evaluate(_instruction("ldtilecfg", T.address_of(words[0])))


def release() -> Expr:
    """This thread needs its tiles no longer."""
    return _instruction("tilerelease")


def clear(tile: Index) -> Expr:
    """Sets a tile to zeros."""
    return _instruction("tilezero", T.int8(tile))


def load(tile: Index, address: Expr, stride: int) -> Expr:
    """Reads a tile from memory; stride: bytes from row to row."""
    return _instruction("tileloadd64", T.int8(tile), address, T.int64(stride))


def store(tile: Index, address: Expr, stride: int) -> Expr:
    """Writes a tile to memory; stride: bytes from row to row."""
    return _instruction("tilestored64", T.int8(tile), address, T.int64(stride))


def multiply(into: Index, x: Index, w: Index) -> Expr:
    """Adds x times w, signed bytes, to sums of 32 bits; a row of w holds four of k columns."""
    return _instruction("tdpbssd", T.int8(into), T.int8(x), T.int8(w))


def multiply_floats(into: Index, x: Index, w: Index) -> Expr:
    """Adds x times w, bfloat16, to sums of float32; a row of w holds two of k columns."""
    return _instruction("tdpbf16ps", T.int8(into), T.int8(x), T.int8(w))
