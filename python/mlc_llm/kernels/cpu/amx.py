"""Intel's tile registers (AMX): eight of 16 rows of 64 bytes, multiplied as small matrices.

The instructions are LLVM intrinsics with the register's number as an immediate. A thread shapes its
tiles before it uses them and releases them afterwards, so that nothing else that it runs carries
8 KB of registers along. Linux wants a process to ask for them first (`support/amx.py`).

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

ROWS = 16
"""Most rows of a tile, and 32-bit elements of a row."""
ROW_BYTES = 4 * ROWS
SUMS, X_TILES, W_TILES = 0, 4, 6
"""Number of the first register for sums (four of them), activations (two) and weights (two)."""
SHAPE_WORDS = 16
"""32-bit words of what `configure` writes and loads."""


def _do(name: str, *arguments: Any) -> Any:
    return T.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments)


@T.inline
def configure(words, rows):
    """Shapes sums and activations to `rows` rows, all else to the most; words: int32 scratch."""
    for i in T.unroll(SHAPE_WORDS):
        words[i] = T.int32(0)
    words[0] = T.int32(1)
    for i in T.unroll(4):
        words[4 + i] = T.int32(ROW_BYTES * 0x10001)
    words[12] = rows * T.int32(0x01010101)
    words[13] = rows * T.int32(0x0101) + T.int32(ROWS * 0x01010000)
    T.evaluate(_do("ldtilecfg", T.address_of(words[0])))


def release() -> Any:
    """The tiles of this thread are not needed any more."""
    return _do("tilerelease")


def clear(tile: int) -> Any:
    return _do("tilezero", T.int8(tile))


def load(tile: int, address: Any, stride: int) -> Any:
    """stride: bytes from row to row."""
    return _do("tileloadd64", T.int8(tile), address, T.int64(stride))


def store(tile: int, address: Any, stride: int) -> Any:
    return _do("tilestored64", T.int8(tile), address, T.int64(stride))


def multiply(into: int, x: int, w: int) -> Any:
    """Adds a product of signed bytes to sums of 32 bits; a row of w holds four of k columns."""
    return _do("tdpbssd", T.int8(into), T.int8(x), T.int8(w))


def multiply_floats(into: int, x: int, w: int) -> Any:
    """Adds a product of bfloat16 to sums of float32; a row of w holds two of k columns."""
    return _do("tdpbf16ps", T.int8(into), T.int8(x), T.int8(w))
