"""Models in folders whose matrices are of one type each, against the reference kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from architecture_tools import CHUNKS, TOKENS, relative_error, runner_of_plan
from conversion_tools import convert
from tiny_folders import Folder, Stored, folder_of

from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.mlc import MLCModel
from mlc_llm.quantization.float8 import E4M3
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

SHAPE = TinyShape(layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=512)
GROUP = 64
WORST = {"portable": 3e-5, None: 3e-3}
"""Of the largest logit. This machine's kernels have activations of 16 bits."""


def mlc(name: str) -> Callable[[Path, Path], ModelFiles]:
    def opened(gguf: Path, folder: Path) -> ModelFiles:
        convert(GGUFModel.open(gguf), name, folder)
        return MLCModel.open(folder)

    return opened


def gptq(gguf: Path, folder: Path) -> ModelFiles:
    """Every matrix of a layer with 4 bits, and zeros of its own in each group."""
    made = folder_of(gguf)
    made.config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    for name in [name for name in made.tensors if "_proj." in name]:
        quantize(made, name.removesuffix(".weight"))
    return HuggingFaceModel.open(made.write(folder))


def float8(gguf: Path, folder: Path) -> ModelFiles:
    """Every matrix of a layer in 8-bit floats, a scale for each 64 x 64 of them."""
    made = folder_of(gguf)
    made.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    for name in [name for name in made.tensors if "_proj." in name]:
        one = made.tensors[name]
        rows, columns = one.shape
        values = one.data.view(np.float32).reshape(rows // 64, 64, columns // 64, 64)
        scale = (np.abs(values).max(axis=(1, 3)) / 448).astype(np.float32)
        numbers = (values / scale[:, None, :, None]).reshape(rows, columns)
        byte = np.searchsorted(E4M3[:127], np.abs(numbers)).clip(0, 126)  # these grow
        byte = (byte | np.where(numbers < 0, 128, 0)).astype(np.uint8)
        made.tensors[name] = stored("F8_E4M3", byte)
        made.tensors[f"{name}_scale_inv"] = stored("F32", scale)
    return HuggingFaceModel.open(made.write(folder))


def quantize(folder: Folder, stem: str) -> None:
    one = folder.tensors.pop(f"{stem}.weight")
    groups = one.data.view(np.float32).reshape(one.shape[0], -1, GROUP)
    low, high = groups.min(axis=2), groups.max(axis=2)
    scale = ((high - low) / 15).astype(np.float16)
    zero = np.clip(np.rint(-low / scale.astype(np.float32)), 1, 15)
    q = np.rint(groups / scale[:, :, None].astype(np.float32) + zero[:, :, None]).clip(0, 15)
    folder.tensors |= {
        f"{stem}.qweight": stored("I32", words(q.reshape(one.shape)).T),
        f"{stem}.qzeros": stored("I32", words(zero.T - 1)),
        f"{stem}.scales": stored("F16", scale.T),
    }


def words(q: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Eight neighbours in a word, the first one in the lowest bits."""
    eight = q.astype(np.uint32).reshape(len(q), -1, 8)
    return np.bitwise_or.reduce(eight << (4 * np.arange(8, dtype=np.uint32)), axis=2)


def stored(kind: str, values: npt.NDArray[np.generic]) -> Stored:
    return Stored(kind, values.shape, np.frombuffer(values.tobytes(), np.uint8))


CASES = {
    "q4f16_1": (mlc("q4f16_1"), "q4f16"),
    "q4f16_0": (mlc("q4f16_0"), "q4f16"),
    "q4bf16_1": (mlc("q4bf16_1"), "q4bf16"),
    "q4f32_1": (mlc("q4f32_1"), "q4f32"),
    "q0f16": (mlc("q0f16"), "F16"),
    "gptq": (gptq, "zero_point4"),
    "fp8": (float8, "float8_e4m3"),
}
QUICK = ("q4f16_1", "gptq")


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    "kernels", [pytest.param(None, marks=pytest.mark.slow), "portable"], ids=["machine", "portable"]
)
@pytest.mark.parametrize(
    "case", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in CASES]
)
def test_logits_are_those_of_the_reference_kernels(
    case: str, kernels: str | None, tmp_path: Path
) -> None:
    opened, kind = CASES[case]
    gguf = write_tiny_model(tmp_path / "tiny.gguf", kinds={"": "F32"}, shape=SHAPE)
    files = opened(gguf, tmp_path / "folder")
    plan = files.plan()
    assert plan.spec.kinds["layers.1.qkv.q_k_v"] == plan.spec.kinds["layers.0.down"] == kind
    reference = runner_of_plan(plan, files.tensors, tmp_path, "reference")
    exact = reference.logits(TOKENS).astype(np.float64)
    runner = runner_of_plan(plan, files.tensors, tmp_path, kernels)
    for chunk in CHUNKS:
        assert relative_error(runner.logits(TOKENS, chunk=chunk), exact) <= WORST[kernels], chunk
