"""What packed weights and KV pages look like to a kernel. The bytes are made in `packing.py`."""

from __future__ import annotations

from dataclasses import replace

from mlc_llm.errors import UnsupportedModel
from mlc_llm.record import record

BLOCK = 32
"""Weight rows that are interleaved; matrices are padded to a multiple."""
PAGE = 16
"""Tokens a KV page."""
UNIT_WORDS = BLOCK // 2
"""32-bit words of the units of a block and span: a float16 a row and kind."""
_BYTES = {"float32": 4, "float16": 2, "int16": 2, "int8": 1}


@record()
class WeightFormat:
    """A matrix of `n` rows and `k` columns as one tensor that is read from end to end.

    int32 [n/32, k/group, stride]: for a block of 32 rows and a group of columns `words` words of
    each row (word by word, the 32 rows side by side), then the rows' scales, then (has_minimum)
    their minima, in scale_dtype.

    value = scale * (q - offset), or scale * q + minimum.

    With a `span` above 1 the tensor is [n/32, k/group/span, stride]. The units of a span come
    first, a float16 for each row: those of its scales, then those of its minima. Its groups follow,
    whose scales and minima are whole numbers (int8) in these units.

    In a fixed-point format scales and minima are int16, in units of their row. A group more behind
    the last one begins with the 32 rows' units, float32.
    `bits` 16 and 32 mean plain floats [n/32, k, 32] and no scale, or int32 [n/32, k/2, 32] of
    bfloat16 (`is_bfloat`): a word has columns 2j and 2j + 1, the first one in its low half;
    behind an odd number of columns is a zero.
    """

    bits: int
    group: int = 32
    has_minimum: bool = False
    offset: int = 0
    scale_dtype: str = "float16"
    span: int = 1
    """Groups whose scales share a unit."""
    float8: bool = False
    """The values are bytes of E4M3: value = scale * number of the byte."""
    is_bfloat: bool = False
    """The 16 bits of a value are the upper half of a float32."""

    @property
    def reads_floats(self) -> bool:
        """Kernels multiply float32 rows with the weights, and no integers."""
        return self.is_float or self.float8

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
    def high_bits(self) -> int:
        """Bits of a value above its low four that lie in a word of their own, the first one."""
        return self.bits - 4 if self.bits < 8 else 0

    @property
    def high_words(self) -> int:
        """Words that come before the low words: one if there are high bits."""
        return 1 if self.high_bits else 0

    @property
    def low_words(self) -> int:
        """Words without that of the high bits."""
        return self.words - self.high_words

    @property
    def parts(self) -> int:
        """Values that share a byte of a low word: two nibbles, or one byte."""
        return 2 if self.bits < 8 else 1

    @property
    def scale_words(self) -> int:
        """32-bit words of the scales (or the minima) of a block and group."""
        return BLOCK * _BYTES[self.scale_dtype] // 4

    @property
    def unit_words(self) -> int:
        """32-bit words of the units of a block and span: a float16 a row and kind."""
        return _kinds(self) * UNIT_WORDS if self.span > 1 else 0

    @property
    def group_stride(self) -> int:
        """32-bit words of a block and group."""
        return self.scale_start(_kinds(self))

    @property
    def stride(self) -> int:
        """32-bit words of a block and span."""
        return self.unit_words + self.span * self.group_stride

    def scale_start(self, kind: int) -> int:
        """Where the scales (kind 0) or minima (1) begin in a group."""
        return self.words * BLOCK + kind * self.scale_words

    @property
    def name(self) -> str:
        """A short name, as part of the names of kernels."""
        if self.is_float:
            return "bf16" if self.is_bfloat else f"f{self.bits}"
        kind = "e4m3" if self.float8 else "m" if self.has_minimum else f"o{self.offset}"
        scale = self.scale_dtype.replace("float", "").replace("int", "i")
        span = f"x{self.span}" if self.span > 1 else ""
        return f"q{self.bits}g{self.group}{kind}s{scale}{span}"


