"""GPT-2 (Radford et al. 2019): layer norms, biases, a network without a gate, and a learned vector
for each position in place of a rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import Activation, DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import Either, FolderNames, Origin, Transposed, fused_qkv
from mlc_llm.models.values import MOST_LAYERS
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

_MATRICES = {"attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_VECTORS = {
    **{f"{name}.bias": f"{part}.bias" for name, part in _MATRICES.items()},
    **{f"attn_norm.{end}": f"ln_1.{end}" for end in ("weight", "bias")},
    **{f"ffn_norm.{end}": f"ln_2.{end}" for end in ("weight", "bias")},
}


def _either(name: str) -> Origin:
    """Folders of the first GPT-2 leave out the prefix."""
    return Either((f"transformer.{name}", name))


HF_NAMES = FolderNames(
    {
        "token_embd.weight": _either("wte.weight"),
        "position_embd.weight": _either("wpe.weight"),
        "output_norm.weight": _either("ln_f.weight"),
        "output_norm.bias": _either("ln_f.bias"),
        "output.weight": "lm_head.weight",
        **{f"blk.{{i}}.{name}": _either(f"h.{{i}}.{part}") for name, part in _VECTORS.items()},
        **{
            f"blk.{{i}}.{name}.weight": Transposed(_either(f"h.{{i}}.{part}.weight"))
            for name, part in _MATRICES.items()
        },
        **fused_qkv(Transposed(_either("h.{i}.attn.c_attn.weight"))),
        **fused_qkv(_either("h.{i}.attn.c_attn.bias"), "bias"),
    },
    ignored=tuple(
        f"{prefix}h.{{i}}.attn.{name}"
        for prefix in ("transformer.", "")
        for name in ("bias", "masked_bias")
    ),
)
"""What is ignored says only that a token does not see later ones."""


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    sizes = GGUFValues(metadata, "gpt2").sizes(tensors, eps=LAYER_NORM_EPS)
    return plan_weights(_spec(sizes, "gelu_tanh"), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    values.refuse_later_tokens()
    values.refuse_unless("scale_attn_weights", True)
    values.refuse_unless("scale_attn_by_inverse_layer_idx", False)
    values.refuse_unless("add_cross_attention", False)
    hidden, heads = values.count("n_embd"), values.count("n_head")
    sizes = Sizes(
        architecture="gpt2",
        hidden=hidden,
        layers=values.count("n_layer", most=MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=values.count("n_inner", 4 * hidden),
        vocab=values.count("vocab_size"),
        context_window=values.count("n_positions"),
        norm_eps=values.positive("layer_norm_epsilon"),
        tied_head=values.flag("tie_word_embeddings", True),
    )
    return _spec(sizes, values.activation("activation_function"))


def _spec(sizes: Sizes, activation: Activation) -> ModelSpec:
    mixer = replace(sizes.attention(), rope=None, qkv_bias=True, output_bias=True)
    mlp = DenseSpec(sizes.intermediate, activation, bias=True, gated=False)
    spec = sizes.model([LayerSpec(mixer, mlp)] * sizes.layers, [])
    return replace(spec, norm="layer", learned_positions=sizes.context_window)
