"""The values of large tensors, a few rows at a time: no tensor is ever whole in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ModelFileError
from mlc_llm.loader.tensor import Tensor
from mlc_llm.models.row_order import row_order
from mlc_llm.models.sources import Source
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
            yield from expert_pieces(rows, expert)
    elif len(shape) == 1:
        yield from _vector(tensor, rows.source)
    else:
        yield from _matrix_pieces(tensor, rows.source)


def weighed_pieces(rows: Rows, importance: Floats | None) -> Iterator[tuple[Floats, Floats | None]]:
    """The same with what an error in each column costs, [columns]. importance: of the columns, or
    [experts, columns] for a stack."""
    if importance is None or importance.ndim == 1:
        yield from ((piece, importance) for piece in pieces(rows))
        return
    for expert, own in enumerate(importance):
        yield from ((piece, own) for piece in expert_pieces(rows, expert))


def expert_pieces(rows: Rows, expert: int) -> Iterator[Floats]:
    """The rows of one matrix of a stack."""
    one = replace(rows.source, shape=rows.source.shape[1:])
    return _matrix_pieces(rows.tensor.matrix(expert), one)


def _vector(tensor: Tensor, source: Source) -> Iterator[Floats]:
    values = _checked(tensor.name, dequantize(tensor.kind, tensor.data, tensor.shape))
    yield values[row_order(source, len(values))].reshape(1, -1)


def _matrix_pieces(tensor: Tensor, source: Source) -> Iterator[Floats]:
    rows, columns = source.shape
    data, order = tensor.data.reshape(rows, -1), row_order(source, rows)
    step = max(1, PIECE_VALUES // columns)
    for start in range(0, len(order), step):
        here = order[start : start + step]
        whole = all(one is None for one in (source.paired, source.rows, source.part))
        chosen = data[here[0] : here[-1] + 1] if whole else data[here]
        values = dequantize(tensor.kind, chosen.reshape(-1), (len(here), columns))
        yield _checked(tensor.name, values)
        tensor.give_back()  # else the whole file stays in memory


def _checked(name: str, values: Floats) -> Floats:
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise ModelFileError(f"tensor {name} holds NaN or infinite values: the file is damaged")
    return values
