"""A Llama's header: every number is checked before anything is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.errors import MLCError, ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.testing.tiny_model import write_tiny_model


@dataclass(frozen=True)
class Info:
    shape: tuple[int, ...]
    kind: str


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Info]]:
    path: Path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_model(path)
    gguf = GGUFFile.open(path)
    tensors = {name: Info(t.shape, t.kind) for name, t in gguf.tensors.items()}
    return dict(gguf.metadata), tensors


COUNTS = (
    "embedding_length", "attention.head_count", "attention.head_count_kv", "block_count",
    "feed_forward_length", "context_length", "attention.key_length",
)  # fmt: skip
NUMBERS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")


@pytest.mark.parametrize("value", [0, -1, 1.5, 2**31, 2**63, float("nan"), "2", True, None])
@pytest.mark.parametrize("key", COUNTS)
def test_counts(header: Any, key: str, value: Any) -> None:
    metadata, tensors = header
    with pytest.raises(ModelFileError, match=f"llama.{key}"):
        read_gguf({**metadata, f"llama.{key}": value}, tensors)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1e-5", True])
@pytest.mark.parametrize("key", NUMBERS)
def test_numbers(header: Any, key: str, value: Any) -> None:
    metadata, tensors = header
    with pytest.raises(ModelFileError, match=f"llama.{key}"):
        read_gguf({**metadata, f"llama.{key}": value}, tensors)


def test_more_layers_than_tensors(header: Any) -> None:
    metadata, tensors = header
    with pytest.raises(ModelFileError, match=r"block_count is 2147483647; the file has"):
        read_gguf({**metadata, "llama.block_count": 2**31 - 1}, tensors)


def test_a_tensor_too_many_or_missing(header: Any) -> None:
    metadata, tensors = header
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_rot\.weight"):
        read_gguf(metadata, {**tensors, "blk.0.attn_rot.weight": Info((64,), "F32")})
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_k\.bias"):
        read_gguf(metadata, {**tensors, "blk.0.attn_q.bias": Info((64,), "F32")})
    fewer = {name: info for name, info in tensors.items() if name != "blk.1.ffn_up.weight"}
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight"):
        read_gguf(metadata, fewer)


def test_wrong_shapes_and_scalings(header: Any) -> None:
    metadata, tensors = header
    wrong = {**tensors, "blk.0.ffn_down.weight": Info((64, 64), "Q4_0")}
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_down\.weight has shape"):
        read_gguf(metadata, wrong)
    with pytest.raises(UnsupportedModel, match="dynamic"):
        read_gguf({**metadata, "llama.rope.scaling.type": "dynamic"}, tensors)


@pytest.mark.parametrize("name", ["rwkv9", "", 7, None])
def test_other_architectures(header: Any, name: Any) -> None:
    metadata, tensors = header
    with pytest.raises(MLCError, match=r"supported: .*llama"):
        read_gguf({**metadata, "general.architecture": name}, tensors)
