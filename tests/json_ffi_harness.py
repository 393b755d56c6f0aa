"""Reads answers of a JSON FFI engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.protocol.openai_api_protocol import ChatCompletionStreamResponse, UsageInfo


@contextmanager
def engine_of(model: str | None, **arguments: Any) -> Iterator[JSONFFIEngine]:
    """An engine that is terminated at the end."""
    engine = JSONFFIEngine(model, **arguments)
    try:
        yield engine
    finally:
        engine.terminate()


@dataclass
class Answer:
    """All chunks of one request."""

    chunks: list[ChatCompletionStreamResponse] = field(default_factory=list)

    @property
    def usages(self) -> list[UsageInfo]:
        return [chunk.usage for chunk in self.chunks if chunk.usage is not None]

    @property
    def pieces(self) -> list[str]:
        return [choice.delta.content or "" for chunk in self.chunks for choice in chunk.choices]

    @property
    def texts(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for chunk in self.chunks:
            for choice in chunk.choices:
                found[choice.index] = found.get(choice.index, "") + (choice.delta.content or "")
        return found

    @property
    def reasons(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for chunk in self.chunks:
            for choice in chunk.choices:
                assert choice.index not in found, "something follows the finish reason"
                if choice.finish_reason is not None:
                    found[choice.index] = choice.finish_reason
        return found

    @property
    def text(self) -> str:
        """Of the only choice."""
        (text,) = self.texts.values()
        return text

    @property
    def reason(self) -> str:
        (reason,) = self.reasons.values()
        return reason


def read(chunks: Iterable[ChatCompletionStreamResponse]) -> Answer:
    """A stream to its end; the usage, if it comes, comes last."""
    answer = Answer(list(chunks))
    assert all(chunk.usage is None for chunk in answer.chunks[:-1])
    return answer


def ask(engine: JSONFFIEngine, text: str, **parameters: Any) -> Answer:
    """One message and its answer."""
    messages = [{"role": "user", "content": text}]
    return read(engine.chat.completions.create(messages=messages, **parameters))
