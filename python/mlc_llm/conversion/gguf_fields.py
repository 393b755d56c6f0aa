"""What the metadata of a GGUF file says of each class of a config.json.

Keys and values are those that llama.cpp's convert_hf_to_gguf.py writes. A row of `CLASSES` has the
functions that make them. Values of the config are used where the spec has them no more, as those of
YaRN. Nothing is checked here: `gguf_header.py` reads the fields again as a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mlc_llm.conversion.gguf_entries import Value
from mlc_llm.conversion.state_fields import (
    Config,
    Fields,
    alone,
    by_layer,
    delta_rule,
    endless,
    first_of,
    hybrid,
    in_turn,
    multiplied,
    side_by_side,
    state_space,
)
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.config_values import TRAINED
from mlc_llm.models.falcon_h1 import FFN_NORM, file_names
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import Mamba2Spec, ShortConvSpec
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import FolderNames

_THETA = 10000.0
"""What readers assume where a file does not say it."""


def _attention(spec: ModelSpec) -> AttentionSpec:
    """Of the first layer that has it. Raises UnsupportedModel."""
    return first_of(spec.attention_layers, "attention")


def _experts(spec: ModelSpec) -> ExpertsSpec | None:
    found = (one.feed_forward for one in spec.layers)
    return next((one for one in found if isinstance(one, ExpertsSpec)), None)


def _wide(spec: ModelSpec, config: Config) -> Fields:
    """The width of dense networks, also where all layers have experts, if the config says it."""
    found = (one.feed_forward for one in spec.layers)
    dense = next((one for one in found if isinstance(one, DenseSpec)), None)
    stated = config.get("intermediate_size")
    if dense is not None:
        return {"feed_forward_length": dense.intermediate}
    return {"feed_forward_length": stated} if type(stated) is int else {}


def _kv_heads(spec: ModelSpec) -> Value:
    """Of all layers, or of each one: recurrent layers have none."""
    if not any(isinstance(one.mixer, (ShortConvSpec, Mamba2Spec)) for one in spec.layers):
        return _attention(spec).kv_heads
    mixers = [one.mixer for one in spec.layers]
    return [one.kv_heads if isinstance(one, AttentionSpec) else 0 for one in mixers]


def _theta(spec: ModelSpec, *, windowed: bool) -> float | None:
    """Of the layers that have a window, or of the others; None: nothing rotates."""
    ropes = [
        (one.window is not None, one.rope)
        for one in spec.attention_layers.values()
        if one.rope is not None
    ]
    chosen = [rope for has, rope in ropes if has == windowed] or [rope for _, rope in ropes]
    return spec.ropes[chosen[0]].theta if chosen else None


def text_config(config: Config) -> Config:
    """Of the model that reads text, where the config is of more."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def rope_config(config: Config) -> Mapping[str, object]:
    """What a config says of the scaling of the layers that see everything, merged as
    `ConfigValues.rope_fields` and `ropes_by_kind` do it."""
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    older = old if isinstance(old, dict) else {}
    if isinstance(new, dict) and isinstance(new.get("full_attention"), dict):
        return {**new["full_attention"], **older}
    found = older or (new if isinstance(new, dict) else {})
    trained = config.get(TRAINED)
    return {**found, TRAINED: trained} if found and trained is not None else found


def sizes(spec: ModelSpec, config: Config) -> Fields:
    """What all classes have."""
    one = _attention(spec)
    norm = "layer_norm_rms_epsilon" if spec.norm == "rms" else "layer_norm_epsilon"
    return {
        "block_count": len(spec.layers),
        "context_length": spec.context_window,
        "embedding_length": spec.hidden,
        **_wide(spec, config),
        "attention.head_count": one.heads,
        f"attention.{norm}": spec.norm_eps,
    }


def grouped(spec: ModelSpec, config: Config) -> Fields:
    """Heads of keys and values."""
    return {"attention.head_count_kv": _kv_heads(spec)}


