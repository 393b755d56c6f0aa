"""From the engine's one callback to the readers of many requests."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.json_ffi import codec
from mlc_llm.protocol.openai_api_protocol import ChatCompletionStreamResponse
from mlc_llm.serve.threaded_engine import TERMINATED

Functions = Mapping[str, Callable[..., Any]]
"""A table of the engine's functions."""


class _Strings(queue.Queue[str]):
    """A queue without an end that waits in C: its reader is woken for every token, while the model
    has all cores."""

    def __init__(self) -> None:
        super().__init__()
        strings: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in ("put", "put_nowait", "get", "get_nowait", "qsize", "empty"):
            setattr(self, name, getattr(strings, name))


@dataclass
class _Reader:
    """Somebody who reads one request."""

    queue: queue.Queue[str] = field(default_factory=_Strings)
    is_gone: bool = False
    """What still comes is thrown away."""


class EngineState:
    """Carries chunks from the engine's callback to whoever reads that request.

    There is a queue for each request that is read. `sync_queue` is the queue of the request that
    was started last; what nobody reads goes there too. There is no lock, so that nothing here can
    be held at a fork: each step is one operation on a dictionary or a queue.
    """

    sync_queue: queue.Queue[str]

    def __init__(self) -> None:
        self.sync_queue = _Strings()
        self._readers: dict[str, _Reader] = {}
        """Each stands here until the usage of its request has come."""

    def get_request_stream_callback(self) -> Callable[[str], None]:
        """The callback for `init_background_engine`."""

        def _callback(chat_completion_stream_responses_json_str: str) -> None:
            self._sync_request_stream_callback(chat_completion_stream_responses_json_str)

        return _callback

    def _sync_request_stream_callback(self, chat_completion_stream_responses_json_str: str) -> None:
        """Hand the chunks on, by their ids. Never waits."""
        text = chat_completion_stream_responses_json_str
        reader = self._readers.get(_only_id(text))
        if reader is None:
            self._sort(text)
        elif not reader.is_gone:
            reader.queue.put_nowait(text)

    def handle_chat_completion(
        self, ffi: Functions, request_json_str: str, include_usage: bool, request_id: str
    ) -> Iterator[ChatCompletionStreamResponse]:
        """Start a request and read it to its end. Many may be read at once.

        An error, or closing the iterator, aborts the request. While another request is read under
        this id, the answer is an error, and the other is not disturbed.
        """
        mine = _Reader()
        if self._readers.setdefault(request_id, mine) is not mine:
            taken = InvalidField("request_id", request_id, "it is in use")
            mine.queue.put(codec.error_reply(request_id, taken))
            yield from _read(mine.queue, request_id, include_usage)
            return
        self.sync_queue = mine.queue
        try:
            self._start(ffi, request_json_str, request_id)
            yield from _read(mine.queue, request_id, include_usage)
        except BaseException:
            mine.is_gone = True
            ffi["abort"](request_id)
            raise
        finally:
            if self.sync_queue is mine.queue:
                self.sync_queue = _Strings()

    def close(self) -> None:
        """Release every reader that still waits: nothing will come any more."""
        for request_id in list(self._readers):
            self._end(request_id, TERMINATED)

    def _start(self, ffi: Functions, request_json_str: str, request_id: str) -> None:
        try:
            is_accepted = ffi["chat_completion"](request_json_str, request_id)
        except BaseException:
            self._readers.pop(request_id, None)  # nothing will come
            raise
        if is_accepted is False:
            self._end(request_id, _last_error(ffi))  # unless the callback has had a reply

    def _sort(self, text: str) -> None:
        """Chunks of several requests, the last chunk of one, or what is nobody's."""
        by_id = _chunks_by_id(text)
        if not any(request_id in self._readers for request_id in by_id):
            self.sync_queue.put_nowait(text)
            return
        for request_id, chunks in by_id.items():
            reader = self._readers.get(request_id)
            if chunks[-1].get("usage") is not None:
                self._readers.pop(request_id, None)
            if reader is None or not reader.is_gone:
                to = self.sync_queue if reader is None else reader.queue
                to.put_nowait(json.dumps(chunks))

    def _end(self, request_id: str, why: str) -> None:
        """An error and a usage for a reader that has not had its end."""
        reader = self._readers.pop(request_id, None)
        if reader is not None:
            reader.queue.put_nowait(codec.error_reply(request_id, MLCError(why)))


def _only_id(text: str) -> str:
    """The id of the chunk in a text that holds a single one without a usage, as this engine writes
    it for each token: found without reading the JSON. Empty for anything else.

    The quotes in a JSON string are escaped, so what is looked for is no part of anybody's text.
    """
    if not text.startswith(_ID) or text.count(_OBJECT) != 1 or '"usage"' in text:
        return ""
    request_id = text[len(_ID) : text.index('"', len(_ID))]
    return "" if "\\" in request_id else request_id  # an escape stands for something else


_ID = '[{"id": "'
_OBJECT = '"object": "chat.completion.chunk"'


def _chunks_by_id(text: str) -> dict[str, list[dict[str, Any]]]:
    """Empty for what is no list of chunks."""
    by_id: dict[str, list[dict[str, Any]]] = {}
    try:
        for chunk in json.loads(text):
            by_id.setdefault(chunk["id"], []).append(chunk)
    except (ValueError, TypeError, KeyError):
        return {}
    return by_id


def _read(
    texts: queue.Queue[str], request_id: str, include_usage: bool
) -> Iterator[ChatCompletionStreamResponse]:
    """The chunks of one request up to its usage."""
    while True:
        for chunk in _CHUNKS.validate_json(texts.get()):
            if chunk.id != request_id:
                continue
            if chunk.usage is None:
                yield chunk
                continue
            if include_usage:
                yield chunk
            return


_CHUNKS = TypeAdapter(list[ChatCompletionStreamResponse])


def _last_error(ffi: Functions) -> str:
    """Why a request was rejected without a reply."""
    return str(ffi["get_last_error"]()) if "get_last_error" in ffi else "the request was rejected"
