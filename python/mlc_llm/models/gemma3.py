"""Gemma 3, text (Gemma Team 2025): most layers see a window only, with a rotary table of their own.

Every sixth layer sees everything. Each half-layer has a norm before and after; queries and keys are
normalised head by head; the feed-forward network uses GELU; embeddings are scaled by sqrt(hidden).
Files hold the norms' weights with the 1 that the paper adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlc_llm.models.common import check_layer_count, embedding_rows
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, RopeSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_gguf

GLOBAL_EVERY = 6
"""Layers 5, 11, ... see everything."""
LARGEST_LAYERS = 62
"""Of the 27B model, which alone scales its scores by hidden / heads instead of the head's size."""
GLOBAL, LOCAL = 0, 1
"""Rotary tables."""


def read_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gemma3")
    hidden, layers = values.count("embedding_length"), check_layer_count(values, tensors)
    local, whole = _layers(values, hidden, layers)
    dim = values.whole_head_rope(whole.mixer.head_dim)
    ropes = (
        RopeSpec(values.positive("rope.freq_base", 1_000_000.0), dim, values.rope_linear()),
        RopeSpec(values.positive("rope.freq_base_swa", 10_000.0), dim),
    )
    spec = ModelSpec(
        architecture="gemma3",
        hidden=hidden,
        vocab=embedding_rows(tensors),
        context_window=values.count("context_length"),
        norm_eps=values.positive("attention.layer_norm_rms_epsilon"),
        layers=tuple(local if (i + 1) % GLOBAL_EVERY else whole for i in range(layers)),
        ropes=ropes,
        tied_head="output.weight" not in tensors,
        embedding_scale=hidden**0.5,
    )
    return plan_gguf(spec, tensors)


def _layers(values: GGUFValues, hidden: int, layers: int) -> tuple[LayerSpec, LayerSpec]:
    """One that sees a window, and one that sees everything."""
    heads = values.count("attention.head_count")
    head_dim = values.count("attention.key_length", hidden // heads)
    scaled_by = hidden // heads if layers == LARGEST_LAYERS else head_dim
    windows = {LOCAL: values.count("attention.sliding_window"), GLOBAL: None}
    made = {}
    for rope, window in windows.items():
        attention = AttentionSpec(
            heads=heads,
            kv_heads=values.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            scale=scaled_by**-0.5,
            rope=rope,
            window=window,
            qk_norm=True,
        )
        mlp = DenseSpec(values.count("feed_forward_length"), "gelu_tanh")
        made[rope] = LayerSpec(attention, mlp, post_norms=True)
    return made[LOCAL], made[GLOBAL]
