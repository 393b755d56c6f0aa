"""The reference page's usage example, as printed there, on the default model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.sync_engine import SyncMLCEngine

pytestmark = pytest.mark.model


def test_usage_example(
    default_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_LLM_DEVICE", "cpu")
    engine = SyncMLCEngine(
        model=str(default_model),
        device="cuda",  # refused, but for what MLC_LLM_DEVICE says
        mode="local",
    )

    output_texts, _output_logprobs = engine.generate(
        prompts="What is machine learning?",
        generation_config=GenerationConfig(
            temperature=0.7,
            top_p=0.9,
            max_tokens=256,
        ),
    )
    print(output_texts[0][0])

    output_texts, _ = engine.generate(
        prompts=["Hello world", "Tell me a joke"],
        generation_config=GenerationConfig(temperature=1.0, n=2, max_tokens=64),
    )
    assert [len(texts) for texts in output_texts] == [2, 2]

    done = False
    gen_config = GenerationConfig(temperature=0.0, max_tokens=16)

    def my_callback(delta_outputs: Any) -> None:
        nonlocal done
        for output in delta_outputs:
            request_id, stream_outputs = output.unpack()
            for stream_output in stream_outputs:
                print(f"Request {request_id}: {stream_output.delta_token_ids}")
                done = done or stream_output.request_final_usage_json_str is not None

    engine._ffi["set_request_stream_callback"](my_callback)
    request = engine.create_request("req_0", [data.TextData("Hi")], gen_config)
    engine.add_request(request)
    while not done:
        engine.step()
    printed = capsys.readouterr().out
    assert len(printed) > 200 and "Request req_0: [" in printed


def test_a_random_number_that_is_one_in_float32(default_model: Path) -> None:
    """The ninth of this seed: it once ended the answer."""
    seed = 879324
    numbers = random.Random(seed)
    assert [numbers.random() for _ in range(9)][-1] > 1 - 2**-25
    engine = SyncMLCEngine(model=str(default_model))
    config = GenerationConfig(seed=seed, temperature=1.0, max_tokens=12, logprobs=True)
    _, logprobs = engine.generate("The capital of France is", config)
    assert logprobs[0] is not None
    assert len(logprobs[0][0]) == 12


def test_the_model_knows_a_capital(default_model: Path) -> None:
    engine = SyncMLCEngine(model=str(default_model))
    config = GenerationConfig(temperature=0, max_tokens=8)
    prompts = ["The capital of France is", "The capital of Italy is"]
    texts, _ = engine.generate(prompts, config)
    assert "Paris" in texts[0][0] and "Rome" in texts[1][0]
    assert [engine.generate(prompt, config)[0][0] for prompt in prompts] == texts
