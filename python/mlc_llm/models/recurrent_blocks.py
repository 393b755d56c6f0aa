"""The mixers that keep a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc_llm.backends.operands import Input, LayerInputs, Mamba2Vectors, StateInputs
from mlc_llm.backends.ops import Ops
from mlc_llm.models.product import Product
from mlc_llm.models.recurrent import Mamba2Spec, ShortConvSpec
from mlc_llm.models.spec import ModelSpec

if TYPE_CHECKING:
    from tvm.relax.frontend import nn


class ShortConvBlock:
    """A gated short convolution. `layer` has `conv`, and gets `conv_in` and `conv_out`."""

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: ShortConvSpec, ops: Ops
    ) -> None:
        self._layer, self._ops, self._spec = layer, ops, spec
        prefix, hidden, wide = f"layers.{index}.", model.hidden, spec.width
        layer.conv_in = ops.matrix(3 * wide, hidden, model.kinds[f"{prefix}conv_in"], "conv_in")
        layer.conv_out = ops.matrix(hidden, wide, model.kinds[f"{prefix}conv_out"], "conv_out")

    def __call__(self, x: Input, inputs: LayerInputs | StateInputs) -> Product:
        assert isinstance(inputs, StateInputs), "a recurrent layer keeps a state"
        layer, ops = self._layer, self._ops
        thirds = ops.linear(layer.conv_in, x)
        return Product(layer.conv_out, ops.short_conv(self._spec, thirds, layer.conv, inputs))


class Mamba2Block:
    """A selective state space. `layer` has the vectors, and gets `ssm_in` and `ssm_out`."""

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: Mamba2Spec, ops: Ops
    ) -> None:
        self._layer, self._ops, self._spec, self._eps = layer, ops, spec, model.norm_eps
        prefix, hidden = f"layers.{index}.", model.hidden
        layer.ssm_in = ops.matrix(spec.rows, hidden, model.kinds[f"{prefix}ssm_in"], "ssm_in")
        kind = model.kinds[f"{prefix}ssm_out"]
        layer.ssm_out = ops.matrix(hidden, spec.inner, kind, "ssm_out")

    def __call__(self, x: Input, inputs: LayerInputs | StateInputs) -> Product:
        assert isinstance(inputs, StateInputs), "a recurrent layer keeps a state"
        layer, ops = self._layer, self._ops
        vectors = Mamba2Vectors(
            layer.ssm_conv, layer.ssm_conv_bias, layer.ssm_dt_bias, layer.ssm_a, layer.ssm_d,
            layer.ssm_norm if self._spec.norm else None, self._eps,
        )  # fmt: skip
        projected = ops.linear(layer.ssm_in, x)
        return Product(layer.ssm_out, ops.mamba2(self._spec, projected, vectors, inputs))
