"""Tables of a few numbers on their way to a device (`backends.device.Table`)."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.backends.device import Table
else:
    from mlc_llm.later_numpy import np


def table(values: npt.NDArray[np.generic]) -> Table:
    """An array int32 or float32 of one or two dimensions, as `Staging.tensors` takes it."""
    code = "i" if str(values.dtype) == "int32" else "f"
    return array(code, values.tobytes()), values.shape[1] if values.ndim == 2 else 0
