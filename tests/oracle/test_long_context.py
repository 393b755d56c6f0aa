"""Long texts as Transformers: a needle in them, and rotary embeddings that are scaled for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
torch = pytest.importorskip("torch", reason="the oracle extra is not installed")

from architecture_tools import relative_error, runner_of_plan  # noqa: E402
from ours import greedy, open_runner  # noqa: E402
from retrieval_model import (  # noqa: E402
    expected,
    prompt,
    transformers_config,
    weights,
    write_retrieval_model,
)
from small_models import WORST, randomized, sizes  # noqa: E402
from tiny_folders import tokenizer_files  # noqa: E402

from mlc_llm.library.page_format import KVCacheDtype  # noqa: E402
from mlc_llm.runtime.model_runner import ModelRunner  # noqa: E402
from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.serve.opening.bundle import open_model  # noqa: E402

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.past_key_values:FutureWarning"),  # newer versions say cache
]
STEP = 512
"""Tokens of a text that Transformers computes at once: its scores of all would not fit."""


def opened(path: Path, tokens: int, kv_cache: KVCacheDtype) -> ModelRunner:
    config = EngineConfig(
        max_num_sequence=1,
        max_total_sequence_length=tokens,
        max_single_sequence_length=tokens,
        prefill_chunk_size=STEP,
        kv_cache_dtype=kv_cache,
    )
    return open_runner(path, None, 1, config)


def in_steps(model: Any, tokens: list[int]) -> tuple[Any, Any]:
    """Transformers' last logits of a text, and its cache."""
    cache, last = transformers.DynamicCache(config=model.config), None
    with torch.no_grad():
        for start in range(0, len(tokens), STEP):
            step = torch.tensor([tokens[start : start + STEP]])
            last = model(step, past_key_values=cache, logits_to_keep=1).logits[0, -1]
    return last, cache


def answer_of(model: Any, tokens: list[int], count: int) -> list[int]:
    last, cache = in_steps(model, tokens)
    found = [int(last.argmax())]
    while len(found) < count:
        with torch.no_grad():
            last = model(torch.tensor([found[-1:]]), past_key_values=cache).logits[0, -1]
        found.append(int(last.argmax()))
    return found


@pytest.mark.parametrize(
    ("length", "kv_cache"),
    [(600, "auto"), (600, "int8"), (8192, "auto"), (24576, "int8"), (131_056, "int8")],
)
def test_the_needle_is_found(tmp_path: Path, length: int, kv_cache: KVCacheDtype) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**transformers_config()))
    model.load_state_dict({name: torch.tensor(one) for name, one in weights().items()})
    runner = opened(write_retrieval_model(tmp_path / "retrieval.gguf"), length + 16, kv_cache)
    for depth in (0.0, 0.37, 1.0) if length < 100_000 else (0.37,):
        tokens = prompt(length, depth)
        answer = greedy(runner, tokens, len(expected()))
        assert answer == expected(), f"depth {depth}"
        if depth == 0.37:
            assert answer_of(model.eval(), tokens, len(answer)) == answer


def yarn(trained: int) -> dict[str, Any]:
    return {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": trained}


def longrope(trained: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    short, long = rng.uniform(1, 1.5, 32), rng.uniform(1, 30, 32)
    return {
        "rope_type": "longrope", "factor": 16.0, "original_max_position_embeddings": trained,
        "short_factor": short.tolist(), "long_factor": long.tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("scaling", [yarn, longrope])
def test_logits_behind_long_prompts(tmp_path: Path, scaling: Any) -> None:
    """The model was trained for 256 tokens; the user asks for 16 times as many."""
    fields, length = scaling(256), 4000
    plain = sizes(0) | {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256}
    rope = fields | {"rope_theta": 10000.0}
    config = transformers.LlamaConfig(
        **plain | {"max_position_embeddings": 4096}, rope_parameters=rope
    )
    model = randomized(transformers.LlamaForCausalLM, config, 5)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    model.config.max_position_embeddings = 256
    model.save_pretrained(tmp_path)
    for name, text in tokenizer_files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    model.config.rope_parameters, model.config.max_position_embeddings = rope, 4096
    tokens = np.random.default_rng(2).integers(0, 256, length).tolist()
    exact = in_steps(model, tokens)[0].double().numpy()
    for kernels in ("portable", "reference"):
        count = length if kernels == "portable" else 600
        files = open_model(str(tmp_path), rope_scaling=fields).files
        assert files is not None
        (folder := tmp_path / kernels).mkdir()
        runner = runner_of_plan(
            files.plan(), files.tensors, folder, kernels, 256, context_window=length
        )
        if count < length:
            exact = in_steps(model, tokens[:count])[0].double().numpy()
        *_, last = runner.logits_by_step(tokens[:count])
        assert relative_error(last[-1], exact) <= WORST, kernels
