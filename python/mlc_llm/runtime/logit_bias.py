"""A request's `logit_bias` as arguments of the compiled `edit_logits`, made once a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import LogitBias
from mlc_llm.runtime.staging import ALIGNMENT

Array = npt.NDArray[Any]


class PreparedBias:
    """The table of one bias. Only the row that it is for changes from step to step."""

    def __init__(self, bias: LogitBias, vocab_size: int) -> None:
        """Raises RequestError for a token that is not in the vocabulary."""
        self.vocab_size = vocab_size
        tokens = np.fromiter(bias, np.int64, len(bias))
        check_tokens(tokens, vocab_size)
        place = aligned((len(bias), 2), np.int32)
        place[:, 1] = tokens
        number = aligned((len(bias), 3), np.float32)
        number[:, 0] = np.fromiter(bias.values(), np.float32, len(bias))
        number[:, 1] = 1  # divided by
        self._row, self._rows = 0, place[:, 0]
        self._tensors = tvm_ffi.from_dlpack(place), tvm_ffi.from_dlpack(number)

    @staticmethod
    def of(bias: LogitBias, vocab_size: int) -> PreparedBias:
        """The one that is kept with the bias, or a new one the first time."""
        kept = bias.prepared
        if not isinstance(kept, PreparedBias) or kept.vocab_size != vocab_size:
            kept = bias.prepared = PreparedBias(bias, vocab_size)
        return kept

    def tensors(self, row: int) -> tuple[Any, Any]:
        """`place` and `number` for a row of the batch; they are good until the next call."""
        if row != self._row:
            self._row = row
            self._rows[:] = row
        return self._tensors


def check_tokens(tokens: npt.NDArray[np.int64], vocab_size: int) -> None:
    """Raises RequestError unless all are in the vocabulary."""
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise RequestError(f"token id to edit outside 0 to {vocab_size - 1}")


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros as compiled code takes them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    result: Array = memory[start : start + size].view(dtype).reshape(shape)
    return result
