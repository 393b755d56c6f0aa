"""One adapter on a folder and on the GGUF file of it: the rows of some files stand in another
order,
or are joined."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from architecture_tools import TOKENS, relative_error, runner_of_plan
from conversion_tools import quiet
from random_folders import CONFIGS, RANK, write_adapter, write_random

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import UserError
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.adapters import changes_of, merged, open_adapter, parts_of
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.runtime.limits import AdapterLimits

REORDERED = (
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "SmolLM3ForCausalLM",
    "GraniteMoeHybridForCausalLM",
)  # fmt: skip
JOINED = ("Glm4ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel")
"""Their files have matrices as one that others have apart."""
EACH = (*REORDERED, *JOINED, "Lfm2ForCausalLM", "Mamba2ForCausalLM")
WORST = 1e-4
"""Largest difference of a logit, relative to the largest one."""


class Model:
    """A folder, the GGUF file that is made of it, and an adapter."""

    def __init__(self, path: Path, name: str) -> None:
        folder = write_random(path / "folder", name)
        self.path, self.folder = path, HuggingFaceModel.open(folder)
        made = convert_weight(self.folder, "f32", path / "model.gguf", quiet)
        self.file = GGUFModel.open(made.path)
        self.adapter = open_adapter(str(write_adapter(path / "peft", folder)))

    def logits(self, files: ModelFiles, name: str, *, adapted: bool) -> npt.NDArray[np.float64]:
        folder = self.path / name
        folder.mkdir()
        limits = AdapterLimits(1, 8)
        runner = runner_of_plan(files.plan(), files.tensors, folder, "reference", adapters=limits)
        if not adapted:
            return runner.logits(TOKENS).astype(np.float64)
        runner.load_adapter(0, parts_of(files.plan(), changes_of(files, self.adapter)))
        return runner.logits(TOKENS, adapter=0).astype(np.float64)


def weights(path: Path) -> Mapping[str, npt.NDArray[np.float32]]:
    return {
        name: dequantize(one.kind, one.data, one.shape)
        for name, one in GGUFFile.open(path).tensors.items()
    }


@pytest.mark.parametrize("name", EACH)
def test_a_merged_file_is_that_of_the_merged_folder(tmp_path: Path, name: str) -> None:
    model = Model(tmp_path, name)
    for files in (model.folder, model.file):
        path = tmp_path / f"{type(files).__name__}.gguf"
        convert_weight(merged(files, model.adapter), "f32", path, quiet)
    expected = weights(tmp_path / "HuggingFaceModel.gguf")
    found = weights(tmp_path / "GGUFModel.gguf")
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_an_adapter_does_the_same_to_both(tmp_path: Path, name: str) -> None:
    model = Model(tmp_path, name)
    expected = model.logits(model.folder, "of-folder", adapted=True)
    found = model.logits(model.file, "of-file", adapted=True)
    assert relative_error(found.astype(np.float32), expected) <= WORST
    plain = model.logits(model.file, "plain", adapted=False)
    assert relative_error(plain.astype(np.float32), expected) > 0.1, "it proves nothing"


@pytest.mark.parametrize("name", ["Glm4ForCausalLM", "Phi3ForCausalLM"])
def test_an_adapter_of_a_fused_network_alone(tmp_path: Path, name: str) -> None:
    model = Model(tmp_path, name)
    adapter = write_adapter(tmp_path / "network", model.folder.path, lambda one: "mlp" in one)
    changes = changes_of(model.file, open_adapter(str(adapter)))
    assert {one.split(".")[2] for one in changes} == {"ffn_up", "ffn_down"}
    assert changes["blk.1.ffn_up.weight"].up.shape == (192, RANK)


def test_a_fused_network_of_another_size_is_refused(tmp_path: Path) -> None:
    model, small = Model(tmp_path, "Phi3ForCausalLM"), CONFIGS["Phi3ForCausalLM"]
    other = write_random(tmp_path / "other", "Phi3ForCausalLM", small | {"intermediate_size": 64})
    adapter = write_adapter(tmp_path / "narrow", other, lambda one: one.endswith("gate_up_proj"))
    with pytest.raises(UserError, match=r"has shape \(128, 5\), this model needs \(192, 5\)"):
        changes_of(model.file, open_adapter(str(adapter)))
