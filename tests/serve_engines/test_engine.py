"""`MLCEngine` on the echo engine, whose answer is its prompt."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from threaded_harness import eventually, frozen

from mlc_llm import MLCEngine
from mlc_llm.errors import EngineDead, InvalidField, MLCError, RequestError, UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    CompletionResponse,
)
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.engine import AnswerChunks

LONG = "abc " * 400


def chat(engine: MLCEngine, text: str, **more: Any) -> ChatCompletionResponse:
    found = engine.chat.completions.create(messages=[{"role": "user", "content": text}], **more)
    assert isinstance(found, ChatCompletionResponse)
    return found


def stream(engine: MLCEngine, text: str, **more: Any) -> AnswerChunks[ChatCompletionStreamResponse]:
    messages = [{"role": "user", "content": text}]
    found = engine.chat.completions.create(messages=messages, stream=True, **more)
    assert isinstance(found, AnswerChunks)
    return found


def complete(engine: MLCEngine, prompt: Any, **more: Any) -> CompletionResponse:
    found = engine.completions.create(prompt=prompt, **more)
    assert isinstance(found, CompletionResponse)
    return found


def running(engine: MLCEngine) -> int:
    return len(engine._client._callback.running)


def test_a_whole_answer(engine: MLCEngine) -> None:
    answer = chat(engine, "hello", n=2, model="any", request_id="mine")
    assert (answer.id, answer.model) == ("mine", "any")
    assert [one.index for one in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert (choice.message.role, choice.message.content) == ("assistant", "hello")
        assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5 and answer.usage.completion_tokens == 10
    assert running(engine) == 0


def test_a_streamed_answer(engine: MLCEngine) -> None:
    chunks = list(stream(engine, "hello", n=2, stream_options={"include_usage": True}))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    texts = ["", ""]
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        for choice in chunk.choices:
            assert choice.delta.role == "assistant"
            assert isinstance(choice.delta.content, str)
            texts[choice.index] += choice.delta.content
    assert texts == ["hello", "hello"]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in stream(engine, "x"))


def test_logprobs_are_in_the_answer(engine: MLCEngine) -> None:
    answer = chat(engine, "ab", logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [one.token for one in logprobs.content] == ["a", "b"]


def test_completions_of_texts_and_ids(engine: MLCEngine) -> None:
    assert complete(engine, "ab").choices[0].text == "ab"
    ids = engine._client.model.tokenizer.encode("cd")
    assert complete(engine, ids).choices[0].text == "cd"
    answer = complete(engine, ["a", "bc"], n=2, request_id="r", echo=True)
    assert [one.text for one in answer.choices] == ["aa", "aa", "bcbc", "bcbc"]
    assert [one.index for one in answer.choices] == [0, 1, 2, 3]
    assert answer.id == "r" and answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 6)
    assert answer.usage.total_tokens == 9


def test_streamed_completions_of_several_prompts(engine: MLCEngine) -> None:
    found = engine.completions.create(
        prompt=["ab", "cde"], stream=True, stream_options={"include_usage": True}, echo=True
    )
    chunks = list(found)
    texts, reasons = {0: "", 1: ""}, {}
    for chunk in chunks[:-1]:
        assert isinstance(chunk, CompletionResponse)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == {0: "abab", 1: "cdecde"} and reasons == {0: "stop", 1: "stop"}
    last = chunks[-1]
    assert isinstance(last, CompletionResponse) and last.usage is not None
    assert last.usage.total_tokens == 10


def test_completion_logprobs_are_parallel_lists(engine: MLCEngine) -> None:
    found = complete(engine, "abc", logprobs=3).choices[0].logprobs
    assert found is not None
    assert found.tokens == ["a", "b", "c"] and found.text_offset == [0, 1, 2]
    for token, own, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top is not None and top[token] == own


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": [[1], [2**40]]}, "prompt"),
        ({"prompt": [1, 300]}, "prompt token id"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
    ],
)
def test_wrong_completions_are_refused(
    engine: MLCEngine, parameters: dict[str, Any], word: str
) -> None:
    with pytest.raises(UserError, match=word):
        engine.completions.create(**parameters)
    assert running(engine) == 0


def test_the_newer_name_of_the_limit(engine: MLCEngine) -> None:
    answer = chat(engine, "abcdef", max_completion_tokens=2, max_tokens=4)
    assert answer.choices[0].message.content == "ab"
    with pytest.raises(TypeError, match=r"argument 'top_k'; more fields go into extra_body$"):
        chat(engine, "a", top_k=1)


def test_wrong_chats_are_refused_before_anything_is_read(engine: MLCEngine) -> None:
    with pytest.raises(UserError, match="max_tokens"):
        stream(engine, "a", max_tokens=-3)
    with pytest.raises(TypeError, match="temprature"):
        chat(engine, "a", temprature=0)
    with pytest.raises(InvalidField, match="stream_options"):
        chat(engine, "a", stream_options={"include_usage": True})
    with pytest.raises(InvalidField, match="extra_body = 5 is not allowed"):
        chat(engine, "a", extra_body=5)
    with pytest.raises(InvalidField, match="request_id = '' is not allowed"):
        chat(engine, "a", request_id="")
    assert running(engine) == 0


def test_one_refused_prompt_of_several_starts_nothing(engine: MLCEngine) -> None:
    context = engine._client.model.context
    with pytest.raises(UserError, match="context length"):
        complete(engine, ["short", "x" * context])
    eventually(lambda: running(engine) == 0, "a part goes on")


def test_many_answers_are_read_at_once(engine: MLCEngine) -> None:
    streams = [stream(engine, f"text {i}") for i in range(8)]
    found: dict[int, str] = {}

    def read(i: int) -> None:
        pieces = (choice.delta.content for chunk in streams[i] for choice in chunk.choices)
        found[i] = "".join(piece or "" for piece in pieces)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"text {i}" for i in range(8)}


@pytest.mark.parametrize("way", ["close", "with", "forget"])
def test_a_stream_that_nobody_reads_ends(engine: MLCEngine, way: str) -> None:
    chunks = stream(engine, LONG)
    next(chunks)
    assert running(engine) == 1
    if way == "close":
        chunks.close()
        chunks.close()
    elif way == "with":
        with chunks:
            next(chunks)
    else:
        del chunks
        gc.collect()
    eventually(lambda: running(engine) == 0, "it goes on")


def test_a_second_reader_is_refused_and_the_first_goes_on(engine: MLCEngine) -> None:
    chunks, texts, errors = stream(engine, "hello"), list[str](), list[Exception]()

    def read() -> None:
        try:
            texts.extend(one.delta.content or "" for chunk in chunks for one in chunk.choices)
        except Exception as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    with frozen():
        for reader in readers:
            reader.start()
        eventually(lambda: len(errors) == 1, "both read")
    for reader in readers:
        reader.join()
    assert "".join(texts) == "hello"
    assert isinstance(errors[0], UserError) and "another thread reads" in str(errors[0])


def test_abort_ends_an_answer(engine: MLCEngine) -> None:
    chunks = stream(engine, LONG, request_id="one")
    next(chunks)
    engine.abort("one")
    engine.abort("unknown")
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == "abort"


def test_an_id_may_be_used_again_but_not_twice_at_once(engine: MLCEngine) -> None:
    chunks = stream(engine, LONG, request_id="one")
    with pytest.raises(InvalidField, match="request_id"):
        stream(engine, "b", request_id="one")
    chunks.close()
    eventually(lambda: running(engine) == 0, "it goes on")
    assert chat(engine, "b", request_id="one").choices[0].message.content == "b"


def test_terminate_ends_every_reader() -> None:
    engine = MLCEngine("mock://echo")
    chunks = stream(engine, LONG)
    next(chunks)
    engine.terminate()
    engine.terminate()
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == "abort"
    with pytest.raises(EngineDead):
        chat(engine, "a")


def test_an_engine_that_nobody_uses_ends() -> None:
    engine = MLCEngine("mock://echo")
    chunks = stream(engine, LONG)
    before = threading.active_count()
    del engine
    assert next(chunks).choices  # the answer keeps it
    del chunks
    gc.collect()
    eventually(lambda: threading.active_count() == before - 2, "its threads go on")


def test_unload_and_reload(engine: MLCEngine) -> None:
    engine.unload()
    with pytest.raises(MLCError, match="no engine is loaded"):
        chat(engine, "a")
    with pytest.raises(MLCError):
        engine.metrics()
    engine.reload()
    assert chat(engine, "a").choices[0].message.content == "a"
    engine.reset()
    assert engine.metrics()["completion_tokens_sum"] == 0


def test_a_config_without_a_model_keeps_the_engines() -> None:
    with MLCEngine("mock://echo", mode="interactive") as engine:
        engine.reload({"max_num_sequence": 2})
        assert engine.engine_config.max_num_sequence == 2
        assert chat(engine, "a").choices[0].message.content == "a"
        for _ in range(2):
            engine.reload(EngineConfig(prefill_chunk_size=64))
        engine.reload()
        found = engine.engine_config
        assert (found.model, found.mode) == ("mock://echo", "interactive")
        assert (found.max_num_sequence, found.prefill_chunk_size) == (32, 64)
        with pytest.raises(InvalidField, match="max_num_sequence = 0"):
            engine.reload({"max_num_sequence": 0})
        with pytest.raises(UserError, match="should be an EngineConfig, or a dict of its fields"):
            engine.reload("mock://echo")  # type: ignore[arg-type]
        assert chat(engine, "a").choices[0].message.content == "a"
        with pytest.raises(UserError, match="no such model"):
            engine.reload({"model": "no such model"})
        engine.reload()
        assert engine.engine_config.model == "mock://echo"


def test_a_library_is_kept_with_its_model_alone(engine: MLCEngine) -> None:
    client = engine._client
    client._config = EngineConfig(model="a", model_lib="of a", mode="server")
    assert client._completed(EngineConfig()) == client._config
    assert client._completed(EngineConfig(model="b")).model_lib is None
    assert client._completed(EngineConfig(model_lib="another")).model_lib == "another"
    assert client._completed(EngineConfig(mode="local")).mode == "local"


def test_metrics_count_tokens(engine: MLCEngine) -> None:
    chat(engine, "abcd")
    assert engine.metrics()["completion_tokens_sum"] == 4
    assert running(engine) == 0


def test_a_request_that_fails_raises(engine: MLCEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlc_llm.serve.core.mock_echo import EchoRunner

    def broken(*_: object) -> object:
        raise RuntimeError("the kernel broke")

    monkeypatch.setattr(EchoRunner, "run", broken, raising=True)
    with pytest.raises(RequestError, match="the kernel broke"):
        chat(engine, "a")
    with pytest.raises(RequestError, match="the kernel broke"):
        list(stream(engine, "a"))
    monkeypatch.undo()
    assert chat(engine, "a").choices[0].message.content == "a"


def test_generate_gives_one_output_for_each_choice(engine: MLCEngine) -> None:
    texts = ["", "", ""]
    for outputs in engine._generate("hello", GenerationConfig(n=3), request_id="0"):
        assert len(outputs) == 3
        for i, one in enumerate(outputs):
            texts[i] += one.delta_text
    assert texts == ["hello"] * 3
