"""Tables of a few numbers on their way to a device (`backends.device.Table`)."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mlc_llm.backends.device import Table


def table(values: npt.NDArray[np.generic]) -> Table:
    """An array int32 or float32 of one or two dimensions, as `Staging.tensors` takes it."""
    code = "i" if values.dtype == np.int32 else "f"
    return array(code, values.tobytes()), values.shape[1] if values.ndim == 2 else 0
