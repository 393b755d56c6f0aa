"""What a packed weight matrix looks like to a kernel. The bytes are made in `quantization/`."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 16
"""Weight rows that are interleaved."""
ROW_MULTIPLE = 32
"""Packed matrices are padded to this many rows."""


@dataclass(frozen=True)
class WeightFormat:
    """A matrix of `n` rows and `k` columns; rows interleaved by 16, columns in groups.

    * words  int32 [n/16, k/group, group*bits/32, 16]
    * scale  scale_dtype [n/16, k/group, 16]
    * minimum (only if has_minimum), like scale

    value = scale * (q - offset), or scale * q + minimum.
    `bits` 16 and 32 mean plain floats in `words` [n/16, k, 16] and no scale.
    """

    bits: int
    group: int = 32
    has_minimum: bool = False
    offset: int = 0
    scale_dtype: str = "float16"

    @property
    def is_float(self) -> bool:
        return self.bits >= 16

    @property
    def words(self) -> int:
        """32-bit words a row and group."""
        return self.group * self.bits // 32

    @property
    def name(self) -> str:
        if self.is_float:
            return f"f{self.bits}"
        kind = "m" if self.has_minimum else f"o{self.offset}"
        return f"q{self.bits}g{self.group}{kind}{self.scale_dtype[5:]}"


def padded_rows(rows: int) -> int:
    """Rows of the packed matrix."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def tensor_shapes(fmt: WeightFormat, n: int, k: int) -> list[tuple[tuple[int, ...], str]]:
    """(shape, dtype) of the tensors of a packed matrix with n (padded) rows and k columns."""
    if fmt.is_float:
        return [((n // BLOCK, k, BLOCK), f"float{fmt.bits}")]
    groups = k // fmt.group
    scale = ((n // BLOCK, groups, BLOCK), fmt.scale_dtype)
    words = ((n // BLOCK, groups, fmt.words, BLOCK), "int32")
    return [words, scale, scale] if fmt.has_minimum else [words, scale]
