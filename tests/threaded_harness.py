"""A threaded engine with its threads, and a reader of all it says. Shared by its tests and those of
the JSON FFI engine."""

from __future__ import annotations

import faulthandler
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Batch, BatchOutput
from mlc_llm.serve.core.mock_echo import EchoRunner
from mlc_llm.serve.data import RequestStreamOutput, TextData
from mlc_llm.serve.threaded.loops import LoopThreads
from mlc_llm.serve.threaded_engine import ThreadedEngine

ECHO = json.dumps({"model": "mock://echo"})
WATCH_SECONDS = 120.0
COMPILING_SECONDS = 360.0
"""Of a test with a real model, which may have to be compiled first."""
PATIENCE_SECONDS = 60.0
"""For what takes milliseconds: another program may have the processor meanwhile."""
LOOP_FUNCTIONS = ("run_background_loop", "run_background_stream_back_loop", "exit_background_loop")


def limit_of(test: pytest.Item) -> float:
    """Seconds after which a test hangs."""
    return WATCH_SECONDS if test.get_closest_marker("model") is None else COMPILING_SECONDS


@contextmanager
def watched(config: pytest.Config, seconds: float = WATCH_SECONDS) -> Iterator[None]:
    """Longer than this is a hang: show where every thread is, and end the test run."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        real_stderr = os.dup(2)
    faulthandler.dump_traceback_later(seconds, exit=True, file=real_stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.close(real_stderr)


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    eventually(lambda: set(threading.enumerate()) <= before, "a thread is left")


def eventually(
    condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait for something that another thread does."""
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < seconds, what
        time.sleep(min(0.02, 0.0005 + waited / 10))


def eventually_holds(check: Callable[[], None]) -> None:
    """Wait until `check` raises nothing: other threads may be at work on what it reads."""
    start = time.monotonic()
    while True:
        try:
            return check()
        except Exception:
            if time.monotonic() - start > PATIENCE_SECONDS:
                raise
        time.sleep(0.002)


@dataclass
class Stream:
    """What was said about one request with one sequence or several."""

    tokens: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    error: str | None = None
    usages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of the echo's byte tokens."""
        return bytes(self.tokens).decode()


class Reader:
    """A stream callback; checks the rules that hold for every stream."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.order: list[str] = []
        self.broken: list[str] = []
        self.threads: set[str] = set()
        self.on_call: Callable[[list[RequestStreamOutput]], None] = lambda outputs: None

    def __call__(self, outputs: Any) -> None:
        outputs = list(outputs)
        self.threads.add(threading.current_thread().name)
        self.on_call(outputs)
        for output in outputs:
            self._take(output)

    def _take(self, output: RequestStreamOutput) -> None:
        stream = self.streams.setdefault(output.request_id, Stream())
        if stream.usages:
            self.broken.append(f"{output.request_id}: something follows the usage")
        if output.request_final_usage_json_str is not None:
            stream.usages.append(json.loads(output.request_final_usage_json_str))
            self.order.append(output.request_id)
        for ids in output.group_delta_token_ids:
            stream.tokens += ids
        stream.reasons += [reason for reason in output.group_finish_reason if reason]
        stream.error = output.error or stream.error

    def has_ended(self, request_id: str) -> bool:
        return request_id in self.order

    def end_of(self, request_id: str) -> Stream:
        eventually(lambda: self.has_ended(request_id), f"{request_id} has no end")
        return self.streams[request_id]


class Running:
    """An engine and its threads, as a context. `load`: open the echo engine at once."""

    def __init__(self, *, load: bool = True, device: str = "auto") -> None:
        self.engine = ThreadedEngine.Create()
        self.reader = Reader()
        self.engine.init_threaded_engine(device, self.reader, None)
        self.loops = LoopThreads({name: getattr(self.engine, name) for name in LOOP_FUNCTIONS})
        try:
            if load:
                self.engine.reload(ECHO)
        except BaseException:
            self.loops.terminate()
            raise

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.loops.terminate()
        assert self.reader.broken == []

    @property
    def core(self) -> Any:
        """To break things in it."""
        return self.engine.loaded.core

    def add(self, request_id: str, text: str = "hello", **config: Any) -> None:
        self.engine.add_request(
            self.engine.create_request(request_id, TextData(text), GenerationConfig(**config))
        )

    def works(self) -> bool:
        """A new request is answered."""
        name = f"probe-{len(self.reader.order)}"
        self.add(name, "fine")
        stream = self.reader.end_of(name)
        return stream.text == "fine" and stream.reasons == ["stop"] and len(stream.usages) == 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The loop does nothing while this lasts; what is asked of it waits in the inbox."""
        entered, leave = threading.Event(), threading.Event()
        inner = self.engine._worker.step

        def step() -> None:
            entered.set()
            leave.wait()
            inner()

        self.engine._worker.step = step  # type: ignore[method-assign]
        self.engine.abort_request("wakes the loop")
        assert entered.wait(PATIENCE_SECONDS)
        try:
            yield
        finally:
            self.engine._worker.step = inner  # type: ignore[method-assign]
            leave.set()


LONG = "x" * 2000
"""A prompt whose echo takes 2000 steps: with `slow_steps` it is certain to be interrupted."""


@contextmanager
def slow_steps(seconds: float = 0.001) -> Iterator[None]:
    """Every step of the echo engine takes at least this long."""
    usual = EchoRunner.run

    def run(self: EchoRunner, batch: Batch) -> BatchOutput:
        time.sleep(seconds)
        return usual(self, batch)

    EchoRunner.run = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        EchoRunner.run = usual  # type: ignore[method-assign]


@contextmanager
def frozen() -> Iterator[threading.Event]:
    """No echo engine begins a step while this lasts: what runs now runs still, however long the
    block takes. Nothing in it may wait for an engine. It gives what is set when one wants to."""
    usual, wanted, leave = EchoRunner.run, threading.Event(), threading.Event()

    def run(self: EchoRunner, batch: Batch) -> BatchOutput:
        wanted.set()
        leave.wait()
        return usual(self, batch)

    EchoRunner.run = run  # type: ignore[method-assign]
    try:
        yield wanted
    finally:
        EchoRunner.run = usual  # type: ignore[method-assign]
        leave.set()
