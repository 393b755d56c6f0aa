"""RWKV-7 (Peng et al. 2025): each layer mixes tokens through a state, and has a network that reads
the token before too. Folders are those of the library flash-linear-attention."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.recurrent import Rwkv7Spec
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import Either, FolderNames, Origin, Squeezed, Stacked, layers
from mlc_llm.models.values import MOST_LAYERS, Values
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

CONTEXT = 2**20
"""Tokens; llama.cpp's converter writes this number: nothing in the model depends on it."""
HEAD_EPS = 64e-5
"""Of the norms of heads in GGUF files, whatever their size."""
NORMS = {
    "ffn_norm.weight": "attn_norm_2.weight",
    "ffn_norm.bias": "attn_norm_2.bias",
}
"""Converters call the norm before a network so."""
_KEY = "token_shift_count"
_FIXED = {
    "hidden_act": ("sqrelu",),
    "norm_first": (True,),
    "attn": (None,),
    "tie_word_embeddings": (False,),
}
"""Settings of which one value is computed."""
_RANKS = {
    "decay_low_rank_dim": 64,
    "a_low_rank_dim": 64,
    "v_low_rank_dim": 16,
    "gate_low_rank_dim": 128,
}
"""With the numbers of a `config.json` that does not say them."""


def _pair(letter: str) -> dict[str, str]:
    """Two matrices, each a layer of a module."""
    return {f"time_mix_{letter}{i}": f"attn.{letter}_lora.lora.{2 * i - 2}" for i in (1, 2)}


def _bias(letter: str) -> dict[str, Origin]:
    name = f"model.layers.{{i}}.attn.{letter}_lora.lora.2.bias"
    return {f"blk.{{i}}.time_mix_{letter}0.weight": name}


def _vector(name: str) -> Origin:
    return Squeezed(f"model.layers.{{i}}.{name}")


_NORM_NAMES = {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "time_mix_ln": "attn.g_norm"}
_MATRICES = {
    "time_mix_receptance": "attn.r_proj",
    "time_mix_key": "attn.k_proj",
    "time_mix_value": "attn.v_proj",
    "time_mix_output": "attn.o_proj",
    "channel_mix_key": "ffn.key",
    "channel_mix_value": "ffn.value",
    **_pair("w"),
    **_pair("a"),
    **_pair("v"),
    **_pair("g"),
}
HF_NAMES = FolderNames(
    {
        "token_embd.weight": "model.embeddings.weight",
        "token_embd_norm.weight": "model.layers.0.pre_norm.weight",
        "token_embd_norm.bias": "model.layers.0.pre_norm.bias",
        "output_norm.weight": "model.norm.weight",
        "output_norm.bias": "model.norm.bias",
        "output.weight": "lm_head.weight",
        **layers(_MATRICES | _NORM_NAMES),
        **layers(_NORM_NAMES, "bias"),
        **_bias("w"),
        **_bias("a"),
        **_bias("v"),
        "blk.{i}.time_mix_lerp_fused.weight": Either(
            (Stacked(tuple(_vector(f"attn.x_{part}") for part in "rwkvag")), _vector("attn.x_x"))
        ),
        "blk.{i}.time_mix_k_k.weight": _vector("attn.k_k"),
        "blk.{i}.time_mix_k_a.weight": _vector("attn.k_a"),
        "blk.{i}.time_mix_r_k.weight": _vector("attn.r_k"),
        "blk.{i}.channel_mix_lerp_k.weight": _vector("ffn.x_k"),
    }
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "rwkv7")
    values.refuse_unless(_KEY, 2)
    hidden, head_dim = values.count("embedding_length"), values.count("wkv.head_size")
    names = ("decay", "iclr", "value_residual_mix", "gate")
    ranks = [values.count(f"attention.{name}_lora_rank") for name in names]
    spec = _spec(
        values,
        hidden=hidden,
        head_dim=head_dim,
        ranks=ranks,
        layers=values.layer_count(tensors),
        intermediate=values.count("feed_forward_length"),
        vocab=values.vocab(tensors),
        eps=values.positive(LAYER_NORM_EPS),
        head_eps=HEAD_EPS,
        size="wkv.head_size",
    )
    unused = {f"blk.0.time_mix_v{i}.weight" for i in range(3)}  # converters fill them with others
    tensors = {name: one for name, one in tensors.items() if name not in unused}
    return plan_weights(spec, tensors, names=NORMS)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    for key, allowed in _FIXED.items():
        values.refuse_unless(key, *allowed)
    values.refuse_unless("norm_bias", True)
    hidden, head_dim = values.count("hidden_size"), values.count("head_dim", 64)
    count = values.count("num_hidden_layers", most=MOST_LAYERS)
    if values.has("num_heads"):
        is_whole = values.count("num_heads") * head_dim == hidden
        values.check("num_heads", is_whole, f"{hidden} / head_dim")
    values.refuse_unless("value_dim", None, hidden, [hidden] * count)
    eps = values.positive("norm_eps", 1e-5)
    wide = 32 * (-(-int(hidden * values.positive("hidden_ratio", 4.0)) // 32))
    return _spec(
        values,
        hidden=hidden,
        head_dim=head_dim,
        ranks=[values.count(key, usual) for key, usual in _RANKS.items()],
        layers=count,
        intermediate=values.count("intermediate_size", wide),
        vocab=values.count("vocab_size"),
        eps=eps,
        head_eps=head_dim * eps,
        size="head_dim",
    )


def _spec(
    values: Values,
    *,
    hidden: int,
    head_dim: int,
    ranks: list[int],
    layers: int,
    intermediate: int,
    vocab: int,
    eps: float,
    head_eps: float,
    size: str,
) -> ModelSpec:
    """ranks: of w, a, b and g. size: the field of a head's size."""
    values.check(size, hidden % head_dim == 0, f"a divisor of {hidden}")
    decay, rate, value, gate = ranks
    network = DenseSpec(intermediate, "squared_relu", gated=False, shifted=hidden)
    made = []
    for i in range(layers):
        of_value = value if i else 0
        mixer = Rwkv7Spec(hidden // head_dim, head_dim, decay, rate, of_value, gate, head_eps)
        made.append(LayerSpec(mixer, network))
    return ModelSpec(
        "rwkv7", hidden, vocab, CONTEXT, eps, tuple(made), (), tied_head=False, norm="layer",
        embedding_norm=True,
    )  # fmt: skip
