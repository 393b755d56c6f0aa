"""What `SyncMLCEngine` gives back beside texts, how one chats with it, and who may use it."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mlc_llm.errors import ContextLengthExceeded, InvalidField, UserError
from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import answers, data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture
def engine() -> SyncMLCEngine:
    return SyncMLCEngine("mock://echo")


def test_generate_tells_reasons_and_usages_and_still_unpacks(engine: SyncMLCEngine) -> None:
    configs = [GenerationConfig(n=2), GenerationConfig(max_tokens=3, logprobs=True)]
    result = engine.generate(["abc", "hello"], configs)
    texts, logprobs = result
    assert len(result) == 2 and (result.texts, result.logprobs) == (texts, logprobs)
    assert texts == [["abc", "abc"], ["hel"]] and logprobs[0] is None
    assert result.finish_reasons == [["stop", "stop"], ["length"]]
    assert [(u.prompt_tokens, u.completion_tokens) for u in result.usages] == [(3, 6), (5, 3)]
    assert result.usages[1].total_tokens == 8 and "max_tokens" in result.usages[1].extra
    assert "finish_reasons=[['stop', 'stop'], ['length']]" in repr(result)
    for again in (copy.copy(result), pickle.loads(pickle.dumps(result))):
        assert again == result and again.finish_reasons == result.finish_reasons
    assert engine.generate([]).usages == []


def test_a_special_request_has_no_reason_but_a_usage(engine: SyncMLCEngine) -> None:
    config = {"debug_config": {"special_request": "query_engine_metrics"}}
    result = engine.generate("x", config)
    assert result.finish_reasons == [[]] and "prefill_tokens_sum" in result.usages[0].extra


def test_a_prompt_that_is_too_long_is_refused_with_both_sizes(engine: SyncMLCEngine) -> None:
    for prompt, said in ([[65] * 5000, "has 5000 tokens"], ["x" * 10**6, "has at least 1000000"]):
        with pytest.raises(ContextLengthExceeded, match=f"length is 4096 tokens.*{said}"):
            engine.generate(["short", prompt])  # type: ignore[list-item]
    assert engine.generate("x" * 4095, {"max_tokens": 9}).finish_reasons == [["length"]]
    assert not engine._ffi["has_request"]("0")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"max_tokens": -2}, "max_tokens = -2"),
        ({"stop": ["a"]}, "the nearest known is 'stop_strs'"),
        ("max_tokens=3", "generation_config = 'max_tokens=3'.*GenerationConfig, or a dict"),
        (5, "generation_config = 5"),
        ([{"n": 1}, None, 7], r"generation_config\[2\] = 7"),
    ],
)
def test_a_config_may_be_a_dict_and_anything_else_is_named(
    engine: SyncMLCEngine, config: Any, named: str
) -> None:
    assert engine.generate("hello", {"max_tokens": 2})[0] == [["he"]]
    assert engine.generate(["hello", "you"], [{"max_tokens": 2}, None])[0] == [["he"], ["you"]]
    with pytest.raises(InvalidField, match=named):
        engine.generate(["a", "b", "c"], config)
    if not isinstance(config, list):
        with pytest.raises(InvalidField, match=named):
            engine.create_request("a", data.TextData("x"), config)


@pytest.mark.parametrize("kind", [SyncMLCEngine, JSONFFIEngine])
def test_an_engine_config_may_be_a_dict_and_anything_else_is_named(kind: Any) -> None:
    engine = kind("mock://echo", engine_config={"max_num_sequence": 3})
    assert engine.engine_config.max_num_sequence == 3
    if kind is JSONFFIEngine:
        engine.terminate()
    for wrong, named in (
        ({"max_num_sequences": 3}, "the nearest known is 'max_num_sequence'"),
        ("local", "engine_config = 'local'.*EngineConfig, or a dict"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype = 'int8'.*no keys and values"),
    ):
        with pytest.raises(InvalidField, match=named):
            kind("mock://echo", engine_config=wrong)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "metal", "rocm:1"])
def test_an_accelerator_is_refused_by_name(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (SyncMLCEngine, JSONFFIEngine):
        with pytest.raises(InvalidField, match=f"device = '{device}'.*give 'cpu' or 'auto'"):
            kind("mock://echo", device)
    monkeypatch.setenv("MLC_LLM_DEVICE", "cpu")
    assert SyncMLCEngine("mock://echo", device).generate("hi")[0] == [["hi"]]


@pytest.mark.parametrize("said", ["gpu", "CPU", "cuda"])
def test_another_word_of_the_environment_is_refused(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_LLM_DEVICE", said)
    with pytest.raises(InvalidField, match=f"MLC_LLM_DEVICE = '{said}'.*should be 'cpu', or not"):
        SyncMLCEngine("mock://echo")
    monkeypatch.setenv("MLC_LLM_DEVICE", "")
    assert SyncMLCEngine("mock://echo").generate("hi")[0] == [["hi"]]


def json_ffi_text(messages: list[dict[str, Any]], **more: Any) -> str:
    """What the echo engine behind the JSON FFI says: the prompt that it was given."""
    engine = JSONFFIEngine("mock://echo")
    try:
        chunks = list(engine.chat.completions.create(messages=messages, **more))
    finally:
        engine.terminate()
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_chat_answers_with_text_reason_and_usage(engine: SyncMLCEngine) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]
    answer = engine.chat(messages)
    assert answer.text == json_ffi_text(messages) and "Hello" in answer.text
    assert answer.finish_reason == "stop" and answer.logprobs is None
    assert answer.usage.completion_tokens == len(answer.text.encode())
    messages += [answer.message, {"role": "user", "content": "And now?"}]
    assert engine.chat(messages).text == json_ffi_text(messages)
    assert engine.chat("Hi").text == engine.chat([{"role": "user", "content": "Hi"}]).text


def test_tools_reach_the_prompt(engine: SyncMLCEngine) -> None:
    messages = [{"role": "user", "content": "Rain?"}]
    text = engine.chat(messages, tools=[WEATHER]).text
    assert "weather" in text and text == json_ffi_text(messages, tools=[WEATHER])
    assert "weather" not in engine.chat(messages, tools=[WEATHER], tool_choice="none").text


def test_chat_with_several_choices_and_limits(engine: SyncMLCEngine) -> None:
    config = GenerationConfig(n=3, max_tokens=2, logprobs=True)
    answer = engine.chat("Hello", config)
    assert len(answer.texts) == 3 and answer.finish_reasons == ["length"] * 3
    assert answer.usage.completion_tokens == 6
    assert answer.logprobs is not None and [len(one) for one in answer.logprobs] == [2, 2, 2]
    assert json.loads(answer.logprobs[0][0])["logprob"] == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, 'key "content" not found'),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "Role wizard is not supported"),
        ({"messages": "x", "tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"messages": "x", "tools": [WEATHER], "tool_choice": "other"}, "tool_choice"),
        ({"messages": "x", "generation_config": {"temprature": 1}}, "temperature"),
        ({"messages": "x" * 5000}, "maximum context length is 4096"),
    ],
)
def test_wrong_chats_are_refused(
    engine: SyncMLCEngine, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        engine.chat(**arguments)


def test_a_chat_prompt_can_be_looked_at_and_generated_from(engine: SyncMLCEngine) -> None:
    ids = engine.chat_prompt("Hello")
    assert engine.tokenizer.decode(ids) == engine.chat("Hello").text
    assert engine.generate([ids])[0] == [[engine.chat("Hello").text]]


@pytest.fixture
def second_thread() -> Iterator[Any]:
    """Calls a function on another thread; returns what it raised."""

    def call(function: Any) -> BaseException | None:
        raised: list[BaseException | None] = []

        def run() -> None:
            try:
                function()
                raised.append(None)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return raised[0]

    yield call


def test_a_second_thread_is_told_of_the_threaded_engine(
    engine: SyncMLCEngine, second_thread: Any
) -> None:
    errors: list[Any] = []

    def callback(outputs: Any) -> None:
        for call in (
            lambda: engine.generate("x"),
            engine.step,
            engine.reset,
            lambda: engine.abort_request("a"),
            lambda: engine.chat("x"),
        ):
            errors.append(second_thread(call))
        engine.abort_request("a")  # the thread that steps may

    engine._ffi["set_request_stream_callback"](callback)
    engine.add_request(engine.create_request("a", data.TextData("abc"), GenerationConfig()))
    engine.step()
    assert len(errors) >= 5 and all(isinstance(error, UserError) for error in errors)
    assert all("ThreadedEngine" in str(error) for error in errors)
    engine._ffi["set_request_stream_callback"](None)
    assert second_thread(lambda: engine.generate("x")) is None, "one after the other is fine"
    assert engine.generate("abc")[0] == [["abc"]]


def test_a_second_thread_is_refused_between_two_steps_of_generate(
    engine: SyncMLCEngine, second_thread: Any
) -> None:
    errors: list[Any] = []
    usual = engine.step

    def step() -> None:
        errors.append(second_thread(lambda: engine.generate("other")))
        usual()

    engine.step = step  # type: ignore[method-assign]
    assert engine.generate("abc")[0] == [["abc"]]
    assert len(errors) == 3 and all("ThreadedEngine" in str(error) for error in errors)


def test_a_long_answer_without_a_limit_is_noted_once(
    engine: SyncMLCEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LONG_ANSWER", 20)
    monkeypatch.setattr(answers, "_said", set())
    caplog.set_level(logging.INFO)
    engine.generate("x" * 19)
    engine.generate("x" * 30, {"max_tokens": 25})
    assert "max_tokens" not in caplog.text
    for _ in range(2):
        engine.generate(["x" * 30, "y" * 30])
    (note,) = [r.getMessage() for r in caplog.records if "no max_tokens" in r.getMessage()]
    assert "20 tokens" in note and "4,096 tokens" in note


def test_waiting_requests_are_noted_once_with_the_mode_that_runs_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for mode, runs in (("local", 4), ("interactive", 1)):
        caplog.clear()
        config = EngineConfig(max_num_sequence=runs)  # the echo engine has one limit for all modes
        engine = SyncMLCEngine("mock://echo", mode=mode, engine_config=config)  # type: ignore[arg-type]
        engine.generate(["abc"] * runs)
        assert "wait" not in caplog.text
        for _ in range(2):
            engine.generate(["abc"] * (runs + 3))
        (note,) = [r.getMessage() for r in caplog.records if "wait" in r.getMessage()]
        assert f"{runs} answers run and 3 wait: mode='{mode}' runs {runs} at a time" in note
        assert note.endswith("mode='server' runs more")
