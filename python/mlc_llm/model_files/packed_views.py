"""4-bit matrices of Hugging Face folders as blocks, from words, scales and zero points.

value = scale * (q - zero). Every word of 32 bits has eight of the numbers q, or of the zeros.

* GPTQ (AutoGPTQ): words [columns / 8, rows], zeros [groups, rows / 8], less 1 in format 1, scales
  [groups, rows];
* AWQ (AutoAWQ): words [columns, rows / 8], zeros [groups, rows / 8], both in an order of their own,
  scales [groups, rows];
* compressed-tensors (pack-quantized): words [rows, columns / 8], zeros [rows / 8, groups] or 8,
  scales [rows, groups].
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
import numpy.typing as npt

from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.tensor_views import Bytes, Floats, View
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.zero_point_blocks import KIND, as_blocks
from mlc_llm.record import record

Words = npt.NDArray[np.uint32]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours lies in the first, second, ... four bits of a word."""


@record()
class PackedView(View):
    """The matrix [rows, columns] of GPTQ. `of` has the words."""

    scales: Tensor
    zeros: Tensor | None
    """None: all are 8."""
    first: int = 0
    """Added to the zeros in the file."""

    @property
    def kind(self) -> str:
        return KIND

    @property
    def data(self) -> Bytes:
        return as_blocks(self._pairs(), self._scale(), self._zero())

    def give_back(self) -> None:
        self.of.give_back()
        self.scales.give_back()

    def _pairs(self) -> Bytes:
        """[rows, columns / 2]."""
        return np.ascontiguousarray(words_of(self.of).T).view(np.uint8)

    def _scale(self) -> Floats:
        """[rows, groups]."""
        return np.transpose(floats_of(self.scales))

    def _zero(self) -> Floats:
        """[rows, groups]."""
        assert self.zeros is not None, "zeros of GPTQ"
        zeros = (_nibbles(words_of(self.zeros)) + np.uint8(self.first)) & 15
        return _turned(zeros)


@record()
class OrderedView(PackedView):
    """The same if columns were quantised in the order of their importance. Neighbours are then in
    different groups, which no format of blocks has: these are the values, in float32."""

    order: Tensor = field(kw_only=True)
    """The group of each column."""

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> Bytes:
        group = self.order.data.view("<i4")
        values = _nibbles(words_of(self.of).T).astype(np.float32)
        values -= self._zero()[:, group]
        values *= self._scale()[:, group]
        return values.reshape(-1).view(np.uint8)


@record()
class AwqView(PackedView):
    """The same of AWQ."""

    def _pairs(self) -> Bytes:
        q = _in_order(words_of(self.of)).T
        return np.ascontiguousarray(q[:, ::2] | (q[:, 1::2] << np.uint8(4)))

    def _zero(self) -> Floats:
        assert self.zeros is not None, "zeros of AWQ"
        return _turned(_in_order(words_of(self.zeros)))


@record()
class CompressedView(PackedView):
    """The same of compressed-tensors."""

    def _pairs(self) -> Bytes:
        return words_of(self.of).view(np.uint8)

    def _scale(self) -> Floats:
        return floats_of(self.scales)

    def _zero(self) -> Floats:
        if self.zeros is None:
            return np.full(self.scales.shape, 8, np.float32)
        return _turned(_nibbles(words_of(self.zeros).T))


def words_of(tensor: Tensor) -> Words:
    """uint32, in the shape of the tensor."""
    return tensor.data.view("<u4").reshape(tensor.shape)


def floats_of(tensor: Tensor) -> Floats:
    """float32, in the shape of the tensor."""
    return dequantize(tensor.kind, tensor.data, tensor.shape)


def _turned(numbers: Bytes) -> Floats:
    floats: Floats = numbers.T.astype(np.float32)
    return floats


def _nibbles(words: Words) -> Bytes:
    """[..., 8 n] of words [..., n], the lowest bits first."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*words.shape[:-1], -1)


def _in_order(words: Words) -> Bytes:
    """The same, in the order of AWQ."""
    stored = _nibbles(words).reshape(*words.shape, 8)
    return stored[..., np.argsort(AWQ_ORDER)].reshape(*words.shape[:-1], -1)
