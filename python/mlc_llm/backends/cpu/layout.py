"""How a matrix lies in memory for CPU kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, padded_rows, tensor_shape
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.quantization.block_format import Grouped


@record()
class CpuLayout:
    """See `backends.base.WeightLayout`."""

    format: WeightFormat
    row_block: int = BLOCK

    @property
    def is_float(self) -> bool:
        return self.format.is_float

    def shape(self, rows: int, columns: int) -> tuple[tuple[int, ...], str]:
        return tensor_shape(self.format, padded_rows(rows), columns)

    def pack(self, values: Grouped | npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        from mlc_llm.backends.cpu.packing import pack, pack_floats
        from mlc_llm.quantization.block_format import Grouped

        if isinstance(values, Grouped):
            return pack(values, self.format).tensor
        return pack_floats(values, self.format).tensor
