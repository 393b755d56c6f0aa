"""Whatever a field of a config says: a model opens, or one line says why not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_folders import folder_of

from mlc_llm.errors import MLCError
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.model_files.huggingface import plan_folder
from mlc_llm.models.registry import ARCHITECTURES
from mlc_llm.testing.tiny_model import write_tiny_model

WILD = (None, True, -1, 0, 1, 3, 2.5, 10**30, float("nan"), float("inf"), "x", [], [1], [None], {})
PARTS: Mapping[str, tuple[str, ...]] = {
    "rope_parameters": ("rope_theta", "rope_type", "factor", "partial_rotary_factor"),
    "rope_scaling": ("type", "factor", "original_max_position_embeddings", "low_freq_factor"),
    "quantization_config": ("quant_method", "bits", "weight_block_size", "format", "fmt"),
}
FILLED: Mapping[str, dict[str, Any]] = {
    "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4},
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "quantization_config": {"quant_method": "gptq", "bits": 4},
}
METHODS = ("awq", "compressed-tensors", "fp8", "gptq", "mxfp4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    folder = tmp_path_factory.mktemp("wild")
    made = folder_of(write_tiny_model(folder / "tiny.gguf", kinds={"": "F32"}))
    tensors = {
        name: GGUFTensor(name, one.shape, one.kind, memoryview(one.data), Path("model.safetensors"))
        for name, one in made.tensors.items()
    }
    return made.config, tensors


def check(config: dict[str, Any], tensors: dict[str, GGUFTensor]) -> None:
    try:
        plan_folder(config, tensors)
    except MLCError as error:
        assert "\n" not in str(error) and len(str(error)) < 1200


def test_wild_fields(model: tuple[dict[str, Any], dict[str, GGUFTensor]]) -> None:
    config, tensors = model
    for name in (*config, *PARTS, "model_type", "sliding_window", "layer_types"):
        for value in WILD:
            check({**config, name: value}, tensors)
    for outer, names in PARTS.items():
        for name in names:
            for value in WILD:
                check({**config, outer: {**FILLED[outer], name: value}}, tensors)


@pytest.mark.parametrize("method", METHODS)
def test_quantised_folders_with_plain_matrices(
    model: tuple[dict[str, Any], dict[str, GGUFTensor]], method: str
) -> None:
    config, tensors = model
    for value in WILD:
        how = {"quant_method": method, "config_groups": value, "weight_block_size": value}
        check({**config, "quantization_config": how}, tensors)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_configs_of_other_architectures(
    model: tuple[dict[str, Any], dict[str, GGUFTensor]], architecture: str
) -> None:
    config, tensors = model
    row = ARCHITECTURES[architecture]
    named = {**config, "architectures": None, "model_type": row.model_type}
    check(named, tensors)
    for name in config:
        check({key: value for key, value in named.items() if key != name}, tensors)
