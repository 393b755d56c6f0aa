"""Mamba 2 (Dao and Gu 2024): each layer is a state space alone, without a network behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import NO_NETWORK
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.state_spaces import NO_LIMITS, gguf_mixer, mixer_names
from mlc_llm.models.tensor_names import FolderNames
from mlc_llm.models.values import MOST_LAYERS
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

CONTEXT = 2**20
"""Tokens; a `config.json` gives no number, and llama.cpp's converter writes this one."""
_FIXED = {"hidden_act": "silu", "use_bias": False, "use_conv_bias": True, "rms_norm": True}
"""Settings of which one value is computed."""
HF_NAMES = FolderNames(
    {
        "token_embd.weight": "backbone.embeddings.weight",
        "output_norm.weight": "backbone.norm_f.weight",
        "output.weight": "lm_head.weight",
        "blk.{i}.attn_norm.weight": "backbone.layers.{i}.norm.weight",
        **mixer_names("backbone.layers.{i}.mixer"),
    }
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "mamba2")
    spec = _spec(
        gguf_mixer(values),
        hidden=values.count("embedding_length"),
        vocab=values.vocab(tensors),
        layers=values.layer_count(tensors),
        eps=values.positive("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in tensors,
    )
    spec = replace(spec, context_window=values.count("context_length"))
    return plan_weights(spec, tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    for key, allowed in _FIXED.items():
        values.refuse_unless(key, allowed)
    values.refuse_unless("time_step_limit", *NO_LIMITS)
    hidden, heads = values.count("hidden_size"), values.count("num_heads")
    mixer = Mamba2Spec(
        heads, values.count("head_dim"), values.count("state_size"),
        values.count("n_groups"), values.count("conv_kernel"),
    )  # fmt: skip
    inner = values.count("expand", 2) * hidden
    values.check("num_heads", mixer.inner == inner, f"{inner} / head_dim")
    return _spec(
        mixer,
        hidden=hidden,
        vocab=values.count("vocab_size"),
        layers=values.count("num_hidden_layers", most=MOST_LAYERS),
        eps=values.positive("layer_norm_epsilon", 1e-5),
        tied_head=values.flag("tie_word_embeddings", False),
    )


def _spec(
    mixer: Mamba2Spec, *, hidden: int, vocab: int, layers: int, eps: float, tied_head: bool
) -> ModelSpec:
    layer = LayerSpec(mixer, NO_NETWORK)
    return ModelSpec("mamba2", hidden, vocab, CONTEXT, eps, (layer,) * layers, (), tied_head)
