"""Parameters of MLC LLM's folder as tensors. They are put together when they are read."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mlc_llm.loader.mlc_shards import MLCParam
from mlc_llm.loader.tensor import Tensor
from mlc_llm.quantization.block_format import Bytes
from mlc_llm.quantization.group_blocks import GROUP_KINDS, as_blocks
from mlc_llm.quantization.group_schemes import Scheme, Stored, dequantize_groups, read_stored
from mlc_llm.record import record

Array = npt.NDArray[np.generic]
KINDS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
_STORED = {"uint32": "<u4", "float16": "<f2", "bfloat16": "<u2", "float32": "<f4"}


def array_of(param: MLCParam) -> Array:
    """The numbers of a parameter; bfloat16 as uint16."""
    return param.data.view(_STORED[param.dtype]).reshape(param.shape)


@record()
class NumbersView:
    """A parameter of plain numbers, or some of its rows."""

    of: MLCParam
    shape: tuple[int, ...]
    start: int = 0
    """The first row."""
    index: int | None = None
    """Which matrix of a stack."""

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def kind(self) -> str:
        return KINDS[self.of.dtype]

    @property
    def data(self) -> Bytes:
        if len(self.shape) == 3:
            return np.concatenate([self.matrix(i).data for i in range(self.shape[0])])
        whole = array_of(self.of) if self.index is None else array_of(self.of)[self.index]
        rows = whole[self.start : self.start + self.shape[0]]
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)

    def matrix(self, index: int) -> Tensor:
        return replace(self, shape=self.shape[1:], index=index)

    def give_back(self) -> None:
        self.of.give_back()


@record()
class WordsView:
    """A parameter of words, which are no numbers of a model."""

    of: MLCParam

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def kind(self) -> str:
        return "I32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape

    @property
    def data(self) -> Bytes:
        return self.of.data

    def matrix(self, index: int) -> Tensor:
        raise AssertionError(f"{self.name} is no stack of matrices")

    def give_back(self) -> None:
        self.of.give_back()


@record()
class GroupsView:
    """Rows of a quantised matrix, from its words and scales."""

    scheme: Scheme
    words: MLCParam
    scales: MLCParam
    shape: tuple[int, ...]
    start: int = 0
    index: int | None = None
    transposed: bool = False
    """The parameters have the layout KN."""
    plain: bool = False
    """It is dequantised, whatever it is made of."""

    @property
    def name(self) -> str:
        return self.words.name

    @cached_property
    def kind(self) -> str:
        """Blocks of groups; what is not made of such blocks is dequantised."""
        size = self.scheme.group_size
        whole = not self.plain and size is not None and self.shape[-1] % size == 0
        return GROUP_KINDS[self.scales.dtype] if whole and self.scheme.bits == 4 else "F32"

    @property
    def data(self) -> Bytes:
        if len(self.shape) == 3:
            return np.concatenate([self.matrix(i).data for i in range(self.shape[0])])
        rows = slice(self.start, self.start + self.shape[0])
        words, scales = (self._array(one)[rows] for one in (self.words, self.scales))
        if self.kind != "F32":
            return as_blocks(words.astype(np.uint32, copy=False), scales)
        given = Stored(words.astype(np.uint32, copy=False), scales)
        grouped = read_stored(self.scheme, given, self.shape[-1], transposed=False)
        return dequantize_groups(grouped).reshape(-1).view(np.uint8)

    def _array(self, param: MLCParam) -> Array:
        """[rows, columns]."""
        whole = array_of(param) if self.index is None else array_of(param)[self.index]
        return whole.T if self.transposed else whole

    def matrix(self, index: int) -> Tensor:
        return replace(self, shape=self.shape[1:], index=index)

    def give_back(self) -> None:
        self.words.give_back()
        self.scales.give_back()
