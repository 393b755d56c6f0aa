"""Interrupts at random lines of an engine that Python drives: nothing is lost but the call itself.

A line is named by its number in a run that nobody disturbs, so each case happens again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.memory_plan import KVSize, ModelSize
from mlc_llm.serve.opening import open_engine
from mlc_llm.serve.opening.bundle import echo_bundle
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.fake_runner import FakeRunner

pytestmark = pytest.mark.slow

CASES = 40
"""Of each kind, in each of the settings."""

SIZE = ModelSize((KVSize(2, 2 * 2 * 2 * 16),), 64, 32, 16, 64, 128, 256, 1024, 1 << 20)
PROMPTS = [[65] * 20, [65] * 20 + [66] * 9, [67, 68] * 15]
CONFIG = GenerationConfig(temperature=1.0, seed=3, max_tokens=5, n=2, stop_strs=["no such text"])
ENGINE = ("/serve/", "/fake_runner.py", "/interrupts.py")
CORE = ("/serve/core/", "/fake_runner.py")


@dataclass
class At:
    """Calls `action` at a line of the package, counted from 1."""

    line: int
    action: Callable[[], None]
    files: tuple[str, ...]
    seen: int = 0

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in self.files):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.line:
                self.action()
        return self.trace


@contextmanager
def traced(at: At) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(at.trace)
    try:
        yield
    finally:
        sys.settrace(before)


def send_interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def python_handles_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


SETTINGS = {
    "plenty": EngineConfig(),
    "few pages": EngineConfig(max_num_sequence=3, prefill_chunk_size=16),
    "drafts": EngineConfig(speculative_mode="prompt_lookup"),
    "no cache": EngineConfig(prefix_cache_mode="disable", prefill_mode="chunked"),
}


class Subject:
    """An engine over a fake runner, a listener, and what it should answer."""

    def __init__(self, setting: str, patch: pytest.MonkeyPatch) -> None:
        pages = 9 if setting == "few pages" else 64
        self.runner = FakeRunner(num_pages=pages, vocab_size=256)
        bundles = [echo_bundle(1024)]
        patch.setattr(open_engine, "open_models", lambda *_, **more: bundles)
        patch.setattr(open_engine, "model_size", lambda bundle, *kinds: SIZE)
        patch.setattr(open_engine, "create_runner", lambda *arguments: self.runner)
        cores: list[Any] = []
        made = open_engine.EngineCore

        def engine_core(*args: Any, **options: Any) -> Any:
            cores.append(made(*args, **options))
            return cores[-1]

        patch.setattr(open_engine, "EngineCore", engine_core)
        self.heard: list[data.RequestStreamOutput] = []
        self.engine = SyncMLCEngine(
            "a model", engine_config=SETTINGS[setting], request_stream_callback=self.heard.extend
        )
        (self.core,) = cores
        self.callback = self.engine._ffi["get_request_stream_callback"]()
        self.expected = self.ask()

    def ask(self) -> Any:
        return self.engine.generate(PROMPTS, CONFIG)

    def begin_another(self) -> None:
        """A request that runs beside those of `generate`."""
        request = self.engine.create_request("own", data.TokenData([70] * 5), CONFIG)
        self.engine.add_request(request)

    def lines(self, files: tuple[str, ...]) -> int:
        """How many lines a call takes, from a state that every case begins with."""
        self.engine.reset()
        self.begin_another()
        at = At(-1, send_interrupt, files)
        with traced(at):
            self.ask()
        return at.seen

    def disturb(self, at: At) -> bool:
        """One call with an interrupt; whether it came out."""
        self.engine.reset()
        self.begin_another()
        try:
            with traced(at):
                self.ask()
        except KeyboardInterrupt:
            return True
        return False

    def check(self) -> None:
        """The engine is as good as new."""
        self.core.check_integrity()
        assert self.ask() == self.expected
        assert self.engine._ffi["get_request_stream_callback"]() == self.callback
        assert not any(self.engine._ffi["has_request"](str(i)) for i in range(len(PROMPTS)))
        self.engine.reset()
        self.core.check_integrity()
        assert self.core.is_idle
        assert self.runner.free_pages == self.runner.limits.num_pages


@pytest.fixture(params=SETTINGS)
def subject(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Subject:
    return Subject(request.param, monkeypatch)


def places(subject: Subject, files: tuple[str, ...]) -> list[int]:
    """Places of the cases. The clock decides a few lines of a run, so the last are left out."""
    lines = subject.lines(files) * 9 // 10
    return sorted(random.Random(1).sample(range(1, lines), CASES))


def test_a_signal_tears_nothing_apart(subject: Subject) -> None:
    came_out = 0
    for line in places(subject, ENGINE):
        del subject.heard[:]
        came_out += subject.disturb(At(line, send_interrupt, ENGINE))
        # Without a reset: the request beside those of the call runs on to its end.
        subject.core.check_integrity()
        while subject.engine._ffi["has_request"]("own"):
            subject.engine.step()
        subject.check()
        usages = [one for one in subject.heard if one.request_final_usage_json_str is not None]
        assert [one.request_id for one in usages] == ["own"], line
    assert came_out > CASES // 2


def test_a_torn_operation_is_mended(subject: Subject) -> None:
    came_out = 0
    for i, line in enumerate(places(subject, CORE)):
        came_out += subject.disturb(At(line, raise_interrupt, CORE))
        if i % 2:  # else the next call finds what the exception has left
            subject.engine.reset()
            assert subject.core.is_idle
        subject.check()
    assert came_out > CASES // 2


@pytest.mark.parametrize("kind", ["signal", "exception"])
def test_an_interrupted_reset_can_be_repeated(subject: Subject, kind: str) -> None:
    files = ENGINE if kind == "signal" else CORE
    action = send_interrupt if kind == "signal" else raise_interrupt
    for line in range(1, 100, 3):
        subject.begin_another()
        subject.engine.step()
        at = At(line, action, files)
        try:
            with traced(at):
                subject.engine.reset()
        except KeyboardInterrupt:
            subject.engine.reset()
        assert subject.core.is_idle
        subject.core.check_integrity()
    subject.check()
