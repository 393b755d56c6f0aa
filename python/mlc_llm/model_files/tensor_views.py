"""Tensors that are made of other tensors when they are read. None of them holds a copy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlc_llm.loader.tensor import Tensor
from mlc_llm.quantization.ggml_blocks import FLOAT_BYTES, dequantize
from mlc_llm.record import record

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@record()
class View:
    """Another shape of a tensor with the same bytes; the parent of all changes of one tensor."""

    of: Tensor
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def kind(self) -> str:
        return self.of.kind

    @property
    def data(self) -> Bytes:
        return self.of.data

    def matrix(self, index: int) -> Tensor:
        raise AssertionError(f"{self.name} is no stack of matrices")

    def give_back(self) -> None:
        self.of.give_back()


@record()
class PlusOneView(View):
    """value + 1, in float32."""

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> Bytes:
        sums: Floats = dequantize(self.of.kind, self.of.data, self.of.shape) + np.float32(1)
        return sums.reshape(-1).view(np.uint8)


@record()
class MinusExpView(View):
    """-e^value, in float32."""

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> Bytes:
        values = dequantize(self.of.kind, self.of.data, self.of.shape).astype(np.float32)
        powers: Floats = -np.exp(values)
        return powers.reshape(-1).view(np.uint8)


@record()
class ScaledView(View):
    """value * factor of its row, in float32."""

    factors: tuple[float, ...]
    rows: tuple[int, ...]
    """So many rows have each factor."""

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> Bytes:
        values = dequantize(self.of.kind, self.of.data, self.of.shape).reshape(self.shape[0], -1)
        factors = np.repeat(np.array(self.factors, np.float32), self.rows)
        products: Floats = values * factors[:, None]
        return products.reshape(-1).view(np.uint8)


@record()
class TransposedView(View):
    """The transposed matrix, of floats; or a stack of them."""

    @property
    def data(self) -> Bytes:
        values = self.of.data.view(f"V{FLOAT_BYTES[self.kind]}").reshape(self.of.shape)
        return np.ascontiguousarray(values.swapaxes(-1, -2)).reshape(-1).view(np.uint8)

    def matrix(self, index: int) -> Tensor:
        return TransposedView(self.of.matrix(index), self.shape[1:])


@record()
class RowsView(View):
    """Rows of a matrix, of each matrix in a stack, or of a vector."""

    start: int

    @property
    def data(self) -> Bytes:
        if len(self.shape) == 3:
            return np.concatenate([self.matrix(i).data for i in range(self.shape[0])])
        whole = self.of.data
        row = len(whole) // self.of.shape[0]
        return whole[self.start * row : (self.start + self.shape[0]) * row]

    def matrix(self, index: int) -> Tensor:
        return RowsView(self.of.matrix(index), self.shape[1:], self.start)


@record()
class AlternateView(View):
    """Every other row of each matrix (axis -2), or every other number (axis -1)."""

    axis: int
    first: int

    @property
    def data(self) -> Bytes:
        whole, shape = self.of.data, self.of.shape
        unit = len(whole) // math.prod(shape[: len(shape) + self.axis + 1])
        return np.ascontiguousarray(whole.reshape(-1, 2, unit)[:, self.first]).reshape(-1)

    def matrix(self, index: int) -> Tensor:
        return AlternateView(self.of.matrix(index), self.shape[1:], self.axis, self.first)


@record()
class MicroscaledView(View):
    """Matrices in ggml's MXFP4: the exponent of a block, then 16 bytes. Byte i has number i in its
    low half and number i + 16 in its high half. of: blocks with neighbours in a byte."""

    scales: Tensor

    @property
    def kind(self) -> str:
        return "MXFP4"

    @property
    def data(self) -> Bytes:
        pairs = self.of.data.reshape(-1, 16)
        numbers = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, 2, 16)
        halves = numbers[:, 0] | numbers[:, 1] << 4
        return np.hstack([self.scales.data.reshape(-1, 1), halves]).reshape(-1)

    def matrix(self, index: int) -> Tensor:
        scales = self.scales.matrix(index)
        return MicroscaledView(self.of.matrix(index), self.shape[1:], scales)

    def give_back(self) -> None:
        self.of.give_back()
        self.scales.give_back()


@record()
class HeadRowsView(View):
    """The part `part` of `parts` of the rows of each of so many heads, of a matrix or a vector."""

    heads: int
    part: int
    parts: int

    @property
    def data(self) -> Bytes:
        return self.of.data.reshape(self.heads, self.parts, -1)[:, self.part].reshape(-1)


@record()
class HeadPartsView(View):
    """Parts of the rows of each of so many heads, as in `HeadParts`."""

    heads: int
    widths: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def data(self) -> Bytes:
        whole = self.of.data.reshape(self.heads, sum(self.widths), -1)
        starts = [sum(self.widths[:part]) for part in self.parts]
        found = [
            whole[:, start : start + self.widths[part]].reshape(-1)
            for part, start in zip(self.parts, starts, strict=True)
        ]
        return np.concatenate(found)


@record()
class StackView:
    """Matrices of one type and shape, one behind the other."""

    of: Sequence[Tensor]

    @property
    def name(self) -> str:
        return self.of[0].name

    @property
    def kind(self) -> str:
        return self.of[0].kind

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.of), *self.of[0].shape)

    @property
    def data(self) -> Bytes:
        return np.concatenate([one.data for one in self.of])

    def matrix(self, index: int) -> Tensor:
        return self.of[index]

    def give_back(self) -> None:
        for one in self.of:
            one.give_back()