def theta(spec: ModelSpec, config: Config) -> Fields:
    """The base of the rotary table."""
    found = _theta(spec, windowed=False)
    made: Fields = {} if found is None else {"rope.freq_base": found}
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict) and isinstance(parameters.get("sliding_attention"), dict):
        made["rope.freq_base_swa"] = _theta(spec, windowed=True) or _THETA
    return made


def other_theta(spec: ModelSpec, config: Config) -> Fields:
    """The same of classes whose files say it only if it is not the usual one."""
    found = _theta(spec, windowed=False)
    return {} if found in (None, _THETA) else {"rope.freq_base": float(found or _THETA)}


def head_dim(spec: ModelSpec, config: Config) -> Fields:
    """The width of heads, if the config says it or the hidden size does not."""
    one = _attention(spec)
    if config.get("head_dim") is None and one.heads * one.head_dim == spec.hidden:
        return {}
    return {"attention.key_length": one.head_dim, "attention.value_length": one.head_dim}


def scaling(spec: ModelSpec, config: Config) -> Fields:
    """How positions are scaled. Llama 3's way is a tensor of divisors."""
    stated = rope_config(config)
    kind, factor = stated.get("rope_type", stated.get("type")), stated.get("factor")
    if kind not in ("linear", "yarn") or not isinstance(factor, (int, float)):
        return {}
    made: Fields = {"rope.scaling.type": str(kind), "rope.scaling.factor": float(factor)}
    if kind == "linear":
        return made
    first = stated.get("original_max_position_embeddings")
    if isinstance(first, int):
        made["rope.scaling.original_context_length"] = first
    for name, key in {
        "extrapolation_factor": "yarn_ext_factor", "attention_factor": "yarn_attn_factor",
        "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow",
    }.items():  # fmt: skip
        number = stated.get(name)
        if isinstance(number, (int, float)):
            made[f"rope.scaling.{key}"] = float(number)
    return made


def experts(spec: ModelSpec, config: Config) -> Fields:
    """How many there are, and how many a token meets."""
    one = _experts(spec)
    if one is None:
        return {}
    return {"expert_count": one.num_experts, "expert_used_count": one.experts_per_token}


def expert_widths(spec: ModelSpec, config: Config) -> Fields:
    """Of experts, and of the one that all tokens meet."""
    one = _experts(spec)
    return (
        {}
        if one is None
        else {"expert_feed_forward_length": one.intermediate} | shared(spec, config)
    )


def shared(spec: ModelSpec, config: Config) -> Fields:
    """The width of the expert that all tokens meet."""
    one = _experts(spec)
    if one is None or not one.shared_intermediate:
        return {}
    return {"expert_shared_feed_forward_length": one.shared_intermediate}


def vocab(spec: ModelSpec, config: Config) -> Fields:
    """Rows of the embedding."""
    return {"vocab_size": spec.vocab}


def rotated(spec: ModelSpec, config: Config) -> Fields:
    """Numbers of a head that rotate."""
    return {"rope.dimension_count": spec.ropes[0].dim}


def parallel(spec: ModelSpec, config: Config) -> Fields:
    """Whether attention and network of a layer have one input."""
    return {"use_parallel_residual": spec.layers[0].parallel}


def window(spec: ModelSpec, config: Config) -> Fields:
    """How far layers see; which of them, the architecture says."""
    found = [one.window for one in spec.attention_layers.values() if one.window is not None]
    return {"attention.sliding_window": found[0]} if found else {}


def some_windows(spec: ModelSpec, config: Config) -> Fields:
    """How far layers see, and which of them."""
    made = window(spec, config)
    if made:
        mixers = spec.attention_layers.values()
        made["attention.sliding_window_pattern"] = [one.window is not None for one in mixers]
    return made


def window_or_none(spec: ModelSpec, config: Config) -> Fields:
    """How far layers see; 0: everything."""
    return window(spec, config) or {"attention.sliding_window": 0}


