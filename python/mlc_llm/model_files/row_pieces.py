"""The values of large tensors, a few rows at a time: no tensor is ever whole in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ModelFileError
from mlc_llm.loader.tensor import Tensor
from mlc_llm.models.weight_plan import Source
from mlc_llm.quantization.ggml_blocks import dequantize

Floats = npt.NDArray[np.float32]
PIECE_VALUES = 1 << 21
"""Values that are float32 at once."""


class Rows(NamedTuple):
    """A matrix, a stack of matrices or a vector of the source."""

    tensor: Tensor
    source: Source


def pieces(rows: Rows) -> Iterator[Floats]:
    """All rows in order, [rows, columns]; a vector is one row. Neighbouring rows of heads become
    halves, as in Hugging Face folders. Raises ModelFileError for values that are not finite."""
    tensor, shape = rows.tensor, rows.source.shape
    if len(shape) == 3:
        for expert in range(shape[0]):
            yield from _matrix_pieces(tensor.matrix(expert), shape[1:], 0)
    elif len(shape) == 1:
        yield from _vector(tensor, rows.source)
    else:
        yield from _matrix_pieces(tensor, shape, rows.source.rope_heads)


def expert_pieces(rows: Rows, expert: int) -> Iterator[Floats]:
    """The rows of one matrix of a stack."""
    return _matrix_pieces(rows.tensor.matrix(expert), rows.source.shape[1:], 0)


def halves_order(rows: int, heads: int) -> npt.NDArray[np.int64] | None:
    """The order in which pairs (2i, 2i + 1) of rows of each head become halves; None: as it is."""
    if not heads:
        return None
    order: npt.NDArray[np.int64] = np.arange(rows).reshape(heads, -1, 2).transpose(0, 2, 1)
    return order.reshape(-1)


def _vector(tensor: Tensor, source: Source) -> Iterator[Floats]:
    values = _checked(tensor.name, dequantize(tensor.kind, tensor.data, tensor.shape))
    order = halves_order(len(values), source.rope_heads)
    yield (values if order is None else values[order]).reshape(1, -1)


def _matrix_pieces(tensor: Tensor, shape: tuple[int, ...], heads: int) -> Iterator[Floats]:
    rows, columns = shape
    data = tensor.data.reshape(rows, -1)
    order = halves_order(rows, heads)
    step = max(1, PIECE_VALUES // columns)
    for start in range(0, rows, step):
        end = min(start + step, rows)
        chosen = data[start:end] if order is None else data[order[start:end]]
        values = dequantize(tensor.kind, chosen.reshape(-1), (end - start, columns))
        yield _checked(tensor.name, values)
        tensor.give_back()  # else the whole file stays in memory


def _checked(name: str, values: Floats) -> Floats:
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise ModelFileError(f"tensor {name} holds NaN or infinite values: the file is damaged")
    return values
