"""Memory that compiled code reads at full speed: KV pages, tables, inputs of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.support.huge_memory import huge_memory


def zeroed(size: int) -> npt.NDArray[Any]:
    """uint8 [size], zero, in memory as `huge_memory` gives it."""
    return np.frombuffer(huge_memory(size), np.uint8)[:size]
