"""Instruction sets that kernels are written for, and how kernels are shaped for them. No TVM here.

In code they differ in the dot product (`dot.py`). The portable kernels use floats and no
intrinsics.
"""

from __future__ import annotations

from dataclasses import replace

from mlc_llm.record import record


@record()
class Isa:
    """How kernels are shaped for one family of machines."""

    name: str
    integer: bool
    """Packed weights are multiplied as integers; otherwise they become floats first."""
    lanes: int
    """Vector length in 32-bit elements."""
    row_block: int
    """Activation rows whose sums stay in registers together."""
    sums: int
    """Integer sums of a row and vector: 2 where planes of activations are bytes (see `dot.py`)."""
    amx_tiles: bool
    """Matrices of bytes are multiplied on AMX tiles: 4-bit weights are in fixed point."""
    half: bool
    """float16 is converted in hardware: scales and KV pages may use it."""
    bf16: bool = False
    """Vectors of bfloat16 are multiplied: for fast tokens, in attention and with 16-bit floats."""
    fast: bool = False
    """With AMX tiles or products of bfloat16: there are kernels for fast rows too. Libraries for
    `precision="exact"` have none, because they take long to compile."""
    one_plane: bool = False
    """Products of bytes take the high plane of activations alone: for `precision="fast"`."""

    asks: bool = False
    """A single row asks the memory for weights ahead of its products, in one stream. On Zen 5 that
    is faster for larger matrices (docs/performance/amd-zen5.md); on Zen 4 it was slower."""

    byte_pages: bool = False
    """KV pages hold bytes with scales, for `kv_cache_dtype="int8"`."""

    @property
    def planes(self) -> int:
        """How many planes of activations are multiplied."""
        return 1 if self.one_plane else self.sums

    @property
    def kv_dtype(self) -> str:
        """Element type of KV pages."""
        if self.byte_pages:
            return "int8"
        return self.adapter_dtype

    @property
    def adapter_dtype(self) -> str:
        """Element type of the factors of LoRA adapters."""
        return "float16" if self.half else "float32"


AMX = Isa("amx", integer=True, lanes=16, row_block=4, sums=2, amx_tiles=True, half=True)
VNNI = Isa("vnni", integer=True, lanes=16, row_block=4, sums=2, amx_tiles=False, half=True)
VNNI_BF16 = replace(VNNI, name="vnni-bf16", bf16=True)
AVX_VNNI = Isa("avx-vnni", integer=True, lanes=8, row_block=2, sums=2, amx_tiles=False, half=True)
AVX2 = Isa("avx2", integer=True, lanes=8, row_block=2, sums=1, amx_tiles=False, half=True)
I8MM = Isa("i8mm", integer=True, lanes=4, row_block=1, sums=2, amx_tiles=False, half=True)
DOTPROD = Isa("dotprod", integer=True, lanes=4, row_block=1, sums=2, amx_tiles=False, half=True)
PORTABLE = Isa("portable", integer=False, lanes=8, row_block=2, sums=0, amx_tiles=False, half=False)
ISAS = {isa.name: isa for isa in (AMX, VNNI_BF16, VNNI, AVX_VNNI, AVX2, I8MM, DOTPROD, PORTABLE)}
"""By name, the fastest first."""
