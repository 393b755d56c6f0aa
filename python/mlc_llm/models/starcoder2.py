"""StarCoder2 (Lozhkov et al. 2024): a Llama with layer norms, biases and a network without a
gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import Activation, DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LAYER_NORM_BIASES, LLAMA_NAMES, layers
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 10_000.0
_NETWORK = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
HF_NAMES = LLAMA_NAMES | LAYER_NORM_BIASES | layers(_NETWORK) | layers(_NETWORK, "bias")


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Converters write no window, and then there is none. Raises UnsupportedModel or ModelFileError
    naming the key or tensor at fault."""
    values = GGUFValues(metadata, "starcoder2")
    sizes = values.sizes(tensors, eps=LAYER_NORM_EPS)
    window = values.window("attention.sliding_window", sizes.context_window)
    rope = values.rope(sizes.head_dim, THETA)
    has_bias = "blk.0.attn_output.bias" in tensors
    return plan_weights(_spec(sizes, rope, "gelu_tanh", window, has_bias), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    sizes = values.sizes("starcoder2", tied_head=True, eps="norm_epsilon")
    rope = values.rope(sizes.head_dim, THETA)
    window = values.window("sliding_window", sizes.context_window)
    return _spec(sizes, rope, values.activation(), window, values.flag("use_bias", True))


def _spec(
    sizes: Sizes, rope: RopeSpec, activation: Activation, window: int | None, has_bias: bool
) -> ModelSpec:
    mixer = replace(sizes.attention(), window=window, qkv_bias=has_bias, output_bias=has_bias)
    mlp = DenseSpec(sizes.intermediate, activation, bias=has_bias, gated=False)
    return replace(sizes.model([LayerSpec(mixer, mlp)] * sizes.layers, [rope]), norm="layer")
