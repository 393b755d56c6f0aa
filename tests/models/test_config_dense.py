"""What `config.json` files say of models that are less like a Llama, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models import phi3
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.models.weight_plan import wanted_tensors

SIZES: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "vocab_size": 300, "max_position_embeddings": 512, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 512,
    "n_ctx": 512, "vocab_size": 300, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
}  # fmt: skip
NEOX = {
    **SIZES, "model_type": "gpt_neox", "hidden_act": "gelu", "layer_norm_eps": 1e-5,
    "rotary_emb_base": 20000, "rotary_pct": 0.5, "use_parallel_residual": True,
}  # fmt: skip
STARCODER2 = {
    **SIZES, "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5,
    "num_key_value_heads": 2, "sliding_window": 100, "rope_theta": 20000.0,
}  # fmt: skip
STABLELM = {
    **SIZES, "model_type": "stablelm", "layer_norm_eps": 1e-5, "rope_theta": 20000.0,
    "use_qkv_bias": True,
}  # fmt: skip
PHI3 = {
    **SIZES, "model_type": "phi3", "rms_norm_eps": 1e-5, "rope_theta": 20000.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
SHORT, LONG = [1.0 + i for i in range(24)], [2.0 + i for i in range(24)]
SCALING = {"type": "su", "short_factor": SHORT, "long_factor": LONG}
PHI3_LONG = {**PHI3, "partial_rotary_factor": 0.75, "rope_scaling": SCALING}
GLM4 = {
    **SIZES, "model_type": "glm4", "rms_norm_eps": 1e-5, "head_dim": 32, "rope_theta": 20000.0,
    "num_key_value_heads": 1,
}  # fmt: skip


METADATA = {
    "embedding_length": 256, "block_count": 2, "attention.head_count": 4, "context_length": 512,
    "feed_forward_length": 96, "rope.freq_base": 20000.0,
}  # fmt: skip
RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


@dataclass(frozen=True)
class Info:
    shape: tuple[int, ...]
    kind: str = "F32"


@pytest.mark.parametrize(
    ("name", "config", "more"),
    [
        ("gpt2", GPT2, {LAYER: 1e-5, "feed_forward_length": 1024}),
        ("gptneox", NEOX, {LAYER: 1e-5, "rope.dimension_count": 32}),
        ("starcoder2", STARCODER2,
         {LAYER: 1e-5, "attention.head_count_kv": 2, "attention.sliding_window": 100}),
        ("stablelm", STABLELM, {LAYER: 1e-5, "rope.dimension_count": 16}),
        ("stablelm", {**STABLELM, "use_parallel_residual": True, "use_qkv_bias": False},
         {LAYER: 1e-5, "rope.dimension_count": 16}),
        ("phi3", PHI3, {RMS: 1e-5, "attention.sliding_window": 0}),
        ("phi3", PHI3_LONG, {
            RMS: 1e-5, "rope.dimension_count": 48, "rope.scaling.original_context_length": 128,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(128)),
        }),
        ("glm4", GLM4, {
            RMS: 1e-5, "rope.dimension_count": 16, "attention.head_count_kv": 1,
            "attention.key_length": 32,
        }),
    ],
)  # fmt: skip
def test_the_spec_is_that_of_the_gguf_file(
    name: str, config: dict[str, Any], more: dict[str, Any]
) -> None:
    """With the tensors that the spec asks for, and with fused ones."""
    spec = read_config(config)
    own = {f"{name}.{key}": value for key, value in (METADATA | more).items()}
    shapes = wanted_tensors(spec)
    if config is PHI3_LONG:
        shapes |= dict.fromkeys((phi3.SHORT, phi3.LONG), (24,))
        (rope,) = spec.ropes
        spec = replace(spec, ropes=(replace(rope, factors=phi3.SHORT, long_factors=phi3.LONG),))
    for tensors in (shapes, fused(shapes)):
        infos = {one: Info(shape) for one, shape in tensors.items()}
        plan = read_gguf({"general.architecture": name, **own}, infos)
        assert replace(plan.spec, kinds={}) == spec
        del infos["blk.1.attn_norm.weight"]
        with pytest.raises(ModelFileError, match=r"^there is no tensor blk\.1\.attn_norm\.weight"):
            read_gguf({"general.architecture": name, **own}, infos)


def fused(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """With one matrix and one bias of queries, keys and values, and a gate in front of `ffn_up`."""
    found = dict(shapes)
    for layer in (0, 1):
        for end in ("weight", "bias"):
            parts = [f"blk.{layer}.attn_{one}.{end}" for one in "qkv"]
            if parts[0] in found:
                columns = found[parts[0]][1:]
                rows = sum(found.pop(part)[0] for part in parts)
                found[f"blk.{layer}.attn_qkv.{end}"] = (rows, *columns)
        if found.pop(f"blk.{layer}.ffn_gate.weight", None):
            rows, *columns = found[f"blk.{layer}.ffn_up.weight"]
            found[f"blk.{layer}.ffn_up.weight"] = (2 * rows, *columns)
    return found


def test_longrope_needs_its_factors() -> None:
    own = {f"phi3.{key}": value for key, value in (METADATA | {RMS: 1e-5}).items()}
    own |= {
        "phi3.rope.scaling.type": "longrope", "phi3.rope.scaling.original_context_length": 128,
    }  # fmt: skip
    infos = {name: Info(shape) for name, shape in wanted_tensors(read_config(PHI3)).items()}
    with pytest.raises(ModelFileError, match=r"^there is no tensor rope_factors_long\.weight"):
        read_gguf({"general.architecture": "phi3", **own}, infos)


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_phi3_with_linear_scaling(key: str) -> None:
    """A file that names no type of scaling."""
    more = {RMS: 1e-5, key: 2.0}
    own = {f"phi3.{name}": value for name, value in (METADATA | more).items()}
    infos = {name: Info(shape) for name, shape in wanted_tensors(read_config(PHI3)).items()}
    (rope,) = read_gguf({"general.architecture": "phi3", **own}, infos).spec.ropes
    assert rope.linear == 2.0
    with pytest.raises(UnsupportedModel, match="type is 'yarn'; supported: none, linear"):
        read_gguf({"general.architecture": "phi3", **own, "phi3.rope.scaling.type": "yarn"}, infos)


def test_gpt2_has_positions_and_no_rotation() -> None:
    spec = read_config(GPT2)
    assert (spec.ropes, spec.learned_positions, spec.norm, spec.tied_head) == (
        (),
        512,
        "layer",
        True,
    )
    mixer = spec.attention_layers[0]
    assert (mixer.rope, mixer.qkv_bias, mixer.output_bias) == (None, True, True)
    assert spec.layers[0].feed_forward == DenseSpec(1024, "gelu_tanh", bias=True, gated=False)
    with pytest.raises(UnsupportedModel, match="learned positions"):
        spec.with_sink_queries()


def test_parts_of_heads_that_are_rotated() -> None:
    """By the names of fields that versions 4 and 5 of Transformers have."""
    (rope,) = read_config(NEOX).ropes
    assert rope == RopeSpec(20000.0, 32)
    fields = {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5}
    assert read_config({**NEOX, "rope_parameters": fields}).ropes == (rope,)
    assert read_config({**GLM4, "partial_rotary_factor": 1.0}).ropes == (rope,)
    assert read_config({**STABLELM, "partial_rotary_factor": 0.5}).ropes == (rope,)
    assert read_config({**PHI3, "partial_rotary_factor": 0.5}).ropes == (rope,)
    assert [read_config(one).ropes[0].dim for one in (STABLELM, GLM4, PHI3)] == [16, 16, 64]


def test_parallel_layers() -> None:
    (layer, _) = read_config(NEOX).layers
    assert (layer.parallel, layer.one_norm) == (True, False)
    (layer, _) = read_config({**STABLELM, "use_parallel_residual": True}).layers
    assert (layer.parallel, layer.one_norm) == (True, True)
    assert not read_config(STABLELM).layers[0].parallel


def test_windows() -> None:
    windows = [
        read_config({**config, "sliding_window": size}).attention_layers[1].window
        for config in (STARCODER2, PHI3)
        for size in (100, None, 0, 512)
    ]
    assert windows == [100, None, None, None] * 2


@pytest.mark.parametrize("kind", ["su", "longrope", "yarn"])
def test_longrope(kind: str) -> None:
    """Which factors hold is for the engine to say; the magnitude is the same."""
    (rope,) = read_config({**PHI3_LONG, "rope_scaling": {**SCALING, "type": kind}}).ropes
    assert (rope.theta, rope.dim, rope.long_after) == (20000.0, 48, 128)
    assert (rope.factors, rope.long_factors) == (tuple(SHORT), tuple(LONG))
    assert rope.magnitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(128)))
    fields = {**SCALING, "rope_theta": 20000.0, "attention_factor": 1.5}
    (new,) = read_config({**PHI3_LONG, "rope_scaling": None, "rope_parameters": fields}).ropes
    assert (new.dim, new.long_factors, new.magnitude) == (48, tuple(LONG), 1.5)


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, UnsupportedModel, "scale_attn_by_inv"),
        ({**GPT2, "is_causal": False}, UnsupportedModel, "is_causal is False"),
        ({**GPT2, "activation_function": "relu"}, UnsupportedModel, "on_function is 'relu'"),
        ({**GPT2, "n_head": 0}, ModelFileError, "n_head is 0"),
        ({**NEOX, "rope_scaling": {"type": "linear"}}, UnsupportedModel, "rope_scaling is"),
        ({**NEOX, "rotary_pct": 0.52}, ModelFileError, "layer 0: 33 of 64 .* cannot be rotated"),
        ({**NEOX, "rotary_pct": 1.5}, ModelFileError, "layer 0: 96 of 64 .* cannot be rotated"),
        ({**STABLELM, "qk_layernorm": True}, UnsupportedModel, "qk_layernorm is True"),
        ({**STARCODER2, "sliding_window": -1}, ModelFileError, "sliding_window is -1"),
        ({**PHI3_LONG, "rope_scaling": {**SCALING, "long_factor": LONG[1:]}}, ModelFileError,
         r"rope_scaling\.long_factor is .*a list of 24 numbers"),
        ({**PHI3_LONG, "rope_scaling": {**SCALING, "short_factor": [0, *SHORT[1:]]}},
         ModelFileError, r"rope_scaling\.short_factor\.0 is 0"),
        ({**PHI3, "rope_scaling": {"type": "linear"}}, UnsupportedModel, r"type is 'linear'"),
        ({**PHI3, "rope_scaling": {"type": "su"}}, ModelFileError, r"short_factor is None"),
        ({**GLM4, "rope_scaling": {"type": "axial"}}, UnsupportedModel, "type is 'axial'"),
    ],
)  # fmt: skip
def test_refused_in_one_line(config: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        read_config(config)
    assert "\n" not in str(refused.value)
