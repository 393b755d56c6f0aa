"""The ways to store weights that this version knows, by name."""

from __future__ import annotations

from mlc_llm.quantization.float8_blocks import FLOAT8_FORMATS
from mlc_llm.quantization.ggml_blocks import FLOAT_BYTES, FORMATS
from mlc_llm.quantization.group_blocks import GROUP_FORMATS
from mlc_llm.quantization.group_schemes import SCHEMES, Scheme
from mlc_llm.quantization.zero_point_blocks import ZERO_POINT_FORMATS
from mlc_llm.record import record


@record()
class Quantization:
    """A tensor type of GGUF files: how it stores the weights of a row, block after block."""

    name: str
    block_size: int
    """Weights of a block."""
    block_bytes: int
    group_size: int | None
    """Weights that share a scale, a part of a block; None: floating-point numbers, which have no
    scale."""
    has_minimum: bool
    """A weight is scale * q + minimum; otherwise it is scale * (q - offset)."""

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight in the file, with its share of the scales and minima."""
        return 8 * self.block_bytes / self.block_size


QUANTIZATION: dict[str, Quantization | Scheme] = {
    **{name: Quantization(name, 1, size, None, False) for name, size in FLOAT_BYTES.items()},
    **{
        name: Quantization(name, form.block, form.layout.itemsize, form.group, form.has_minimum)
        for name, form in FORMATS.items()
        if name not in GROUP_FORMATS | ZERO_POINT_FORMATS | FLOAT8_FORMATS
    },
    **SCHEMES,
}
"""Tensor types by their names in GGUF files (`Q4_0`), and MLC LLM's schemes (`q4f16_1`), which are
for whole models."""
