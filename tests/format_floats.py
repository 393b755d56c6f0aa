"""Random floats that a format of plain floats holds exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cpu.formats import WeightFormat


def floats_of(
    fmt: WeightFormat, rng: np.random.Generator, rows: int, columns: int
) -> npt.NDArray[np.float32]:
    """float32 [rows, columns]."""
    found = rng.standard_normal((rows, columns)).astype(np.float32)
    if fmt.is_bfloat:
        return (found.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return found.astype(f"float{fmt.bits}").astype(np.float32)
