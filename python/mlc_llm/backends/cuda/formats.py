"""What packed weights and KV pages look like to a kernel of a GPU.

The words of a tile are in the order in which the threads of a warp give them to `mma.m16n8k16` as
its first operand (PTX ISA, "Matrix Fragments for mma.m16n8k16"). With g = thread / 4 and
t = thread % 4, a thread has the values of rows 16 * half + 8 * h + g and columns
8 * t + 4 * step + 2 * pair + c, for half, h, step, pair and c, each 0 or 1: `half` says which 16
rows of the tile, `step` which of two products. It reads four words at once:

    4-bit  word 4 * thread + 2 * half + step,               bits 4 * (2 * pair + h) + 16 * c
    8-bit  word 4 * thread + 2 * half + step + 128 * pair,  bits 8 * h + 16 * c
    float  word 4 * thread + 2 * pair + h + 128 * (2 * half + step),  bits 16 * c

A float is a float16 times the scale of its group of columns, a power of two, such that the largest
number of the group is below 2^15. So a bfloat16 loses nothing unless it is 2^-30 times smaller than
that. The scale of float16 itself is 1. A float32 is the sum of two such planes, one behind the
other: 22 bits of it stay.

So a thread reads the activations of columns 8 * t to 8 * t + 7 at once. That the products see the
columns of a group in another order does not change their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc_llm.errors import UnsupportedModel

BLOCK = 32
"""Weight rows of a tile; matrices are padded to a multiple."""
GROUP = 32
"""Columns of a tile, which share a scale in each row."""
PAGE = 16
"""Tokens a KV page."""
GRAPH_BYTES = 128 << 20
"""Of the GPU's memory for all CUDA graphs of an engine (`graphs.py`)."""
PART_WORDS = BLOCK * GROUP * 4 // 32
"""Words of a tile's values, of 4 bits each."""
SCALE_WORDS = BLOCK // 2
"""Words of its scales, or minima."""


@dataclass(frozen=True)
class WeightFormat:
    """A matrix of n rows and k columns as one tensor that is read from end to end.

    uint32 [n/32, k/32, stride]: of a tile its words, then the scales, then (has_minimum) the
    minima, float16. Those of rows 16 * half + g and 16 * half + g + 8 are the halves of word
    2 * g + half.

    value = scale * (q - offset), or scale * q + minimum; of floats scale * (q, or the sum of its
    planes).
    """

    bits: int = 4
    has_minimum: bool = False
    offset: int = 0

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
    def scale_start(self) -> int:
        """The word where the scales of a tile begin."""
        return self.parts * PART_WORDS

    @property
    def stride(self) -> int:
        """Words of a tile."""
        return self.scale_start + SCALE_WORDS * (2 if self.has_minimum else 1)

    @property
    def name(self) -> str:
        """A short name, as part of the names of kernels."""
        if self.is_float:
            return f"f{self.bits}"
        return f"q{self.bits}" + ("m" if self.has_minimum else f"o{self.offset}")


def padded_rows(rows: int) -> int:
    """Rows of the packed matrix."""
    return -(-rows // BLOCK) * BLOCK


def tensor_shape(fmt: WeightFormat, n: int, k: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a packed matrix with n (padded) rows and k columns."""
    assert n % BLOCK == 0 and k % GROUP == 0
    return (n // BLOCK, k // GROUP, fmt.stride), "uint32"


_KINDS = {
    "Q4_0": WeightFormat(offset=8),
    "Q4_1": WeightFormat(has_minimum=True),
    "q4f16": WeightFormat(offset=7),
    "Q8_0": WeightFormat(8, offset=128),
    "IQ4_NL": WeightFormat(8, offset=128),
    "Q5_0": WeightFormat(8, offset=16),
    "Q5_1": WeightFormat(8, has_minimum=True),
    "TQ1_0": WeightFormat(offset=1),
    "TQ2_0": WeightFormat(offset=1),
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
