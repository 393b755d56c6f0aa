"""Chunks of streamed answers as OpenAI's clients assemble them.

A choice begins with one chunk that has its role alone, goes on with text, and ends with one that
has its finish reason alone.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Protocol

from mlc_llm.errors import RequestError
from mlc_llm.protocol.error_protocol import ErrorResponse
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.openai.chunk_json import more_news
from mlc_llm.serve.openai.chunks import ChoicePiece, Chunk, check_failure
from mlc_llm.serve.server.errors import HTTPError

EVENT_STREAM = "text/event-stream; charset=utf-8"
COMMENT = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


class Ended(RequestError):
    """A request was ended from outside before its answer was whole."""


class StreamWriter(Protocol):
    """Makes the bytes of one streamed answer, in the form of its API."""

    @property
    def media_type(self) -> str:
        """The content type."""
        ...

    @property
    def ping(self) -> bytes:
        """A sign of life, which changes nothing."""
        ...

    def begin(self) -> bytes:
        """What comes before all chunks."""
        ...

    def events(self, part: int, chunk: Chunk) -> Iterator[bytes]:
        """Raises `RequestError` for a request that failed or was ended."""
        ...

    def end(self) -> bytes:
        """What comes last in an answer that is whole."""
        ...

    def failed(self, error: HTTPError) -> bytes:
        """What comes last instead in one that is not whole."""
        ...


class DataEvents(ABC):
    """A stream of OpenAI's older APIs: events without names, and `[DONE]`."""

    media_type, ping = EVENT_STREAM, COMMENT

    def begin(self) -> bytes:
        return b""

    def events(self, part: int, chunk: Chunk) -> Iterator[bytes]:
        for text in self.texts(part, chunk):
            yield f"data: {text}\n\n".encode()

    def end(self) -> bytes:
        return DONE

    def failed(self, error: HTTPError) -> bytes:
        """An `error` event without `[DONE]`: clients take a stream that merely stops for a whole
        answer."""
        body = ErrorResponse(error=error.body).model_dump()
        return f"data: {json.dumps(body)}\n\n".encode()

    @abstractmethod
    def texts(self, part: int, chunk: Chunk) -> Iterator[str]:
        """JSON texts. Raises as `events`."""


class ChatStream(DataEvents):
    """Writes the chunks of one chat."""

    def __init__(
        self, request_id: str, model: str, *, include_usage: bool, fingerprint: str = ""
    ) -> None:
        head = {
            "id": request_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._request_id, self._include_usage = request_id, include_usage
        self._head = json.dumps(head)[:-1]
        self._tail = ', "usage": null}' if include_usage else "}"
        self._begun: set[int] = set()

    def texts(self, _part: int, chunk: Chunk) -> Iterator[str]:
        """Nothing for a usage that was not asked for."""
        check_end(chunk, self._request_id)
        if chunk.usage_json is not None:
            if self._include_usage:
                yield f'{self._head}, "choices": [], "usage": {chunk.usage_json}}}'
            return
        for piece in chunk.pieces:
            if piece.choice not in self._begun:
                self._begun.add(piece.choice)
                yield self._text(piece.choice, '{"role": "assistant", "content": ""}')
            delta = _delta(piece)
            if delta:
                yield self._text(piece.choice, f"{{{delta}}}", logprobs=piece.logprobs)
            if piece.finish_reason is not None:
                yield self._text(piece.choice, "{}", piece.finish_reason)

    def _text(
        self,
        choice: int,
        delta: str,
        reason: FinishReason | None = None,
        logprobs: Sequence[str] | None = None,
    ) -> str:
        shown = "null" if logprobs is None else f'{{"content": [{", ".join(logprobs)}]}}'
        end = "null" if reason is None else f'"{reason}"'
        one = f'"index": {choice}, "delta": {delta}, "logprobs": {shown}, "finish_reason": {end}'
        return f'{self._head}, "choices": [{{{one}}}]{self._tail}'


def _delta(piece: ChoicePiece) -> str:
    """The fields that have news."""
    has_text = piece.text or (piece.logprobs and not piece.reasoning and not piece.calls)
    content = f'"content": {encode_basestring_ascii(piece.text)}' if has_text else ""
    return (content + more_news(piece)).removeprefix(", ")


def check_end(chunk: Chunk, request_id: str) -> None:
    """Raises `RequestError` for a failure, and `Ended` for an abort: OpenAI has no finish reason
    for them, and an answer must not look whole."""
    check_failure(chunk, request_id)
    if any(piece.finish_reason == "abort" for piece in chunk.pieces):
        raise Ended(f"request {request_id} was ended by the server")
