"""Engines whose prompts are computed the fast way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import RequestStreamOutput, TextData
from mlc_llm.serve.sync_engine import SyncMLCEngine

PROMPTS = ["The cat", "a much longer prompt " * 6, "x", "Hello, world. How are you?"]
FAST: dict[str, Any] = {"prompt_precision": "fast"}
FEW_PAGES = {"max_total_sequence_length": 256, "prefill_chunk_size": 32, "max_num_sequence": 4}
pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(params=["vnni", "amx"])
def with_setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that have the setting, whatever would be chosen here."""
    if missing_features(request.param):
        pytest.skip(f"no {request.param} here")
    monkeypatch.setenv("MLC_LLM_KERNELS", request.param)


def engine(tiny: Path, callback: Any = None, **settings: Any) -> SyncMLCEngine:
    config = EngineConfig(**settings)
    return SyncMLCEngine(
        str(tiny),
        "cpu",
        engine_config=config,
        enable_tracing=True,
        request_stream_callback=callback,
    )


@pytest.mark.usefixtures("with_setting")
@pytest.mark.parametrize(
    "sampling",
    [
        GenerationConfig(temperature=0, max_tokens=60),
        GenerationConfig(temperature=1.0, seed=3, max_tokens=60, n=3),
    ],
)
def test_text_does_not_depend_on_the_company(tiny: Path, sampling: GenerationConfig) -> None:
    """Not on chunks either, nor on preemption: what was an answer is computed as one again."""
    fast = engine(tiny, **FAST)
    alone = [fast.generate(prompt, sampling)[0][0] for prompt in PROMPTS]
    narrow = engine(tiny, **FAST, **FEW_PAGES)
    assert narrow.generate(PROMPTS, sampling)[0] == alone
    assert narrow.trace_recorder is not None
    assert "preempt (0)" in narrow.trace_recorder.dump_json()


@pytest.mark.usefixtures("with_setting")
def test_draft_tokens_change_nothing(tiny: Path) -> None:
    greedy = GenerationConfig(temperature=0, max_tokens=60)
    drafting = engine(tiny, **FAST, speculative_mode="prompt_lookup", spec_draft_length=4)
    assert (
        drafting.generate(PROMPTS, greedy)[0] == engine(tiny, **FAST).generate(PROMPTS, greedy)[0]
    )


@pytest.mark.usefixtures("with_setting")
def test_prompts_that_were_scored_change_nothing(tiny: Path) -> None:
    """They are computed exactly."""
    watch = GenerationConfig(temperature=0, max_tokens=4, logprobs=True)
    outputs: list[RequestStreamOutput] = []
    fast = engine(tiny, callback=outputs.extend, **FAST)
    alone = fast.generate(PROMPTS, watch)
    fast.reset()
    for i, prompt in enumerate(PROMPTS):
        request = fast.create_request(str(i), TextData(prompt), watch)
        fast.add_request(replace(request, prompt_logprobs=0))
    while sum(one.request_final_usage_json_str is not None for one in outputs) < len(PROMPTS):
        fast.step()
    behind = fast.generate(PROMPTS, watch)
    assert (behind.texts, behind.logprobs) == (alone.texts, alone.logprobs)


@pytest.mark.usefixtures("with_setting")
def test_the_setting_reaches_the_model(tiny: Path) -> None:
    watch = GenerationConfig(temperature=0, max_tokens=1, logprobs=True, top_logprobs=5)
    fast, exact = (engine(tiny, **more).generate(PROMPTS, watch)[1] for more in (FAST, {}))
    assert all(one != other for one, other in zip(fast, exact, strict=True))


@pytest.mark.parametrize("kernels", ["portable", "avx2"])
def test_kernels_without_it_refuse(
    tiny: Path, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing_features(kernels):
        pytest.skip(f"no {kernels} here")
    monkeypatch.setenv("MLC_LLM_KERNELS", kernels)
    with pytest.raises(InvalidField, match=rf"precision.*{kernels} kernels"):
        engine(tiny, **FAST)
