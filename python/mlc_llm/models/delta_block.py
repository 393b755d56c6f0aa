"""The gated delta rule as a block of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc_llm.backends.operands import GatedDeltaVectors, Input, LayerInputs, StateInputs
from mlc_llm.backends.ops import Ops
from mlc_llm.models.merged import MergedLinear, Part
from mlc_llm.models.product import Product
from mlc_llm.models.recurrent import GatedDeltaSpec
from mlc_llm.models.spec import ModelSpec

if TYPE_CHECKING:
    from tvm.relax.frontend import nn


class GatedDeltaBlock:
    """A gated delta rule. `layer` has the vectors, and gets `delta_in` and `delta_out`."""

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: GatedDeltaSpec, ops: Ops
    ) -> None:
        self._layer, self._ops, self._spec, self._eps = layer, ops, spec, model.norm_eps
        prefix, hidden = f"layers.{index}.", model.hidden
        layer.delta_in = Part()
        start = f"{prefix}delta_in."
        self._inner = MergedLinear(layer.delta_in, spec.parts, hidden, model, start, ops)
        kind = model.kinds[f"{prefix}delta_out"]
        layer.delta_out = ops.matrix(hidden, spec.inner, kind, "delta_out")

    def __call__(self, x: Input, inputs: LayerInputs | StateInputs) -> Product:
        assert isinstance(inputs, StateInputs), "a recurrent layer keeps a state"
        layer = self._layer
        vectors = GatedDeltaVectors(
            layer.delta_conv, layer.delta_dt_bias, layer.delta_a, layer.delta_norm, self._eps
        )
        y = self._ops.gated_delta(self._spec, self._inner(x), vectors, inputs)
        return Product(layer.delta_out, y)
