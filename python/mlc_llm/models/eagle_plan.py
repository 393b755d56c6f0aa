"""Which tensors of a folder make an EAGLE head.

Names and arithmetic are those of the authors' code (SafeAILab/EAGLE, `cnets1.py` for EAGLE-1 and
`cnets.py` for EAGLE-3), and the fields are those of the folders that it, SpecForge and vLLM read.
The one layer is called `midlayer` or `layers.0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.llama import THETA
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sources import Source
from mlc_llm.models.spec import EagleSpec, ModelSpec
from mlc_llm.models.weight_plan import TensorInfo, WeightPlan, checked_plan

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
OFFSETS, KNOWN = "d2t", "t2d"
"""Of each row of the head: the model's token less the row. Of each token: whether it has a row."""
ROWS = "row_of_token"
"""A table that is made of them."""
UNREAD = (EMBEDDING, OFFSETS, KNOWN)
"""Tensors that are no parameters: the first is a copy of the model's own table."""
TAPS = "eagle_aux_hidden_state_layer_ids"
MOST_TAPS = 16
Tensors = Mapping[str, TensorInfo]


def plan_eagle(config: Mapping[str, object], tensors: Tensors, model: WeightPlan) -> WeightPlan:
    """The plan of a head: of its parameters alone, in the spec of a model with a head.

    config, tensors: of the head's folder, where `ROWS` stands for its tables of tokens. model: the
    plan of the model that it is for. Raises ModelFileError, UnsupportedModel.
    """
    values, spec = ConfigValues(config), model.spec
    sizes = values.sizes("eagle")
    if sizes.layers != 1:
        raise UnsupportedModel(f"num_hidden_layers is {sizes.layers}; supported: 1")
    if sizes.hidden != spec.hidden:
        words = f"hidden_size is {sizes.hidden} and the model's is {spec.hidden}"
        raise ModelFileError(f"{words}: the head is for another model")
    _check_model(spec)
    _refuse_unknown(values)
    layer = "midlayer" if any(name.startswith("midlayer.") for name in tensors) else "layers.0"
    bias = f"{layer}.self_attn.q_proj.bias" in tensors
    rope = values.rope(sizes.head_dim, THETA)
    ropes = spec.ropes if rope in spec.ropes else (*spec.ropes, rope)
    attention = replace(sizes.attention(), rope=ropes.index(rope), qkv_bias=bias)
    network = DenseSpec(sizes.intermediate, values.activation())
    eagle = EagleSpec(attention, network, sizes.norm_eps)
    eagle = _third(eagle, values, tensors, spec) if HEAD in tensors else _first(eagle, tensors)
    whole = replace(spec, eagle=eagle, ropes=ropes)
    if EMBEDDING in tensors:
        _check_shape(EMBEDDING, tensors, (sizes.vocab, spec.hidden))
    read = {name: one for name, one in tensors.items() if name not in UNREAD}
    matrices = _matrices(spec.hidden, eagle, layer, read)
    return checked_plan(whole, matrices, _named(whole, eagle, layer), read)


def eagle_vectors(model: ModelSpec, eagle: EagleSpec) -> dict[str, Source]:
    """By parameter name; `{}` in the name of a tensor stands for the layer."""
    hidden, one = (model.hidden,), eagle.attention
    found = {"mlp_norm": Source("{}.post_attention_layernorm.weight", hidden)}
    if eagle.fc_bias:
        found["fc_bias"] = Source("fc.bias", hidden)
    if eagle.taps:
        found["embedding_norm"] = Source("{}.input_layernorm.weight", hidden)
        found["hidden_norm"] = Source("{}.hidden_norm.weight", hidden)
        found["norm"] = Source("norm.weight", hidden)
    if eagle.chooses:
        found[ROWS] = Source(ROWS, (model.vocab,))
    if one.qkv_bias:
        for part in one.parts:
            name = f"{{}}.self_attn.{part}_proj.bias"
            found[f"{part}_bias"] = Source(name, (one.width_of(part),))
    return found


def _named(model: ModelSpec, eagle: EagleSpec, layer: str) -> dict[str, Source]:
    vectors = eagle_vectors(model, eagle).items()
    return {f"eagle.{name}": replace(one, tensor=one.tensor.format(layer)) for name, one in vectors}


