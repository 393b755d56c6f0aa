"""The halves of a layer of RWKV-7: time mixing, and a network that reads the token before too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc_llm.backends.operands import (
    Input,
    LayerInputs,
    Part,
    Rwkv7Parts,
    Rwkv7Vectors,
    StateInputs,
)
from mlc_llm.backends.ops import Ops
from mlc_llm.models.network_spec import Activation, DenseSpec
from mlc_llm.models.product import Product
from mlc_llm.models.recurrent import Rwkv7Spec
from mlc_llm.models.spec import ModelSpec

if TYPE_CHECKING:
    from tvm.relax.frontend import nn
    from tvm.relax.frontend.nn import Tensor

_BETWEEN: dict[str, Activation] = {"w": "tanh", "g": "sigmoid"}
"""What stands between the matrices of a pair."""


class Rwkv7Block:
    """Time mixing. `layer` has the vectors, and gets the matrices `mix_*`."""

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: Rwkv7Spec, ops: Ops
    ) -> None:
        self._layer, self._ops, self._spec = layer, ops, spec
        prefix, wide = f"layers.{index}.", spec.width
        sizes = dict.fromkeys(("mix_r", "mix_k", "mix_v", "mix_out"), (wide, wide))
        for letter, rank in spec.ranks.items():
            sizes |= {f"mix_{letter}1": (rank, wide), f"mix_{letter}2": (wide, rank)}
        for name, (rows, columns) in sizes.items():
            role = "mix_out" if name == "mix_out" else "mix_in"
            matrix = ops.matrix(rows, columns, model.kinds[prefix + name], role)
            setattr(layer, name, matrix)

    def __call__(self, x: Input, inputs: LayerInputs | StateInputs) -> Product:
        assert isinstance(inputs, StateInputs), "a recurrent layer keeps a state"
        layer, ops, spec = self._layer, self._ops, self._spec
        shift = StateInputs(inputs.rows, inputs.states[:1], inputs.first)
        r, w, k, v, a, g = ops.token_shift(x, layer.mix_factors, shift)
        value = ops.linear(layer.mix_v, v)
        parts = Rwkv7Parts(
            ops.linear(layer.mix_r, r), self._pair("w", w), ops.linear(layer.mix_k, k), value,
            self._pair("a", a), self._pair("g", g),
            self._pair("v", v) if spec.value_rank else None,
            inputs.first.value if spec.value_rank else None,
        )  # fmt: skip
        if not spec.value_rank:
            inputs.first.value = ops.copied(value)
        vectors = Rwkv7Vectors(
            layer.mix_w0, layer.mix_a0, layer.mix_v0 if spec.value_rank else None, layer.mix_k_k,
            layer.mix_k_a, layer.mix_r_k, layer.mix_norm, layer.mix_norm_bias,
        )  # fmt: skip
        heads = StateInputs(inputs.rows, inputs.states[1:], inputs.first)
        return Product(layer.mix_out, ops.rwkv7(spec, parts, vectors, heads))

    def _pair(self, letter: str, x: Input) -> Tensor:
        """The product with two matrices of a low rank."""
        layer, ops = self._layer, self._ops
        inner: Input = ops.linear(getattr(layer, f"mix_{letter}1"), x)
        if letter in _BETWEEN:
            inner = ops.activated(_BETWEEN[letter], Part(inner), self._spec.ranks[letter])
        return ops.linear(getattr(layer, f"mix_{letter}2"), inner)


class ShiftedBlock:
    """A network that reads a mixture of a token and the one before. `layer` has the factors, and
    gets `channel_up` and `channel_down`."""

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: DenseSpec, ops: Ops
    ) -> None:
        assert not (spec.gated or spec.bias), "no model has such a network"
        self._layer, self._ops, self._spec = layer, ops, spec
        prefix, hidden, wide = f"layers.{index}.", model.hidden, spec.intermediate
        layer.channel_up = ops.matrix(wide, hidden, model.kinds[f"{prefix}channel_up"], "mlp")
        kind = model.kinds[f"{prefix}channel_down"]
        layer.channel_down = ops.matrix(hidden, wide, kind, "down")

    def __call__(self, x: Input, inputs: StateInputs) -> Product:
        layer, ops, spec = self._layer, self._ops, self._spec
        (mixed,) = ops.token_shift(x, layer.channel_factors, inputs)
        up = Part(ops.linear(layer.channel_up, mixed))
        return Product(layer.channel_down, ops.activated(spec.activation, up, spec.intermediate))
