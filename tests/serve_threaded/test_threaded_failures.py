"""Whatever raises ends what it touched, everybody is answered, and the engine goes on."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from threaded_harness import ECHO, LONG, Reader, Running, eventually

from mlc_llm.errors import EngineDead, InvalidField, MLCError, ModelNotFound, UserError
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.threaded_engine import ThreadedEngine


class Killed(BaseException):
    """More than any part of the engine expects."""


def raises(error: BaseException) -> Callable[..., Any]:
    def fault(*_: object, **__: object) -> Any:
        raise error

    return fault


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="mlc_llm")


def test_init_needs_a_callback_and_comes_first() -> None:
    engine = ThreadedEngine()
    with pytest.raises(MLCError, match="not initialized"):
        engine.reload(ECHO)
    with pytest.raises(MLCError, match="needs a request stream callback"):
        engine.init_threaded_engine("cpu", None, None)
    with pytest.raises(InvalidField, match="request_stream_callback = 5 is not allowed"):
        engine.init_threaded_engine("cpu", 5, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="trace_recorder = 'x' is not allowed"):
        engine.init_threaded_engine("cpu", Reader(), "x")  # type: ignore[arg-type]
    engine.init_threaded_engine("cpu", Reader(), None)
    with pytest.raises(MLCError, match="initialized before"):
        engine.init_threaded_engine("cpu", Reader(), None)
    with pytest.raises(InvalidField, match="request = 'a' is not allowed"):
        engine.add_request("a")  # type: ignore[arg-type]


def test_without_a_model_requests_get_an_error_and_the_loop_survives() -> None:
    with Running() as running:
        request = running.engine.create_request("a", "text", "{}")
        running.engine.unload()
        running.engine.unload()
        running.engine.abort_request("a")
        running.engine.reset()
        running.engine.add_request(request)
        stream = running.reader.end_of("a")
        assert stream.reasons == ["error"] and "no engine is loaded" in str(stream.error)
        assert stream.usages == [{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}]
        with pytest.raises(MLCError, match="no engine is loaded"):
            running.engine.debug_call_func_on_all_worker("any", None)
        with pytest.raises(InvalidField, match="func_name = 5 is not allowed"):
            running.engine.debug_call_func_on_all_worker(5, None)  # type: ignore[arg-type]
        running.engine.reload(ECHO)
        assert running.works()


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ("no json", UserError, "Failed to parse JSON"),
        ('{"model": "/no/such/model.gguf"}', ModelNotFound, "/no/such/model.gguf"),
        ('{"modle": "x"}', InvalidField, "nearest known is 'mode'"),
        ('{"model": "mock://echo", "max_num_sequence": 99}', InvalidField, "limit is 32"),
    ],
)
def test_a_failed_reload_raises_in_its_caller(config: str, error: type, words: str) -> None:
    with Running() as running:
        with pytest.raises(error, match=words):
            running.engine.reload(config)
        running.engine.reload(ECHO)
        assert running.works()


def test_a_config_that_cannot_be_read_changes_nothing() -> None:
    with Running() as running:
        with pytest.raises(UserError):
            running.engine.reload("{")
        assert running.works()


def test_after_a_failed_reload_requests_hear_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running() as running:
        request = running.engine.create_request("a", "text", "{}")
        monkeypatch.setattr(
            "mlc_llm.serve.threaded.worker.open_engine", raises(MemoryError("too little memory"))
        )
        with pytest.raises(MemoryError, match="too little memory"):
            running.engine.reload(ECHO)
        running.engine.add_request(request)
        assert "too little memory" in str(running.reader.end_of("a").error)
        monkeypatch.undo()
        running.engine.reload(ECHO)
        assert running.works()


def test_who_asks_during_a_reload_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running() as running:
        heard: list[str] = []

        def opening(*_: object) -> None:
            with pytest.raises(MLCError) as refused:
                running.engine.create_request("a", "text", "{}")
            heard.append(str(refused.value))
            raise MemoryError("too little memory")

        monkeypatch.setattr("mlc_llm.serve.threaded.worker.open_engine", opening)
        with pytest.raises(MemoryError):
            running.engine.reload(ECHO)
        assert len(heard) == 1 and "a reload is under way" in heard[0]


def test_reloads_from_many_threads_all_return() -> None:
    with Running() as running:
        errors: list[Exception] = []

        def reload(config: str) -> None:
            try:
                running.engine.reload(config)
            except UserError as error:
                errors.append(error)

        configs = [ECHO, '{"model": "/no/such/model.gguf"}'] * 6
        threads = [threading.Thread(target=reload, args=(config,)) for config in configs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) == 6
        running.engine.reload(ECHO)
        assert running.works()


def test_a_step_of_the_model_that_raises_ends_its_request_only() -> None:
    with Running() as running:
        inner = running.core._runner.run

        def run(batch: Any) -> Any:
            if any(104 in row.token_ids for row in batch.rows):  # an h
                raise RuntimeError("no such luck")
            return inner(batch)

        running.core._runner.run = run
        with running.paused():
            running.add("good", "aaa")
            running.add("bad", "hhh")
        assert running.reader.end_of("good").text == "aaa"
        bad = running.reader.end_of("bad")
        assert bad.reasons == ["error"] and bad.error == "no such luck" and len(bad.usages) == 1
        assert running.works


@pytest.mark.parametrize("place", ["step", "abort_request", "reset"])
def test_a_core_that_raises_ends_its_requests_and_works_again(place: str) -> None:
    with Running() as running:
        inner = getattr(running.core, place)
        with running.paused():
            setattr(running.core, place, _once(inner, raises(RuntimeError(f"broken {place}"))))
            running.add("a", LONG)
            running.add("b", LONG, n=2)
            if place == "abort_request":
                running.engine.abort_request("a")
            if place == "reset":
                running.engine.reset()
        a, b = running.reader.end_of("a"), running.reader.end_of("b")
        assert (a.reasons, b.reasons) == (["error"], ["error", "error"])
        assert a.error == b.error == f"broken {place}"
        assert running.works()


def test_a_core_that_cannot_be_reset_is_unloaded() -> None:
    with Running() as running:
        request = running.engine.create_request("late", "text", "{}")
        running.core.step = raises(RuntimeError("broken step"))
        running.core.reset = raises(RuntimeError("broken reset"))
        running.add("a", LONG)
        assert running.reader.end_of("a").error == "broken step"
        running.engine.add_request(request)
        assert "broken reset" in str(running.reader.end_of("late").error)
        running.engine.reload(ECHO)
        assert running.works()


def test_a_core_that_cannot_be_reset_can_still_be_unloaded() -> None:
    with Running() as running:
        running.core.reset = raises(RuntimeError("broken reset"))
        running.add("a", LONG)
        running.engine.reload(ECHO)
        assert running.reader.end_of("a").reasons == ["abort"]
        assert running.works()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), InvalidField("f", 1, "2")])
def test_a_request_that_cannot_be_added_ends_alone(error: Exception) -> None:
    with Running() as running:
        running.add("other", "x" * 300)
        eventually(lambda: "other" in running.reader.streams, "nothing streams")
        running.core.add_request = _once(running.core.add_request, raises(error))
        running.add("a")
        stream = running.reader.end_of("a")
        assert stream.reasons == ["error"] and stream.error == str(error)
        assert running.reader.end_of("other").reasons == ["stop"]
        assert running.works()


def test_a_prompt_that_the_model_cannot_read_is_refused_with_an_error() -> None:
    with Running() as running:
        running.engine.add_request(running.engine.create_request("a", TokenData([999]), "{}"))
        assert "prompt token id = 999" in str(running.reader.end_of("a").error)


def test_a_running_id_is_refused_in_the_caller_and_free_again_after_the_end() -> None:
    with Running() as running:
        running.add("a", LONG)
        with pytest.raises(InvalidField, match="it names a request that runs"):
            running.add("a", "other")
        running.engine.abort_request("a")
        assert running.reader.end_of("a").reasons == ["abort"]
        running.add("a", "again")
        eventually(lambda: running.reader.order == ["a", "a"], "no second end")
        running.reader.broken.clear()  # the second request of this name, not a fault


@pytest.mark.parametrize("error", [RuntimeError("in the callback"), SystemExit(3)])
def test_a_callback_that_raises_is_called_again(error: BaseException) -> None:
    with Running() as running:
        running.add("long", LONG)
        eventually(lambda: "long" in running.reader.streams, "nothing streams")
        running.reader.on_call = _once(lambda outputs: None, raises(error))
        # Its text has a hole now, so it is aborted.
        assert running.reader.end_of("long").reasons == ["abort"]
        assert running.works()


def test_a_callback_may_use_the_engine() -> None:
    with Running() as running:
        running.reader.on_call = lambda outputs: (
            running.engine.abort_request("nobody"),
            running.engine.reload(ECHO),
        )[1]
        running.add("a", LONG)
        assert running.reader.end_of("a").reasons == ["abort"]
        running.reader.on_call = lambda outputs: None
        assert running.works()


def test_the_engines_thread_cannot_wait_for_itself() -> None:
    import tvm_ffi

    with Running() as running:
        tvm_ffi.register_global_func("mlc_llm.test.waits", running.engine.unload, override=True)
        with pytest.raises(MLCError, match="cannot wait for the engine"):
            running.engine.debug_call_func_on_all_worker("mlc_llm.test.waits")
        tvm_ffi.remove_global_func("mlc_llm.test.waits")
        assert running.works()


@pytest.mark.parametrize("place", ["step", "add_request", "abort_request", "reset"])
def test_when_the_engine_dies_everybody_is_answered(place: str) -> None:
    with Running() as running:
        request = running.engine.create_request("late", "text", "{}")
        with running.paused():
            setattr(running.core, place, raises(Killed("out of the blue")))
            running.add("a", LONG)
            if place == "abort_request":
                running.engine.abort_request("a")
            if place == "reset":
                running.engine.reset()
            running.add("b", LONG)
        for name in ("a", "b"):
            stream = running.reader.end_of(name)
            assert stream.reasons == ["error"] and len(stream.usages) == 1
            assert stream.error == "the engine died: out of the blue"
        for ask in (
            lambda: running.engine.add_request(request),
            lambda: running.engine.reload(ECHO),
            running.engine.unload,
            running.engine.reset,
        ):
            with pytest.raises(EngineDead, match="out of the blue"):
                ask()
        running.engine.abort_request("a")


def test_callers_who_wait_hear_that_the_engine_died() -> None:
    with Running() as running:
        errors: list[BaseException] = []

        def unload() -> None:
            with pytest.raises(EngineDead) as caught:
                running.engine.unload()
            errors.append(caught.value)

        threads = [threading.Thread(target=unload) for _ in range(3)]
        with running.paused():
            running.add("a", LONG)
            for thread in threads:
                thread.start()
            eventually(lambda: len(running.engine._loop._inbox._queue) == 4, "they do not wait")
            running.core.add_request = raises(Killed("out of the blue"))
        for thread in threads:
            thread.join()
        assert running.reader.end_of("a").reasons == ["error"]
        assert {str(error) for error in errors} == {"the engine died: out of the blue"}
        assert len(errors) == 3


@pytest.mark.timing
def test_exit_with_queued_work_and_a_slow_callback_is_bounded() -> None:
    with Running() as running:
        calls: list[object] = []
        running.reader.on_call = lambda outputs: (calls.append(outputs), time.sleep(0.3))
        for i in range(100):
            running.add(f"r{i}", LONG)
        before = len(calls)
        running.loops.terminate()
        assert len(calls) - before < 10, "one call ends many streams"
        assert len(running.reader.order) == 100
        assert all(stream.reasons == ["abort"] for stream in running.reader.streams.values())
        running.loops.terminate()
        running.engine.exit_background_loop()
        with pytest.raises(EngineDead, match="terminated"):
            running.engine.reload(ECHO)
        with pytest.raises(EngineDead, match="terminated"):
            running.engine.get_complete_engine_config()


def test_terminate_from_many_threads_and_from_the_callback() -> None:
    with Running() as running:
        running.reader.on_call = lambda outputs: running.loops.terminate()
        running.add("a", LONG)
        assert running.reader.end_of("a").reasons == ["abort"]
        threads = [threading.Thread(target=running.loops.terminate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_exit_before_and_without_loops() -> None:
    engine, reader = ThreadedEngine(), Reader()
    engine.init_threaded_engine("cpu", reader, None)
    engine.reload(ECHO)
    engine.add_request(engine.create_request("a", "text", "{}"))
    engine.exit_background_loop()
    engine.run_background_loop()
    engine.run_background_stream_back_loop()
    assert reader.streams["a"].reasons == ["abort"] and reader.order == ["a"]


def test_a_second_loop_is_refused() -> None:
    with Running() as running, pytest.raises(MLCError, match="runs already"):
        running.engine.run_background_loop()


def test_a_second_stream_back_loop_is_refused() -> None:
    """It would take outputs out of their order, and wait for an end that the first one has seen."""
    with Running() as running:
        running.add("a", "text")
        with pytest.raises(MLCError, match="stream-back loop of this engine runs already"):
            running.engine.run_background_stream_back_loop()


def test_loops_of_a_lost_engine_end_by_themselves() -> None:
    running = Running()
    running.add("a", LONG)
    del running.loops
    assert running.reader.end_of("a").reasons == ["abort"]


def test_reload_in_a_thread_while_the_engine_is_terminated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlc_llm.serve.threaded import worker as threaded_worker

    inner = threaded_worker.open_engine
    monkeypatch.setattr(
        threaded_worker, "open_engine", lambda *args: (time.sleep(0.2), inner(*args))[1]
    )
    for load in (False, True):
        with Running(load=load) as running:
            answers: list[object] = []

            def reload(answers: list[object] = answers, running: Running = running) -> None:
                try:
                    answers.append(running.engine.reload(ECHO))
                except EngineDead as error:
                    answers.append(error)

            threads = [threading.Thread(target=reload) for _ in range(3)]
            for thread in threads:
                thread.start()
            running.loops.terminate()
            for thread in threads:
                thread.join()
            assert len(answers) == 3


PROGRAM = """
import os, sys, threading
sys.path.insert(0, {tests!r})
from threaded_harness import LONG, Running
running = Running()
running.add("a", LONG)
"""


def program(code: str) -> subprocess.CompletedProcess[str]:
    from pathlib import Path

    code = PROGRAM.format(tests=str(Path(__file__).parent.parent)) + code
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_program_that_forgets_to_terminate_ends() -> None:
    done = program("print('the end')")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "the end", "")


def test_a_forked_child_gets_a_clear_error_and_ends() -> None:
    done = program(
        """
child = os.fork()
if child == 0:
    for ask in (running.engine.unload, running.engine.reset, lambda: running.add("b")):
        try:
            ask()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    running.loops.terminate()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), running.works())
"""
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, done.stderr
    assert lines[-1] == "7 True"
    assert all("cannot be used in a forked one" in line for line in lines[:3])


def _once(usual: Callable[..., Any], first: Callable[..., Any]) -> Callable[..., Any]:
    """Call `first` the first time, and `usual` ever after."""
    left = [first]

    def call(*args: Any, **more: Any) -> Any:
        return (left.pop() if left else usual)(*args, **more)

    return call
