"""`SyncMLCEngine` and its table of functions, on the echo engine."""

from __future__ import annotations

import gc
import json
import signal
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import tvm_ffi

from mlc_llm.errors import (
    ContextLengthExceeded,
    InvalidField,
    MLCError,
    RequestError,
    UserError,
)
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.sync_engine import SyncMLCEngine, _create_tvm_module

FFI_FUNCTIONS = [
    "init",
    "add_request",
    "abort_request",
    "step",
    "reset",
    "json_metrics",
    "get_request_stream_callback",
    "set_request_stream_callback",
    "create_request",
]


@pytest.fixture
def engine() -> SyncMLCEngine:
    return SyncMLCEngine("mock://echo")


def gather(engine: SyncMLCEngine) -> Iterator[tuple[str, Any]]:
    """Step until the usage of every request is there; yields (request id, single output)."""
    seen: list[tuple[str, Any]] = []

    def callback(outputs: Any) -> None:
        for output in outputs:
            request_id, singles = output.unpack()
            seen.extend((request_id, one) for one in singles)

    engine._ffi["set_request_stream_callback"](callback)
    while engine._ffi["has_request"]("a"):
        engine.step()
    yield from seen


@pytest.mark.parametrize(
    ("prompts", "texts"),
    [
        ("héllo", [["héllo"]]),
        (["one", "two"], [["one"], ["two"]]),
        ([104, 105], [["hi"]]),
        ([[104, 105], [33]], [["hi"], ["!"]]),
        ([[data.TextData("a"), data.TokenData([98])], [data.TextData("c")]], [["ab"], ["c"]]),
        ([], []),
    ],
)
def test_generate_takes_every_form_of_prompt(
    engine: SyncMLCEngine, prompts: Any, texts: list[list[str]]
) -> None:
    assert engine.generate(prompts, GenerationConfig()) == (texts, [None] * len(texts))


def test_generate_with_one_config_a_prompt(engine: SyncMLCEngine) -> None:
    configs = [
        GenerationConfig(n=2, logprobs=True, top_logprobs=3),
        GenerationConfig(max_tokens=2),
        GenerationConfig(stop_strs=["lo"]),
    ]
    texts, logprobs = engine.generate(["abc", "hello", "hello"], configs)
    assert texts == [["abc", "abc"], ["he"], ["hel"]]
    assert logprobs[1:] == [None, None] and logprobs[0] is not None
    for sequence in logprobs[0]:
        entries = [json.loads(text) for text in sequence]
        assert b"".join(bytes(entry["bytes"]) for entry in entries) == b"abc"
        assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    with pytest.raises(InvalidField, match="generation_config"):
        engine.generate(["a", "b"], configs)


def test_generate_restores_the_callback_and_leaves_nothing(engine: SyncMLCEngine) -> None:
    heard: list[Any] = []
    engine._ffi["set_request_stream_callback"](heard.append)
    engine.add_request(engine.create_request("mine", data.TextData("abc"), GenerationConfig()))
    engine.generate("abcdefg", GenerationConfig())
    assert len(heard) == 3 + 0 and not engine._ffi["has_request"]("mine")
    with pytest.raises(InvalidField, match="prompt token id = 999"):
        engine.generate([[1, 2], [999]], GenerationConfig())
    assert not engine._ffi["has_request"]("0")
    before = len(heard)
    # An id that generate used, too: what it listened with must be gone.
    engine.add_request(engine.create_request("0", data.TextData("a"), GenerationConfig()))
    engine.step()
    assert len(heard) == before + 1


