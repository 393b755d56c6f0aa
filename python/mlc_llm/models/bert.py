"""BERT (Devlin et al. 2018): an encoder with a learned vector for each position, biases, and layer
norms behind sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import Activation, DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import Either, FolderNames, Origin
from mlc_llm.models.values import MOST_LAYERS, Values
from mlc_llm.models.weight_plan import TensorInfo, Tensors, WeightPlan, plan_weights

COMPARES = "ForSequenceClassification"
"""The end of the names of classes that compare two texts."""
MOST_TYPES = MOST_LABELS = 1024
_LAYER = "encoder.layer.{i}"
_MATRICES = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
}
_NORMS = {"attn_output_norm": "attention.output.LayerNorm", "layer_output_norm": "output.LayerNorm"}
_TABLES = (
    ("token_embd", "word_embeddings"),
    ("position_embd", "position_embeddings"),
    ("token_types", "token_type_embeddings"),
)


def bert_names(prefix: str, pair: Mapping[str, Origin]) -> FolderNames:
    """The table of a class with these layers. prefix: of the names in folders of models with a
    head. pair: the origins of the scores of a pair."""

    def either(*names: str) -> Origin:
        return Either((*(f"{start}{name}" for name in names for start in (prefix, "")),))

    def norm(gguf: str, name: str) -> dict[str, Origin]:
        """The first folders called weight and bias of a norm gamma and beta."""
        return {
            f"{gguf}.{end}": either(f"{name}.{end}", f"{name}.{old}")
            for end, old in (("weight", "gamma"), ("bias", "beta"))
        }

    origins = {f"{gguf}.weight": either(f"embeddings.{name}.weight") for gguf, name in _TABLES}
    origins |= norm("token_embd_norm", "embeddings.LayerNorm")
    for gguf, name in _MATRICES.items():
        for end in ("weight", "bias"):
            origins[f"blk.{{i}}.{gguf}.{end}"] = either(f"{_LAYER}.{name}.{end}")
    for gguf, name in _NORMS.items():
        origins |= norm(f"blk.{{i}}.{gguf}", f"{_LAYER}.{name}")
    more = [f"{start}embeddings.position_ids" for start in (prefix, "")]
    more += [f"{start}{name}" for name in _POOLER for start in (prefix, "")]
    return FolderNames({**origins, **pair}, ignored=tuple(more))


_POOLER = ("pooler.dense.weight", "pooler.dense.bias")
"""The layer before a head."""
HF_NAMES = bert_names(
    "bert.",
    {
        "cls.weight": "bert.pooler.dense.weight",
        "cls.bias": "bert.pooler.dense.bias",
        "cls.output.weight": "classifier.weight",
        "cls.output.bias": "classifier.bias",
    },
).ignoring("cls.{any}")


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "bert")
    sizes = values.sizes(tensors, eps=LAYER_NORM_EPS, causal=False)
    return plan_weights(_spec(sizes, "gelu", gguf_encoder(tensors)), tensors)


def gguf_encoder(tensors: Tensors) -> EncoderSpec:
    """By the tensors of a file. Raises UnsupportedModel for scores without their first layer, which
    converters leave out of some models."""
    types, out = tensors.get("token_types.weight"), tensors.get("cls.output.weight")
    if out is not None and "cls.weight" not in tensors:
        words = "the file has lost a layer of the scores"
        raise UnsupportedModel(f"there is cls.output.weight and no cls.weight: {words}")
    return EncoderSpec(_rows(types), _rows(out))


def _rows(tensor: TensorInfo | None) -> int:
    """Of a table; one row may be a plain vector."""
    if tensor is None:
        return 0
    return tensor.shape[0] if len(tensor.shape) == 2 else 1


def read_config(config: Mapping[str, object], unused_positions: int = 0) -> ModelSpec:
    """unused_positions: how many of the learned positions no text has. Raises UnsupportedModel or
    ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    positions = values.count("max_position_embeddings")
    is_enough = positions > unused_positions
    values.check("max_position_embeddings", is_enough, f"more than {unused_positions}")
    values.refuse_unless("position_embedding_type", "absolute")
    values.refuse_unless("is_decoder", False)
    values.refuse_unless("add_cross_attention", False)
    hidden, heads = values.count("hidden_size"), values.count("num_attention_heads")
    sizes = Sizes(
        architecture="bert",
        hidden=hidden,
        layers=values.count("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=values.count("intermediate_size"),
        vocab=values.count("vocab_size"),
        context_window=positions - unused_positions,
        norm_eps=values.positive("layer_norm_eps", 1e-12),
        tied_head=True,
    )
    return _spec(sizes, values.activation(), config_encoder(values))


def config_encoder(values: Values) -> EncoderSpec:
    """Raises ModelFileError."""
    types = values.count("type_vocab_size", 2, most=MOST_TYPES)
    return EncoderSpec(types, config_labels(values))


def config_labels(values: Values) -> int:
    """Of a class that compares two texts; 0 for any other. Raises ModelFileError."""
    classes, labels = values.get("architectures"), 0
    if isinstance(classes, list) and classes and str(classes[0]).endswith(COMPARES):
        names = values.get("id2label")
        labels = len(names) if isinstance(names, Mapping) else values.count("num_labels", 2)
        values.check("id2label", 0 < labels <= MOST_LABELS, f"1 to {MOST_LABELS} labels")
    return labels


def _spec(sizes: Sizes, activation: Activation, encoder: EncoderSpec) -> ModelSpec:
    mixer = replace(sizes.attention(), rope=None, qkv_bias=True, output_bias=True)
    mlp = DenseSpec(sizes.intermediate, activation, bias=True, gated=False)
    layer = LayerSpec(mixer, mlp, pre_norms=False, sum_norms=True)
    spec = sizes.model([layer] * sizes.layers, [])
    return replace(
        spec, norm="layer", learned_positions=sizes.context_window, encoder=encoder, tied_head=True
    )
