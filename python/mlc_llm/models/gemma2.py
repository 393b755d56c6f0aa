"""Gemma 2 (Gemma Team 2024): every second layer sees a window only; scores and logits are capped.

Each half-layer has a norm before and after; the feed-forward network uses GELU; embeddings are
scaled by sqrt(hidden). GGUF files hold the norms' weights with the 1 that the paper adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gemma3 import GEMMA_NAMES
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

GLOBAL_EVERY = 2
"""Layers 1, 3, ... see everything."""
LARGEST_LAYERS = 46
"""Of the 27B model, which alone scales its scores by hidden / heads instead of the head's size."""
THETA, WINDOW = 10_000.0, 4096
SCORE_CAP, LOGIT_CAP = 50.0, 30.0
DEFAULTS = {
    "vocab_size": 256_000, "max_position_embeddings": 8192, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6, "sliding_window": WINDOW,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": SCORE_CAP, "final_logit_softcapping": LOGIT_CAP,
}  # fmt: skip
"""Where a `config.json` does not say it; a cap of null is none."""
HF_NAMES = LLAMA_NAMES | GEMMA_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gemma2")
    sizes = values.sizes(tensors)
    is_largest = sizes.layers == LARGEST_LAYERS
    scaled_by = sizes.hidden // sizes.heads if is_largest else sizes.head_dim
    cap = values.cap("attn_logit_softcapping", SCORE_CAP)
    mixer = replace(sizes.attention(scaled_by**-0.5), score_cap=cap)
    window = values.count("attention.sliding_window", WINDOW)
    windowed = values.windowed(sizes.layers, GLOBAL_EVERY)
    rope = values.rope(sizes.head_dim, THETA)
    values.refuse_local_rope(rope)
    cap = values.cap("final_logit_softcapping", LOGIT_CAP)
    return plan_weights(
        replace(_spec(sizes, mixer, window, rope, windowed), logit_cap=cap), tensors
    )


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    values.refuse_unless("hidden_activation", "gelu_pytorch_tanh")
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("use_bidirectional_attention", False)
    sizes = values.sizes("gemma2", tied_head=True)
    scale = values.positive("query_pre_attn_scalar") ** -0.5
    mixer = replace(sizes.attention(scale), score_cap=values.cap("attn_logit_softcapping"))
    windowed = values.windowed(sizes.layers, GLOBAL_EVERY)
    rope = values.rope(sizes.head_dim, THETA)
    spec = _spec(sizes, mixer, values.count("sliding_window"), rope, windowed)
    return replace(spec, logit_cap=values.cap("final_logit_softcapping"))


def _spec(
    sizes: Sizes, mixer: AttentionSpec, window: int, rope: RopeSpec, windowed: Sequence[bool]
) -> ModelSpec:
    """windowed: whether each layer has the window."""
    mlp = DenseSpec(sizes.intermediate, "gelu_tanh")
    local = replace(mixer, window=window)
    layers = [
        LayerSpec(local if is_local else mixer, mlp, post_norms=True) for is_local in windowed
    ]
    return sizes.model(layers, [rope], embedding_scale=sizes.hidden**0.5)
