"""Chunks of streamed answers as OpenAI's clients assemble them.

A choice begins with one chunk that has its role alone, goes on with text, and ends with one that
has its finish reason alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Protocol

from mlc_llm.errors import RequestError
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.openai.chunk_models import failure
from mlc_llm.serve.openai.chunks import Chunk


class Ended(RequestError):
    """A request was ended from outside before its answer was whole."""


class StreamWriter(Protocol):
    """Makes JSON texts of the chunks of one call."""

    def texts(self, part: int, chunk: Chunk) -> Iterator[str]:
        """Raises `RequestError` for a request that failed or was ended."""
        ...


class ChatStream:
    """Writes the chunks of one chat."""

    def __init__(self, request_id: str, model: str, *, include_usage: bool) -> None:
        head = {
            "id": request_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
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
            if piece.text or piece.logprobs:
                delta = f'{{"content": {encode_basestring_ascii(piece.text)}}}'
                yield self._text(piece.choice, delta, logprobs=piece.logprobs)
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


def check_end(chunk: Chunk, request_id: str) -> None:
    """Raises `RequestError` for a failure, and `Ended` for an abort: OpenAI has no finish reason
    for them, and an answer must not look whole."""
    error = failure(chunk, request_id)
    if error is not None:
        raise error
    if any(piece.finish_reason == "abort" for piece in chunk.pieces):
        raise Ended(f"request {request_id} was ended by the server")
