"""Gemma 3, text (Gemma Team 2025): most layers see a window only, with a rotary table of their own.

Every sixth layer sees everything. Each half-layer has a norm before and after; queries and keys are
normalised head by head; the feed-forward network uses GELU; embeddings are scaled by sqrt(hidden).
GGUF files hold the norms' weights with the 1 that the paper adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES, Origin, PlusOne, layers
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

GLOBAL_EVERY = 6
"""Layers 5, 11, ... see everything."""
LARGEST_LAYERS = 62
"""Of the 27B model, which alone scales its scores by hidden / heads instead of the head's size."""
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
DEFAULTS = {
    "vocab_size": 262_208, "max_position_embeddings": 131_072, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6, "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
"""Where a `config.json` does not say it."""
_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
GEMMA_NAMES: dict[str, Origin] = {
    "output_norm.weight": PlusOne("model.norm.weight"),
    **{name: PlusOne(one) for name, one in layers(_NORMS).items()},
}
HF_NAMES = LLAMA_NAMES | GEMMA_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gemma3")
    cap = values.cap("final_logit_softcapping")
    return plan_weights(replace(gguf_spec(values, tensors), logit_cap=cap), tensors)


def gguf_spec(values: GGUFValues, tensors: Tensors, *, causal: bool = True) -> ModelSpec:
    """Without a cap of logits. causal: as in `GGUFValues.sizes`. Raises UnsupportedModel,
    ModelFileError."""
    sizes = values.sizes(tensors, causal=causal)
    is_largest = sizes.layers == LARGEST_LAYERS
    scaled_by = sizes.hidden // sizes.heads if is_largest else sizes.head_dim
    ropes = (
        values.rope(sizes.head_dim, GLOBAL_THETA),
        values.rope(sizes.head_dim, LOCAL_THETA, suffix="_swa"),
    )
    windowed = [False] * sizes.layers
    if values.has("attention.sliding_window"):
        windowed = values.windowed(sizes.layers, GLOBAL_EVERY)
    window = values.count("attention.sliding_window") if any(windowed) else None
    return _spec(sizes, sizes.attention(scaled_by**-0.5), window, ropes, windowed)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    values.refuse_unless("hidden_activation", "gelu_pytorch_tanh")
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("use_bidirectional_attention", False)
    values.refuse_unless("attn_logit_softcapping")  # a Gemma 2 caps its scores, a Gemma 3 never
    sizes = values.sizes("gemma3", tied_head=True)
    scaled_by = values.positive("query_pre_attn_scalar", 256.0)
    windowed = values.windowed(sizes.layers, values.count("sliding_window_pattern", GLOBAL_EVERY))
    window = values.count("sliding_window") if any(windowed) else None
    ropes = values.ropes_by_kind(
        sizes.head_dim, GLOBAL_THETA, LOCAL_THETA, local_key="rope_local_base_freq"
    )
    spec = _spec(sizes, sizes.attention(scaled_by**-0.5), window, ropes, windowed)
    return replace(spec, logit_cap=values.cap("final_logit_softcapping"))


def _spec(
    sizes: Sizes,
    mixer: AttentionSpec,
    window: int | None,
    ropes: tuple[RopeSpec, RopeSpec],
    windowed: Sequence[bool],
) -> ModelSpec:
    """windowed: whether each layer has the window, and the second rotary table."""
    mlp = DenseSpec(sizes.intermediate, "gelu_tanh")
    whole = replace(mixer, qk_norm="head")
    local = replace(whole, rope=1, window=window)
    layers = [
        LayerSpec(local if is_local else whole, mlp, post_norms=True) for is_local in windowed
    ]
    return sizes.model(layers, ropes, embedding_scale=sizes.hidden**0.5)
