"""Gemma (Gemma Team 2024): a Llama with wide heads, whose network uses GELU; embeddings are scaled
by sqrt(hidden). GGUF files hold the norms' weights with the 1 that the paper adds to them."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES, PlusOne
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 10_000.0
DEFAULTS = {
    "vocab_size": 256_000, "max_position_embeddings": 8192, "head_dim": 256, "rms_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
"""Where a `config.json` does not say it."""
NAMED_FOR_TANH = "gelu", "gelu_pytorch_tanh"
"""The first files say "gelu" and mean the other one, as Transformers does."""
_LAYER = "model.layers.{i}"
HF_NAMES = LLAMA_NAMES | {
    "output_norm.weight": PlusOne("model.norm.weight"),
    "blk.{i}.attn_norm.weight": PlusOne(f"{_LAYER}.input_layernorm.weight"),
    "blk.{i}.ffn_norm.weight": PlusOne(f"{_LAYER}.post_attention_layernorm.weight"),
}


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gemma")
    sizes = values.sizes(tensors)
    return plan_weights(_spec(sizes, values.rope(sizes.head_dim, THETA)), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    values.refuse_unless("hidden_act", *NAMED_FOR_TANH)
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("use_bidirectional_attention", False)
    sizes = values.sizes("gemma", tied_head=True)
    return _spec(sizes, values.rope(sizes.head_dim, THETA))


def _spec(sizes: Sizes, rope: RopeSpec) -> ModelSpec:
    layer = LayerSpec(sizes.attention(), DenseSpec(sizes.intermediate, "gelu_tanh"))
    return sizes.model([layer] * sizes.layers, [rope], embedding_scale=sizes.hidden**0.5)
