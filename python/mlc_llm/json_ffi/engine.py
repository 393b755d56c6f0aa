"""`JSONFFIEngine`: OpenAI's chat API over the JSON FFI, for programs without an event loop."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from mlc_llm.json_ffi import codec
from mlc_llm.json_ffi.module import FUNCTIONS, MORE_FUNCTIONS
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionRequest,
    ChatCompletionStreamResponse,
)
from mlc_llm.serve import engine_utils
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.engine_base import _check_engine_config, _query_engine_metrics, detect_device
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.sync_engine import _create_tvm_module
from mlc_llm.serve.threaded_engine import TERMINATED
from mlc_llm.serve.threaded_loops import LoopThreads

if TYPE_CHECKING:
    import tvm

__all__ = ["BackgroundLoops", "Chat", "Completions", "EngineState", "JSONFFIEngine"]

Functions = Mapping[str, Callable[..., Any]]


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
            mine.queue.put(codec.error_reply(request_id, f"request_id {request_id!r} is in use"))
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
            reader.queue.put_nowait(codec.error_reply(request_id, why))


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


class BackgroundLoops(LoopThreads):
    """The two threads of the engine behind a table of functions."""


class Completions:
    """`create`, as in OpenAI's client."""

    def __init__(self, ffi: Functions, state: EngineState, background_loops: BackgroundLoops):
        self._ffi = ffi
        self._state = state
        self._background_loops = background_loops

    def create(
        self,
        *,
        messages: list[dict[str, Any]],
        model: str | None = None,
        frequency_penalty: float | None = None,
        presence_penalty: float | None = None,
        logprobs: bool = False,
        top_logprobs: int = 0,
        logit_bias: dict[int, float] | None = None,
        max_tokens: int | None = None,
        n: int = 1,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stream: bool = True,
        stream_options: dict[str, Any] | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: Literal["none", "auto"] | dict[str, Any] | None = None,
        user: str | None = None,
        response_format: dict[str, Any] | None = None,
        request_id: str | None = None,
        extra_body: dict[str, Any] | None = None,
    ) -> Iterator[ChatCompletionStreamResponse]:
        """The chunks of the answer; the one with the usage only where `stream_options` asks.

        `extra_body` holds more fields of the request: `debug_config` and others that OpenAI's API
        does not have. When the first chunk is asked for: raises `ValueError` for `stream=False`,
        and `UserError` naming the field that is wrong. What the engine refuses is a chunk with
        finish reason `error` and the reason as its text.
        """
        given = locals()
        if not stream:
            raise ValueError("JSONFFIEngine only support stream=True")
        own = {name: given[name] for name in given if name in ChatCompletionRequest.model_fields}
        request = ChatCompletionRequest.parse({**own, **(extra_body or {})})
        yield from self._state.handle_chat_completion(
            self._ffi,
            json.dumps(request.model_dump(mode="json", by_alias=True)),
            request.include_usage,
            request_id or f"chatcmpl-{engine_utils.random_uuid()}",
        )


class Chat:
    """`chat.completions`, as in OpenAI's client."""

    completions: Completions

    def __init__(self, ffi: Functions, state: EngineState, background_loops: BackgroundLoops):
        self.completions = Completions(ffi, state, background_loops)


class JSONFFIEngine:
    """A model behind `chat.completions.create`, which streams; many requests may run at once.

    `tokenizer` is the model's, `engine_config` what was asked for. An engine that is no longer used
    is terminated; `terminate` does it at once.
    """

    chat: Chat

    def __init__(
        self,
        model: str | None,
        device: str | tvm.runtime.Device = "auto",
        *,
        model_lib: str | None = None,
        mode: Literal["local", "interactive", "server"] = "local",
        engine_config: EngineConfig | None = None,
    ) -> None:
        """`model`: see `open_model`; None is the default model. Raises `UserError` for a model, a
        device or a config that cannot be used; no thread is left then."""
        config = engine_config or EngineConfig()
        _check_engine_config(model, model_lib, mode, config)
        if isinstance(device, str):
            device = detect_device(device)
        self.engine_config = replace(config, model=model, model_lib=model_lib, mode=mode)
        self._state = EngineState()
        self._ffi = _create_tvm_module(
            "mlc.json_ffi.CreateJSONFFIEngine", ffi_funcs=FUNCTIONS + MORE_FUNCTIONS
        )
        self._background_loops = BackgroundLoops(self._ffi)
        try:
            callback = self._state.get_request_stream_callback()
            self._ffi["init_background_engine"](
                int(device.dlpack_device_type()), int(device.index), callback
            )
            self._ffi["reload"](self.engine_config.asjson())
            self.tokenizer = self._ffi["get_model_bundle"]().tokenizer
        except BaseException:
            self.terminate()
            raise
        self.chat = Chat(self._ffi, self._state, self._background_loops)

    def metrics(self) -> EngineMetrics:
        """The engine's numbers as they stand; also while requests run."""
        return _query_engine_metrics(self)

    def terminate(self) -> None:
        """Abort everything and end the threads. Every reader gets its end. May be called again."""
        self._background_loops.terminate()
        self._state.close()

    def _raw_chat_completion(
        self, request_json_str: str, include_usage: bool, request_id: str
    ) -> Iterator[ChatCompletionStreamResponse]:
        """As `create`, for a request that is JSON already."""
        return self._state.handle_chat_completion(
            self._ffi, request_json_str, include_usage, request_id
        )

    def _test_reload(self) -> None:
        self._ffi["reload"](self.engine_config.asjson())

    def _test_reset(self) -> None:
        self._ffi["reset"]()

    def _test_unload(self) -> None:
        self._ffi["unload"]()
