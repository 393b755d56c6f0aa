"""What packed weights and KV pages look like to a kernel. The bytes are made in `packing.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlc_llm.errors import UnsupportedModel

BLOCK = 32
"""Weight rows that are interleaved; matrices are padded to a multiple."""
PAGE = 16
"""Tokens a KV page."""


@dataclass(frozen=True)
class WeightFormat:
    """A matrix of `n` rows and `k` columns as one tensor that is read from end to end.

    int32 [n/32, k/group, stride]: for a block of 32 rows and a group of columns `words` words of
    each row (word by word, the 32 rows side by side), then the rows' scales, then (has_minimum)
    their minima, in scale_dtype.

    value = scale * (q - offset), or scale * q + minimum.

    In a fixed-point format scales and minima are int16, in units of their row. A group more behind
    the last one begins with the 32 rows' units, float32.
    `bits` 16 and 32 mean plain floats [n/32, k, 32] and no scale.
    """

    bits: int
    group: int = 32
    has_minimum: bool = False
    offset: int = 0
    scale_dtype: str = "float16"

    @property
    def is_float(self) -> bool:
        """The weights are plain floats."""
        return self.bits >= 16

    @property
    def is_fixed_point(self) -> bool:
        """A row's values are integers of 16 bits times a unit, so sums of them can be exact."""
        return self.scale_dtype == "int16"

    @property
    def words(self) -> int:
        """32-bit words of values, a row and group."""
        return self.group * self.bits // 32

    @property
    def scale_words(self) -> int:
        """32-bit words of the scales (or the minima) of a block and group."""
        return BLOCK if self.scale_dtype == "float32" else BLOCK // 2

    @property
    def stride(self) -> int:
        """32-bit words of a block and group."""
        return self.words * BLOCK + self.scale_words * (2 if self.has_minimum else 1)

    @property
    def name(self) -> str:
        """A short name, as part of the names of kernels."""
        if self.is_float:
            return f"f{self.bits}"
        kind = "m" if self.has_minimum else f"o{self.offset}"
        scale = "i16" if self.is_fixed_point else self.scale_dtype[5:]
        return f"q{self.bits}g{self.group}{kind}s{scale}"


def padded_rows(rows: int) -> int:
    """Rows of the packed matrix."""
    return -(-rows // BLOCK) * BLOCK


def tensor_shape(fmt: WeightFormat, n: int, k: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a packed matrix with n (padded) rows and k columns."""
    if fmt.is_float:
        return (n // BLOCK, k, BLOCK), f"float{fmt.bits}"
    return (n // BLOCK, k // fmt.group + fmt.is_fixed_point, fmt.stride), "int32"


_HALF = {
    "Q4_0": WeightFormat(4, 32, offset=8),
    "Q4_1": WeightFormat(4, 32, has_minimum=True),
    "Q5_0": WeightFormat(8, 32, offset=16),
    "Q5_1": WeightFormat(8, 32, has_minimum=True),
    "Q8_0": WeightFormat(8, 32, offset=128),
    "IQ4_NL": WeightFormat(8, 32, offset=128),
    "TQ1_0": WeightFormat(4, 32, offset=1),
    "TQ2_0": WeightFormat(4, 32, offset=1),
    "q4f16": WeightFormat(4, 32, offset=7),
}
_BOOK = WeightFormat(8, 32, offset=128, scale_dtype="float32")
"""Entries of a code book, as bytes."""
_SINGLE = {
    "Q2_K": WeightFormat(8, 16, has_minimum=True, scale_dtype="float32"),
    "Q3_K": WeightFormat(8, 16, offset=4, scale_dtype="float32"),
    "Q4_K": WeightFormat(4, 32, has_minimum=True, scale_dtype="float32"),
    "zero_point4": WeightFormat(4, 32, has_minimum=True, scale_dtype="float32"),
    "Q5_K": WeightFormat(8, 32, has_minimum=True, scale_dtype="float32"),
    "Q6_K": WeightFormat(8, 16, offset=32, scale_dtype="float32"),
    **dict.fromkeys(("q4bf16", "q4f32"), WeightFormat(4, 32, offset=7, scale_dtype="float32")),
    "MXFP4": WeightFormat(8, 32, offset=12, scale_dtype="float32"),
    "NVFP4": WeightFormat(8, 16, offset=12, scale_dtype="float32"),
    **dict.fromkeys(("IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ1_S"), _BOOK),
    **dict.fromkeys(("IQ2_XS", "IQ2_S", "IQ1_M"), replace(_BOOK, group=16)),
}
_FLOATS = {"F16": WeightFormat(16), "BF16": WeightFormat(32), "F32": WeightFormat(32)}
"""bfloat16 is widened: no kernel reads it."""


_KINDS = {**_HALF, **_SINGLE, **_FLOATS}


def format_of_kind(kind: str, *, half: bool, fixed_point: bool = False) -> WeightFormat:
    """The packed format of a tensor type of GGUF, or of MLC LLM's groups; it holds the values
    exactly unless `fixed_point`.

    half: the kernels read float16 (scales, and matrices of floats); otherwise all is float32.
    fixed_point: the kernels want 4-bit weights in fixed point, 16 bits of a row's largest value.

    Raises UnsupportedModel.
    """
    fmt = _KINDS.get(kind)
    if fmt is None:
        raise UnsupportedModel(f"tensor type {kind}; supported: {', '.join(_KINDS)}")
    if fixed_point and fmt.bits == 4:
        return replace(fmt, scale_dtype="int16")
    if half:
        return fmt
    return replace(fmt, bits=32) if fmt.is_float else replace(fmt, scale_dtype="float32")
