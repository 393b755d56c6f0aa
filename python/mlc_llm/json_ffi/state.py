"""Carries chunks from the one callback of the engine to the readers of many requests."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from mlc_llm.errors import MLCError
from mlc_llm.json_ffi import codec
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.openai_api_protocol import ChatCompletionStreamResponse
from mlc_llm.serve.streams import IdInUse, OpenStreams, QueueInC, RequestStream
from mlc_llm.serve.threaded_engine import TERMINATED

Functions = Mapping[str, Callable[..., Any]]
"""The table of the engine's functions. What they return is up to the FFI."""
PlainChunk = dict[str, JsonValue]
"""A chunk as it comes out of JSON. Its reader checks it."""
_Stream = RequestStream[PlainChunk]

_checked = TypeAdapter(ChatCompletionStreamResponse).validator.validate_python
"""Makes the model of a chunk. It runs for every token, so the adapter is left out."""
_log = logging.getLogger(__name__)


class EngineState:
    """Carries chunks from the callback of the engine to the readers of the requests.

    The JSON is read once, in the callback. The id in each chunk says to which request it belongs.
    `sync_queue` has the chunks of the request that was started last. While nobody reads, it has the
    strings of the callback.
    """

    sync_queue: queue.Queue[PlainChunk | None] | queue.Queue[str]

    def __init__(self) -> None:
        self._unread: queue.Queue[str] = QueueInC()
        self.sync_queue = self._unread
        self._latest: _Stream | None = None
        """The stream whose queue is `sync_queue`, while it is read."""
        self._streams: OpenStreams[_Stream] = OpenStreams()
        """A stream stays here until the usage of its request comes, even if nobody reads it."""

    def get_request_stream_callback(self) -> Callable[[str], None]:
        """The callback for `init_background_engine`."""

        def _callback(chat_completion_stream_responses_json_str: str) -> None:
            self._sync_request_stream_callback(chat_completion_stream_responses_json_str)

        return _callback

    def _sync_request_stream_callback(self, chat_completion_stream_responses_json_str: str) -> None:
        """Give each chunk to the stream of its id. Never waits."""
        text, is_read = chat_completion_stream_responses_json_str, False
        try:
            for chunk in from_json(text, cache_strings="keys"):
                stream = self._streams.find(chunk["id"])
                if stream is not None:
                    is_read = True
                    if chunk.get("usage") is None:
                        stream.put(chunk)
                    else:
                        self._streams.leave(chunk["id"], stream)
                        stream.end(chunk)
        except (ValueError, TypeError, KeyError):
            _log.debug("the callback was given what is no list of chunks")
        if not is_read and self._latest is None:
            self._unread.put_nowait(text)

    def handle_chat_completion(
        self, ffi: Functions, request_json_str: str, include_usage: bool, request_id: str
    ) -> Iterator[ChatCompletionStreamResponse]:
        """Start a request and read it to its end. Many may be read at once.

        An error, or closing the iterator, aborts the request. If another request with this id is
        being read, the answer is an error, and the other goes on.
        """
        stream = _Stream(request_id, lambda name: _abort(ffi, name))
        try:
            self._streams.open(request_id, stream)
        except IdInUse as error:
            _refuse(stream, request_id, error)
            yield from _read(stream, include_usage)
            return
        self._latest, self.sync_queue = stream, stream.queue
        try:
            with stream:
                self._start(ffi, request_json_str, request_id)
                yield from _read(stream, include_usage)
        finally:
            if self._latest is stream:
                self._latest, self._unread = None, QueueInC()
                self.sync_queue = self._unread

    def close(self) -> None:
        """End every stream that is still open, since nothing comes any more."""
        for request_id in self._streams.ids():
            self._end(request_id, TERMINATED)

    def _start(self, ffi: Functions, request_json_str: str, request_id: str) -> None:
        try:
            is_accepted = ffi["chat_completion"](request_json_str, request_id)
        except BaseException:
            self._streams.take(request_id)  # nothing will come
            raise
        if is_accepted is False:
            self._end(request_id, _last_error(ffi))  # unless the callback has had a reply

    def _end(self, request_id: str, why: str) -> None:
        """Give an error and a usage to a reader whose stream has not ended."""
        stream = self._streams.take(request_id)
        if stream is not None:
            _refuse(stream, request_id, MLCError(why))


def _refuse(stream: _Stream, request_id: str, error: Exception) -> None:
    stream.end(*from_json(codec.error_reply(request_id, error)))


def _read(stream: _Stream, include_usage: bool) -> Iterator[ChatCompletionStreamResponse]:
    """The chunks of one request up to its usage."""
    for chunk in stream:
        if include_usage or chunk.get("usage") is None:
            yield _checked(chunk)


def _abort(ffi: Functions, request_id: str) -> None:
    ffi["abort"](request_id)


def _last_error(ffi: Functions) -> str:
    """The reason why a request was rejected without a reply."""
    return str(ffi["get_last_error"]()) if "get_last_error" in ffi else "the request was rejected"
