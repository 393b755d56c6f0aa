"""Matrices of 8-bit floats whose blocks have scales."""

from __future__ import annotations

import numpy as np

from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.tensor_views import Bytes, View
from mlc_llm.quantization.float8 import E4M3
from mlc_llm.quantization.float8_blocks import GROUP, KIND, as_blocks
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.record import record


@record()
class Float8View(View):
    """value * scale of its block: as blocks of a row if the scales allow it, else in float32, since
    no plain numbers of fewer bits hold all products."""

    scales: Tensor
    """Floats [row blocks, column blocks]."""
    block: tuple[int, int]
    """Rows and columns of a block."""

    @property
    def kind(self) -> str:
        columns, wide = self.shape[1], self.block[1]
        whole = columns % GROUP == 0 and (wide % GROUP == 0 or wide >= columns)
        return KIND if whole else "F32"

    @property
    def data(self) -> Bytes:
        rows, columns = self.shape
        high, wide = self.block
        scales = dequantize(
            self.scales.kind, self.scales.data, (-(-rows // high), -(-columns // wide))
        )
        if self.kind == KIND:
            groups = np.repeat(scales, max(wide // GROUP, 1), axis=1)[:, : columns // GROUP]
            by_row = np.repeat(groups, high, axis=0)[:rows]
            return as_blocks(self.of.data.reshape(self.shape), by_row)
        values = E4M3[self.of.data].reshape(self.shape)
        for i, line in enumerate(scales):
            values[i * high : (i + 1) * high] *= np.repeat(line, wide)[:columns]
        return values.reshape(-1).view(np.uint8)

    def give_back(self) -> None:
        self.of.give_back()
        self.scales.give_back()
