"""`JSONFFIEngine` on the echo engine: what it does when nothing goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from json_ffi_harness import Answer, ask, engine_of, read
from threaded_harness import LONG, eventually
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.pre_tokenizers import ByteLevel

from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.json_ffi.engine import BackgroundLoops, Chat, Completions, EngineState
from mlc_llm.serve.config import EngineConfig

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
BYTES = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {}}}


@pytest.fixture
def engine() -> Iterator[JSONFFIEngine]:
    with engine_of("mock://echo") as made:
        yield made


def test_the_usage_example(engine: JSONFFIEngine) -> None:
    text = ""
    for response in engine.chat.completions.create(
        messages=[{"role": "user", "content": "What is the meaning of life?"}],
        model="echo",
        stream=True,
    ):
        for choice in response.choices:
            text += choice.delta.content or ""
    assert text == "What is the meaning of life?"
    assert isinstance(engine.chat, Chat) and isinstance(engine.chat.completions, Completions)
    assert isinstance(engine._state, EngineState)
    assert isinstance(engine._background_loops, BackgroundLoops)
    assert engine.tokenizer.decode([104, 105]) == "hi"


def test_chunks_have_openais_shape(engine: JSONFFIEngine) -> None:
    chunks: list[str] = []
    usual = engine._state._sync_request_stream_callback
    engine._state._sync_request_stream_callback = lambda text: (  # type: ignore[method-assign]
        chunks.append(text),
        usual(text),
    )[1]
    answer = ask(engine, "ab", model="echo", stream_options={"include_usage": True})
    plain = [chunk for text in chunks for chunk in json.loads(text)]
    assert all(
        chunk.keys() - {"usage"}
        == {"id", "object", "created", "model", "system_fingerprint", "choices"}
        for chunk in plain
    )
    assert {chunk["id"] for chunk in plain} == {answer.chunks[0].id}
    assert {(c["object"], c["model"]) for c in plain} == {("chat.completion.chunk", "echo")}
    (fingerprint,) = {c["system_fingerprint"] for c in plain}
    assert fingerprint.startswith("fp_")
    assert plain[0]["id"].startswith("chatcmpl-") and isinstance(plain[0]["created"], int)
    assert [chunk["choices"] for chunk in plain] == [
        [{"finish_reason": None, "index": 0, "delta": {"content": "a", "role": "assistant"}}],
        [{"finish_reason": "stop", "index": 0, "delta": {"content": "b", "role": "assistant"}}],
        [],
    ]
    assert plain[-1]["usage"].keys() == {
        *("prompt_tokens", "completion_tokens", "total_tokens", "extra"),
        *("prompt_tokens_details", "completion_tokens_details"),
    }


def test_the_usage_chunk_comes_only_when_asked_for(engine: JSONFFIEngine) -> None:
    assert ask(engine, "ab").usages == []
    assert ask(engine, "ab", stream_options={"include_usage": False}).usages == []
    with_usage = ask(engine, "ab", stream_options={"include_usage": True})
    assert len(with_usage.usages) == 1 and with_usage.chunks[-1].usage is with_usage.usages[0]
    assert with_usage.usages[0].total_tokens == 4


def test_every_parameter_arrives(engine: JSONFFIEngine) -> None:
    answer = ask(
        engine,
        "some text",
        model="echo",
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logprobs=True,
        top_logprobs=3,
        logit_bias={7: 1.5},
        max_tokens=5,
        n=2,
        seed=11,
        stop="no such text",
        stream_options={"include_usage": True},
        temperature=0.25,
        top_p=0.75,
        user="somebody",
        response_format={"type": "text"},
        extra_body={"debug_config": {"ignore_eos": True}, "top_k": 9},
    )
    extra = answer.usages[0].extra
    assert extra is not None
    sent = {
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"7": 1.5},
        "max_tokens": 5,
        "n": 2,
        "seed": 11,
        "stop_strs": ["no such text"],
        "temperature": 0.25,
        "top_p": 0.75,
        "top_k": 9,
    }
    assert {name: extra[name] for name in sent} == sent
    assert extra["debug_config"]["ignore_eos"] is True
    assert extra["response_format"]["type"] == "text"
    assert answer.texts == {0: "some ", 1: "some "}
    assert answer.reasons == {0: "length", 1: "length"}


def test_a_schema_arrives_as_it_was_sent(engine: JSONFFIEngine) -> None:
    # The echo engine follows no grammar, so it does not read one: no such type is known.
    schema = '{"type": "object", "properties": {"result": {"type": "Integer"}}}'
    wanted = {"type": "json_object", "schema": schema}
    answer = ask(engine, "hello", response_format=wanted, stream_options={"include_usage": True})
    assert answer.text == "hello" and answer.reason == "stop"
    assert answer.usages[0].extra is not None
    assert answer.usages[0].extra["response_format"] == wanted


def test_the_echo_engine_needs_only_the_texts_of_a_model(tmp_path: Path) -> None:
    vocabulary = tokenizers.Tokenizer(tokenizers.models.BPE(BYTES, []))
    vocabulary.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary.decoder = ByteLevelDecoder()
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    config = {"model_type": "llama", "quantization": "q4f16_1", "vocab_size": 256}
    config |= {"conv_template": "chatml", "temperature": 0.5}
    (tmp_path / "mlc-chat-config.json").write_text(json.dumps(config))
    with engine_of(str(tmp_path), model_lib="mock://echo") as engine:
        answer = ask(engine, "a b", stream_options={"include_usage": True})
        # The template's own stop string ends the echo of the system text.
        assert answer.text.startswith("<|im_start|>system\nA conversation between a user")
        assert answer.text.endswith("honest answers.") and answer.reason == "stop"
        assert answer.usages[0].extra is not None
        assert answer.usages[0].extra["temperature"] == 0.5
        # It stays one beside those of the caller.
        assert ask(engine, "a b", stop=["never"]).text == answer.text
        assert answer.text.startswith(ask(engine, "a b", stop=["between"]).text)


def test_nulls_and_left_out_fields_are_defaults(engine: JSONFFIEngine) -> None:
    plain = {"messages": [{"role": "user", "content": "hi"}]}
    nulls = {**plain, "temperature": None, "stop": None, "logit_bias": None, "tools": None}
    first, second = (
        read(engine._raw_chat_completion(json.dumps(one), True, "a")) for one in (plain, nulls)
    )
    assert first.usages[0].extra == second.usages[0].extra and first.text == second.text == "hi"


def test_logprobs(engine: JSONFFIEngine) -> None:
    text = "h\N{GRINNING FACE}llo"
    answer = ask(engine, text, logprobs=True, top_logprobs=2)
    entries = [
        entry
        for chunk in answer.chunks
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content
    ]
    assert b"".join(bytes(entry.bytes or []) for entry in entries) == text.encode()
    assert [len(entry.top_logprobs) for entry in entries] == [2] * len(text.encode())
    assert answer.text == text and "\ufffd" not in "".join(answer.pieces)
    assert all(c.logprobs is None for chunk in ask(engine, "a").chunks for c in chunk.choices)


@pytest.mark.parametrize("stop", ["lo w", ["lo w"], ["zzz", "lo w"]])
def test_stop_strings(engine: JSONFFIEngine, stop: Any) -> None:
    answer = ask(engine, "hello world", stop=stop)
    assert (answer.text, answer.reason) == ("hel", "stop")
    assert "".join(answer.pieces) == "hel"


def test_tools_and_tool_choice_reach_the_template(engine: JSONFFIEngine) -> None:
    tools = [TOOL, OTHER]
    assert (
        ask(engine, " go", tools=tools).text
        == json.dumps(
            [{"name": "add", "parameters": {"type": "object"}}, {"name": "other", "parameters": {}}]
        )
        + " go"
    )
    assert ask(engine, " go", tools=tools, tool_choice="none").text == " go"
    one = json.dumps([{"name": "other", "parameters": {}}]) + " go"
    chosen = {"type": "function", "function": {"name": "other"}}
    assert ask(engine, " go", tools=tools, tool_choice=chosen).text == one
    assert ask(engine, " go", tools=tools, tool_choice="other").text == one


def test_content_may_be_parts(engine: JSONFFIEngine) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [{"role": "system", "content": "sys "}, {"role": "user", "content": parts}]
    assert read(engine.chat.completions.create(messages=messages)).text == "sys one two"


def test_overlapping_requests_never_mix(engine: JSONFFIEngine) -> None:
    texts = [f"text number {i} " * (1 + i % 5) for i in range(32)]
    answers: dict[int, Answer] = {}

    def run(i: int) -> None:
        answers[i] = ask(engine, texts[i], stream_options={"include_usage": True})

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[i].text for i in range(len(texts))] == texts
    assert all(len(answer.usages) == 1 for answer in answers.values())
    assert len(engine._state._streams) == 0


HOSTILE_IDS = [
    "a",
    "a\\",
    'a"b',
    "{}",
    '"}], "usage": {}}]',
    '[{"id": "a"}]',
    '", "object": "chat.completion.chunk"',
    '", "choices": [], "usage": {"total_tokens": 0}}, {"id": "a',
    "\n",
    "a\r\n",
    "\x00",
    "\N{GRINNING FACE}",
    "\\ud83d\\ude00",
]


def test_any_text_may_be_an_id_and_its_chunks_reach_its_reader_alone(
    engine: JSONFFIEngine,
) -> None:
    texts = {name: f"{i} says " + HOSTILE_IDS[i - 1] for i, name in enumerate(HOSTILE_IDS)}
    streams = {name: start(engine, text, name) for name, text in texts.items()}
    answers = {name: Answer([next(stream)]) for name, stream in streams.items()}
    for name in reversed(HOSTILE_IDS):
        answers[name].chunks += streams[name]
    assert {name: answer.text for name, answer in answers.items()} == texts
    for name, answer in answers.items():
        assert {chunk.id for chunk in answer.chunks} == {name} and len(answer.usages) == 1
    assert len(engine._state._streams) == 0


def start(engine: JSONFFIEngine, text: str, request_id: str) -> Any:
    request = json.dumps({"messages": [{"role": "user", "content": text}]})
    return engine._raw_chat_completion(request, True, request_id)


def test_chunks_are_told_apart_by_their_ids_however_the_json_is_written() -> None:
    state, answers = EngineState(), dict[str, Answer]()
    ffi = {"chat_completion": lambda *_: True, "abort": lambda _: pytest.fail("aborted")}

    def run(name: str) -> None:
        answers[name] = read(state.handle_chat_completion(ffi, "{}", True, name))

    threads = [threading.Thread(target=run, args=(name,)) for name in HOSTILE_IDS]
    for thread in threads:
        thread.start()
    eventually(lambda: len(state._streams) == len(HOSTILE_IDS), "they do not read")
    chunks = [
        {"usage": {"total_tokens": i}, "choices": [], "id": name}
        for i, name in enumerate(HOSTILE_IDS)
    ]
    for text in (json.dumps(chunks[:5], indent=1), json.dumps(chunks[5:], separators=(",", ":"))):
        state._sync_request_stream_callback(text)
    for thread in threads:
        thread.join()
    totals = {name: answer.usages[0].total_tokens for name, answer in answers.items()}
    assert totals == {name: i for i, name in enumerate(HOSTILE_IDS)}


def test_streams_can_be_read_in_turns_by_one_thread(engine: JSONFFIEngine) -> None:
    streams = [
        engine.chat.completions.create(messages=[{"role": "user", "content": text * 20}])
        for text in "abc"
    ]
    heard = ["", "", ""]
    while streams != [None, None, None]:
        for i, stream in enumerate(streams):
            chunk = next(stream, None) if stream is not None else None
            if chunk is None:
                streams[i] = None  # type: ignore[call-overload]
            else:
                heard[i] += chunk.choices[0].delta.content or ""
    assert heard == ["a" * 20, "b" * 20, "c" * 20]


def test_closing_a_stream_aborts_its_request(engine: JSONFFIEngine) -> None:
    stream = engine.chat.completions.create(messages=[{"role": "user", "content": LONG}])
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    eventually(lambda: not engine._state._streams, "it runs on")
    assert engine.metrics()["completion_tokens_sum"] < 1000
    assert ask(engine, "fine").text == "fine"


def test_abort_ends_the_stream_with_a_reason_and_a_usage(engine: JSONFFIEngine) -> None:
    request = json.dumps({"messages": [{"role": "user", "content": LONG}]})
    stream = engine._raw_chat_completion(request, True, "mine")
    first = next(stream)
    assert engine._ffi["abort"]("mine") and engine._ffi["abort"]("nobody's")
    answer = read(stream)
    assert first.id == "mine" and answer.reason == "abort"
    assert len(answer.usages) == 1 and answer.usages[0].completion_tokens > 0
    again = json.dumps({"messages": [{"role": "user", "content": "again"}]})
    assert read(engine._raw_chat_completion(again, False, "mine")).text == "again"


def test_metrics_while_a_stream_is_open(engine: JSONFFIEngine) -> None:
    stream = engine.chat.completions.create(messages=[{"role": "user", "content": LONG}])
    next(stream)
    metrics = engine.metrics()
    assert metrics["prefill_tokens_sum"] == len(LONG)
    for name in (
        *("engine_prefill_time_sum", "engine_decode_time_sum", "engine_jump_forward_time_sum"),
        *("prompt_tokens_sum", "completion_tokens_sum", "decode_tokens_sum"),
        *("jump_forward_tokens_sum", "last_finished_request", "decode_time_by_batch_size"),
        *("draft_time_by_batch_size", "verify_time_by_batch_size"),
    ):
        assert name in metrics.metrics
    assert "prefill_tokens_sum 2000" in metrics.prometheus_text()
    stream.close()  # type: ignore[attr-defined]


def test_reset_reload_and_unload_end_the_streams(engine: JSONFFIEngine) -> None:
    for end in (engine._test_reset, engine._test_reload, engine._test_unload):
        streams = [
            engine.chat.completions.create(
                messages=[{"role": "user", "content": LONG}], stream_options={"include_usage": True}
            )
            for _ in range(4)
        ]
        for stream in streams:
            next(stream)
        end()
        for answer in map(read, streams):
            assert answer.reason == "abort" and len(answer.usages) == 1
        if end == engine._test_unload:
            engine._test_reload()
        assert engine.metrics()["prompt_tokens_sum"] == 0
        assert ask(engine, "fine").text == "fine"


def test_sync_queue_carries_what_nobody_reads() -> None:
    """The page's meaning: the callback puts its strings into the queue of the latest request."""
    state = EngineState()
    for text in (json.dumps([{"id": "x", "choices": [], "usage": None}]), "[]", "any words", "[1]"):
        state.get_request_stream_callback()(text)
        assert state.sync_queue.get_nowait() == text and state.sync_queue.empty()


