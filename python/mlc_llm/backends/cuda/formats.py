"""What packed weights and KV pages look like to a kernel of a GPU.

The words of a tile are in the order in which the threads of a warp give them to `mma.m16n8k16` as
its first operand (PTX ISA, "Matrix Fragments for mma.m16n8k16"). With g = thread / 4 and
t = thread % 4, a thread has the values of rows 16 * half + 8 * h + g, for half and h, each 0 or 1:
`half` says which 16 rows of the tile. Of each row it has 8 columns, for step, pair and c, each 0 or
1, `step` being which of two products:

    groups of 32    column 8 * t + 4 * step + 2 * pair + c
    groups of 16    column 16 * step + 4 * t + 2 * pair + c, so that a product has one group

It reads four words at once:

    4-bit  word 4 * thread + 2 * half + step,               bits 4 * (2 * pair + h) + 16 * c
    8-bit  word 4 * thread + 2 * half + step + 128 * pair,  bits 8 * h + 16 * c
    float  word 4 * thread + 2 * pair + h + 128 * (2 * half + step),  bits 16 * c

Values of 5 and 6 bits are those of 4 bits, and behind them the bits above:

    5-bit  word thread,             bit 8 * half + 4 * step + 2 * pair + h + 16 * c
    6-bit  word 2 * thread + half,  bits 2 * (4 * step + 2 * pair + h) + 16 * c

A float is a float16 times the scale of its group of columns, a power of two, such that the largest
number of the group is below 2^15. So a bfloat16 loses nothing unless it is 2^-30 times smaller than
that. The scale of float16 itself is 1. A float32 is the sum of two such planes, one behind the
other: 22 bits of it stay.

With groups of 32 a thread reads the activations of columns 8 * t to 8 * t + 7 at once. That the
products see the columns of a group in another order does not change their sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from mlc_llm.errors import UnsupportedModel
from mlc_llm.record import record

BLOCK = 32
"""Weight rows of a tile; matrices are padded to a multiple."""
GROUP = 32
"""Columns of a tile."""
PAGE = 16
"""Tokens a KV page."""
GRAPH_BYTES = 128 << 20
"""Of the GPU's memory for all CUDA graphs of an engine (`graphs.py`)."""
PART_WORDS = BLOCK * GROUP * 4 // 32
"""Words of a tile's values, of 4 bits each."""
UNIT_WORDS = BLOCK // 2
"""Words of the units of a span, or of its units of minima, float16: as scales of float16."""
SPAN = 8
"""Tiles whose scales share a unit, where they have one."""
Scales = Literal["float16", "float32", "int8"]
_SCALE_WORDS: dict[Scales, int] = {"float16": BLOCK // 2, "float32": BLOCK, "int8": BLOCK // 4}


@record()
class WeightFormat:
    """A matrix of n rows and k columns as one tensor that is read from end to end.

    uint32 [n/32, k/32, stride]: of a tile its words, then the scales of its first group of columns,
    those of the second one if there are two, then (has_minimum) the minima. Of row
    16 * half + 8 * h + g the scale is

        float16  half h of word 2 * g + half
        float32  word 4 * g + 2 * half + h
        int8     byte 2 * half + h of word g: a whole number, in units of 8 tiles

    With int8 the tensor is uint32 [n/32, k/256, span_words]: of 8 tiles the units of scales, those
    of minima, and then the tiles.

    value = scale * (q - offset), or scale * q + minimum; of floats scale * (q, or the sum of its
    planes); of `float8` scale * the number of a byte of E4M3.
    """

    bits: int = 4
    has_minimum: bool = False
    offset: int = 0
    group: Literal[16, 32] = 32
    """Columns that share a scale in each row."""
    scales: Scales = "float16"
    float8: bool = False

    @property
    def is_float(self) -> bool:
        """It takes floats; else quantised values."""
        return self.bits >= 16

    @property
    def planes(self) -> int:
        """Numbers that a value is the sum of."""
        return max(self.bits // 16, 1)

    @property
    def parts(self) -> int:
        """How often a thread reads four words of values."""
        return self.bits // 4

    @property
    def high_bits(self) -> int:
        """Bits of a value above the low four that lie in words of their own, so many a thread."""
        return self.bits - 4 if self.bits < 8 else 0

    @property
    def kinds(self) -> int:
        """Kinds of numbers that a group has beside its values: scales, and minima."""
        return 2 if self.has_minimum else 1

    @property
    def groups(self) -> int:
        """Of columns of a tile."""
        return GROUP // self.group

    @property
    def scale_words(self) -> int:
        """Of the scales (or the minima) of a tile and group of columns."""
        return _SCALE_WORDS[self.scales]

    @property
    def high_start(self) -> int:
        """The word where the high bits begin."""
        return self.parts * PART_WORDS

    @property
    def scale_start(self) -> int:
        """The word where the scales of a tile begin."""
        return self.high_start + self.high_bits * BLOCK

    @property
    def stride(self) -> int:
        """Words of a tile."""
        return self.scale_start + self.kinds * self.groups * self.scale_words

    @property
    def has_units(self) -> bool:
        """Scales are whole numbers."""
        return self.scales == "int8"

    @property
    def span(self) -> int:
        """Tiles that lie together."""
        return SPAN if self.has_units else 1

    @property
    def unit_words(self) -> int:
        """Words before the tiles of a span."""
        return self.kinds * UNIT_WORDS if self.has_units else 0

    @property
    def span_words(self) -> int:
        """Words of a span."""
        return self.unit_words + self.span * self.stride

    @property
    def name(self) -> str:
        """A short name, as part of the names of kernels."""
        if self.is_float:
            return f"f{self.bits}"
        kind = "e4m3" if self.float8 else "m" if self.has_minimum else f"o{self.offset}"
        wide = "" if self.scales == "float16" else self.scales.replace("float", "s")
        return f"q{self.bits}{kind}" + ("" if self.group == GROUP else "g16") + wide


def padded_rows(rows: int) -> int:
    """Rows of the packed matrix."""
    return -(-rows // BLOCK) * BLOCK


def tensor_shape(fmt: WeightFormat, n: int, k: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a packed matrix with n (padded) rows and k columns."""
    assert n % BLOCK == 0 and k % (GROUP * fmt.span) == 0
    return (n // BLOCK, k // GROUP // fmt.span, fmt.span_words), "uint32"


_BOOK = WeightFormat(8, offset=128, scales="float32")
"""Entries of a code book, as bytes."""
_KINDS = {
    "Q4_0": WeightFormat(offset=8),
    "Q4_1": WeightFormat(has_minimum=True),
    "q4f16": WeightFormat(offset=7),
    "Q8_0": WeightFormat(8, offset=128),
    "IQ4_NL": WeightFormat(8, offset=128),
    "Q5_0": WeightFormat(5, offset=16),
    "Q5_1": WeightFormat(5, has_minimum=True),
    "TQ1_0": WeightFormat(offset=1),
    "TQ2_0": WeightFormat(offset=1),
    "Q2_K": WeightFormat(has_minimum=True, group=16, scales="int8"),
    "Q3_K": WeightFormat(offset=4, group=16, scales="int8"),
    "Q4_K": WeightFormat(has_minimum=True, scales="int8"),
    "Q5_K": WeightFormat(5, has_minimum=True, scales="int8"),
    "Q6_K": WeightFormat(6, offset=32, group=16, scales="int8"),
    "float8_e4m3": WeightFormat(8, offset=128, scales="float32", float8=True),
    "zero_point4": WeightFormat(has_minimum=True, scales="float32"),
    **dict.fromkeys(("q4bf16", "q4f32"), WeightFormat(offset=7, scales="float32")),
    "MXFP4": WeightFormat(5, offset=12, scales="float32"),
    "NVFP4": WeightFormat(8, offset=12, group=16, scales="float32"),
    **dict.fromkeys(("IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ1_S"), _BOOK),
    **dict.fromkeys(("IQ2_XS", "IQ2_S", "IQ1_M"), replace(_BOOK, group=16)),
    "F16": WeightFormat(16),
    "BF16": WeightFormat(16),
    "F32": WeightFormat(32),
}


def format_of_kind(kind: str) -> WeightFormat:
    """The packed format of a tensor type of GGUF, or of MLC LLM's groups. Raises
    UnsupportedModel."""
    fmt = _KINDS.get(kind)
    if fmt is None:
        raise UnsupportedModel(f"tensor type {kind} on a GPU; supported: {', '.join(_KINDS)}")
    return fmt
