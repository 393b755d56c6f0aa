"""`SyncMLCEngine` with a model that two processes compute."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_tools import ranks_of_this_process as children

from mlc_llm.backends.cuda.backend import CudaBackend
from mlc_llm.errors import EngineDead, InvalidField
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import complete_config
from mlc_llm.serve.opening import memory
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.memory import model_size
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

FIELD = "tensor_parallel_shards"
GREEDY: dict[str, Any] = {"temperature": 0, "debug_config": {"ignore_eos": True}}
RANKS = {FIELD: 2, "kernels": "portable"}
PROMPTS = ["a" * 70, "the quick brown fox", "z" * 70, "a" * 40 + "b"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        shape = TinyShape(layers=2, kv_heads=2, intermediate=128)
        yield write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", shape=shape)


def answers(tiny: Path, **config: Any) -> list[Any]:
    """Texts of a batch, of a prompt whose beginning is cached, and of forks."""
    engine = SyncMLCEngine(str(tiny), engine_config={"kernels": "portable", **config})
    greedy = {**GREEDY, "max_tokens": 40}
    found: list[Any] = [engine.generate(PROMPTS, greedy).texts]
    again = engine.generate([PROMPTS[0] + "c"], greedy)
    assert again.usages[0].cached_tokens >= 64
    found.append(again.texts)
    found.append(engine.generate(["x" * 30], {**GREEDY, "n": 3, "max_tokens": 20}).texts)
    engine.reset()
    drawn = {"temperature": 1.0, "seed": 5, "n": 2, "max_tokens": 20}
    found.append(engine.generate(["y" * 30], drawn).texts)
    return found


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    "config", [{"prefill_chunk_size": 32}, {"speculative_mode": "prompt_lookup"}]
)
def test_texts_are_those_of_one_process(tiny: Path, config: dict[str, Any]) -> None:
    """Also with chunks of prompts, cached beginnings, forks and drafts."""
    assert answers(tiny, **config, tensor_parallel_shards=2) == answers(tiny, **config)


@pytest.mark.slow
def test_a_draft_model_is_computed_by_rank_0(tiny: Path) -> None:
    config = {"speculative_mode": "small_draft", "additional_models": [str(tiny)]}
    plain = answers(tiny)
    assert [answers(tiny, **config, tensor_parallel_shards=2)[0]] == [plain[0]]


def test_a_dead_engine_takes_no_request(tiny: Path) -> None:
    before = children()
    engine = SyncMLCEngine(str(tiny), engine_config=RANKS)
    (rank,) = children() - before
    os.kill(rank, signal.SIGKILL)
    with pytest.raises(Exception, match="ended by SIGKILL"):
        engine.generate(["text"], GREEDY)
    with pytest.raises(EngineDead, match="ended by SIGKILL"):
        engine.generate(["text"], GREEDY)
    engine.reset()


def test_memory_of_all_ranks_is_counted(tiny: Path) -> None:
    bundle = open_model(str(tiny))
    one, two = (model_size(bundle, "portable", shards=shards) for shards in (1, 2))
    assert one.weight_bytes < two.weight_bytes < 2 * one.weight_bytes  # the embedding is in both
    assert two.kv_bytes_per_token == one.kv_bytes_per_token and two.shards == 2
    plans = [complete_config(EngineConfig(), size, 2**32)[1] for size in (one, two)]
    assert plans[1].runtime == 2 * plans[0].runtime
    assert plans[0].activations < plans[1].activations < 2 * plans[0].activations
    group = one.groups[0]
    each = group.elements // group.layers
    assert one.most_tokens is not None and 0 <= 2**31 - one.most_tokens * each <= 16 * each
    assert two.most_tokens is not None, "each rank has half of the heads"
    assert 0 <= two.most_tokens - 2 * one.most_tokens <= 16


def test_ranks_with_a_gpu_each_count_the_largest_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three heads of keys are one and two."""
    monkeypatch.setattr(memory, "choose_backend", lambda kernels: CudaBackend("sm_90a"))
    monkeypatch.setattr(CudaBackend, "why_no_ranks", lambda self, ranks: None)
    shape = TinyShape(layers=2, heads=6, kv_heads=3, intermediate=192)
    bundle = open_model(str(write_tiny_model(tmp_path / "tiny.gguf", shape=shape)))
    one, two = (model_size(bundle, shards=shards) for shards in (1, 2))
    assert one.weight_bytes / 2 < two.weight_bytes < one.weight_bytes
    assert 3 * two.kv_bytes_per_token == 2 * one.kv_bytes_per_token
    assert 3 * two.query_width == 2 * one.query_width
    assert two.shards == 1 and two.repeat_bytes == 0 < one.repeat_bytes
    assert one.most_tokens is None, "pages are counted in 64 bits"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tensor_parallel_shards": 3}, "layer 0 has 2 heads of keys; at most 2"),
        ({"tensor_parallel_shards": 0}, r"in range \[1, 32\]"),
        ({"tensor_parallel_shards": 2, "max_adapters": 1}, "not together with adapters"),
        ({"tensor_parallel_shards": 2, "model_lib": "."}, "not together with model_lib"),
        ({"tensor_parallel_shards": 2, "model": "mock://echo"}, "no model to split"),
    ],
)
def test_refused_in_one_line(tiny: Path, config: dict[str, Any], words: str) -> None:
    more = {"model": str(tiny), **config}
    with pytest.raises(InvalidField, match=f"tensor_parallel_shards = {config[FIELD]} .*{words}"):
        SyncMLCEngine(more.pop("model"), model_lib=more.get("model_lib"), engine_config=more)


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its three heads of keys are one and two; a thread each."""
    monkeypatch.setenv("MLC_NUM_THREADS", "1")
    engine = SyncMLCEngine(str(default_model), engine_config={"tensor_parallel_shards": 2})
    answer = engine.chat("What is the capital of France?", {"temperature": 0})
    assert answer.message["content"] == "The capital of France is Paris."
