"""Rotary embeddings that a user scales: those that a config.json with the same fields has."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.errors import InvalidField, UnsupportedModel
from mlc_llm.models.registry import read_config
from mlc_llm.models.rope_scaling import rescaled

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "hidden_act": "silu", "rope_theta": 1e4,
}  # fmt: skip
LLAMA = {**SIZES, "architectures": ["LlamaForCausalLM"]}
GEMMA = {**SIZES, "architectures": ["Gemma3ForCausalLM"], "sliding_window": 32}
PHI = {**SIZES, "architectures": ["Phi3ForCausalLM"]}
DIVISORS = [1.0 + i for i in range(8)]
LONG: dict[str, Any] = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8}
CASES: list[tuple[dict[str, Any], int]] = [
    ({"rope_type": "linear", "factor": 2.0}, 512),
    ({"rope_type": "yarn", "factor": 4.0}, 1024),
    ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
      "beta_fast": 16.0, "attention_factor": 1.25}, 512),
    ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 1024),
    ({"rope_type": "yarn", "factor": 1.0}, 256),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "context"), CASES, ids=str)
def test_the_ropes_are_those_of_a_config(fields: dict[str, Any], context: int) -> None:
    spec = rescaled(read_config(LLAMA), fields)
    assert spec.ropes == read_config({**LLAMA, "rope_scaling": fields}).ropes
    assert spec.context_window == context
    again = rescaled(spec, {"rope_type": "linear", "factor": 3.0})
    assert again.ropes == rescaled(read_config(LLAMA), {"rope_type": "linear", "factor": 3.0}).ropes


def test_the_older_name_of_the_type() -> None:
    for named in ({"type": "yarn"}, {"type": "yarn", "rope_type": "yarn"}):
        fields = {**named, "factor": 4.0}
        assert rescaled(read_config(LLAMA), fields) == rescaled(
            read_config(LLAMA), {"rope_type": "yarn", "factor": 4.0}
        )
    with pytest.raises(InvalidField, match="type"):
        rescaled(read_config(LLAMA), {"type": "yarn", "rope_type": "linear", "factor": 4.0})


def test_long_rope() -> None:
    fields = {**LONG, "long_factor": DIVISORS, "original_max_position_embeddings": 128}
    spec = rescaled(read_config(LLAMA), fields)
    said = {"rope_scaling": fields, "original_max_position_embeddings": 128}
    assert spec.ropes == read_config({**PHI, **said}).ropes
    assert spec.ropes[0].long_after == 128 and spec.context_window == 512


def test_layers_with_a_window_stay() -> None:
    plain = read_config(GEMMA)
    spec = rescaled(plain, {"rope_type": "yarn", "factor": 4.0})
    assert spec.ropes[1] == plain.ropes[1] and spec.ropes[0] != plain.ropes[0]
    assert spec.layers == plain.layers


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, r"rope_scaling\.rope_type = None .*one of linear, llama3, yarn, longrope"),
        ({"rope_type": "ntk", "factor": 2.0}, "rope_type = 'ntk'"),
        ({"rope_type": "yarn"}, r"rope_scaling\.factor = None .*1 to 1024"),
        ({"rope_type": "yarn", "factor": 0.5}, r"factor = 0\.5"),
        ({"rope_type": "yarn", "factor": True}, "factor = True"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3}, "beta_fast = 3 .*linear has"),
        (
            {"rope_type": "llama3", "factor": 2.0},
            "low_freq_factor is None",
        ),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": "x"}, "beta_fast is 'x'"),
        ({**LONG, "long_factor": [1.0]}, "rope_scaling.long_factor is"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidField, match=word):
        rescaled(read_config(LLAMA), fields)


def test_models_without_such_an_embedding_are_refused() -> None:
    config = {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 1, "n_head": 2,
        "n_positions": 32, "vocab_size": 300, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    }  # fmt: skip
    with pytest.raises(UnsupportedModel, match="rope_scaling: no layer"):
        rescaled(read_config(config), {"rope_type": "yarn", "factor": 4.0})
