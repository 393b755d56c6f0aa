"""Falcon-H1 (TII 2025): each layer has attention and a state space (Mamba 2) side by side.

The model is trained with multipliers of its parts. A GGUF file's weights are multiplied already; a
folder's are when they are read, or the multiplier is a part of the spec where there is one for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.state_spaces import NO_LIMITS, config_mixer, gguf_mixer, mixer_names
from mlc_llm.models.tensor_names import LLAMA_NAMES, FolderNames, Origin, Scaled, layers
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 10_000.0
FFN_NORM = "ffn_norm"
"""Converters name the norm before the network so, without an end."""
HF_NAMES = (
    LLAMA_NAMES
    | layers(
        {
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        }
    )
    | {"output_norm.weight": "model.final_layernorm.weight"}
    | mixer_names("model.layers.{i}.mamba")
)
_FIXED = {
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "projectors_bias": False,
    "mamba_proj_bias": False, "mamba_conv_bias": True,
}  # fmt: skip
"""Settings of which one value is computed."""


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "falcon-h1")
    sizes = values.sizes(tensors)
    mixer = replace(gguf_mixer(values), norm="blk.0.ssm_norm.weight" in tensors)
    spec = _spec(sizes, values.rope(sizes.head_dim, THETA), mixer)
    return plan_weights(spec, tensors, names={"ffn_norm.weight": FFN_NORM})


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, {"mamba_norm_before_gate": True})
    for key, allowed in _FIXED.items():
        values.refuse_unless(key, allowed)
    values.refuse_unless("time_step_limit", *NO_LIMITS)
    sizes, mixer = values.sizes("falcon-h1"), _mixer(values)
    if mixer.norm:
        values.refuse_unless("mamba_norm_before_gate", False)
    spec = _spec(sizes, values.rope(sizes.head_dim, THETA), mixer)
    heard = values.positive("attention_in_multiplier", 1.0)
    keys = values.positive("key_multiplier", 1.0)
    # Queries and keys are not normalised, so that their multipliers are one of the scores.
    spec = spec.with_attention(lambda _, one: replace(one, scale=one.scale * heard**2 * keys))
    return replace(
        spec,
        embedding_scale=values.positive("embedding_multiplier", 1.0),
        logit_scale=values.positive("lm_head_multiplier", 1.0),
    )


def config_names(config: Mapping[str, object]) -> FolderNames:
    """The table with the multipliers that the spec does not have. Raises ModelFileError."""
    values, mixer = ConfigValues(config), "model.layers.{i}.mamba"
    gate, down = _numbers(values, "mlp_multipliers", 2)
    heard = values.positive("attention_in_multiplier", 1.0)
    read = values.positive("ssm_in_multiplier", 1.0)
    factors = {
        # What values are multiplied by goes through attention unchanged.
        "attn_output": heard * values.positive("attention_out_multiplier", 1.0),
        "ffn_gate": gate,
        "ffn_down": down,
        "ssm_out": values.positive("ssm_out_multiplier", 1.0),
    }
    names = {f"blk.{{i}}.{name}.weight": factor for name, factor in factors.items()}
    changed = {n: Scaled(HF_NAMES.origins[n], (f,)) for n, f in names.items() if f != 1.0}
    parts = tuple(read * one for one in _numbers(values, "ssm_multipliers", 5))
    if set(parts) != {1.0}:
        rows = _parts(_mixer(values))
        changed["blk.{i}.ssm_in.weight"] = Scaled(f"{mixer}.in_proj.weight", parts, rows)
    return HF_NAMES | changed


def file_names(config: Mapping[str, object]) -> FolderNames:
    """The table with all multipliers, each where a GGUF file's weights have it, in the order of
    llama.cpp's converter. Raises ModelFileError."""
    values = ConfigValues(config)

    def number(key: str) -> float:
        return values.positive(key, 1.0)

    gate, down = _numbers(values, "mlp_multipliers", 2)
    heard = number("attention_in_multiplier")
    factors: dict[str, tuple[float, ...]] = {
        "token_embd": (number("embedding_multiplier"),),
        "output": (number("lm_head_multiplier"),),
        "blk.{i}.attn_q": (heard,),
        "blk.{i}.attn_k": (number("key_multiplier"), heard),
        "blk.{i}.attn_v": (heard,),
        "blk.{i}.attn_output": (number("attention_out_multiplier"),),
        "blk.{i}.ffn_gate": (gate,),
        "blk.{i}.ffn_down": (down,),
        "blk.{i}.ssm_out": (number("ssm_out_multiplier"),),
        "blk.{i}.ssm_in": (number("ssm_in_multiplier"),),
    }
    changed: dict[str, Origin] = {}
    for start, several in factors.items():
        name = f"{start}.weight"
        changed[name] = HF_NAMES.origins[name]
        for one in several:
            changed[name] = Scaled(changed[name], (one,))
    parts, rows = _numbers(values, "ssm_multipliers", 5), _parts(_mixer(values))
    changed["blk.{i}.ssm_in.weight"] = Scaled(changed["blk.{i}.ssm_in.weight"], parts, rows)
    return HF_NAMES | changed


def _parts(one: Mamba2Spec) -> tuple[int, ...]:
    """Rows of z, x, B, C and dt."""
    shared = one.groups * one.state
    return one.inner, one.inner, shared, shared, one.heads


def _numbers(values: ConfigValues, key: str, length: int) -> tuple[float, ...]:
    """Multipliers; 1 if there are none."""
    return values.positives(key, length) if values.has(key) else (1.0,) * length


def _mixer(values: ConfigValues) -> Mamba2Spec:
    wide = values.count("mamba_expand", 2) * values.count("hidden_size")
    mixer = config_mixer(values, values.count("mamba_d_ssm", wide))
    return replace(mixer, norm=values.flag("mamba_rms_norm", False))


def _spec(sizes: Sizes, rope: RopeSpec, mixer: Mamba2Spec) -> ModelSpec:
    layer = LayerSpec(sizes.attention(), DenseSpec(sizes.intermediate), mixer)
    return sizes.model([layer] * sizes.layers, [rope])
