"""`SyncMLCEngine` over the fake runner: many sequences, seeds, and the reference page's example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlc_llm.errors import UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.memory_plan import KVSize, ModelSize
from mlc_llm.serve.opening import open_engine
from mlc_llm.serve.opening.bundle import echo_bundle
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.fake_runner import FakeRunner

SIZE = ModelSize((KVSize(2, 2 * 2 * 2 * 16),), 64, 32, 16, 64, 128, 256, 1024, 1 << 20)


@pytest.fixture(params=[False, True])
def runner(request: pytest.FixtureRequest) -> FakeRunner:
    """One that computes step by step, and one whose steps are started early."""
    return FakeRunner(
        num_pages=80,
        max_num_sequence=4,
        max_batch_tokens=64,
        vocab_size=256,
        overlaps=request.param,
    )


@pytest.fixture
def engine(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> SyncMLCEngine:
    monkeypatch.setattr(open_engine, "open_models", lambda *_, **_named: [echo_bundle(1024)])
    monkeypatch.setattr(open_engine, "model_size", lambda bundle, *kinds: SIZE)
    monkeypatch.setattr(open_engine, "create_runner", lambda *arguments: runner)
    return SyncMLCEngine("a model")


def test_seven_sequences_on_four_slots(engine: SyncMLCEngine, runner: FakeRunner) -> None:
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


ENGINE_SUMS = {
    "engine_prefill_time_sum",
    "engine_decode_time_sum",
    "engine_jump_forward_time_sum",
    "prompt_tokens_sum",
    "completion_tokens_sum",
    "prefill_tokens_sum",
    "decode_tokens_sum",
    "jump_forward_tokens_sum",
}
BY_BATCH_SIZE = {f"{name}_time_by_batch_size" for name in ("decode", "draft", "verify")}
RATES = {"prefill_tokens_per_s", "decode_tokens_per_s"}
OF_A_REQUEST = RATES | {
    "prompt_tokens",
    "completion_tokens",
    "prefill_tokens",
    "decode_tokens",
    "jump_forward_tokens",
    "end_to_end_latency_s",
    "ttft_s",
    "inter_token_latency_s",
}


class Listener:
    """A stream callback that keeps everything, by request."""

    def __init__(self, engine: SyncMLCEngine) -> None:
        self.outputs: dict[str, list[data.SingleRequestStreamOutput]] = {}
        self.calls = 0
        engine._ffi["set_request_stream_callback"](self)

    def __call__(self, outputs: Any) -> None:
        self.calls += 1
        for output in outputs:
            request_id, singles = output.unpack()
            self.outputs.setdefault(request_id, []).extend(singles)

    def ended(self, request_id: str) -> tuple[set[str], dict[str, Any]]:
        """The reasons, and the one usage, which must be the last item."""
        *before, last = self.outputs[request_id]
        assert last.request_final_usage_json_str is not None
        assert all(one.request_final_usage_json_str is None for one in before)
        reasons = {one.finish_reason for one in before if one.finish_reason}
        return reasons, json.loads(last.request_final_usage_json_str)


def test_every_kind_of_end_is_followed_by_exactly_one_usage(
    engine: SyncMLCEngine, runner: FakeRunner
) -> None:
    listener = Listener(engine)
    runner.bad_rows = lambda tokens: tokens[:1] == [66] and len(tokens) == 9
    kinds: dict[str, Any] = {
        "length": ([65] * 8, {"max_tokens": 3}),
        "stop": ([67] * 8, {"max_tokens": 99, "logit_bias": {70: 100}, "stop_token_ids": [70]}),
        "error": ([66] * 8, {"max_tokens": 30}),
        "abort": ([68] * 8, {"max_tokens": 999}),
    }
    for name, (prompt, config) in kinds.items():
        made = GenerationConfig(temperature=0.0, n=2, **config)
        engine.add_request(engine.create_request(name, data.TokenData(prompt), made))
    for _ in range(12):
        engine.step()
    engine.abort_request("abort")
    for name in kinds:
        reasons, usage = listener.ended(name)
        assert reasons == {name} and usage["prompt_tokens"] == 8
    engine.add_request(engine.create_request("reset", data.TextData("x"), GenerationConfig(n=3)))
    engine.step()
    engine.reset()
    assert listener.ended("reset")[0] == {"abort"} and runner.free_pages == 80
    assert engine.metrics()["prompt_tokens_sum"] == 0


def test_every_key_of_the_metrics_while_a_stream_is_open(engine: SyncMLCEngine) -> None:
    listener = Listener(engine)
    for name, most in (("done", 6), ("open", 60)):
        config = GenerationConfig(max_tokens=most)
        engine.add_request(engine.create_request(name, data.TextData("some text"), config))
    for _ in range(10):
        engine.step()
    special = GenerationConfig(debug_config={"special_request": "query_engine_metrics"})
    engine.add_request(engine.create_request("q", [], special))
    _, usage = listener.ended("q")
    for found in (usage["extra"], engine.metrics().metrics):
        assert set(found) >= ENGINE_SUMS | RATES | BY_BATCH_SIZE | {"last_finished_request"}
        assert set(found["last_finished_request"]) >= OF_A_REQUEST
        assert {"mean{batch_size=1}", "count{batch_size=1}"} <= set(
            found["decode_time_by_batch_size"]
        )
    assert set(listener.ended("done")[1]["extra"]) >= OF_A_REQUEST
    assert "open" in listener.outputs and engine._ffi["has_request"]("open")


def test_one_call_of_the_callback_a_step(engine: SyncMLCEngine) -> None:
    listener = Listener(engine)
    for name in "abc":
        config = GenerationConfig(max_tokens=5)
        engine.add_request(engine.create_request(name, data.TextData("some text"), config))
    for step in range(5):
        engine.step()
        assert listener.calls == step + 1
    engine.step()
    assert listener.calls == 5, "an empty step says nothing"


@pytest.mark.parametrize(
    ("config", "named"),
    [('{"n": 0}', "n = 0"), ("{", "Failed to parse JSON"), ('{"temprature": 1}', "temperature")],
)
def test_a_wrong_config_is_refused_when_the_request_is_made(
    engine: SyncMLCEngine, config: str, named: str
) -> None:
    with pytest.raises(UserError, match=named):
        engine._ffi["create_request"]("a", data.TextData("x"), config)


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
