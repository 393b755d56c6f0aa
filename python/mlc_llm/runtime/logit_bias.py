"""A request's `logit_bias` as arguments of the compiled `edit_logits`, made once a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import LogitBias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.backends.device import Device, DeviceTensor
else:
    from mlc_llm.later_numpy import np


class PreparedBias:
    """The table of one bias. Only the row that it is for changes from step to step."""

    def __init__(self, bias: LogitBias, vocab_size: int, device: Device) -> None:
        """Raises RequestError for a token that is not in the vocabulary."""
        self._device, self._vocab_size = device, vocab_size
        self._place = np.zeros((len(bias), 2), np.int32)
        tokens = np.fromiter(bias, np.int64, len(bias))
        check_tokens(tokens, vocab_size)
        self._place[:, 1] = tokens
        number = np.zeros((len(bias), 3), np.float32)
        number[:, 0] = np.fromiter(bias.values(), np.float32, len(bias))
        number[:, 1] = 1  # divided by
        self._row = 0
        self._tensors = device.upload(self._place), device.upload(number)

    @staticmethod
    def of(bias: LogitBias, vocab_size: int, device: Device) -> PreparedBias:
        """The one that is kept with the bias, or a new one the first time."""
        kept = bias.prepared
        if not isinstance(kept, PreparedBias) or not kept.is_for(vocab_size, device):
            kept = bias.prepared = PreparedBias(bias, vocab_size, device)
        return kept

    def is_for(self, vocab_size: int, device: Device) -> bool:
        return self._vocab_size == vocab_size and self._device is device

    def tensors(self, row: int) -> tuple[DeviceTensor, DeviceTensor]:
        """`place` and `number` for a row of the batch; they are good until the next call."""
        if row != self._row:
            self._row = row
            self._place[:, 0] = row
            self._tensors = self._device.upload(self._place), self._tensors[1]
        return self._tensors


def check_tokens(tokens: npt.NDArray[np.int64], vocab_size: int) -> None:
    """Raises RequestError unless all are in the vocabulary."""
    if len(tokens) and not 0 <= np.min(tokens) <= np.max(tokens) < vocab_size:
        raise RequestError(f"token id to edit outside 0 to {vocab_size - 1}")
