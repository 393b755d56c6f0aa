"""Gemma 3, text (Gemma Team 2025): most layers see a window only, with a rotary table of their own.

Every sixth layer sees everything. Each half-layer has a norm before and after; queries and keys are
normalised head by head; the feed-forward network uses GELU; embeddings are scaled by sqrt(hidden).
GGUF files hold the norms' weights with the 1 that the paper adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models.config_values import ConfigValues, rope_of
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, RopeSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES, Origin, PlusOne, layers
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_gguf

GLOBAL_EVERY = 6
"""Layers 5, 11, ... see everything."""
LARGEST_LAYERS = 62
"""Of the 27B model, which alone scales its scores by hidden / heads instead of the head's size."""
GLOBAL, LOCAL = 0, 1
"""Rotary tables."""
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
HEAD_DIM = 256
"""Where a `config.json` does not say it."""
KINDS = {GLOBAL: "full_attention", LOCAL: "sliding_attention"}
"""Names of layers in a `config.json`."""
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
    sizes = values.sizes(tensors)
    is_largest = sizes.layers == LARGEST_LAYERS
    scaled_by = sizes.hidden // sizes.heads if is_largest else sizes.head_dim
    ropes = (
        values.rope(sizes.head_dim, GLOBAL_THETA),
        values.rope(sizes.head_dim, LOCAL_THETA, suffix="_swa"),
    )
    window = values.count("attention.sliding_window")
    mixer = sizes.attention(scaled_by**-0.5)
    return plan_gguf(_spec(sizes, mixer, window, ropes, _alternating(sizes.layers)), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    values.refuse_unless("hidden_activation", "gelu_pytorch_tanh")
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("use_bidirectional_attention", False)
    sizes = values.sizes("gemma3", head_dim=HEAD_DIM, tied_head=True)
    mixer = sizes.attention(values.positive("query_pre_attn_scalar", float(HEAD_DIM)) ** -0.5)
    if values.has("attn_logit_softcapping"):
        mixer = replace(mixer, score_cap=values.positive("attn_logit_softcapping"))
    window = values.count("sliding_window")
    spec = _spec(sizes, mixer, window, _ropes(values, sizes.head_dim), _kinds(values, sizes.layers))
    if values.has("final_logit_softcapping"):
        spec = replace(spec, logit_cap=values.positive("final_logit_softcapping"))
    return spec


def _alternating(layers: int, every: int = GLOBAL_EVERY) -> list[int]:
    """GLOBAL or LOCAL, of each layer."""
    return [LOCAL if (i + 1) % every else GLOBAL for i in range(layers)]


def _kinds(values: ConfigValues, layers: int) -> list[int]:
    """The same, as a `config.json` has it."""
    if not values.has("layer_types"):
        return _alternating(layers, values.count("sliding_window_pattern", GLOBAL_EVERY))
    kinds = {name: kind for kind, name in KINDS.items()}
    return [kinds[name] for name in values.texts("layer_types", layers, tuple(kinds))]


def _ropes(values: ConfigValues, dim: int) -> tuple[RopeSpec, RopeSpec]:
    if values.has("rope_parameters"):
        both = values.part("rope_parameters")
        return (
            rope_of(both.part(KINDS[GLOBAL]), dim, GLOBAL_THETA),
            rope_of(both.part(KINDS[LOCAL]), dim, LOCAL_THETA),
        )
    local = RopeSpec(values.positive("rope_local_base_freq", LOCAL_THETA), dim)
    return values.rope(dim, GLOBAL_THETA), local


def _spec(
    sizes: Sizes,
    mixer: AttentionSpec,
    window: int,
    ropes: tuple[RopeSpec, RopeSpec],
    kinds: Sequence[int],
) -> ModelSpec:
    """kinds: GLOBAL or LOCAL, of each layer."""
    mlp = DenseSpec(sizes.intermediate, "gelu_tanh")
    whole = replace(mixer, qk_norm="head")
    local = replace(whole, rope=LOCAL, window=window)
    made = {GLOBAL: whole, LOCAL: local}
    layers = [LayerSpec(made[kind], mlp, post_norms=True) for kind in kinds]
    return sizes.model(layers, ropes, embedding_scale=sizes.hidden**0.5)
