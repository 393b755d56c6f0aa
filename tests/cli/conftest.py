"""A session over a scripted engine: known text, no model, no TVM."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mlc_llm.cli.session import Session
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import Data, FinishReason, RequestStreamOutput, TokenData
from mlc_llm.serve.opening.bundle import echo_bundle
from mlc_llm.serve.request import Request

WINDOW = 200


class ScriptedEngine:
    """Answers every request with the same text, a byte a step, up to `max_tokens`."""

    def __init__(self, outputs: list[RequestStreamOutput], text: str) -> None:
        self.outputs = outputs
        self.text = text
        self.reason: FinishReason = "stop"
        self.requests: list[Request] = []
        self.running: Request | None = None
        self.aborted: list[str] = []
        self.on_step: Callable[[int], None] = lambda step: None
        self._given = 0

    def create_request(
        self, request_id: str, inputs: Data | list[Data], generation_config: GenerationConfig
    ) -> Request:
        return Request(request_id, inputs, generation_config)

    def add_request(self, request: Request) -> None:
        self.requests.append(request)
        self.running = request
        self._given = 0

    def abort_request(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if self.running is not None:
            self._end("abort")

    def step(self) -> None:
        assert self.running is not None, "stepped without a request"
        self.on_step(self._given)
        if self.reason == "error":
            self._end("error", "the logits are not numbers")
            return
        left = self.text.encode()[self._given :]
        limit = self.running.generation_config.max_tokens
        if not left or self._given == limit:
            self._end("length" if left else self.reason)
            return
        self._given += 1
        self.outputs.append(RequestStreamOutput(self.running.request_id, [[left[0]]], None, [None]))

    def _end(self, reason: FinishReason, error: str | None = None) -> None:
        assert self.running is not None
        name, (prompt,) = self.running.request_id, self.running.inputs
        assert isinstance(prompt, TokenData)
        usage = {"prompt_tokens": len(prompt.token_ids), "completion_tokens": self._given}
        usage["total_tokens"] = sum(usage.values())
        self.outputs.append(RequestStreamOutput.finished(name, 1, reason, error))
        self.outputs.append(RequestStreamOutput.usage(name, json.dumps(usage)))
        self.running = None

    def prompt(self, index: int = -1) -> str:
        """The text of a request that was added."""
        (prompt,) = self.requests[index].inputs
        assert isinstance(prompt, TokenData)
        return bytes(prompt.token_ids).decode()


class ScriptedSession(Session):
    """Its chat template is the role's first letter and the content, a line a message."""

    def chat_ids(self, messages: Any) -> list[int]:
        return list("".join(f"{m['role'][0]}:{m['content']}\n" for m in messages).encode())


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine([], "Hello, wörld.")


@pytest.fixture
def session(engine: ScriptedEngine) -> Session:
    model = SimpleNamespace(tokenizer=echo_bundle(WINDOW).tokenizer, name="scripted", defaults={})
    return ScriptedSession(engine, model, engine.outputs, window=WINDOW, load_s=0.25)


@pytest.fixture
def opened(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Commands get the scripted session; the list says what they asked for."""
    asked: list[tuple[Any, ...]] = []

    def open_session(*args: Any, once: bool = False) -> Session:
        asked.append(args)
        return session

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))  # an empty pipe
    monkeypatch.setattr("mlc_llm.cli.generate.open_session", open_session)
    monkeypatch.setattr("mlc_llm.cli.chat.open_session", open_session)
    return asked
