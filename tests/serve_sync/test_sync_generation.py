"""`SyncMLCEngine` over the fake runner: many branches, seeds, and the reference page's example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data, open_engine
from mlc_llm.serve.limits import ModelSize
from mlc_llm.serve.model_args import echo_bundle
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.fake_runner import FakeRunner

SIZE = ModelSize(2, 4, 2, 16, 64, 128, 256, 1024, 1 << 20)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner(num_pages=80, max_num_sequence=4, max_batch_tokens=64, vocab_size=256)


@pytest.fixture
def engine(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> SyncMLCEngine:
    monkeypatch.setattr(open_engine, "_process_model_args", lambda models: [echo_bundle(1024)])
    monkeypatch.setattr(open_engine, "model_size", lambda bundle: SIZE)
    monkeypatch.setattr(open_engine, "create_runner", lambda *arguments: runner)
    return SyncMLCEngine("a model")


def test_seven_branches_on_four_sequences(engine: SyncMLCEngine, runner: FakeRunner) -> None:
    heard: list[Any] = []
    engine._ffi["set_request_stream_callback"](heard.append)
    config = GenerationConfig(n=7, temperature=1.0, seed=9, max_tokens=12)
    texts, _ = engine.generate(["first", "second"], config)
    assert [len(one) for one in texts] == [7, 7]
    assert all(len(set(one)) == 7 for one in texts)
    assert engine.generate(["first", "second"], config)[0] == texts
    assert engine.generate("second", config)[0] == texts[1:]
    assert heard == []
    assert engine.metrics()["last_finished_request"]["completion_tokens"] == 7 * 12
    engine.reset()
    assert heard == [] and runner.free_pages == 80
    engine.add_request(engine.create_request("a", data.TextData("x"), GenerationConfig()))
    engine.step()
    assert len(heard) == 1


def test_seeds_are_drawn_when_none_is_given(engine: SyncMLCEngine) -> None:
    config = GenerationConfig(temperature=1.0, max_tokens=20)
    assert engine.generate("x", config) != engine.generate("x", config)


def test_usage_example_of_the_reference_page(engine: SyncMLCEngine) -> None:
    output_texts, _output_logprobs = engine.generate(
        prompts="What is machine learning?",
        generation_config=GenerationConfig(
            temperature=0.7,
            top_p=0.9,
            max_tokens=256,
        ),
    )
    assert output_texts[0][0]
    output_texts, _ = engine.generate(
        prompts=["Hello world", "Tell me a joke"],
        generation_config=GenerationConfig(temperature=1.0, n=2, max_tokens=50),
    )
    assert [len(one) for one in output_texts] == [2, 2]

    done = False
    pieces: list[list[int]] = []
    usages: list[dict[str, Any]] = []

    def my_callback(delta_outputs: Any) -> None:
        nonlocal done
        for output in delta_outputs:
            request_id, stream_outputs = output.unpack()
            assert request_id == "req_0"
            for stream_output in stream_outputs:
                pieces.append(stream_output.delta_token_ids)
                if stream_output.request_final_usage_json_str is not None:
                    usages.append(json.loads(stream_output.request_final_usage_json_str))
                    done = True

    gen_config = GenerationConfig(temperature=0.0, max_tokens=10)
    engine._ffi["set_request_stream_callback"](my_callback)
    request = engine.create_request("req_0", [data.TextData("Hi")], gen_config)
    engine.add_request(request)
    while not done:
        engine.step()
    assert sum(map(len, pieces)) == usages[0]["completion_tokens"] == 10
