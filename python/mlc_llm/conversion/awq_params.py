"""Matrices that AWQ has quantised, in MLC LLM's folder: the same words, zero points and scales.

MLC LLM calls them STEM.qweight, STEM.qzeros and STEM.scales. The matrices that it joins (query, key
and value) lie side by side, since a row of the files has a number of each row of the matrix.
Source: `AWQQuantizeLinear` in mlc_llm/quantization/awq_quantization.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlc_llm.conversion.mlc_params import Param
from mlc_llm.conversion.shards import ShardWriter
from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.model_files.awq_parts import AwqParts, awq_parts
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.group_schemes import Scheme, stored_numbers
from mlc_llm.quantization.names import AWQ, AWQ_GROUP
from mlc_llm.record import record

Array = npt.NDArray[np.generic]
_ENDS = ("token_embd.weight", "output.weight")
_PIECE_ROWS = 256


class Writable(Protocol):
    """A parameter of the new folder."""

    @property
    def values(self) -> int: ...

    def nbytes(self, scheme: Scheme) -> int: ...

    def write(self, scheme: Scheme, writer: ShardWriter) -> None: ...


def awq_params(params: Sequence[Param]) -> list[Writable]:
    """The same parameters, those of layers with the words of AWQ. Raises UnsupportedModel for a
    matrix of a layer that AWQ has not quantised, or not in groups of 128."""
    return [_taken(one) if _is_packed(one) else one for one in params]


def _is_packed(param: Param) -> bool:
    """Whether MLC LLM wants it packed: all matrices but the embedding and the head."""
    return len(param.shape) > 1 and param.parts[0].source.tensor not in _ENDS


def _taken(param: Param) -> AwqParam:
    parts = []
    for tensor, source in param.parts:
        found = awq_parts(tensor)
        if found is None:
            raise UnsupportedModel(
                f"tensor {tensor.name} is not quantised by AWQ; {AWQ.name} takes the matrices of "
                "a folder that AWQ has quantised; q4f16_1 quantises any model"
            )
        group = source.shape[-1] // found.scales.shape[0]
        if group != AWQ_GROUP:
            raise UnsupportedModel(
                f"tensor {tensor.name} has groups of {group}; {AWQ.name} has groups of "
                f"{AWQ_GROUP}. The folder runs as it is; q4f16_1 quantises it anew"
            )
        parts.append(found)
    return AwqParam(param.name, param.values, tuple(parts))


@record()
class AwqParam:
    """A matrix, or several with one input."""

    name: str
    values: int
    parts: tuple[AwqParts, ...]

    def nbytes(self, scheme: Scheme) -> int:
        """Bytes in the folder: half a byte a value, and a zero and a scale for each group."""
        return self.values // 2 + (self.values // AWQ_GROUP) * 5 // 2

    def write(self, scheme: Scheme, writer: ShardWriter) -> None:
        """Write the words as they are. Raises ModelFileError, OSError."""
        stem = self.name.removesuffix(".weight")
        self._add(f"{stem}.qweight", "uint32", [one.words for one in self.parts], writer)
        self._add(f"{stem}.qzeros", "uint32", [one.zeros for one in self.parts], writer)
        scales = [_halves(self.name, one.scales) for one in self.parts]
        self._add(f"{stem}.scales", "float16", scales, writer)
        for one in self.parts:
            one.give_back()

    @staticmethod
    def _add(name: str, dtype: str, arrays: Sequence[Array], writer: ShardWriter) -> None:
        shape = arrays[0].shape[0], sum(one.shape[1] for one in arrays)
        size = sum(one.nbytes for one in arrays)
        writer.add(name, shape, dtype, size, _side_by_side(arrays))


def _side_by_side(arrays: Sequence[Array]) -> Iterator[Array]:
    for start in range(0, len(arrays[0]), _PIECE_ROWS):
        yield np.concatenate([one[start : start + _PIECE_ROWS] for one in arrays], axis=1)


def _halves(name: str, scales: Floats) -> Array:
    halves = stored_numbers(scales, "float16")
    if not np.isfinite(halves.astype(np.float32)).all():
        raise ModelFileError(f"{name}: a scale is beyond float16")
    return halves
