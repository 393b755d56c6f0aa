"""Mamba 2: what its headers say. The oracle compares its numbers with Transformers'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.network_spec import NO_NETWORK
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.models.spec import KVGroup, LayerSpec
from mlc_llm.models.weight_plan import wanted_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64,
    "vocab_size": 300, "layer_norm_epsilon": 0.5, "tie_word_embeddings": True, "num_heads": 4,
    "head_dim": 32, "state_size": 16, "n_groups": 2, "conv_kernel": 4, "expand": 2,
    "time_step_limit": [0.0, float("inf")],
}  # fmt: skip
METADATA: dict[str, Any] = {
    "block_count": 3, "context_length": 2**20, "embedding_length": 64, "feed_forward_length": 0,
    "attention.head_count": 0, "attention.layer_norm_rms_epsilon": 0.5, "ssm.conv_kernel": 4,
    "ssm.state_size": 16, "ssm.group_count": 2, "ssm.inner_size": 128, "ssm.time_step_rank": 4,
}  # fmt: skip


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: str = "F32"


def of_gguf(config: dict[str, Any], **changes: Any) -> Any:
    """The spec of a file whose tensors are those of a `config.json`."""
    names = wanted_tensors(read_config(config))
    own = {f"mamba2.{key}": value for key, value in (METADATA | changes).items()}
    metadata = {"general.architecture": "mamba2", **own}
    return replace(read_gguf(metadata, {n: Tensor(s) for n, s in names.items()}).spec, kinds={})


@pytest.mark.parametrize("tied", [False, True])
def test_layers_are_states_alone(tied: bool) -> None:
    config = {**CONFIG, "tie_word_embeddings": tied}
    spec = read_config(config)
    assert of_gguf(config) == spec
    assert spec.layers == (LayerSpec(Mamba2Spec(4, 32, 16, 2, 4), NO_NETWORK),) * 3
    assert spec.context_window == 2**20 and spec.tied_head is tied
    assert spec.kv_groups == (KVGroup((), 0, 0, 0, None),) and not spec.paged_layers
    assert not any("ffn" in name for name in wanted_tensors(spec))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("use_bias", True, "use_bias is True"),
        ("use_conv_bias", False, "use_conv_bias is False"),
        ("time_step_limit", [0.0, 0.1], "time_step_limit is"),
        ("conv_kernel", 1, "a convolution over 1 token"),
    ],
)
def test_what_is_not_computed_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_config({**CONFIG, key: value})


@pytest.mark.parametrize(("key", "value"), [("num_heads", 3), ("head_dim", 16), ("n_groups", 3)])
def test_sizes_that_contradict_each_other(key: str, value: int) -> None:
    with pytest.raises(ModelFileError, match=r"num_heads|groups evenly"):
        read_config({**CONFIG, key: value})


def test_a_file_without_an_embedding() -> None:
    own = {f"mamba2.{key}": value for key, value in METADATA.items()}
    with pytest.raises(ModelFileError, match=r"no tensor token_embd\.weight"):
        read_gguf({"general.architecture": "mamba2", **own}, {})
