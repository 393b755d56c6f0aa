"""The metrics of an engine that is asked through OpenAI's protocol alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from mlc_llm.errors import MLCError
from mlc_llm.protocol.openai_api_protocol import ChatCompletionStreamResponse
from mlc_llm.serve.metrics import EngineMetrics


class Completions(Protocol):
    """What is needed of `engine.chat.completions`."""

    def create(
        self,
        *,
        messages: list[dict[str, Any]],
        stream: bool,
        stream_options: dict[str, Any],
        extra_body: dict[str, Any],
    ) -> Iterable[ChatCompletionStreamResponse]: ...


class Chat(Protocol):
    """What is needed of `engine.chat`."""

    @property
    def completions(self) -> Completions: ...


class ChatEngine(Protocol):
    """What is needed of an engine."""

    @property
    def chat(self) -> Chat: ...


def query_engine_metrics(engine: ChatEngine) -> EngineMetrics:
    """The metrics of an engine, through a request of its own.

    Raises `MLCError` if the engine refuses the request, because nothing is loaded.
    """
    chunks = engine.chat.completions.create(
        messages=[{"role": "user", "content": ""}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"debug_config": {"special_request": "query_engine_metrics"}},
    )
    refusal = "the engine did not answer"
    for chunk in chunks:
        if chunk.usage is not None and chunk.usage.extra is not None:
            return EngineMetrics(chunk.usage.extra)
        for choice in chunk.choices:
            refusal = choice.delta.content or f"the request ended with {choice.finish_reason}"
    raise MLCError(f"no metrics: {refusal}")
