"""Nomic BERT (Nussbaum et al. 2024): a BERT with a rotary embedding in place of learned positions,
gated networks and no biases but those of norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.bert import config_encoder, gguf_encoder
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import Either, FolderNames, Origin, fused_qkv
from mlc_llm.models.values import MOST_LAYERS
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 1000.0
"""Where a file does not say it."""
TRAINED = 2048
"""Tokens of the first training, where a file of the first form says more in `n_positions`."""
_OLD, _NEW = "encoder.layers.{i}", "layers.{i}"


def _names(*names: str) -> Either:
    """In folders of the layers alone, and of a model with a head."""
    return Either((*names, *(f"nomic_bert.{name}" for name in names)))


_FUSED: dict[str, Origin] = fused_qkv(_names(f"{_OLD}.attn.Wqkv.weight"))
_PARTS = {
    "attn_q": (None, "self_attn.q_proj"),
    "attn_k": (None, "self_attn.k_proj"),
    "attn_v": (None, "self_attn.v_proj"),
    "attn_output": ("attn.out_proj", "self_attn.o_proj"),
    "ffn_up": ("mlp.fc11", "mlp.up_proj"),
    "ffn_gate": ("mlp.fc12", "mlp.gate_proj"),
    "ffn_down": ("mlp.fc2", "mlp.down_proj"),
    "attn_output_norm": ("norm1", "post_attention_layernorm"),
    "layer_output_norm": ("norm2", "post_mlp_layernorm"),
}
"""The names of folders with code of their own, and those of Transformers."""


def _origin(gguf: str, end: str) -> Origin:
    old, new = _PARTS[gguf]
    name = f"blk.{{i}}.{gguf}.{end}"
    if old is None:
        return Either((_FUSED[name], _names(f"{_NEW}.{new}.{end}")))
    return _names(f"{_OLD}.{old}.{end}", f"{_NEW}.{new}.{end}")


HF_NAMES = FolderNames(
    {
        "token_embd.weight": _names("embeddings.word_embeddings.weight"),
        "token_types.weight": _names("embeddings.token_type_embeddings.weight"),
        **{
            f"token_embd_norm.{end}": _names(f"emb_ln.{end}", f"embeddings.LayerNorm.{end}")
            for end in ("weight", "bias")
        },
        **{f"blk.{{i}}.{gguf}.weight": _origin(gguf, "weight") for gguf in _PARTS},
        **{
            f"blk.{{i}}.{gguf}.bias": _origin(gguf, "bias")
            for gguf in _PARTS
            if gguf.endswith("norm")
        },
        "cls.weight": "nomic_bert.pooler.dense.weight",
        "cls.bias": "nomic_bert.pooler.dense.bias",
        "cls.output.weight": "classifier.weight",
        "cls.output.bias": "classifier.bias",
    },
    ignored=("pooler.dense.weight", "pooler.dense.bias"),
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "nomic-bert")
    sizes = values.sizes(tensors, eps=LAYER_NORM_EPS, causal=False)
    rope = values.rope(sizes.head_dim, THETA)
    return plan_weights(_spec(sizes, rope, gguf_encoder(tensors)), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    encoder = config_encoder(values)
    if values.has("n_embd"):
        sizes, rope = _first_form(values)
    else:
        values.refuse_unless("hidden_act", "silu")
        defaults = {"tie_word_embeddings": True}
        values = ConfigValues(config, defaults)
        sizes = values.sizes("nomic-bert", eps="layer_norm_eps", causal=False)
        rope = values.rope(sizes.head_dim, THETA)
    return _spec(sizes, rope, encoder)


def _first_form(values: ConfigValues) -> tuple[Sizes, RopeSpec]:
    """Of folders with code of their own."""
    expected = {
        "activation_function": "swiglu",
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "moe_every_n_layers": 0,
        "parallel_block": False,
        "use_rms_norm": False,
    }
    for key, value in expected.items():
        values.refuse_unless(key, value)
    hidden, heads = values.count("n_embd"), values.count("n_head")
    trained = values.count("max_trained_positions", TRAINED)
    sizes = Sizes(
        architecture="nomic-bert",
        hidden=hidden,
        layers=values.count("n_layer", most=MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=values.count("n_inner"),
        vocab=values.count("vocab_size"),
        context_window=min(values.count("n_positions"), trained),
        norm_eps=values.positive("layer_norm_epsilon"),
        tied_head=True,
    )
    return sizes, RopeSpec(values.positive("rotary_emb_base", THETA), sizes.head_dim)


def _spec(sizes: Sizes, rope: RopeSpec, encoder: EncoderSpec) -> ModelSpec:
    mlp = DenseSpec(sizes.intermediate)
    layer = LayerSpec(sizes.attention(), mlp, pre_norms=False, sum_norms=True)
    spec = sizes.model([layer] * sizes.layers, [rope])
    return replace(spec, norm="layer", encoder=encoder, tied_head=True)