def caps(spec: ModelSpec, config: Config) -> Fields:
    """What limits logits and scores."""
    made: Fields = {}
    if spec.logit_cap is not None:
        made["final_logit_softcapping"] = spec.logit_cap
    score_cap = _attention(spec).score_cap
    if score_cap is not None:
        made["attn_logit_softcapping"] = score_cap
    return made


def local_theta(spec: ModelSpec, config: Config) -> Fields:
    """The base of the rotary table of layers with a window."""
    return {"rope.freq_base_swa": _theta(spec, windowed=True) or _THETA}


def multipliers(spec: ModelSpec, config: Config) -> Fields:
    """Granite's four."""
    return {
        "attention.scale": _attention(spec).scale,
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.layers[0].residual_scale,
        "logit_scale": 1 / spec.logit_scale,
    }


def unscaled(spec: ModelSpec, config: Config) -> Fields:
    """The factor of logits, and that positions are not scaled."""
    return {"logit_scale": spec.logit_scale, "rope.scaling.type": "none"}


def query_scaling(spec: ModelSpec, config: Config) -> Fields:
    """Of Ministral 3."""
    stated, made = rope_config(config), Fields()
    for name, key in {
        "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
        "llama_4_scaling_beta": "attention.temperature_scale",
    }.items():
        number = stated.get(name)
        if isinstance(number, (int, float)):
            made[key] = float(number)
    return made


def long_rope(spec: ModelSpec, config: Config) -> Fields:
    """Of Phi 3; the divisors are tensors."""
    rope, first = spec.ropes[0], config.get("original_max_position_embeddings")
    made: Fields = {}
    if isinstance(first, int):
        made["rope.scaling.original_context_length"] = first
    if rope.long_factors is not None:
        made["rope.scaling.attn_factor"] = rope.magnitude
    return made


def kept_inputs(spec: ModelSpec, config: Config) -> Fields:
    """How many tokens a short convolution sees."""
    one = first_of(spec.recurrent_layers, "a short convolution")
    assert isinstance(one, ShortConvSpec), "a class with short convolutions"
    return {"shortconv.l_cache": one.kernel}


class Class(NamedTuple):
    """How the files of a class are written."""

    fields: tuple[Callable[[ModelSpec, Config], Fields], ...]
    pairs_rows: bool = False
    """Rows of query and key heads that rotate together lie side by side."""
    renamed: Mapping[str, str] = {}
    """GGUF's usual name -> the name in this architecture's files, without the layer."""
    joined: tuple[str, ...] = ()
    """What is one tensor: keys of `JOINED`."""
    divides: bool = False
    """A tensor may have divisors of rotary frequencies."""
    names: Callable[[Config], FolderNames] | None = None
    """Of the folder's tensors, where the files have them otherwise than the model reads them."""
    says: Callable[[ModelSpec], ModelSpec] | None = None
    """What the files say of a model, if that is not its spec."""


