"""`ThreadedEngine` on the echo engine: what it does when nothing goes wrong."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
import tvm_ffi
from threaded_harness import ECHO, LONG, Reader, Running, eventually

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.admission import Admission
from mlc_llm.serve.core.grammar.compiler import GrammarCompiler
from mlc_llm.serve.core.mock_echo import EchoPolicy
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.data import TextData
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.sync_engine import _create_tvm_module
from mlc_llm.serve.threaded_engine import FUNCTIONS, InstructionKind, ThreadedEngine


def test_instruction_kinds() -> None:
    assert [(kind.name, int(kind)) for kind in InstructionKind] == [
        ("kAddRequest", 0),
        ("kAbortRequest", 1),
        ("kUnloadEngine", 2),
        ("kReloadEngine", 3),
        ("kResetEngine", 4),
        ("kDebugCallFuncOnAllAllWorker", 5),
        ("kCallCore", 6),
        ("kChangeAdapters", 7),
    ]


def test_requests_run_together_and_each_ends_with_one_usage() -> None:
    with Running() as running:
        for i in range(20):
            running.add(f"r{i}", f"text {i}", n=1 + i % 2)
        for i in range(20):
            stream = running.reader.end_of(f"r{i}")
            assert sorted(bytes(stream.tokens)) == sorted(f"text {i}".encode() * (1 + i % 2))
            assert stream.reasons == ["stop"] * (1 + i % 2)
            assert len(stream.usages) == 1
        assert running.reader.threads == {"mlc-stream-back"}


@pytest.mark.parametrize(("size", "said"), [(4096, "4096"), (10**6, "at least")])
def test_a_prompt_without_room_for_an_answer_ends_with_an_error_and_one_usage(
    size: int, said: str
) -> None:
    with Running() as running:
        running.add("long", "x" * size, n=2)
        stream = running.reader.end_of("long")
        assert stream.reasons == ["error", "error"] and len(stream.usages) == 1
        assert f"length is 4096 tokens. Request prompt has {said}" in str(stream.error)
        assert running.works()


def test_a_config_may_be_a_dict_and_wrong_arguments_are_named() -> None:
    with Running() as running:
        make: Any = running.engine.create_request
        request = make("a", "hi", {"max_tokens": 1})
        assert request.generation_config.max_tokens == 1 and request.inputs == [TextData("hi")]
        for inputs in (None, b"hi", 3):
            with pytest.raises(InvalidField, match=r"inputs = .*should be a Data or a list"):
                make("a", inputs, "{}")
        with pytest.raises(InvalidField, match="generation_config = 3"):
            make("a", "hi", 3)


def test_abort_ends_a_stream_and_unknown_ids_are_ignored() -> None:
    with Running() as running:
        running.add("long", LONG)
        eventually(lambda: "long" in running.reader.streams, "nothing streams")
        running.engine.abort_request("nobody")
        running.engine.abort_request("long")
        stream = running.reader.end_of("long")
        assert stream.reasons == ["abort"] and len(stream.usages) == 1
        runner = running.core._runner
        eventually(lambda: runner.free_pages == runner.limits.num_pages, "pages are held")
        running.engine.abort_request("long")
        assert running.works() and set(running.reader.order) == {"long", "probe-1"}


def test_instructions_of_a_pause_are_carried_out_in_order_without_a_step_between() -> None:
    with Running() as running:
        with running.paused():
            running.add("a")
            running.engine.abort_request("a")
            running.add("b")
        assert running.reader.end_of("b").text == "hello"
        a = running.reader.end_of("a")
        assert (a.tokens, a.reasons, running.reader.order) == ([], ["abort"], ["a", "b"])


def test_a_slow_callback_does_not_stop_the_steps() -> None:
    with Running() as running:
        go_on = threading.Event()
        running.reader.on_call = lambda outputs: (go_on.wait(), None)[1]
        running.add("a", "some text")
        eventually(lambda: not running.core.has_request("a"), "the steps wait for the callback")
        assert running.reader.streams == {}
        go_on.set()
        assert running.reader.end_of("a").text == "some text"


@pytest.mark.parametrize(
    ("schema", "reason"), [('{"enum": [1]}', "stop"), ('{"$ref": "#"}', "error")]
)
def test_grammars_are_compiled_on_the_thread_that_brings_them(
    schema: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_it, threads = GrammarCompiler._compile, []

    def compiled(self: GrammarCompiler, wanted: Any) -> Any:
        threads.append(threading.current_thread())
        return compile_it(self, wanted)

    monkeypatch.setattr(GrammarCompiler, "_compile", compiled)
    # The echo engine compiles none by itself, and does not follow what is compiled here.
    grammar_of = Admission._grammar
    monkeypatch.setattr(EchoPolicy, "needs_grammar", RequestPolicy.needs_grammar)
    monkeypatch.setattr(Admission, "_grammar", lambda *given: (grammar_of(*given), None)[1])
    with Running() as running:
        running.add("a", response_format={"type": "json_object", "schema": schema})
        assert running.reader.end_of("a").reasons == [reason]
        assert threads == [threading.current_thread()]


def test_reset_aborts_and_clears_the_metrics() -> None:
    with Running() as running:
        assert running.works()
        running.add("long", LONG)
        running.engine.reset()
        assert running.reader.end_of("long").reasons == ["abort"]
        query = {"debug_config": {"special_request": "query_engine_metrics"}}
        running.engine.add_request(running.engine.create_request("m", [], json.dumps(query)))
        extra = running.reader.end_of("m").usages[0]["extra"]
        assert extra["prefill_tokens_sum"] == extra["completion_tokens_sum"] == 0
        assert running.works()


def test_reload_and_unload_are_barriers() -> None:
    with Running() as running:
        for i in range(4):
            running.add(f"r{i}", LONG)
        running.engine.reload(json.dumps({"model": "mock://echo", "max_num_sequence": 3}))
        assert running.engine.get_complete_engine_config().max_num_sequence == 3
        running.add("new", "new")
        assert running.reader.end_of("new").text == "new"
        assert sorted(running.reader.order[:4]) == ["r0", "r1", "r2", "r3"]
        assert all(running.reader.streams[f"r{i}"].reasons == ["abort"] for i in range(4))
        running.add("last", LONG)
        running.engine.unload()
        assert running.reader.end_of("last").reasons == ["abort"]


def test_what_is_loaded_can_be_read_and_nothing_before_or_after() -> None:
    with Running(load=False) as running:
        engine = running.engine
        for read in (engine.get_complete_engine_config, engine.get_default_generation_config):
            with pytest.raises(MLCError, match="no engine is loaded"):
                read()
        engine.reload(ECHO)
        assert isinstance(engine.get_complete_engine_config(), EngineConfig)
        assert engine.get_complete_engine_config().max_total_sequence_length == 32 * 4096
        assert engine.get_default_generation_config() == GenerationConfig()
        engine.unload()
        with pytest.raises(MLCError, match="no engine is loaded"):
            engine.get_complete_engine_config()


def test_debug_call_runs_on_the_engines_thread() -> None:
    seen: list[Any] = []
    tvm_ffi.register_global_func(
        "mlc_llm.test.debug_call",
        lambda *args: seen.append((threading.current_thread().name, *args)),
        override=True,
    )
    with Running() as running:
        running.engine.debug_call_func_on_all_worker("mlc_llm.test.debug_call", "words")
        running.engine.debug_call_func_on_all_worker("mlc_llm.test.debug_call")
        assert seen == [("mlc-engine", "words"), ("mlc-engine",)]
        with pytest.raises(InvalidField, match="no TVM global function"):
            running.engine.debug_call_func_on_all_worker("mlc_llm.test.no_such_function")


def test_the_usage_example_of_the_page() -> None:
    """Everything but the loops comes before the loops, as the page prints it."""
    callback = Reader()
    engine = ThreadedEngine.Create()
    engine.InitThreadedEngine("cpu", callback, EventTraceRecorder())
    engine.Reload(ECHO)
    request = engine.CreateRequest("request_122", TextData("hello"), GenerationConfig())
    engine.AddRequest(request)
    engine.AddRequest(engine.CreateRequest("request_123", "hello", "{}"))
    engine.AbortRequest("request_123")
    bg_thread = threading.Thread(target=engine.RunBackgroundLoop)
    cb_thread = threading.Thread(target=engine.RunBackgroundStreamBackLoop)
    bg_thread.start()
    cb_thread.start()
    assert callback.end_of("request_122").text == "hello"
    engine.ExitBackgroundLoop()
    bg_thread.join()
    cb_thread.join()
    assert callback.streams["request_123"].reasons == ["abort"] and not callback.broken


def test_every_name_of_the_page_is_there() -> None:
    for name in (
        *("InitThreadedEngine", "Reload", "Unload", "Reset", "AddRequest", "AbortRequest"),
        *("RunBackgroundLoop", "RunBackgroundStreamBackLoop", "ExitBackgroundLoop"),
        *("GetDefaultGenerationConfig", "GetCompleteEngineConfig", "DebugCallFuncOnAllAllWorker"),
    ):
        assert callable(getattr(ThreadedEngine, name))
    assert all(callable(getattr(ThreadedEngine, name)) for name in FUNCTIONS)


def test_the_table_takes_strings_and_functions() -> None:
    ffi = _create_tvm_module("mlc.serve.create_threaded_engine", FUNCTIONS)
    reader = Reader()
    ffi["init_threaded_engine"]("cpu", reader, None)
    ffi["reload"](ECHO)
    threads = [
        threading.Thread(target=ffi[name])
        for name in ("run_background_loop", "run_background_stream_back_loop")
    ]
    for thread in threads:
        thread.start()
    ffi["add_request"](ffi["create_request"]("a", "hi", '{"max_tokens": 1}'))
    assert reader.end_of("a").reasons == ["length"]
    assert json.loads(ffi["get_complete_engine_config"]())["max_num_sequence"] == 32
    assert json.loads(ffi["get_default_generation_config"]()) == {}
    with pytest.raises(InvalidField, match="no TVM global function"):
        ffi["debug_call_func_on_all_worker"]("mlc_llm.test.no_such_function", None)
    ffi["reset"]()
    ffi["unload"]()
    ffi["exit_background_loop"]()
    for thread in threads:
        thread.join()


@pytest.mark.timing
def test_an_idle_engine_sleeps_and_wakes_quickly() -> None:
    with Running() as running:
        assert running.works()
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.03
        waits = []
        for i in range(30):
            steps: list[float] = []
            inner = running.core.step
            running.core.step = lambda s=steps, f=inner: (s.append(time.perf_counter()), f())[1]
            start = time.perf_counter()
            running.add(f"r{i}", "a")
            running.reader.end_of(f"r{i}")
            running.core.step = inner
            waits.append(steps[0] - start)
        # On a machine with nothing else to do the median is a tenth of this: see benchmarks.
        assert sorted(waits)[len(waits) // 4] < 0.01
