"""A request between the call that brings it and the engine's thread: it is prepared on the caller's
thread, can be aborted meanwhile, and runs on the model that it was made for or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from threaded_harness import ECHO, LONG, PATIENCE_SECONDS, Running, eventually

from mlc_llm.json_ffi import module as json_module
from mlc_llm.json_ffi.module import JSONFFIModule
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.core.admission import Admission
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded.loops import LoopThreads
from mlc_llm.tokenizers import stop_strings


class Held:
    """A function that waits, once it was called, until it may go on."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        usual = getattr(owner, name)

        def held(*args: Any, **more: Any) -> Any:
            self.entered.set()
            assert self.leave.wait(PATIENCE_SECONDS)
            return usual(*args, **more)

        patch.setattr(owner, name, held)

    @contextmanager
    def during(self, work: Callable[[], Any]) -> Iterator[None]:
        """While another thread does the work and waits in the function."""
        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert self.entered.wait(PATIENCE_SECONDS)
            yield
        finally:
            self.leave.set()
            thread.join()


def test_stop_strings_are_made_into_tables_once_and_by_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, threads = stop_strings._failure_table, []

    def table(text: bytes) -> Any:
        threads.append(threading.current_thread())
        return usual(text)

    monkeypatch.setattr(stop_strings, "_failure_table", table)
    with Running() as running:
        running.add("a", "some text", n=128, stop_strs=["te", "STOP", "xyz"])
        assert running.reader.end_of("a").reasons == ["stop"] * 128
    assert threads == [threading.current_thread()] * 3


def test_an_abort_ends_a_request_that_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, Admission, "prepare")
    with Running() as running:
        with held.during(lambda: running.add("a", LONG)):
            running.engine.abort_request("a")
            stream = running.reader.end_of("a")
            assert (stream.reasons, stream.tokens, len(stream.usages)) == (["abort"], [], 1)
        assert running.works() and not running.core.has_request("a")
        assert running.reader.order == ["a", "probe-1"]


def test_an_abort_ends_a_request_that_cannot_be_prepared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(monkeypatch, Admission, "prepare")
    wrong = {"type": "json_object", "schema": '{"$ref": "#"}'}
    with Running() as running:
        with held.during(lambda: running.add("a", response_format=wrong)):
            running.engine.abort_request("a")
        assert running.works() and running.reader.end_of("a").reasons == ["abort"]


def test_an_abort_before_a_request_is_not_about_it() -> None:
    with Running() as running:
        with running.paused():
            running.engine.abort_request("a")
            running.add("a")
        assert running.reader.end_of("a").reasons == ["stop"]


def test_after_a_reload_a_request_of_the_model_before_is_refused() -> None:
    with Running() as running:
        request = running.engine.create_request("a", "text", "{}")
        running.engine.reload(ECHO)
        running.engine.add_request(request)
        stream = running.reader.end_of("a")
        assert stream.reasons == ["error"] and "was reloaded" in str(stream.error)
        assert running.works() and len(stream.usages) == 1


def test_a_reload_while_a_request_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, Admission, "prepare")
    request = Request("a", [TokenData([1, 2])], GenerationConfig())  # made for no model yet
    with Running() as running:
        with held.during(lambda: running.engine.add_request(request)):
            running.engine.reload(ECHO)
        stream = running.reader.end_of("a")
        assert stream.reasons == ["error"] and "was reloaded" in str(stream.error)
        assert running.works() and len(stream.usages) == 1


def test_a_reload_that_waits_before_the_request() -> None:
    with Running() as running:
        reload = threading.Thread(target=running.engine.reload, args=(ECHO,))
        with running.paused():
            reload.start()
            eventually(lambda: running.engine._loop._inbox._queue, "the reload does not wait")
            running.add("a")
        reload.join()
        assert "was reloaded" in str(running.reader.end_of("a").error)
        assert running.works()


def test_questions_to_the_engine_are_for_any_model() -> None:
    with Running() as running:
        query = {"debug_config": {"special_request": "query_engine_metrics"}}
        request = running.engine.create_request("a", [], json.dumps(query))
        running.engine.reload(ECHO)
        running.engine.add_request(request)
        assert running.reader.end_of("a").usages[0]["extra"]["prompt_tokens_sum"] == 0


class Module:
    """The JSON FFI module with its threads."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.module = JSONFFIModule()
        self.module.init_background_engine(1, 0, self.texts.append)
        names = (
            "run_background_loop",
            "run_background_stream_back_loop",
            "exit_background_loop",
        )
        self.loops = LoopThreads({name: getattr(self.module, name) for name in names})
        self.module.reload(ECHO)

    def ask(self) -> bool:
        messages = [{"role": "user", "content": "hello"}]
        return self.module.chat_completion(json.dumps({"messages": messages}), "a")

    def chunks(self) -> list[dict[str, Any]]:
        """Of the answer, once it is whole."""
        eventually(lambda: any('"usage"' in text for text in self.texts), "there is no usage")
        return [chunk for text in self.texts for chunk in json.loads(text)]


@pytest.fixture
def module() -> Iterator[Module]:
    made = Module()
    yield made
    made.loops.terminate()


@pytest.mark.parametrize("end", ["abort", "reload"])
def test_what_comes_while_a_chat_is_tokenised(
    end: str, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, json_module, "engine_request")
    with held.during(module.ask):
        if end == "abort":
            module.module.abort("a")
            module.chunks()
        else:
            module.module.reload(ECHO)
    chunks = module.chunks()
    (choice,) = [one for chunk in chunks for one in chunk["choices"]]
    assert choice["finish_reason"] == ("abort" if end == "abort" else "error")
    assert end == "abort" or "was reloaded" in choice["delta"]["content"]
    assert len([chunk for chunk in chunks if chunk.get("usage")]) == 1