JOINED = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}
"""Matrices of a layer that files may have as one -> its parts from the first row on."""
_AFTER = {"ffn_norm.weight": "post_attention_norm.weight"}
_USUAL = (sizes, grouped, theta, head_dim, scaling)
_LLAMA = (*_USUAL, experts, vocab, rotated)
_GRANITE = (sizes, grouped, theta, scaling, experts, vocab, rotated, multipliers, shared)
_GEMMA3 = (*_USUAL, window, caps, local_theta)
_GEMMA4 = (sizes, grouped, theta, window, caps, local_theta, by_layer)
_DELTA = (*_USUAL, rotated, experts, expert_widths, delta_rule)
CLASSES = {
    "ArceeForCausalLM": Class(_LLAMA, pairs_rows=True, divides=True),
    "Cohere2ForCausalLM": Class(
        (sizes, grouped, theta, head_dim, vocab, rotated, window, unscaled)
    ),
    "Ernie4_5ForCausalLM": Class(_USUAL),
    "Exaone4ForCausalLM": Class((*_USUAL, vocab, some_windows), divides=True),
    "GemmaForCausalLM": Class((sizes, grouped, other_theta, head_dim)),
    "Gemma2ForCausalLM": Class((sizes, grouped, other_theta, head_dim, window, caps)),
    "Gemma3ForCausalLM": Class(_GEMMA3),
    "Gemma3ForConditionalGeneration": Class(_GEMMA3),
    "FalconH1ForCausalLM": Class(
        (sizes, grouped, theta, vocab, side_by_side, state_space),
        renamed={"ffn_norm.weight": FFN_NORM},
        names=file_names,
        says=multiplied,
    ),
    "GPT2LMHeadModel": Class((sizes,), joined=("attn_qkv",)),
    "GPTNeoXForCausalLM": Class((sizes, other_theta, rotated, parallel), joined=("attn_qkv",)),
    "Gemma4ForCausalLM": Class(_GEMMA4, divides=True),
    "Gemma4ForConditionalGeneration": Class(_GEMMA4, divides=True),
    "Glm4ForCausalLM": Class((*_USUAL, rotated), joined=("ffn_up",)),
    "GptOssForCausalLM": Class((*_USUAL, experts, window, expert_widths), renamed=_AFTER),
    "GraniteForCausalLM": Class(_GRANITE, pairs_rows=True, divides=True),
    "GraniteMoeForCausalLM": Class(_GRANITE, pairs_rows=True, divides=True),
    "GraniteMoeSharedForCausalLM": Class(_GRANITE, pairs_rows=True, divides=True),
    "GraniteMoeHybridForCausalLM": Class(
        (sizes, grouped, scaling, vocab, multipliers, hybrid, state_space),
        pairs_rows=True,
        says=endless,
    ),
    "Lfm2ForCausalLM": Class(
        (*_USUAL, vocab, kept_inputs),
        renamed={"output_norm.weight": "token_embd_norm.weight"},
    ),
    "LlamaForCausalLM": Class(_LLAMA, pairs_rows=True, divides=True),
    "Mamba2ForCausalLM": Class((alone, state_space)),
    "MistralForCausalLM": Class(_LLAMA, pairs_rows=True, divides=True),
    "MixtralForCausalLM": Class(_LLAMA, pairs_rows=True, divides=True),
    "Ministral3ForCausalLM": Class((*_LLAMA, query_scaling), pairs_rows=True, divides=True),
    "Mistral3ForConditionalGeneration": Class(
        (*_LLAMA, query_scaling), pairs_rows=True, divides=True
    ),
    "Olmo2ForCausalLM": Class(_USUAL),
    "Olmo3ForCausalLM": Class((*_USUAL, some_windows)),
    "OlmoeForCausalLM": Class((*_USUAL, experts)),
    "Phi3ForCausalLM": Class(
        (sizes, grouped, theta, rotated, long_rope, window_or_none),
        joined=("attn_qkv", "ffn_up"),
        divides=True,
    ),
    "Qwen2ForCausalLM": Class(_USUAL),
    "Qwen2MoeForCausalLM": Class((*_USUAL, experts, expert_widths)),
    "Qwen3ForCausalLM": Class(_USUAL),
    "Qwen3MoeForCausalLM": Class((*_USUAL, experts, expert_widths)),
    "Qwen3_5ForCausalLM": Class(_DELTA, renamed=_AFTER, says=in_turn),
    "Qwen3_5ForConditionalGeneration": Class(_DELTA, renamed=_AFTER, says=in_turn),
    "Qwen3_5MoeForCausalLM": Class(_DELTA, renamed=_AFTER, says=in_turn),
    "Qwen3_5MoeForConditionalGeneration": Class(_DELTA, renamed=_AFTER, says=in_turn),
    "SeedOssForCausalLM": Class(_USUAL, renamed=_AFTER),
    "SmolLM3ForCausalLM": Class(_LLAMA, pairs_rows=True, divides=True),
    "StableLmForCausalLM": Class((sizes, grouped, other_theta, rotated, parallel)),
    "Starcoder2ForCausalLM": Class(_USUAL),
}
"""By the class in config.json."""
