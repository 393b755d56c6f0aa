"""Falcon-H1: what its headers say. The oracle compares its numbers with Transformers'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.models import falcon_h1
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.models.tensor_names import Scaled
from mlc_llm.models.weight_plan import wanted_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 300, "max_position_embeddings": 2**17, "rms_norm_eps": 0.5,
    "tie_word_embeddings": False, "mamba_d_ssm": 192, "mamba_n_heads": 6, "mamba_d_head": 32,
    "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_d_conv": 4, "rope_theta": 1e11,
    "mamba_rms_norm": False, "mamba_norm_before_gate": False,
}  # fmt: skip
MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 5.5, "lm_head_multiplier": 0.25, "attention_in_multiplier": 2.0,
    "key_multiplier": 0.125, "attention_out_multiplier": 1.5, "mlp_multipliers": [0.75, 0.5],
    "ssm_in_multiplier": 2.0, "ssm_out_multiplier": 0.25,
    "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0],
}  # fmt: skip
METADATA: dict[str, Any] = {
    "block_count": 2, "context_length": 2**17, "embedding_length": 64, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32,
    "attention.layer_norm_rms_epsilon": 0.5, "rope.freq_base": 1e11,
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.inner_size": 192,
    "ssm.time_step_rank": 6,
}  # fmt: skip


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: str = "F32"


def of_gguf(config: dict[str, Any], **changes: Any) -> Any:
    """The spec of a file whose tensors are those of a `config.json`."""
    names = wanted_tensors(read_config(config))
    found = {n.replace("ffn_norm.weight", "ffn_norm"): Tensor(s) for n, s in names.items()}
    own = {f"falcon-h1.{key}": value for key, value in (METADATA | changes).items()}
    metadata = {"general.architecture": "falcon-h1", **own}
    return replace(read_gguf(metadata, found).spec, kinds={})


@pytest.mark.parametrize("has_norm", [False, True])
def test_both_mixers_of_a_layer(has_norm: bool) -> None:
    config = {**CONFIG, "mamba_rms_norm": has_norm}
    spec = read_config(config)
    assert of_gguf(config) == spec
    layer = spec.layers[0]
    assert isinstance(layer.mixer, AttentionSpec) and layer.feed_forward == DenseSpec(96)
    assert layer.beside == Mamba2Spec(6, 32, 16, 2, 4, norm=has_norm)
    assert [*spec.attention_layers] == [*spec.recurrent_layers] == [0, 1]
    assert spec.ropes[0].theta == 1e11


def test_multipliers_of_a_folder() -> None:
    spec, plain = read_config({**CONFIG, **MULTIPLIERS}), read_config(CONFIG)
    assert spec.embedding_scale == 5.5 and spec.logit_scale == 0.25
    scores = [one.layers[0].mixer.scale for one in (spec, plain)]
    assert scores[0] == scores[1] * 2.0**2 * 0.125
    assert falcon_h1.config_names(CONFIG) == falcon_h1.HF_NAMES
    origins = falcon_h1.config_names({**CONFIG, **MULTIPLIERS}).origins
    changed = {n: one for n, one in origins.items() if isinstance(one, Scaled)}
    names = ("ffn_gate", "ffn_down", "attn_output", "ssm_out")
    found = [changed[f"blk.{{i}}.{name}.weight"].factors for name in names]
    assert found == [(0.75,), (0.5,), (3.0,), (0.25,)]
    parts = changed["blk.{i}.ssm_in.weight"]
    assert parts.factors == (2.0, 4.0, 6.0, 8.0, 10.0)
    assert parts.rows == (192, 192, 32, 32, 6) and len(changed) == 5


class Floats(NamedTuple):
    name: str
    shape: tuple[int, ...]
    data: Any
    kind: str = "F32"


def test_rows_are_multiplied_when_they_are_read() -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    tensor: Any = Floats("own.weight", (4, 3), values.reshape(-1).view(np.uint8))
    names = replace(
        falcon_h1.HF_NAMES, origins={"a.weight": Scaled("own.weight", (2.0, -0.5), (3, 1))}
    )
    found = named_tensors({"a.weight": (4, 3)}, names, {"own.weight": tensor})["a.weight"]
    assert found.kind == "F32"
    read = found.data.view(np.float32).reshape(4, 3)
    assert (read == values * np.float32([[2], [2], [2], [-0.5]])).all()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention_bias", True, "attention_bias is True"),
        ("projectors_bias", True, "projectors_bias is True"),
        ("mamba_conv_bias", False, "mamba_conv_bias is False"),
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("mamba_norm_before_gate", True, "mamba_norm_before_gate is True"),
        ("time_step_limit", [0.0, 0.1], "time_step_limit is"),
    ],
)
def test_what_is_not_computed_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_config({**CONFIG, "mamba_rms_norm": True, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("mamba_n_heads", 7), ("mamba_d_head", 16), ("ssm_multipliers", [1.0]), ("key_multiplier", 0)],
)
def test_fields_that_are_wrong(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=key):
        read_config({**CONFIG, key: value})
        falcon_h1.config_names({**CONFIG, key: value})
