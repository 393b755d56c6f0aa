"""The argument `state_rows` of kernels that keep everything in slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlc_llm.library.state_format import STATE_ROW


def state_rows(rows: Sequence[tuple[int, int, int, int]]) -> npt.NDArray[np.int32]:
    """rows: first token, number of tokens, slot to read, slot to write. No base is read."""
    found = np.full((len(rows), STATE_ROW), -1, np.int32)
    found[:, :4] = rows
    return found
