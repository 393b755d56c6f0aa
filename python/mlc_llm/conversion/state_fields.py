"""The metadata of models with states, and of Gemma 4; see `gguf_fields.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from mlc_llm.conversion.gguf_entries import Value
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.mamba2 import CONTEXT
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec
from mlc_llm.models.spec import ModelSpec

Fields = dict[str, Value]
Config = Mapping[str, object]
Layer = TypeVar("Layer")
SECTIONS = [11, 11, 10, 0]
"""How many frequencies turn by each of the axes of images, where a config does not say it."""


def first_of(layers: Mapping[int, Layer], what: str) -> Layer:
    """The first of these layers. Raises UnsupportedModel if there is none: the keys of a file are
    about such a layer."""
    for one in layers.values():
        return one
    raise UnsupportedModel(f"a .gguf file of a model without a layer of {what} is not written yet")


def state_space(spec: ModelSpec, config: Config) -> Fields:
    """Of Mamba 2."""
    one = first_of(spec.recurrent_layers, "a state space")
    assert isinstance(one, Mamba2Spec), "a class with state spaces"
    return {
        "ssm.conv_kernel": one.kernel, "ssm.state_size": one.state, "ssm.group_count": one.groups,
        "ssm.inner_size": one.inner, "ssm.time_step_rank": one.heads,
    }  # fmt: skip


def delta_rule(spec: ModelSpec, config: Config) -> Fields:
    """Of Qwen3.5: the mixer, and which layers have it."""
    one = first_of(spec.recurrent_layers, "a gated delta rule")
    assert isinstance(one, GatedDeltaSpec), "a class with gated delta rules"
    made: Fields = {
        "ssm.conv_kernel": one.kernel, "ssm.state_size": one.key_dim,
        "ssm.group_count": one.key_heads, "ssm.inner_size": one.inner,
        "ssm.time_step_rank": one.heads,
    }  # fmt: skip
    every = config.get("full_attention_interval")
    made["full_attention_interval"] = every if type(every) is int else 4
    if config.get("layer_types") is not None:
        kinds = [i in spec.recurrent_layers for i in range(len(spec.layers))]
        made["attention.recurrent_layers"] = kinds
    rope = config.get("rope_parameters")
    stated = rope.get("mrope_section") if isinstance(rope, dict) else None
    sections = [one for one in stated if type(one) is int] if isinstance(stated, list) else SECTIONS
    made["rope.dimension_sections"] = (sections + [0] * 4)[:4]
    return made


def in_turn(spec: ModelSpec) -> ModelSpec:
    """As the files have it: heads of values have the heads of keys in turn."""
    layers = tuple(
        replace(one, mixer=replace(one.mixer, in_turn=True))
        if isinstance(one.mixer, GatedDeltaSpec)
        else one
        for one in spec.layers
    )
    return replace(spec, layers=layers)


def hybrid(spec: ModelSpec, config: Config) -> Fields:
    """What files of Granite 4 have otherwise than those of Granite."""
    made: Fields = {"context_length": CONTEXT, "rope.scaling.finetuned": False}
    for name, key in {
        "intermediate_size": "feed_forward_length", "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "shared_intermediate_size": "expert_shared_feed_forward_length",
    }.items():  # fmt: skip
        number = config.get(name)
        if type(number) is int:
            made[key] = number
    rope = config.get("rope_parameters")
    theta = (rope if isinstance(rope, dict) else config).get("rope_theta")
    if isinstance(theta, (int, float)):
        made["rope.freq_base"] = float(theta)
    made["rope.dimension_count"] = next(iter(spec.attention_layers.values())).head_dim
    return made


def endless(spec: ModelSpec) -> ModelSpec:
    """As the files of models say it that know no positions."""
    return replace(spec, context_window=CONTEXT)


def side_by_side(spec: ModelSpec, config: Config) -> Fields:
    """What files of Falcon-H1 have beside what most have."""
    one = next(iter(spec.attention_layers.values()))
    return {"attention.key_length": one.head_dim, "attention.value_length": one.head_dim}


def multiplied(spec: ModelSpec) -> ModelSpec:
    """As the files of Falcon-H1 have it: multipliers are in the weights. A table that is also the
    head cannot have two of them."""
    if spec.tied_head:
        return spec
    found = replace(spec, embedding_scale=1.0, logit_scale=1.0)
    return found.with_attention(lambda _, one: replace(one, scale=one.head_dim**-0.5))


def alone(spec: ModelSpec, config: Config) -> Fields:
    """Of Mamba 2, which has no attention and no network."""
    return {
        "block_count": len(spec.layers), "context_length": CONTEXT,
        "embedding_length": spec.hidden, "feed_forward_length": 0, "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
    }  # fmt: skip


def by_layer(spec: ModelSpec, config: Config) -> Fields:
    """Of Gemma 4, whose layers differ in their heads and networks."""
    mixers = list(spec.attention_layers.values())
    wide = [one.feed_forward for one in spec.layers]
    whole = next(one for one in mixers if one.window is None)
    local = next((one for one in mixers if one.window is not None), whole)
    made: Fields = {
        "attention.key_length": whole.head_dim, "attention.value_length": whole.head_dim,
        "attention.key_length_swa": local.head_dim, "attention.value_length_swa": local.head_dim,
        "rope.dimension_count": whole.head_dim, "rope.dimension_count_swa": local.head_dim,
        "attention.sliding_window_pattern": [one.window is not None for one in mixers],
        "attention.shared_kv_layers": sum(one.shares is not None for one in mixers),
        "embedding_length_per_layer_input": spec.layers[0].token_input,
    }  # fmt: skip
    if config.get("use_double_wide_mlp"):
        made["feed_forward_length"] = [
            one.intermediate for one in wide if isinstance(one, DenseSpec)
        ]
    if config.get("num_global_key_value_heads") is not None or _states_heads(config):
        made["attention.head_count_kv"] = [one.kv_heads for one in mixers]
    return made


def _states_heads(config: Config) -> bool:
    """Whether newer fields say how many heads of keys some layer has."""
    stated = config.get("per_layer_config")
    layers = stated.values() if isinstance(stated, dict) else ()
    return any(isinstance(one, dict) and "num_key_value_heads" in one for one in layers)
