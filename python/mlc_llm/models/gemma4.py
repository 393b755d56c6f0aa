"""Gemma 4, dense, text (Gemma Team 2026): a Gemma 3 with other keys and values.

Values are normalised head by head, without weights. The layers that see everything have larger
heads, turn a quarter of each, and may use keys as values. The last layers may read the keys and
values of an earlier layer of their kind. Each layer may add something that depends on the token
alone, and is multiplied by a learned number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.config_values import FULL, WINDOWED, ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES, layers
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights
from mlc_llm.record import record

GLOBAL_EVERY = 6
"""Layers 5, 11, ... see everything."""
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
FREQUENCIES = "rope_freqs.weight"
NEVER = 1e30
"""Divisor of the frequency of elements that do not turn, as GGUF files have it."""
DEFAULTS = {
    "head_dim": 256, "global_head_dim": 512, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
    "vocab_size": 262_144, "max_position_embeddings": 131_072, "num_attention_heads": 8,
    "sliding_window": 512, "hidden_activation": "gelu_pytorch_tanh", "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25}, WINDOWED: {},
    },
}  # fmt: skip
"""Where a `config.json` does not say it."""
_SHARED = ("k_proj", "v_proj", "k_norm")
HF_NAMES = (
    LLAMA_NAMES
    | layers(
        {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
        }
    )
    | {
        "blk.{i}.layer_output_scale.weight": "model.layers.{i}.layer_scalar",
        "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
        "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
        "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
    }
).ignoring(*(f"model.layers.{{i}}.self_attn.{name}.weight" for name in _SHARED))


@record()
class Kind:
    """What the layers of one kind have."""

    head_dim: int
    kv_heads: int
    window: int | None
    has_values: bool
    """Otherwise keys are used as values."""


@record()
class Facts:
    """What a header says of the layers."""

    kinds: Sequence[Kind]
    """Of each layer."""
    intermediate: Sequence[int]
    """Of each layer."""
    own: int
    """How many layers, from the first on, have keys and values of their own."""
    token_inputs: int
    """Of each layer."""
    ropes: tuple[RopeSpec, RopeSpec]
    """Of the layers that see everything, then of the others."""
    logit_cap: float | None


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gemma4")
    values.refuse_unless("expert_count", 0)
    count = values.layer_count(tensors)
    kv_heads = values.by_layer("attention.head_count_kv", count)
    wide = values.by_layer("feed_forward_length", count)
    sizes = values.sizes(tensors, kv_heads=kv_heads[0], wide=wide[0])
    local_dim = values.count("attention.key_length_swa")
    window = values.count("attention.sliding_window")
    kinds = [
        Kind(
            local_dim if is_local else sizes.head_dim,
            kv_heads[i],
            window if is_local else None,
            f"blk.{i}.attn_v.weight" in tensors,
        )
        for i, is_local in enumerate(values.windowed(count, GLOBAL_EVERY))
    ]
    ropes = (
        values.rope(sizes.head_dim, GLOBAL_THETA, factors=FREQUENCIES),
        RopeSpec(
            values.positive("rope.freq_base_swa", LOCAL_THETA),
            values.count("rope.dimension_count_swa", local_dim),
        ),
    )
    own = count - values.whole("attention.shared_kv_layers")
    inputs = values.whole("embedding_length_per_layer_input")
    cap = values.cap("final_logit_softcapping")
    spec = _spec(sizes, Facts(kinds, wide, own, inputs, ropes, cap))
    unused = {f"blk.{i}.attn_{n}" for i in range(own, count) for n in ("k", "v", "k_norm")}
    there = {n: one for n, one in tensors.items() if n.removesuffix(".weight") not in unused}
    return plan_weights(spec, there)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    values.refuse_unless("hidden_activation", "gelu_pytorch_tanh")
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("use_bidirectional_attention", "vision")
    values.refuse_unless("enable_moe_block", False)
    sizes = values.sizes("gemma4", tied_head=True)
    count = sizes.layers
    windowed = values.windowed(count, GLOBAL_EVERY)
    windowed[-1] = False
    kinds = [_kind(values, i, is_local) for i, is_local in enumerate(windowed)]
    own = count - values.whole("num_kv_shared_layers")
    wider = 2 if values.flag("use_double_wide_mlp", False) else 1
    wide = [sizes.intermediate * (1 if i < own else wider) for i in range(count)]
    inputs = values.whole("hidden_size_per_layer_input")
    if inputs:
        values.refuse_unless("vocab_size_per_layer_input", sizes.vocab)
    cap = values.cap("final_logit_softcapping")
    return _spec(sizes, Facts(kinds, wide, own, inputs, _ropes(values, kinds), cap))


def _kind(values: ConfigValues, i: int, is_local: bool) -> Kind:
    """Of layer i. Newer files say in `per_layer_config` what differs from the other fields."""
    if is_local:
        dim, kv_heads = values.count("head_dim"), values.count("num_key_value_heads")
        return Kind(dim, kv_heads, values.count("sliding_window"), has_values=True)
    has_values = not values.flag("attention_k_eq_v", False)
    heads, dim = values.count("num_key_value_heads"), values.count("global_head_dim")
    if not has_values:
        heads = values.count("num_global_key_value_heads", heads)
    if values.has("per_layer_config"):
        both = values.part("per_layer_config")
        own, dim = both.part(str(i)) if both.has(str(i)) else values, values.count("head_dim")
        dim, heads = own.count("head_dim", dim), own.count("num_key_value_heads", heads)
    return Kind(dim, heads, None, has_values)


def _ropes(values: ConfigValues, kinds: Sequence[Kind]) -> tuple[RopeSpec, RopeSpec]:
    whole_dim, local_dim = kinds[-1].head_dim, values.count("head_dim")
    both = values.part("rope_parameters")
    whole, local = both.part(FULL), both.part(WINDOWED)
    values.refuse_unless("rope_scaling")
    whole.choice("rope_type", {"proportional": True})
    whole.refuse_unless("factor", 1.0)
    local.refuse_unless("rope_type", "default")
    turned = int(whole.positive("partial_rotary_factor", 1.0) * whole_dim // 2)
    factors = (1.0,) * turned + (NEVER,) * (whole_dim // 2 - turned)
    return (
        RopeSpec(whole.positive("rope_theta", GLOBAL_THETA), whole_dim, factors=factors),
        RopeSpec(local.positive("rope_theta", LOCAL_THETA), local_dim),
    )


def _spec(sizes: Sizes, facts: Facts) -> ModelSpec:
    """Raises UnsupportedModel, ModelFileError."""
    dims = {kind.head_dim for kind in facts.kinds if kind.window is None}
    if len(dims) > 1:
        raise UnsupportedModel(f"layers that see everything have heads of sizes {sorted(dims)}")
    made = []
    for i, (kind, wide) in enumerate(zip(facts.kinds, facts.intermediate, strict=True)):
        mixer = replace(_attention(sizes, kind), shares=_shared(facts, i))
        if mixer.shares is not None:
            mixer = replace(mixer, values_are_keys=False)
        mlp = DenseSpec(wide, "gelu_tanh")
        layer = LayerSpec(mixer, mlp, post_norms=True, output_scale=True)
        made.append(replace(layer, token_input=facts.token_inputs))
    spec = sizes.model(made, facts.ropes, embedding_scale=sizes.hidden**0.5)
    return replace(spec, logit_cap=facts.logit_cap)


def _attention(sizes: Sizes, kind: Kind) -> AttentionSpec:
    return AttentionSpec(
        sizes.heads, kind.kv_heads, kind.head_dim, 1.0, rope=0 if kind.window is None else 1,
        window=kind.window, qk_norm="head", value_norm=True, values_are_keys=not kind.has_values,
    )  # fmt: skip


def _shared(facts: Facts, i: int) -> int | None:
    """The layer whose keys and values layer i reads, if it has none of its own."""
    if i < facts.own:
        return None
    alike = [j for j in range(facts.own) if facts.kinds[j].window == facts.kinds[i].window]
    if not alike:
        raise ModelFileError(f"layer {i} shares keys and values, and no layer has such")
    return alike[-1]
