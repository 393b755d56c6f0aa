"""llama.cpp as a second oracle: it runs the GGUF files that its own converter writes of random
models, files of each tensor type, and those that we convert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the oracle extra is not installed")
pytest.importorskip("torch", reason="the oracle extra is not installed")

import test_gemma4
from agreement import Agreement
from architecture_tools import relative_error, runner_of
from conversion_tools import quiet, tiny_gguf
from converted import converted
from dense_models import fields_of
from ggml_types import SIZES, dequantized, quantized, traits
from llama_cpp_side import logits_of, needs_llama_cpp, rounding_of
from ours import greedy
from random_models import granite_hybrid, random_of

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.models.registry import ROWS, Architecture
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_llama_cpp]
TOKENS = np.random.default_rng(0).integers(0, 256, 120).tolist()
PROMPT, ANSWER = 30, 64
WORST = 1e-4
"""Of the largest logit, where llama.cpp computes in float32."""
HALF_WORST = 5e-3
"""The same of our kernels that keep keys and values in float16."""
ROUNDED = 0.1
"""Of llama.cpp, which rounds activations to 8 bits beside quantised weights."""
OF_FILES = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "intermediate": 512}
"""Sizes that have whole blocks of every type."""
KL, SAME = 2e-2, 0.9
"""Mean divergence in nats, and share of tokens, on a trained model: both round activations."""
GEMMA_4 = [kind for kind in test_gemma4.KINDS if kind != "shared keys and values"]
"""llama.cpp shares them only if the last layer that has its own has no window, as in "all"."""
CONVERTED = ("q4_0", "q4_1", "q8_0", "q4_k", "q6_k")


@pytest.mark.parametrize("row", ROWS, ids=[row.config for row in ROWS])
def test_logits_and_greedy_text_equal_those_of_llama_cpp(tmp_path: Path, row: Architecture) -> None:
    check_model(random_of(row.config), tmp_path, rounding_of(row.gguf))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_state_spaces_equal_those_of_llama_cpp(tmp_path: Path, kind: str, seed: int) -> None:
    check_model(granite_hybrid(kind, seed), tmp_path, WORST)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", GEMMA_4)
def test_layers_of_gemma_4_equal_those_of_llama_cpp(tmp_path: Path, kind: str, seed: int) -> None:
    check_model(test_gemma4.made(kind, seed), tmp_path, rounding_of("gemma4"))


def check_model(model: Any, folder: Path, rounding: float) -> None:
    """rounding: of llama.cpp, as a part of the largest logit."""
    path = converted(model, folder, **fields_of(model))
    runner = runner_of(path, folder, "reference")
    answer = greedy(runner, TOKENS[:PROMPT], ANSWER)
    exact = logits_of(path, TOKENS)
    assert relative_error(runner.logits(TOKENS), exact) <= rounding
    theirs = logits_of(path, TOKENS[:PROMPT] + answer)
    for given, scores in zip(answer, theirs[PROMPT - 1 :], strict=False):
        assert scores.max() - scores[given] <= 2 * rounding * np.abs(theirs).max()


@pytest.mark.parametrize("kind", SIZES)
def test_blocks_are_read_as_ggml_reads_them(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((16, 512), np.float32)
    assert (traits(kind).block_values, traits(kind).block_bytes) == SIZES[kind]
    data = quantized(values, kind)
    theirs = dequantized(data, kind, values.shape)
    ours = dequantize(kind, np.frombuffer(data, np.uint8), values.shape)
    assert np.array_equal(ours, theirs)
    assert np.corrcoef(ours.ravel(), values.ravel())[0, 1] > 0.6


@pytest.mark.parametrize("kind", SIZES)
def test_files_of_each_tensor_type_equal_llama_cpp(tmp_path: Path, kind: str) -> None:
    file, made = tiny_gguf(tmp_path / "plain.gguf", **OF_FILES).file, {}
    for name, tensor in file.tensors.items():
        values = dequantize(tensor.kind, tensor.data, tensor.shape)
        made[name] = TensorData(values.shape, "F32", values.tobytes())
        if values.ndim == 2:
            made[name] = TensorData(values.shape, kind, quantized(values, kind))
    write_gguf(tmp_path / "blocks.gguf", file.metadata, made)
    check_blocks(tmp_path / "blocks.gguf", tmp_path)


@pytest.mark.parametrize("name", CONVERTED)
def test_files_that_we_convert_run_in_llama_cpp(tmp_path: Path, name: str) -> None:
    path = tmp_path / "converted.gguf"
    convert_weight(tiny_gguf(tmp_path / "plain.gguf", **OF_FILES), name, path, quiet)
    kinds = {one.kind for one in GGUFFile.open(path).tensors.values()}
    assert kinds == {name.upper(), "F32"}
    check_blocks(path, tmp_path)


def check_blocks(path: Path, folder: Path) -> None:
    """Our kernels read the blocks, and llama.cpp the numbers that ggml makes of them. llama.cpp
    runs the blocks too."""
    exact = logits_of(written_as_floats(path, folder / "floats.gguf"), TOKENS)
    assert relative_error(runner_of(path, folder, "reference").logits(TOKENS), exact) <= WORST
    assert relative_error(runner_of(path, folder, None).logits(TOKENS), exact) <= HALF_WORST
    assert relative_error(logits_of(path, TOKENS).astype(np.float32), exact) <= ROUNDED


def written_as_floats(path: Path, floats: Path) -> Path:
    file, made = GGUFFile.open(path), {}
    for name, tensor in file.tensors.items():
        values = dequantized(tensor.data.tobytes(), tensor.kind, tensor.shape)
        made[name] = TensorData(tensor.shape, "F32", values.tobytes())
    write_gguf(floats, file.metadata, made)
    return floats


@pytest.mark.model
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0"])
def test_the_default_model_converted_is_the_same_in_llama_cpp(
    tmp_path: Path, default_model: Path, name: str
) -> None:
    """The text is our answer to a prompt."""
    path, model = tmp_path / "converted.gguf", GGUFModel.open(default_model)
    convert_weight(model, name, path, quiet)
    prompt = model.tokenizer().encode("The history of the lighthouse begins")
    runner = runner_of(path, tmp_path, None)
    answer = greedy(runner, prompt, ANSWER)
    theirs = logits_of(path, prompt + answer)
    found = Agreement.of(theirs, runner.logits(prompt + answer))
    assert found.kl.mean() <= KL
    best = theirs[len(prompt) - 1 : -1].argmax(axis=1)
    assert np.mean(best == answer) >= SAME
