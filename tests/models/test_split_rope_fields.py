"""Rotary fields that stand partly at the top of a `config.json` and partly in an object, read as
the configuration classes of Transformers 5.24 merge them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.registry import read_config

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "hidden_act": "silu",
}  # fmt: skip
LLAMA = {**SIZES, "model_type": "llama"}
STABLELM = {**SIZES, "model_type": "stablelm", "layer_norm_eps": 1e-5}
MIXTRAL = {
    **SIZES, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
NEOX = {**SIZES, "model_type": "gpt_neox", "hidden_act": "gelu", "layer_norm_eps": 1e-5}
PHI = {**SIZES, "model_type": "phi3"}
GEMMA = {**SIZES, "model_type": "gemma3_text", "sliding_window": 32}
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)],
}  # fmt: skip
TRAINED = "original_max_position_embeddings"


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_base_may_stand_outside(key: str) -> None:
    (rope,) = read_config({**LLAMA, "rope_theta": 5e5, key: LINEAR}).ropes
    assert rope == RopeSpec(5e5, 16, linear=2.0)
    (rope,) = read_config({**LLAMA, "rope_theta": 5e5, key: {**LINEAR, "rope_theta": 7e5}}).ropes
    assert rope.theta == 7e5
    assert read_config({**MIXTRAL, key: LINEAR}).ropes == (RopeSpec(1e6, 16, linear=2.0),)


def test_the_older_name_wins() -> None:
    new = {"rope_type": "default", "rope_theta": 5e5}
    both = {**LLAMA, "rope_parameters": new, "rope_scaling": LINEAR}
    assert read_config(both).ropes == (RopeSpec(1e4, 16, linear=2.0),)
    for none in (None, {}):
        (rope,) = read_config({**both, "rope_scaling": none}).ropes
        assert rope == RopeSpec(5e5, 16)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("scaling", [YARN, LLAMA3, LONG], ids=["yarn", "llama3", "longrope"])
def test_the_first_training_may_stand_outside_and_wins(key: str, scaling: dict[str, Any]) -> None:
    expected = read_config({**LLAMA, key: {**scaling, TRAINED: 64}}).ropes
    for inner in (scaling, {**scaling, TRAINED: 9000}):
        assert read_config({**LLAMA, TRAINED: 64, key: inner}).ropes == expected
    assert read_config({**LLAMA, key: {**scaling, TRAINED: 9000}}).ropes != expected
    assert read_config({**LLAMA, key: scaling}) == read_config(
        {**LLAMA, key: {**scaling, TRAINED: 256}}
    )
    with pytest.raises(ModelFileError, match=f"^{TRAINED} is 0"):
        read_config({**LLAMA, TRAINED: 0, key: scaling})


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_part_that_is_rotated_may_stand_outside(key: str) -> None:
    (rope,) = read_config({**STABLELM, "partial_rotary_factor": 0.5, key: LINEAR}).ropes
    assert rope == RopeSpec(1e4, 8, linear=2.0)
    inner = {**LINEAR, "partial_rotary_factor": 1.0}
    (rope,) = read_config({**STABLELM, "partial_rotary_factor": 0.5, key: inner}).ropes
    assert rope.dim == 16
    for config in (LLAMA, GEMMA):
        with pytest.raises(UnsupportedModel, match=r"^partial_rotary_factor is 0\.5"):
            read_config({**config, "partial_rotary_factor": 0.5, "rope_scaling": LINEAR})


def test_longrope_has_two_lists_of_divisors() -> None:
    """How long texts may be, by the first training, is a factor that may be stated instead."""
    (rope,) = read_config({**LLAMA, "rope_scaling": {**LONG, TRAINED: 64}}).ropes
    assert rope == RopeSpec(
        1e4, 16, factors=(1.0,) * 8, long_factors=tuple(LONG["long_factor"]), long_after=64,
        magnitude=(1 + math.log(256 / 64) / math.log(64)) ** 0.5,
    )  # fmt: skip
    for name, value in (("factor", 16.0), ("attention_factor", 3.0)):
        stated = {**LONG, TRAINED: 64, name: value}
        found = read_config({**LLAMA, "rope_scaling": stated}).ropes[0].magnitude
        assert found == ((1 + math.log(16) / math.log(64)) ** 0.5 if name == "factor" else 3.0)
    whole, local = read_config({**GEMMA, "rope_scaling": LONG}).ropes
    assert (whole.long_after, whole.magnitude, local) == (256, 1.0, RopeSpec(1e4, 16))
    with pytest.raises(ModelFileError, match=r"short_factor is .*a list of 8 numbers above 0"):
        read_config({**LLAMA, "rope_scaling": {**LONG, "short_factor": [1.0] * 7}})
    for config in (LLAMA, PHI):
        with pytest.raises(ModelFileError, match=f"{TRAINED} is 1; a whole number above 1"):
            read_config({**config, TRAINED: 1, "rope_scaling": LONG})


def test_a_dynamic_rotation_is_the_usual_one_within_the_context() -> None:
    """Transformers changes it where a text is longer than `max_position_embeddings`."""
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    assert read_config({**LLAMA, "rope_scaling": dynamic}) == read_config(LLAMA)


def test_a_neox_has_names_of_its_own() -> None:
    named = {**NEOX, "rotary_emb_base": 2e4, "rotary_pct": 0.5}
    assert read_config({**named, "rope_parameters": LINEAR}).ropes == (
        RopeSpec(2e4, 8, linear=2.0),
    )
    plain = {"rope_type": "default"}
    assert read_config({**NEOX, "rope_theta": 5e5, "rope_parameters": plain}).ropes == (
        RopeSpec(1e4, 4),
    )


def test_fields_of_two_kinds_of_layers() -> None:
    kinds: dict[str, Any] = {"full_attention": LINEAR, "sliding_attention": {}}
    split = {**GEMMA, "rope_parameters": kinds, "rope_theta": 5e5, "rope_local_base_freq": 2e4}
    assert read_config(split).ropes == (RopeSpec(5e5, 16, linear=2.0), RopeSpec(2e4, 16))
    more = {**split, "rope_scaling": {"factor": 8.0}}
    assert read_config(more).ropes == (RopeSpec(5e5, 16, linear=8.0), RopeSpec(2e4, 16))
    with pytest.raises(ModelFileError, match="rope_scaling is 'x'; an object"):
        read_config({**split, "rope_scaling": "x"})


def test_a_gpt_oss_without_fields_has_those_of_its_class() -> None:
    config = {
        **SIZES, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    fields = {**YARN, "factor": 32.0, TRAINED: 4096, "truncate": False}
    assert read_config(config).ropes == read_config({**config, "rope_scaling": fields}).ropes
    assert read_config({**config, "rope_scaling": LINEAR}).ropes[0].linear == 2.0
    assert read_config({**config, "rope_parameters": None}) == read_config(config)
    (plain,) = read_config({**config, "rope_parameters": {}}).ropes
    assert plain == RopeSpec(150_000.0, 16)
