"""Llama (Touvron et al. 2023; 3.x with its rotary scaling) and what is built like it: SmolLM2,
TinyLlama. Other files here read a Llama and change what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies, as converters of Llama 3 write them."""
THETA = 10_000.0
HF_NAMES = LLAMA_NAMES
WINDOW = "attention.sliding_window"


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "llama")
    spec = gguf_spec(values, tensors)
    window = values.count(WINDOW) if values.get(WINDOW) else None
    spec = spec.with_attention(lambda _, one: replace(one, window=window))
    if values.get("expert_count"):  # a Mixtral
        experts = values.experts(values.count("feed_forward_length"))
        spec = spec.with_feed_forward(replace(experts, renormalize=True))
    return plan_weights(spec, tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    return config_spec(ConfigValues(config), "llama")


def gguf_spec(values: GGUFValues, tensors: Tensors, *, theta: float = THETA) -> ModelSpec:
    """A Llama of that name, with the biases that the file has. theta: the default. Raises
    UnsupportedModel, ModelFileError."""
    sizes = values.sizes(tensors)
    factors = FREQUENCIES if FREQUENCIES in tensors else None
    rope = values.rope(sizes.head_dim, theta, factors=factors)
    mixer = replace(
        sizes.attention(),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
    )
    mlp = DenseSpec(sizes.intermediate, bias="blk.0.ffn_gate.bias" in tensors)
    return sizes.model([LayerSpec(mixer, mlp)] * sizes.layers, [rope])


def config_spec(
    values: ConfigValues, name: str, *, theta: float = THETA, tied_head: bool = False
) -> ModelSpec:
    """A Llama. name: of the spec's architecture; theta, tied_head: defaults. Raises
    UnsupportedModel, ModelFileError."""
    sizes = values.sizes(name, tied_head=tied_head)
    has_bias = values.flag("attention_bias", False)
    mixer = replace(sizes.attention(), qkv_bias=has_bias, output_bias=has_bias)
    mlp = DenseSpec(sizes.intermediate, values.activation(), values.flag("mlp_bias", False))
    layers = [LayerSpec(mixer, mlp)] * sizes.layers
    return sizes.model(layers, [values.rope(sizes.head_dim, theta)])
