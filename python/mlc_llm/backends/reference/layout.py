"""Matrices as plain float32 [rows, columns]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlc_llm.quantization.block_format import Grouped
from mlc_llm.record import record


@record()
class DenseLayout:
    """See `backends.base.WeightLayout`."""

    kind: str
    is_float: bool = True
    row_block: int = 1

    def shape(self, rows: int, columns: int) -> tuple[tuple[int, ...], str]:
        return (rows, columns), "float32"

    def pack(self, values: Grouped | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        assert not isinstance(values, Grouped), "this layout takes floats"
        return np.ascontiguousarray(values, np.float32)