def test_handle_chat_completion_with_functions_of_a_test() -> None:
    state, calls = EngineState(), []

    def chat_completion(request: str, request_id: str) -> bool:
        first = state.sync_queue
        calls.append((request, request_id))
        for text in ("on", "ce"):
            choice = {"index": 0, "delta": {"content": text}}
            state._sync_request_stream_callback(json.dumps([{"id": "r", "choices": [choice]}]))
        last = {"id": "r", "choices": [], "usage": {"total_tokens": 2}}
        state._sync_request_stream_callback(json.dumps([last]))
        assert state.sync_queue is first and first.qsize() == 4  # three chunks and the end
        return True

    ffi = {"chat_completion": chat_completion, "abort": calls.append}
    answer = read(state.handle_chat_completion(ffi, "{}", True, "r"))
    assert answer.text == "once" and answer.usages[0].total_tokens == 2
    assert calls == [("{}", "r")]


def test_the_callers_config_is_not_changed() -> None:
    config = EngineConfig(max_num_sequence=3)
    with engine_of("mock://echo", engine_config=config, mode="interactive") as engine:
        assert config == EngineConfig(max_num_sequence=3)
        assert (engine.engine_config.model, engine.engine_config.mode) == (
            "mock://echo",
            "interactive",
        )
        complete = json.loads(engine._ffi["get_complete_engine_config"]())
        assert complete["max_num_sequence"] == 3 and complete["mode"] == "interactive"