def _matrices(
    hidden: int, eagle: EagleSpec, layer: str, tensors: Tensors
) -> dict[str, tuple[Source, ...]]:
    one, wide = eagle.attention, eagle.network.intermediate
    read = (2 if eagle.taps else 1) * hidden
    of_qkv = {
        part: Source(f"{layer}.self_attn.{part}_proj.weight", (one.width_of(part), read))
        for part in one.parts
    }
    of_mlp = {
        part: Source(f"{layer}.mlp.{part}_proj.weight", (wide, hidden)) for part in ("gate", "up")
    }
    found: dict[str, tuple[Source, ...]] = {}
    found["eagle.fc"] = (Source("fc.weight", (hidden, (len(eagle.taps) or 2) * hidden)),)
    found |= _joined("eagle.qkv.", of_qkv, tensors) | _joined("eagle.mlp.", of_mlp, tensors)
    found["eagle.o"] = (Source(f"{layer}.self_attn.o_proj.weight", (hidden, one.query_width)),)
    found["eagle.down"] = (Source(f"{layer}.mlp.down_proj.weight", (hidden, wide)),)
    if eagle.vocab:
        found["eagle.head"] = (Source(HEAD, (eagle.vocab, hidden)),)
    return found


def _joined(
    prefix: str, parts: dict[str, Source], tensors: Tensors
) -> dict[str, tuple[Source, ...]]:
    """Matrices of one type are joined; otherwise each keeps its own."""
    kinds = {tensors[one.tensor].kind for one in parts.values() if one.tensor in tensors}
    if len(kinds) == 1:
        return {prefix + "_".join(parts): tuple(parts.values())}
    return {prefix + name: (one,) for name, one in parts.items()}


def _first(eagle: EagleSpec, tensors: Tensors) -> EagleSpec:
    """An EAGLE-1 head."""
    return replace(eagle, fc_bias="fc.bias" in tensors)


def _third(eagle: EagleSpec, values: ConfigValues, tensors: Tensors, model: ModelSpec) -> EagleSpec:
    """An EAGLE-3 head: one with a head of its own."""
    rows = values.count("draft_vocab_size", values.count("vocab_size"))
    chooses = OFFSETS in tensors
    if not chooses and (rows != model.vocab or KNOWN in tensors):
        words = f"draft_vocab_size is {rows}, of {model.vocab} tokens of the model"
        raise ModelFileError(f"there is no tensor {OFFSETS}: {words}")
    return replace(
        eagle,
        taps=_taps(values, len(model.layers)),
        adds_to_norm=values.flag("norm_before_residual", False),
        vocab=rows,
        chooses=chooses,
    )


def _taps(values: ConfigValues, layers: int) -> tuple[int, ...]:
    """Behind how many layers the vectors are read. The authors' code reads what layers 2, n // 2
    and n - 3 read. Folders that list layers mean what these read; if the first one is 1, they mean
    what these give, as SGLang takes it."""
    inner = values.part("eagle_config") if values.has("eagle_config") else values
    inner.refuse_unless("use_aux_hidden_state", True)
    holder = inner if inner.has(TAPS) else values
    listed = holder.get(TAPS)
    if listed is None:
        taps: tuple[int, ...] = (2, layers // 2, layers - 3)
        if layers < 4:
            raise ModelFileError(f"{TAPS} is not there, and the model has only {layers} layers")
        return taps
    count = len(listed) if isinstance(listed, list) else 0
    holder.check(TAPS, 0 < count <= MOST_TAPS, "a list of layers")
    taps = holder.numbers(TAPS, count)
    if taps[0] == 1:
        taps = tuple(one + 1 for one in taps)
    holder.check(TAPS, max(taps) <= layers, f"layers of the model, which has {layers}")
    return taps


def _check_model(spec: ModelSpec) -> None:
    if spec.encoder is not None or spec.medusa is not None or spec.recurrent_layers:
        raise UnsupportedModel(f"a head cannot draft for a model of the kind {spec.architecture}")
    if spec.logit_scale != 1.0 or spec.logit_cap is not None:
        raise UnsupportedModel(f"no head is known for {spec.architecture}, which changes logits")


def _refuse_unknown(values: ConfigValues) -> None:
    """Fields that mean another arithmetic."""
    values.refuse_unless("attention_bias", False, True)
    values.refuse_unless("mlp_bias", False)
    values.refuse_unless("logit_scale", 1, 1.0)
    values.refuse_unless("parallel_drafting", False)
    values.refuse_unless("norm_before_fc", False)
    values.refuse_unless("target_hidden_size", values.get("hidden_size"))


def _check_shape(name: str, tensors: Tensors, wanted: tuple[int, ...]) -> None:
    shape = tuple(tensors[name].shape)
    if shape != wanted:
        raise ModelFileError(f"tensor {name} has shape {shape}, expected {wanted}")