def test_generate_raises_when_a_request_fails(
    engine: SyncMLCEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlc_llm.serve.core.mock_echo import EchoRunner

    def broken(self: EchoRunner, batch: Any) -> Any:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(EchoRunner, "run", broken)
    with pytest.raises(RequestError, match="no such luck"):
        engine.generate(["a", "b"], GenerationConfig())
    monkeypatch.undo()
    assert engine.generate("ab", GenerationConfig())[0] == [["ab"]]


def test_a_callback_that_raises_reaches_the_caller_and_the_engine_goes_on(
    engine: SyncMLCEngine,
) -> None:
    def raises(outputs: Any) -> None:
        raise ZeroDivisionError("in the callback")

    engine._ffi["set_request_stream_callback"](raises)
    engine.add_request(engine.create_request("a", data.TextData("ab"), GenerationConfig()))
    with pytest.raises(RuntimeError, match="in the callback"):
        engine.step()
    assert [one.delta_token_ids for _, one in gather(engine)] == [[98], []]


def test_interrupt_crosses_the_table(engine: SyncMLCEngine) -> None:
    def raises(outputs: Any) -> None:
        raise KeyboardInterrupt

    engine._ffi["set_request_stream_callback"](raises)
    engine.add_request(engine.create_request("a", data.TextData("ab"), GenerationConfig()))
    with pytest.raises(KeyboardInterrupt):
        engine.step()


@pytest.mark.parametrize(
    ("config", "field", "allowed"),
    [
        ('{"n": 0}', "n", '"n" should be at least 1 and at most 128'),
        ('{"response_format": {"type": "grammar"}}', "response_format.grammar", "not found"),
    ],
)
def test_errors_keep_their_public_class_across_the_table(
    engine: SyncMLCEngine, config: str, field: str, allowed: str
) -> None:
    with pytest.raises(InvalidField, match=allowed) as caught:
        engine._ffi["create_request"]("a", data.TextData("x"), config)
    assert type(caught.value) is InvalidField
    assert caught.value.field == field and allowed in caught.value.allowed
    with pytest.raises(ContextLengthExceeded, match="5000 tokens") as too_long:
        engine.generate([[65] * 5000], GenerationConfig())
    assert type(too_long.value) is ContextLengthExceeded
    assert (too_long.value.prompt_tokens, too_long.value.limit) == (5000, 4096)
    assert not too_long.value.at_least


@pytest.fixture
def python_handles_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_interrupts")
@pytest.mark.parametrize("function", ["create_request", "add_request", "step"])
def test_an_interrupted_generate_leaves_nothing(
    engine: SyncMLCEngine, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    heard: list[Any] = []
    engine._ffi["set_request_stream_callback"](heard.extend)
    engine.add_request(engine.create_request("1", data.TextData("other"), GenerationConfig()))
    called = getattr(engine, function)

    def interrupted(*args: Any, **named: Any) -> Any:
        result = called(*args, **named)
        signal.raise_signal(signal.SIGINT)  # right behind the work, before anyone could note it
        return result

    with monkeypatch.context() as patch:
        patch.setattr(engine, function, interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate("some text", GenerationConfig())
    assert not engine._ffi["has_request"]("0")
    with pytest.raises(InvalidField):
        engine.generate(["a", "b"], GenerationConfig())
    assert engine._ffi["has_request"]("1"), "someone else's"
    engine.reset()
    assert [one.request_id for one in heard if one.request_final_usage_json_str] == ["1"]
    assert engine.generate("some text", GenerationConfig())[0] == [["some text"]]


@pytest.mark.usefixtures("python_handles_interrupts")
@pytest.mark.parametrize("by", ["engine", "table"])
def test_an_interrupted_step_is_whole(engine: SyncMLCEngine, by: str) -> None:
    heard: list[Any] = []
    engine._ffi["set_request_stream_callback"](heard.extend)
    engine.add_request(engine.create_request("a", data.TextData("ab"), GenerationConfig()))

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name == "_update":
            sys.settrace(before)
            signal.raise_signal(signal.SIGINT)
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    with pytest.raises(KeyboardInterrupt):
        engine.step() if by == "engine" else engine._ffi["step"]()
    assert len(heard) == (by == "engine"), "callers of the table get it with the next step"
    while engine._ffi["has_request"]("a"):
        engine.step()
    tokens = [one.group_delta_token_ids for one in heard if not one.request_final_usage_json_str]
    assert [token for (sequence,) in tokens for token in sequence] == [97, 98]


def test_steps_stream_and_end_with_one_usage(engine: SyncMLCEngine) -> None:
    config = GenerationConfig(temperature=0.5, logit_bias={"7": 1.5}, seed=4)
    engine.add_request(engine.create_request("a", [data.TextData("xyz")], config))
    outputs = list(gather(engine))
    assert [one.delta_token_ids for _, one in outputs] == [[120], [121], [122], []]
    assert [one.finish_reason for _, one in outputs] == [None, None, "stop", None]
    usage = json.loads(outputs[-1][1].request_final_usage_json_str)
    assert usage["prompt_tokens"] == usage["completion_tokens"] == 3
    extra = usage["extra"]
    assert (extra["temperature"], extra["seed"], extra["logit_bias"]) == (0.5, 4, {"7": 1.5})


def test_abort_and_reset_give_their_outputs_at_once(engine: SyncMLCEngine) -> None:
    heard: list[Any] = []
    engine._ffi["set_request_stream_callback"](heard.extend)
    for name in ("a", "b"):
        engine.add_request(engine.create_request(name, data.TextData("abc"), GenerationConfig()))
    engine.abort_request("a")
    engine.abort_request("nobody")
    assert [output.request_id for output in heard] == ["a", "a"]
    engine.reset()
    assert [output.request_id for output in heard] == ["a", "a", "b", "b"]
    assert heard[2].group_finish_reason == ["abort"]
    engine.step()
    assert len(heard) == 4


def test_outputs_wait_for_a_callback(engine: SyncMLCEngine) -> None:
    engine.add_request(
        engine.create_request("a", data.TextData("abc"), GenerationConfig(max_tokens=0))
    )
    with pytest.raises(MLCError, match="callback is not set"):
        engine.step()
    heard: list[Any] = []
    engine._ffi["set_request_stream_callback"](heard.extend)
    engine.step()
    assert [output.request_id for output in heard] == ["a", "a"]


def test_metrics(engine: SyncMLCEngine) -> None:
    engine.generate("abcd", GenerationConfig())
    metrics = engine.metrics()
    assert isinstance(metrics, EngineMetrics) and metrics["prefill_tokens_sum"] == 4
    assert "prefill_tokens_sum 4" in metrics.prometheus_text()


def test_wrong_requests_are_refused_when_made(engine: SyncMLCEngine) -> None:
    wrong: list[Any] = [[], None, b"text", 3, [b"text"], [None]]
    for inputs in wrong:
        with pytest.raises(InvalidField, match="inputs"):
            engine.create_request("a", inputs, GenerationConfig())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"device": "toaster"}, "device"),
        ({"model_lib": "/no/such/lib.so"}, "model_lib"),
        ({"engine_config": EngineConfig(mode="server")}, "engine_config.mode"),
        ({"engine_config": EngineConfig(max_num_sequence=33)}, "max_num_sequence"),
        ({"engine_config": EngineConfig(max_total_sequence_length=100)}, "max_total_sequence"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        model = "other" if "model_lib" in arguments else "mock://echo"
        SyncMLCEngine(model, **arguments)


def test_what_is_no_request_and_no_callback_is_refused(engine: SyncMLCEngine) -> None:
    with pytest.raises(InvalidField, match="request = 'a' is not allowed"):
        engine.add_request("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="request_stream_callback = 5 is not allowed"):
        engine._ffi["set_request_stream_callback"](5)
    with pytest.raises(InvalidField, match="request_stream_callback = 5 is not allowed"):
        SyncMLCEngine("mock://echo", request_stream_callback=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="adapter = 5 is not allowed"):
        engine.create_request("a", data.TextData("x"), {}, adapter=5)  # type: ignore[arg-type]


def test_the_callers_config_is_not_changed() -> None:
    config = EngineConfig(max_num_sequence=3)
    engine = SyncMLCEngine("mock://echo", engine_config=config, mode="interactive")
    assert config == EngineConfig(max_num_sequence=3)
    assert engine.engine_config.max_num_sequence == 3
    assert engine.engine_config.max_single_sequence_length == 4096
    assert engine.engine_config.mode == "interactive"


def test_an_engine_with_a_callback_that_knows_it_is_freed() -> None:
    class Service:
        def __init__(self) -> None:
            self.heard: list[Any] = []
            self.engine = SyncMLCEngine("mock://echo", request_stream_callback=self.hear)

        def hear(self, outputs: Any) -> None:
            self.heard += outputs

    service = Service()
    service.engine.add_request(service.engine.create_request("a", data.TextData("hi"), {}))
    service.engine.step()
    assert service.heard
    lost = weakref.ref(service.engine)
    del service
    gc.collect()
    assert lost() is None


def test_tracing_records_the_life_of_a_request() -> None:
    engine = SyncMLCEngine("mock://echo", enable_tracing=True)
    engine.generate("abc", GenerationConfig())
    assert engine.trace_recorder is not None
    events = json.loads(engine.trace_recorder.dump_json())
    assert [(event["ph"], event["name"]) for event in events] == [
        ("i", "request added to engine (0)"),
        ("B", "request (0)"),
        ("B", "prefill (0)"),
        ("E", "prefill (0)"),
        ("B", "decode (0)"),
        ("E", "decode (0)"),
        ("B", "decode (1)"),
        ("E", "decode (1)"),
        ("E", "request (0)"),
    ]


def test_the_table_works_without_our_python_classes() -> None:
    """As another language sees it: strings, numbers and functions only."""
    module = tvm_ffi.get_global_func("mlc.serve.create_engine")()
    with pytest.raises(MLCError, match="not initialized"):
        module["step"]()
    heard: list[Any] = []
    module["init"](json.dumps({"model": "mock://echo"}), "cpu", heard.extend, None)
    request = module["create_request"]("a", "hi", '{"max_tokens": 1}')
    module["add_request"](request)
    with pytest.raises(MLCError, match="initialized before"):  # it would lose the request
        module["init"](json.dumps({"model": "mock://echo"}), "cpu", heard.extend, None)
    module["step"]()
    assert [output.group_finish_reason for output in heard] == [["length"], []]
    assert json.loads(module["json_metrics"]())["completion_tokens_sum"] == 1


def test_create_tvm_module_gives_the_named_functions() -> None:
    functions = _create_tvm_module("mlc.serve.create_engine", ffi_funcs=FFI_FUNCTIONS)
    assert sorted(functions) == sorted(FFI_FUNCTIONS)
    with pytest.raises(KeyError):
        _create_tvm_module("mlc.serve.create_engine", ffi_funcs=["no_such_function"])
