"""Matrices of 8-bit floats whose blocks have scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.tensor_views import Bytes, View
from mlc_llm.quantization.float8 import E4M3
from mlc_llm.quantization.ggml_blocks import dequantize


@dataclass(frozen=True)
class Float8View(View):
    """value * scale of its block, in float32: no format with fewer bits holds all products."""

    scales: Tensor
    """Floats [row blocks, column blocks]."""
    block: tuple[int, int]
    """Rows and columns of a block."""

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> Bytes:
        rows, columns = self.shape
        high, wide = self.block
        values = E4M3[self.of.data].reshape(self.shape)
        scales = dequantize(
            self.scales.kind, self.scales.data, (-(-rows // high), -(-columns // wide))
        )
        for i, line in enumerate(scales):
            values[i * high : (i + 1) * high] *= np.repeat(line, wide)[:columns]
        return values.reshape(-1).view(np.uint8)

    def give_back(self) -> None:
        self.of.give_back()
        self.scales.give_back()
