"""ModernBERT (Warner et al. 2024): an encoder with norms before its halves, rotary embeddings, and
gated networks. Every third layer sees the whole text, with a rotary table of its own; the others
see a window, as wide on both sides. The first layer reads the normalised embedding as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.bert import config_labels
from mlc_llm.models.config_values import FULL, WINDOWED, ConfigValues
from mlc_llm.models.encoder_spec import EncoderSpec, PairPooling, PairSpec
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import Activation, DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import Either, FolderNames, Origin, fused, fused_qkv
from mlc_llm.models.values import MOST_LAYERS
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights, with_projections
from mlc_llm.record import record

GLOBAL_EVERY = 3
"""Layers 0, 3, ... see everything."""
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
RMS_EPS = "attention.layer_norm_rms_epsilon"
"""Where a file has the layer norms' epsilon if its config calls it `norm_eps`."""
ACTIVATIONS: Mapping[str, Activation] = {"gelu": "gelu", "silu": "silu"}
POOLINGS: Mapping[str, PairPooling] = {"cls": "cls", "mean": "mean"}
CLASSIFIER_POOLING: Mapping[int, PairPooling] = {1: "mean", 2: "cls"}
DEFAULTS = {
    "vocab_size": 50_368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
    "num_attention_heads": 12, "hidden_activation": "gelu", "max_position_embeddings": 8192,
    "norm_eps": 1e-5, "local_attention": 128, "classifier_pooling": "cls",
    "classifier_activation": "gelu",
}  # fmt: skip
"""Where a `config.json` does not say it."""
_LAYER = "layers.{i}"


def _either(name: str) -> Either:
    """In folders of a model with a head, and of the layers alone."""
    return Either((f"model.{name}", name))


_MATRICES = {"attn_output": "attn.Wo", "ffn_down": "mlp.Wo"}
_NORMS = {"attn_norm": "attn_norm", "ffn_norm": "mlp_norm"}
_FUSED: dict[str, Origin] = {
    **fused_qkv(_either(f"{_LAYER}.attn.Wqkv.weight")),
    **fused(_either(f"{_LAYER}.mlp.Wi.weight"), "blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight"),
}
HF_NAMES = FolderNames(
    {
        "token_embd.weight": _either("embeddings.tok_embeddings.weight"),
        "token_embd_norm.weight": _either("embeddings.norm.weight"),
        "output_norm.weight": _either("final_norm.weight"),
        **{
            f"blk.{{i}}.{gguf}.weight": _either(f"{_LAYER}.{name}.weight")
            for gguf, name in (_MATRICES | _NORMS).items()
        },
        **_FUSED,
        "cls.weight": "head.dense.weight",
        "cls.bias": "head.dense.bias",
        "cls.norm.weight": "head.norm.weight",
        "cls.output.weight": "classifier.weight",
        "cls.output.bias": "classifier.bias",
    },
    ignored=("decoder.{any}", "head.{any}"),
)


@record()
class Facts:
    """What a header says of the layers."""

    activation: Activation
    windowed: Sequence[bool]
    reach: int
    ropes: tuple[RopeSpec, RopeSpec]
    """Of the layers that see everything, then of the others."""
    encoder: EncoderSpec


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "modern-bert")
    values.refuse_unless("rope.scaling.type", "none")
    eps = LAYER_NORM_EPS if values.has(LAYER_NORM_EPS) else RMS_EPS
    sizes = values.sizes(tensors, eps=eps, causal=False)
    every = values.count("attention.sliding_window_pattern", GLOBAL_EVERY)
    ropes = (
        values.rope(sizes.head_dim, GLOBAL_THETA),
        values.rope(sizes.head_dim, LOCAL_THETA, suffix="_swa"),
    )
    facts = Facts(
        values.choice("hidden_activation", ACTIVATIONS, "gelu"),
        [i % every > 0 for i in range(sizes.layers)],
        values.count("attention.sliding_window") // 2,
        ropes,
        _gguf_encoder(values, tensors),
    )
    there = tensors
    if not facts.encoder.labels:  # of a head over the vocabulary
        there = {name: one for name, one in tensors.items() if not name.startswith("cls.")}
    return plan_weights(with_projections(_spec(sizes, facts), there), there)


def _gguf_encoder(values: GGUFValues, tensors: Tensors) -> EncoderSpec:
    """A file that does not say which vector the scores are made of has the mean, as in llama.cpp.
    Raises UnsupportedModel."""
    out, key = tensors.get("cls.output.weight"), "classifier.pooling_type"
    values.refuse_unless(key, *CLASSIFIER_POOLING)
    pooling = next(one for i, one in CLASSIFIER_POOLING.items() if i == values.get(key, 1))
    pair = PairSpec(pooling, "gelu", "cls.bias" in tensors, norm=True)
    return EncoderSpec(labels=0 if out is None else out.shape[0], pair=pair, last_norm=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    for key in ("norm_bias", "attention_bias", "mlp_bias"):
        values.refuse_unless(key, False)
    values.refuse_unless("classifier_activation", "gelu")
    hidden, heads = values.count("hidden_size"), values.count("num_attention_heads")
    sizes = Sizes(
        architecture="modern-bert",
        hidden=hidden,
        layers=values.count("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=values.count("intermediate_size"),
        vocab=values.count("vocab_size"),
        context_window=values.count("max_position_embeddings"),
        norm_eps=values.positive("norm_eps"),
        tied_head=True,
    )
    pooling = values.choice("classifier_pooling", POOLINGS)
    pair = PairSpec(pooling, "gelu", values.flag("classifier_bias", False), norm=True)
    facts = Facts(
        values.choice("hidden_activation", ACTIVATIONS),
        _windowed(values, sizes.layers),
        values.count("local_attention") // 2,
        _ropes(values, sizes.head_dim),
        EncoderSpec(labels=config_labels(values), pair=pair, last_norm=True),
    )
    return _spec(sizes, facts)


def _windowed(values: ConfigValues, layers: int) -> list[bool]:
    if values.has("layer_types"):
        kinds = values.texts("layer_types", layers, (FULL, WINDOWED))
        return [kind == WINDOWED for kind in kinds]
    every = values.count("global_attn_every_n_layers", GLOBAL_EVERY)
    return [i % every > 0 for i in range(layers)]


def _ropes(values: ConfigValues, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Version 5 of Transformers has one for each kind of layers."""
    values.refuse_unless("rope_scaling", None)
    keys = "local_rope_theta", "global_rope_theta"
    if values.has("rope_parameters"):
        return values.ropes_by_kind(head_dim, GLOBAL_THETA, LOCAL_THETA, *keys)
    local, whole = values.positive(keys[0], LOCAL_THETA), values.positive(keys[1], GLOBAL_THETA)
    return RopeSpec(whole, head_dim), RopeSpec(local, head_dim)


def _spec(sizes: Sizes, facts: Facts) -> ModelSpec:
    whole = sizes.attention()
    local = replace(whole, rope=1, reach=facts.reach)
    mlp = DenseSpec(sizes.intermediate, facts.activation)
    layers = [
        LayerSpec(local if is_local else whole, mlp, mixer_norm=i > 0)
        for i, is_local in enumerate(facts.windowed)
    ]
    spec = sizes.model(layers, facts.ropes)
    return replace(spec, norm="layer", norm_bias=False, encoder=facts.encoder, tied_head=True)
