"""Chunks as the models of OpenAI's API, for engines whose callers are Python programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionDelta,
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    ChatCompletionStreamResponseChoice,
    FunctionCallDelta,
    ToolCallDelta,
    UsageInfo,
)
from mlc_llm.serve.openai.answers import WholeAnswer, chat_logprobs
from mlc_llm.serve.openai.chunks import CallPiece, ChoicePiece, Chunk, check_failure


class ChatChunks:
    """Makes the chunks of one chat request."""

    def __init__(
        self, request_id: str, model: str, *, include_usage: bool, fingerprint: str = ""
    ) -> None:
        """model: the name in the request. include_usage: whether a last chunk has the usage.
        fingerprint: of the engine."""
        self._fingerprint = fingerprint
        self._request_id, self._model, self._include_usage = request_id, model, include_usage
        self._created = int(time.time())

    def of(self, _part: int, chunk: Chunk) -> Iterator[ChatCompletionStreamResponse]:
        """Nothing for a usage that was not asked for. Raises `RequestError` for a failure."""
        check_failure(chunk, self._request_id)
        if chunk.usage_json is None:
            yield self._made([_choice(piece) for piece in chunk.pieces], None)
        elif self._include_usage:
            yield self._made([], UsageInfo.model_validate_json(chunk.usage_json))

    def _made(
        self, choices: list[ChatCompletionStreamResponseChoice], usage: UsageInfo | None
    ) -> ChatCompletionStreamResponse:
        return ChatCompletionStreamResponse(
            id=self._request_id,
            choices=choices,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            usage=usage,
        )


def _choice(piece: ChoicePiece) -> ChatCompletionStreamResponseChoice:
    return ChatCompletionStreamResponseChoice(
        finish_reason=piece.finish_reason,
        index=piece.choice,
        delta=ChatCompletionDelta(
            role="assistant",
            content=piece.text,
            reasoning_content=piece.reasoning or None,
            tool_calls=[_call(call) for call in piece.calls] or None,
        ),
        logprobs=None if piece.logprobs is None else chat_logprobs(piece.logprobs),
    )


def _call(piece: CallPiece) -> ToolCallDelta:
    function = FunctionCallDelta(name=piece.name, arguments=piece.arguments)
    kind: Literal["function"] | None = None if piece.id is None else "function"
    return ToolCallDelta(index=piece.index, id=piece.id, type=kind, function=function)


class WholeChat:
    """Collects the whole answer to one chat request."""

    def __init__(self, request_id: str, model: str, n: int, *, fingerprint: str = "") -> None:
        """model: the name in the request. n: choices. fingerprint: of the engine."""
        self._request_id, self._model, self._fingerprint = request_id, model, fingerprint
        self._answer = WholeAnswer(n)

    def put(self, _part: int, chunk: Chunk) -> None:
        """Raises `RequestError` if the request failed."""
        check_failure(chunk, self._request_id)
        self._answer.put(chunk)

    def response(self) -> ChatCompletionResponse:
        """The answer; the request must have ended."""
        return self._answer.response(self._request_id, self._model, self._fingerprint)
