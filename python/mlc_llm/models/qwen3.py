"""Qwen3 (dense; Qwen Team 2025): a Llama whose queries and keys are normalised head by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlc_llm.models.common import check_layer_count, embedding_rows
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, RopeSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_gguf


def read_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "qwen3")
    hidden, heads = values.count("embedding_length"), values.count("attention.head_count")
    head_dim = values.count("attention.key_length", hidden // heads)
    attention = AttentionSpec(
        heads=heads,
        kv_heads=values.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        qk_norm=True,
    )
    layer = LayerSpec(attention, DenseSpec(values.count("feed_forward_length")))
    rope = RopeSpec(
        theta=values.positive("rope.freq_base", 1_000_000.0),
        dim=values.whole_head_rope(head_dim),
        linear=values.rope_linear(),
    )
    spec = ModelSpec(
        architecture="qwen3",
        hidden=hidden,
        vocab=embedding_rows(tensors),
        context_window=values.count("context_length"),
        norm_eps=values.positive("attention.layer_norm_rms_epsilon"),
        layers=(layer,) * check_layer_count(values, tensors),
        ropes=(rope,),
        tied_head="output.weight" not in tensors,
    )
    return plan_gguf(spec, tensors)
