"""Tensors whose heads of values are in the order of GGUF files (see `models/head_order.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.tensor_views import View
from mlc_llm.models.head_order import Order, columns_in_turn, rows_in_turn
from mlc_llm.models.recurrent import GatedDeltaSpec
from mlc_llm.models.spec import ModelSpec
from mlc_llm.quantization.ggml_blocks import FLOAT_BYTES
from mlc_llm.record import record


def with_heads_in_turn(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors; those of delta rules have their heads of values in turn. Raises
    UnsupportedModel."""
    found = dict(tensors)
    for i, one in spec.recurrent_layers.items():
        if isinstance(one, GatedDeltaSpec) and one.heads != one.key_heads:
            _change(found, f"blk.{i}.", one)
    return found


def _change(found: dict[str, Tensor], start: str, one: GatedDeltaSpec) -> None:
    for axis, orders in enumerate((rows_in_turn(one), columns_in_turn(one))):
        for name, order in orders.items():
            found[start + name] = Reordered(*_plain(found[start + name]), order, axis)


def _plain(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """It and its shape. Raises UnsupportedModel."""
    if tensor.kind not in FLOAT_BYTES:
        words = "quantised heads of values cannot be put in turn"
        raise UnsupportedModel(f"tensor {tensor.name} of type {tensor.kind}: {words}")
    return tensor, tensor.shape


@record(eq=False)
class Reordered(View):
    """A tensor of plain numbers with its rows, or its columns, in another order."""

    order: Order
    axis: int
    """0: rows, or numbers of a vector; 1: columns."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        size = FLOAT_BYTES[self.kind]
        cells: npt.NDArray[Any] = self.of.data.reshape(*self.shape, size)
        return np.ascontiguousarray(np.take(cells, self.order, axis=self.axis)).reshape(-1)