def _kinds(fmt: WeightFormat) -> int:
    """Kinds of numbers that a group has beside its values: scales, and minima."""
    return 2 if fmt.has_minimum else 1


def padded_rows(rows: int) -> int:
    """Rows of the packed matrix."""
    return -(-rows // BLOCK) * BLOCK


def tensor_shape(fmt: WeightFormat, n: int, k: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a packed matrix with n (padded) rows and k columns."""
    if fmt.is_bfloat:
        return (n // BLOCK, -(-k // 2), BLOCK), "int32"
    if fmt.is_float:
        return (n // BLOCK, k, BLOCK), f"float{fmt.bits}"
    assert k % (fmt.group * fmt.span) == 0, "columns are whole spans"
    return (n // BLOCK, k // fmt.group // fmt.span + fmt.is_fixed_point, fmt.stride), "int32"


_HALF = {
    "Q4_0": WeightFormat(4, 32, offset=8),
    "Q4_1": WeightFormat(4, 32, has_minimum=True),
    "Q5_0": WeightFormat(5, 32, offset=16),
    "Q5_1": WeightFormat(5, 32, has_minimum=True),
    "Q8_0": WeightFormat(8, 32, offset=128),
    "IQ4_NL": WeightFormat(8, 32, offset=128),
    "TQ1_0": WeightFormat(4, 32, offset=1),
    "TQ2_0": WeightFormat(4, 32, offset=1),
    "q4f16": WeightFormat(4, 32, offset=7),
}
_BOOK = WeightFormat(8, 32, offset=128, scale_dtype="float32")
"""Entries of a code book, as bytes."""
_SPANS = {
    "Q2_K": WeightFormat(4, 16, has_minimum=True, scale_dtype="int8", span=16),
    "Q3_K": WeightFormat(4, 16, offset=4, scale_dtype="int8", span=16),
    "Q4_K": WeightFormat(4, 32, has_minimum=True, scale_dtype="int8", span=8),
    "Q5_K": WeightFormat(5, 32, has_minimum=True, scale_dtype="int8", span=8),
    "Q6_K": WeightFormat(6, 16, offset=32, scale_dtype="int8", span=16),
}
_SINGLE = {
    "float8_e4m3": WeightFormat(8, 32, offset=128, scale_dtype="float32", float8=True),
    "zero_point4": WeightFormat(4, 32, has_minimum=True, scale_dtype="float32"),
    **dict.fromkeys(("q4bf16", "q4f32"), WeightFormat(4, 32, offset=7, scale_dtype="float32")),
    "MXFP4": WeightFormat(5, 32, offset=12, scale_dtype="float32"),
    "NVFP4": WeightFormat(8, 16, offset=12, scale_dtype="float32"),
    **dict.fromkeys(("IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ1_S"), _BOOK),
    **dict.fromkeys(("IQ2_XS", "IQ2_S", "IQ1_M"), replace(_BOOK, group=16)),
}
_FLOATS = {
    "F16": WeightFormat(16),
    "BF16": WeightFormat(16, is_bfloat=True),
    "F32": WeightFormat(32),
}

_KINDS = {**_HALF, **_SPANS, **_SINGLE, **_FLOATS}


def format_of_kind(kind: str, *, half: bool, fixed_point: bool = False) -> WeightFormat:
    """The packed format of a tensor type of GGUF, or of MLC LLM's groups; it holds the values
    exactly unless `fixed_point`.

    half: the kernels read float16 (scales, and matrices of floats); otherwise they are float32.
    fixed_point: the kernels want 4-bit weights in fixed point, 16 bits of a row's largest value.

    Raises UnsupportedModel.
    """
    fmt = _KINDS.get(kind)
    if fmt is None:
        raise UnsupportedModel(f"tensor type {kind}; supported: {', '.join(_KINDS)}")
    if fixed_point and fmt.bits == 4 and fmt.group == 32:
        return replace(fmt, scale_dtype="int16", span=1)
    if half or fmt.is_bfloat:
        return fmt
    if fmt.is_float:
        return replace(fmt, bits=32)
    return replace(fmt, scale_dtype="float32", span=1)
