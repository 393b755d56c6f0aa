"""How a matrix lies in memory for kernels of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlc_llm.backends.cuda.formats import (
    BLOCK,
    WeightFormat,
    format_of_kind,
    padded_rows,
    tensor_shape,
)
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.quantization.block_format import Grouped


@record()
class CudaLayout:
    """See `backends.base.WeightLayout`."""

    kind: str
    row_block: int = BLOCK

    @property
    def format(self) -> WeightFormat:
        """How the kernels know it. Raises UnsupportedModel."""
        return format_of_kind(self.kind)

    @property
    def is_float(self) -> bool:
        return self.format.is_float

    def shape(self, rows: int, columns: int) -> tuple[tuple[int, ...], str]:
        return tensor_shape(self.format, padded_rows(rows), columns)

    def pack(self, values: Grouped | npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        from mlc_llm.backends.cuda.packing import pack, pack_floats
        from mlc_llm.quantization.block_format import Grouped

        if isinstance(values, Grouped):
            return pack(values, self.format)
        return pack_floats(values, self.format, self.kind)
