"""LoRA adapters of PEFT on random small models, against PEFT's own logits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
pytest.importorskip("transformers", reason="the oracle extra is not installed")
peft = pytest.importorskip("peft", reason="PEFT is not installed")

from architecture_tools import relative_error, runner_of_plan  # noqa: E402
from conversion_tools import quiet  # noqa: E402
from converted import FOLDER, converted, needs_converter  # noqa: E402
from dense_models import fields_of  # noqa: E402
from llama_cpp_side import logits_of, needs_llama_cpp, rounding_of  # noqa: E402
from random_models import random_of  # noqa: E402
from small_models import HALF_WORST, WORST, exact_logits, tokens_of  # noqa: E402

from mlc_llm.conversion.convert import convert_weight  # noqa: E402
from mlc_llm.model_files.adapters import changes_of, merged, open_adapter, parts_of  # noqa: E402
from mlc_llm.model_files.base import ModelFiles  # noqa: E402
from mlc_llm.model_files.gguf import GGUFModel  # noqa: E402
from mlc_llm.model_files.huggingface import HuggingFaceModel  # noqa: E402
from mlc_llm.models.registry import ROWS, Architecture  # noqa: E402
from mlc_llm.runtime.limits import AdapterLimits  # noqa: E402
from mlc_llm.runtime.model_runner import ModelRunner  # noqa: E402

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # PEFT uses old names of Transformers
]
LIMITS = AdapterLimits(2, 8)
TOKENS = tokens_of(0)
LEAST = 0.01
"""What an adapter changes of the largest logit at least: else it proves nothing."""
OTHERS = (
    *("FalconH1ForCausalLM", "Mamba2ForCausalLM"),  # PEFT itself refuses their `out_proj`
    "RWKV7ForCausalLM",  # Transformers has no such class, so PEFT has no model
    *("MixtralForCausalLM", "OlmoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"),
    *("GPT2LMHeadModel", "Qwen2MoeForCausalLM", "Qwen3_5MoeForCausalLM", "Gemma4ForCausalLM"),
    *(row.config for row in ROWS if row.is_part),
)
"""PEFT warns of what "all-linear" is in the others, or it is more than the matrices of layers."""
EACH = [row for row in ROWS if row.config not in OTHERS]
LLAMAS = [row for row in ROWS if row.config in ("LlamaForCausalLM", "Qwen3ForCausalLM")]


def with_adapter(model: Any, folder: Path, **config: Any) -> Any:
    """The model with a random adapter of all its linear modules, which is saved in a folder."""
    torch.manual_seed(1)
    fields = {"r": 5, "lora_alpha": 7, "target_modules": "all-linear", **config}
    made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **fields))
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if "lora_B" in name:
                weights.copy_(torch.randn_like(weights) * 0.1)
    made.save_pretrained(folder)
    return made.eval()


def adapted(files: ModelFiles, source: Path, folder: Path, kernels: str | None) -> ModelRunner:
    """A runner of the model with the adapter in slot 1."""
    folder.mkdir(exist_ok=True)
    plan = files.plan()
    runner = runner_of_plan(plan, files.tensors, folder, kernels, adapters=LIMITS)
    runner.load_adapter(1, parts_of(plan, changes_of(files, open_adapter(str(source)))))
    return runner


def check(runner: ModelRunner, exact: Any, worst: float = WORST) -> None:
    for chunk in (None, 7):
        found = runner.logits(TOKENS, chunk=chunk, adapter=1)
        assert relative_error(found, exact) <= worst, chunk


@pytest.mark.parametrize("row", EACH, ids=[row.config for row in EACH])
def test_an_adapter_is_that_of_peft(tmp_path: Path, row: Architecture) -> None:
    model = random_of(row.config)
    model.save_pretrained(tmp_path / "model")
    plain = exact_logits(model, TOKENS)
    exact = exact_logits(with_adapter(model, tmp_path / "peft"), TOKENS)
    assert np.abs(exact - plain).max() > LEAST * np.abs(plain).max()
    files = HuggingFaceModel.open(tmp_path / "model")
    check(adapted(files, tmp_path / "peft", tmp_path / "adapted", "reference"), exact)
    both = merged(files, open_adapter(str(tmp_path / "peft")))
    (tmp_path / "merged").mkdir()
    runner = runner_of_plan(both.plan(), both.tensors, tmp_path / "merged", "reference")
    assert relative_error(runner.logits(TOKENS), exact) <= WORST


@pytest.mark.parametrize("kernels", ["portable", None])
@pytest.mark.parametrize("row", LLAMAS, ids=[row.config for row in LLAMAS])
def test_kernels_of_the_processor(tmp_path: Path, row: Architecture, kernels: str | None) -> None:
    model = random_of(row.config)
    model.save_pretrained(tmp_path / "model")
    exact = exact_logits(with_adapter(model, tmp_path / "peft", use_rslora=True), TOKENS)
    files = HuggingFaceModel.open(tmp_path / "model")
    runner = adapted(files, tmp_path / "peft", tmp_path / "adapted", kernels)
    check(runner, exact, HALF_WORST if kernels is None else WORST)


def test_ranks_and_alphas_of_modules(tmp_path: Path) -> None:
    model = random_of("LlamaForCausalLM")
    model.save_pretrained(tmp_path / "model")
    patterns = {
        "rank_pattern": {"v_proj": 3, "layers.1.self_attn.q_proj": 8},
        "alpha_pattern": {"up_proj": 30, "^model.layers.0.mlp.down_proj": 2},
    }
    exact = exact_logits(with_adapter(model, tmp_path / "peft", **patterns), TOKENS)
    files = HuggingFaceModel.open(tmp_path / "model")
    check(adapted(files, tmp_path / "peft", tmp_path / "adapted", "reference"), exact)


@needs_converter
@pytest.mark.parametrize("row", LLAMAS, ids=[row.config for row in LLAMAS])
def test_adapters_and_models_in_gguf_files(tmp_path: Path, row: Architecture) -> None:
    """Both forms of the adapter, on the model that llama.cpp's converter has written."""
    model = random_of(row.config)
    path = converted(model, tmp_path / "model", **fields_of(model))
    exact = exact_logits(with_adapter(model, tmp_path / "peft"), TOKENS)
    files, lora = GGUFModel.open(path), converted_adapter(tmp_path)
    for i, source in enumerate((tmp_path / "peft", lora)):
        check(adapted(files, source, tmp_path / str(i), "reference"), exact)


@needs_converter
@needs_llama_cpp
@pytest.mark.parametrize("row", LLAMAS, ids=[row.config for row in LLAMAS])
def test_llama_cpp_agrees_on_the_merged_file(tmp_path: Path, row: Architecture) -> None:
    model = random_of(row.config)
    path = converted(model, tmp_path / "model", **fields_of(model))
    exact = exact_logits(with_adapter(model, tmp_path / "peft"), TOKENS)
    both = merged(GGUFModel.open(path), open_adapter(str(converted_adapter(tmp_path))))
    convert_weight(both, "f32", tmp_path / "merged.gguf", quiet)
    assert relative_error(logits_of(tmp_path / "merged.gguf", TOKENS), exact) <= rounding_of(
        row.gguf
    )


def converted_adapter(folder: Path) -> Path:
    """The adapter in the folder "peft", of the model in "model", by llama.cpp's converter."""
    script, path = Path(os.environ[FOLDER]) / "convert_lora_to_gguf.py", folder / "lora.gguf"
    command = [sys.executable, str(script), "--base", str(folder / "model"), "--outfile", str(path)]
    done = subprocess.run(
        [*command, str(folder / "peft")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return path
