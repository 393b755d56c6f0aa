"""What is wrong is answered with an error reply, and whatever breaks, every stream ends."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from json_ffi_harness import ask, engine_of, read
from threaded_harness import ECHO, LONG, PATIENCE_SECONDS, eventually, frozen, no_thread_is_left

from mlc_llm.errors import EngineDead, InvalidField, MLCError, ModelNotFound, UserError
from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.json_ffi.engine import EngineState
from mlc_llm.json_ffi.module import FUNCTIONS, MORE_FUNCTIONS, JSONFFIModule
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.openai.chunks import AnswerStream
from mlc_llm.serve.sync_engine import _create_tvm_module
from mlc_llm.serve.threaded.loops import LoopThreads

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="mlc_llm")


@pytest.fixture(scope="module")
def engine() -> Iterator[JSONFFIEngine]:
    """One for all wrong requests: it has to survive each of them."""
    with engine_of("mock://echo") as made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def started(engine: JSONFFIEngine) -> None:
    """Its threads run from one test to the next, so they start before the first is watched."""


WRONG = [
    ("malformed_string", "Failed to parse JSON"),
    ("[1]", "Failed to parse JSON"),
    ("[" * 100_000, "Failed to parse JSON"),
    ({}, 'key "messages" not found'),
    ({"messages": [{"role": "user"}]}, 'key "content" not found'),
    ({"messages": "hi"}, "unexpected value type"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "Role wizard is not supported"),
    ({"messages": USER, "temperature": -1}, "should be non-negative"),
    ({"messages": USER, "temperature": "hot"}, "unexpected value type"),
    ({"messages": USER, "top_p": 100}, "in range [0, 1]"),
    ({"messages": USER, "frequency_penalty": 100}, "frequency_penalty"),
    ({"messages": USER, "frequency_penalty": 100}, "[-2, 2]"),
    ({"messages": USER, "presence_penalty": -3}, "[-2, 2]"),
    ({"messages": USER, "n": 0}, '"n" should be at least 1'),
    ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "At most 20 top logprob"),
    ({"messages": USER, "logit_bias": {"1": 101}}, "in range [-100, 100]"),
    ({"messages": USER, "logit_bias": {"99999": 1}}, "logit_bias"),
    ({"messages": USER, "tools": [TOOL], "tool_choice": "no"}, "Invalid tool_choice value"),
    ({"messages": USER, "tool_choice": "required"}, "Invalid tool_choice value"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}]},
        "Vision config is required",
    ),
    ({"messages": USER, "debug_config": {"special_request": "x"}}, "Unknown special request x"),
    (
        {"messages": USER, "debug_config": {"grammar_execution_mode": "x"}},
        "Unknown grammar execution mode x",
    ),
    ({"messages": USER, "response_format": {"type": "x"}}, "Unknown response_format type x"),
    (
        {"messages": [*USER, {"role": "system", "content": "late"}]},
        "System prompt at position 1 in the message list is invalid.",
    ),
]


@pytest.mark.parametrize(("request_json", "words"), WRONG)
def test_a_wrong_request_gets_an_error_reply(
    engine: JSONFFIEngine, request_json: Any, words: str
) -> None:
    text = request_json if isinstance(request_json, str) else json.dumps(request_json)
    answer = read(engine._raw_chat_completion(text, True, "123"))
    assert len(answer.chunks) == 2
    (choice,) = answer.chunks[0].choices
    assert choice.finish_reason == "error" and choice.delta.role == "assistant"
    assert words in (choice.delta.content or "")
    error = answer.chunks[0].error
    assert error is not None and error.message == choice.delta.content
    assert error.type in ("invalid_request_error", "request_error")
    assert answer.chunks[1].error is None
    assert answer.chunks[1].choices == [] and answer.usages[0].total_tokens == 0
    assert ask(engine, "fine").text == "fine"


def test_a_rejection_is_said_at_once_on_the_callers_thread() -> None:
    heard: list[tuple[str, str]] = []
    ffi = _create_tvm_module("mlc.json_ffi.CreateJSONFFIEngine", FUNCTIONS + MORE_FUNCTIONS)

    def callback(text: str) -> None:
        heard.append((threading.current_thread().name, text))

    ffi["init_background_engine"](1, 0, callback)
    assert ffi["get_last_error"]() == ""
    assert ffi["chat_completion"]("{}", "early") is False
    assert "no engine is loaded" in ffi["get_last_error"]()
    ffi["reload"](ECHO)
    assert ffi["chat_completion"]("malformed_string", "wrong") is False
    assert "Failed to parse JSON" in ffi["get_last_error"]()
    assert [name for name, _ in heard] == [threading.current_thread().name] * 2
    chunks = json.loads(heard[1][1])
    assert [chunk["model"] for chunk in chunks] == ["json_ffi", "json_ffi"]
    assert chunks[1]["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    ffi["exit_background_loop"]()


def test_init_needs_a_known_device_and_a_callback() -> None:
    module = JSONFFIModule()
    with pytest.raises(InvalidField, match="device_type"):
        module.init_background_engine(3, 0, print)
    with pytest.raises(InvalidField, match=r"device_id = 5 .*CUDA_VISIBLE_DEVICES"):
        module.init_background_engine(1, 5, print)
    with pytest.raises(MLCError, match="needs a request stream callback"):
        module.init_background_engine(1, 0, None)
    with pytest.raises(InvalidField, match="callback = 5 is not allowed"):
        module.init_background_engine(1, 0, 5)  # type: ignore[arg-type]
    with pytest.raises(MLCError, match=r"not initialized; call .*init_background_engine"):
        module.chat_completion("{}", "a")


@pytest.mark.parametrize("device", [5, None])
def test_what_is_no_device_is_refused_by_name(device: Any) -> None:
    with pytest.raises(InvalidField, match=f"device = '{device}' is not allowed"):
        JSONFFIEngine("mock://echo", device)


def test_half_characters_do_no_harm(engine: JSONFFIEngine) -> None:
    """JSON can escape half a surrogate pair; what is said about it is text all the same."""
    half = "\ud800"
    answer = ask(engine, "hi", model=half, stream_options={"include_usage": True})
    assert answer.text.startswith("model = ") and "lone surrogate" in answer.text
    wrong = json.dumps({"messages": [{"role": half, "content": "x"}]})
    assert read(engine._raw_chat_completion(wrong, True, "a")).reason == "error"
    for text, name in ((half, "a"), ('{"messages": []}', half)):  # these cannot cross at all
        with pytest.raises(UnicodeEncodeError):
            next(engine._raw_chat_completion(text, True, name))
    assert len(engine._state._streams) == 0
    assert ask(engine, "fine", request_id="a").text == "fine"


def test_only_streams_are_supported(engine: JSONFFIEngine) -> None:
    stream = engine.chat.completions.create(messages=USER, stream=False)
    with pytest.raises(ValueError, match=r"^JSONFFIEngine only support stream=True$"):
        next(stream)


def test_parameters_have_the_names_of_the_api(engine: JSONFFIEngine) -> None:
    create = engine.chat.completions.create
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        create(messages=USER, temprature=1)
    with pytest.raises(TypeError, match="missing a required keyword-only argument: 'messages'"):
        create(model="echo")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"messages": [{"role": "user"}]}, 'key "content" not found'),
        ({"messages": USER, "temperature": -1}, "should be non-negative"),
        ({"messages": USER, "stop": ""}, "stop"),
        ({"messages": USER, "tools": [{"type": "function"}]}, 'key "function" not found'),
    ],
)
def test_create_raises_for_wrong_parameters(
    engine: JSONFFIEngine, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        next(engine.chat.completions.create(**arguments))


@pytest.mark.parametrize(("size", "said"), [(4096, "4096"), (1_000_000, "at least")])
def test_a_prompt_without_room_for_an_answer_is_an_error_with_both_sizes(
    engine: JSONFFIEngine, size: int, said: str
) -> None:
    answer = ask(engine, "x" * size, n=2, stream_options={"include_usage": True})
    assert answer.reason == "error" and len(answer.usages) == 1
    assert f"length is 4096 tokens. Request prompt has {said}" in answer.text
    error = answer.chunks[0].error
    assert error is not None and error.message == answer.text
    assert (error.type, error.code) == ("invalid_request_error", "context_length_exceeded")
    short = ask(engine, "x" * 4000, max_tokens=1)
    assert short.reason == "length" and short.chunks[0].error is None


def test_a_running_id_is_refused_and_the_other_stream_goes_on(
    engine: JSONFFIEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = threading.Event(), engine._ffi["chat_completion"]

    def begin_and_say(*arguments: Any) -> Any:
        accepted = begin(*arguments)
        begun.set()
        return accepted

    monkeypatch.setitem(engine._ffi, "chat_completion", begin_and_say)
    text = json.dumps({"messages": [{"role": "user", "content": "x" * 100}]})
    first = engine._raw_chat_completion(text, True, "same")
    with frozen():
        piece = threading.Thread(target=next, args=(first,))
        piece.start()
        assert begun.wait(PATIENCE_SECONDS)
        second = read(engine._raw_chat_completion(text, True, "same"))
        assert second.reason == "error" and "in use" in second.text and len(second.usages) == 1
        assert begin(text, "same") is False
        assert "names a request that runs" in engine._ffi["get_last_error"]()
    piece.join()
    rest = read(first)
    assert (len(rest.text), rest.reason, len(rest.usages)) == (99, "stop", 1)


def test_a_rejection_without_a_reply_is_still_an_answer() -> None:
    ffi = {"chat_completion": lambda *_: False, "get_last_error": lambda: "because"}
    answer = read(EngineState().handle_chat_completion(ffi, "{}", True, "a"))
    assert (answer.reason, answer.text, len(answer.usages)) == ("error", "because", 1)


def test_after_unload_requests_get_an_error_reply() -> None:
    with engine_of("mock://echo") as engine:
        engine._test_unload()
        engine._test_unload()
        engine._test_reset()
        assert engine._ffi["abort"]("nobody")
        answer = ask(engine, "hi", stream_options={"include_usage": True})
        assert answer.reason == "error" and "no engine is loaded" in answer.text
        with pytest.raises(MLCError, match="no engine is loaded"):
            engine.metrics()
        with pytest.raises(MLCError, match="no engine is loaded"):
            engine._ffi["get_complete_engine_config"]()
        engine._test_reload()
        assert ask(engine, "fine").text == "fine"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"model": "/no/such/model.gguf"}, ModelNotFound),
        ({"model": "mock://echo", "device": "toaster"}, InvalidField),
        ({"model": "mock://echo", "engine_config": EngineConfig(mode="server")}, InvalidField),
        ({"model": "mock://echo", "engine_config": EngineConfig(max_num_sequence=99)}, UserError),
    ],
)
def test_a_constructor_that_fails_leaves_no_thread(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    with no_thread_is_left(), pytest.raises(error):
        JSONFFIEngine(**arguments)


def test_a_failed_reload_raises_and_the_engine_stays_usable() -> None:
    with engine_of("mock://echo") as engine:
        for config in ("no json", '{"model": "/no/such/model.gguf"}'):
            with pytest.raises(UserError):
                engine._ffi["reload"](config)
        assert "/no/such/model.gguf" in ask(engine, "hi").text
        engine._test_reload()
        assert ask(engine, "fine").text == "fine"


def test_an_answer_that_cannot_be_written_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = AnswerStream.put

    def put(self: AnswerStream, output: Any) -> Any:
        if output.request_id == "bad":
            raise ZeroDivisionError("cannot be written")
        return usual(self, output)

    with engine_of("mock://echo") as engine:
        good = engine.chat.completions.create(messages=[{"role": "user", "content": "x" * 100}])
        next(good)
        monkeypatch.setattr(AnswerStream, "put", put)
        bad = ask(engine, LONG, request_id="bad", stream_options={"include_usage": True})
        assert (bad.reason, bad.text, len(bad.usages)) == ("error", "cannot be written", 1)
        assert len(read(good).text) == 99
        monkeypatch.undo()
        assert ask(engine, "fine", request_id="bad").text == "fine"


def test_a_callback_that_raises_ends_its_request_only() -> None:
    ended: list[str] = []
    texts = {"good": "", "bad": ""}

    def callback(text: str) -> None:
        chunks = json.loads(text)
        if chunks[0]["id"] == "bad" and "bad" not in ended:
            ended.append("bad")
            raise ZeroDivisionError("in the callback")
        ended.extend(chunk["id"] + " again" for chunk in chunks if "usage" in chunk)
        for chunk in chunks:
            texts[chunk["id"]] += "".join(one["delta"]["content"] for one in chunk["choices"])

    ffi = _create_tvm_module("mlc.json_ffi.CreateJSONFFIEngine", FUNCTIONS + MORE_FUNCTIONS)
    ffi["init_background_engine"](1, 0, callback)
    loops = LoopThreads(ffi)
    try:
        ffi["reload"](ECHO)
        for name in texts:
            request = {"messages": [{"role": "user", "content": "x" * 100}]}
            assert ffi["chat_completion"](json.dumps(request), name)
        eventually(lambda: len(ended) == 3, "a stream has no end")
        assert sorted(ended) == ["bad", "bad again", "good again"]
        assert texts["good"] == "x" * 100, "the other one was cut short"
    finally:
        loops.terminate()


def test_a_model_that_fails_ends_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlc_llm.serve.core.mock_echo import EchoRunner

    usual = EchoRunner.run

    def run(self: EchoRunner, batch: Any) -> Any:
        if any(0x21 in row.token_ids for row in batch.rows):  # an exclamation mark
            raise RuntimeError("no such luck")
        return usual(self, batch)

    with engine_of("mock://echo") as engine:
        monkeypatch.setattr(EchoRunner, "run", run)
        good = engine.chat.completions.create(messages=[{"role": "user", "content": "x" * 100}])
        next(good)
        bad = ask(engine, "text!", stream_options={"include_usage": True})
        assert (bad.reason, bad.text, len(bad.usages)) == ("error", "no such luck", 1)
        (error,) = [chunk.error for chunk in bad.chunks if chunk.error is not None]
        assert (error.message, error.type) == ("no such luck", "request_error")
        assert len(read(good).text) == 99


@pytest.mark.timing
def test_terminate_with_readers_releases_them_all() -> None:
    engine = JSONFFIEngine("mock://echo")
    answers: list[Any] = []

    def run() -> None:
        answers.append(ask(engine, LONG, stream_options={"include_usage": True}))

    threads = [threading.Thread(target=run) for _ in range(100)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(engine._state._streams) == 100, "they do not run")
    start = time.monotonic()
    engine.terminate()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 30
    assert all(len(answer.usages) == 1 for answer in answers)
    assert {answer.reason for answer in answers} <= {"abort", "error"}
    engine.terminate()
    late = ask(engine, "hi")
    assert late.reason == "error" and "terminated" in late.text
    with pytest.raises(EngineDead):
        engine._test_reload()


def test_close_releases_a_reader_whose_engine_is_gone() -> None:
    state = EngineState()
    ffi = {"chat_completion": lambda *_: True, "abort": lambda _: True}
    answers: list[Any] = []
    reader = threading.Thread(
        target=lambda: answers.append(read(state.handle_chat_completion(ffi, "{}", True, "a")))
    )
    reader.start()
    eventually(lambda: state._streams, "it does not read")
    state.close()
    reader.join()
    assert answers[0].reason == "error" and len(answers[0].usages) == 1


def test_terminate_inside_the_callback() -> None:
    engine = JSONFFIEngine("mock://echo")
    usual = engine._state._sync_request_stream_callback

    def callback(text: str) -> None:
        usual(text)
        engine.terminate()

    engine._state._sync_request_stream_callback = callback  # type: ignore[method-assign]
    answer = ask(engine, LONG, stream_options={"include_usage": True})
    assert answer.reason in ("abort", "error") and len(answer.usages) == 1
    engine.terminate()


def test_an_engine_that_is_lost_ends_its_threads_and_is_freed() -> None:
    before = threading.active_count()
    engine = JSONFFIEngine("mock://echo")
    assert ask(engine, "hi").text == "hi"
    lost = weakref.ref(engine._state)
    del engine
    gc.collect()
    eventually(lambda: threading.active_count() == before, "a thread is left")
    gc.collect()
    assert lost() is None


def test_nothing_is_left_open() -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("this system does not list a process's open files")
    with engine_of("mock://echo") as engine:
        ask(engine, "hi")
    before, threads = len(os.listdir(descriptors)), threading.active_count()
    for _ in range(3):
        with engine_of("mock://echo") as engine:
            ask(engine, "hi")
            engine._test_reload()
    assert (len(os.listdir(descriptors)), threading.active_count()) == (before, threads)


PROGRAM = """
import os, sys
from mlc_llm.json_ffi import JSONFFIEngine
engine = JSONFFIEngine("mock://echo")
messages = [{"role": "user", "content": "x" * 2000}]
stream = engine.chat.completions.create(messages=messages)
next(stream)
"""


def program(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.one_of(4)
@pytest.mark.parametrize("code", ["", "sys.exit(0)", "engine.terminate()", "del engine"])
def test_a_program_with_an_open_stream_ends(code: str) -> None:
    done = program(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_fails_ends_with_its_own_error() -> None:
    done = program("raise ValueError('my own')")
    assert done.returncode == 1 and done.stderr.strip().endswith("ValueError: my own")


def test_a_forked_child_gets_a_clear_error() -> None:
    done = program(
        """
child = os.fork()
if child == 0:
    for ask in (lambda: list(engine.chat.completions.create(messages=messages)), engine.metrics):
        try:
            ask()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    engine.terminate()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(len(list(stream)))
"""
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 3, done.stderr
    assert all("cannot be used in a forked one" in line for line in lines[:2])
    assert int(lines[2]) > 100
