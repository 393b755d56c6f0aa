"""Every instruction and every callback raises once: who hears of it, and who does not.

Beside each fault a bystander runs that has nothing to do with it. The table says what becomes of
the request or the caller that was touched, and of the bystander.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import tvm_ffi
from threaded_harness import ECHO, LONG, Running, eventually

from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.threaded_engine import InstructionKind

FAULT = "no such luck"


def fault(*_: object, **__: object) -> Any:
    raise RuntimeError(FAULT)


class Once:
    """Raises the first time that it is called with what `meant` accepts, and never again."""

    def __init__(self, usual: Callable[..., Any], meant: Callable[..., bool]) -> None:
        self._usual, self._meant, self._has_raised = usual, meant, False

    def __call__(self, *args: Any, **more: Any) -> Any:
        if not self._has_raised and self._meant(*args):
            self._has_raised = True
            raise RuntimeError(FAULT)
        return self._usual(*args, **more)


def break_it(
    patch: pytest.MonkeyPatch, owner: Any, name: str, meant: Callable[..., bool] = lambda *_: True
) -> None:
    patch.setattr(owner, name, Once(getattr(owner, name), meant))


def names_a(one: Any, *_: Any) -> bool:
    return getattr(one, "request_id", one) == "a"


@dataclass(frozen=True)
class Fault:
    """What is broken, what is asked, and what comes of it."""

    kind: InstructionKind
    where: str
    """An attribute of the core, or "open", "function"."""
    touched: str | None
    """How request "a" ends; None where there is none."""
    bystander: str
    caller_hears: str | None = None


FAULTS = [
    Fault(InstructionKind.kAddRequest, "add_request", "error", "stop"),
    Fault(InstructionKind.kAbortRequest, "abort_request", "error", "error"),
    Fault(InstructionKind.kResetEngine, "reset", "error", "error"),
    Fault(InstructionKind.kUnloadEngine, "reset", "abort", "abort"),
    Fault(InstructionKind.kReloadEngine, "reset", "abort", "abort"),
    Fault(InstructionKind.kReloadEngine, "open", "abort", "abort", FAULT),
    Fault(InstructionKind.kDebugCallFuncOnAllAllWorker, "function", "stop", "stop", FAULT),
    Fault(InstructionKind.kCallCore, "function", "stop", "stop", FAULT),
    Fault(InstructionKind.kChangeAdapters, "drop", "stop", "stop", FAULT),
]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="mlc_llm")


@pytest.fixture
def debug_function() -> Iterator[str]:
    name = "mlc_llm.test.fault"
    tvm_ffi.register_global_func(name, fault, override=True)
    yield name
    tvm_ffi.remove_global_func(name)


def place(running: Running, where: str) -> tuple[Any, str]:
    if where == "open":
        from mlc_llm.serve.threaded import worker as threaded_worker

        return threaded_worker, "open_engine"
    if where == "drop":
        return running.core.adapters, where
    return running.core, where


def ask(running: Running, one: Fault, function: str) -> Callable[[], None]:
    engine = running.engine
    return {
        InstructionKind.kAddRequest: lambda: running.add("a"),
        InstructionKind.kAbortRequest: lambda: engine.abort_request("a"),
        InstructionKind.kResetEngine: engine.reset,
        InstructionKind.kUnloadEngine: engine.unload,
        InstructionKind.kReloadEngine: lambda: engine.reload(ECHO),
        InstructionKind.kDebugCallFuncOnAllAllWorker: lambda: engine.debug_call_func_on_all_worker(
            function
        ),
        InstructionKind.kCallCore: lambda: engine.call_core(fault),
        InstructionKind.kChangeAdapters: lambda: engine.drop_adapter("a"),
    }[one.kind]


def test_the_table_has_every_kind() -> None:
    assert {one.kind for one in FAULTS} == set(InstructionKind)


@pytest.mark.parametrize("one", FAULTS, ids=lambda one: f"{one.kind.name}-{one.where}")
def test_an_instruction_that_raises(
    one: Fault, debug_function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running() as running:
        both_end = "stop" in (one.touched, one.bystander)
        long = "x" * (100 if both_end else 2000)
        running.add("bystander", long)
        if one.kind is not InstructionKind.kAddRequest:
            running.add("a", long)
        eventually(lambda: "bystander" in running.reader.streams, "nothing streams")
        if one.where != "function":
            break_it(monkeypatch, *place(running, one.where))
        if one.caller_hears is None:
            ask(running, one, debug_function)()
        else:
            with pytest.raises(RuntimeError, match=one.caller_hears):
                ask(running, one, debug_function)()
        assert running.reader.end_of("a").reasons == [one.touched]
        assert running.reader.end_of("bystander").reasons == [one.bystander]
        monkeypatch.undo()
        running.engine.reload(ECHO)
        assert running.works()


CALLBACKS = {
    "the stream callback": ("abort", "stop"),
    "the model": ("error", "stop"),
    "the admission": ("error", "stop"),
    "the sampled token": ("error", "error"),
    "the scheduler": ("error", "error"),
    "the trace": ("error", "stop"),
}
"""What is called on behalf of request "a": how "a" ends, and how the bystander does."""


@pytest.mark.parametrize("what", CALLBACKS)
def test_a_callback_that_raises(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running() as running:
        core = running.core
        if what == "the stream callback":
            # The bystander's outputs come in calls of their own: it starts after the fault.
            running.reader.on_call = Once(
                lambda outputs: None, lambda outputs: outputs[0].request_id == "a"
            )
        elif what == "the model":
            usual = core._runner.run
            core._runner.run = lambda batch: (
                fault() if any(ord("!") in row.token_ids for row in batch.rows) else usual(batch)
            )
        elif what == "the admission":
            break_it(monkeypatch, core._admission, "accept", names_a)
        elif what == "the sampled token":
            break_it(monkeypatch, core._postprocessor, "commit", lambda b, _: names_a(b.request))
        elif what == "the scheduler":
            break_it(monkeypatch, core._scheduler, "schedule")
        elif what == "the trace":
            core._telemetry.trace = EventTraceRecorder()
            break_it(monkeypatch, core._telemetry.trace, "add_event", names_a)
        with running.paused():
            running.add("a", LONG + "!")
            if what != "the stream callback":
                running.add("bystander", "x" * 50)
        touched, beside = CALLBACKS[what]
        assert running.reader.end_of("a").reasons == [touched]
        if what == "the stream callback":
            running.add("bystander", "x" * 50)
        assert running.reader.end_of("bystander").reasons == [beside]
        eventually(lambda: core.is_idle, "something of the request is left in the core")
        monkeypatch.undo()
        assert running.works()
