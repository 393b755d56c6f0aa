"""What stands behind the global function `mlc.json_ffi.CreateJSONFFIEngine`.

Strings, numbers and functions go in and out, so any language can drive it. What goes to the
callback is one string, a JSON array of OpenAI chat chunks of one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tvm_ffi

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.json_ffi import codec
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.ffi_table import function_table
from mlc_llm.serve.openai.chunks import AnswerStream
from mlc_llm.serve.threaded_engine import ThreadedEngine

FUNCTIONS = (
    "init_background_engine",
    "reload",
    "unload",
    "reset",
    "chat_completion",
    "abort",
    "run_background_loop",
    "run_background_stream_back_loop",
    "exit_background_loop",
)
MORE_FUNCTIONS = ("get_last_error", "get_complete_engine_config", "get_model_bundle")

DEVICE_TYPES = {1: "cpu", 2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm"}
"""DLPack's numbers."""

_log = logging.getLogger(__name__)


class JSONFFIModule:
    """A threaded engine that speaks JSON. Every function may be called from any thread."""

    def __init__(self) -> None:
        self._engine = ThreadedEngine.Create()
        self._callback: Callable[[str], Any] | None = None
        self._writers: dict[str, codec.ChunkWriter] = {}
        """Of the requests that run. Read and changed by one operation at a time, so from any thread
        without a lock."""
        self._last_error = ""
        # The same functions under the same names.
        self.reload = self._engine.reload
        self.unload = self._engine.unload
        self.reset = self._engine.reset
        self.run_background_loop = self._engine.run_background_loop
        self.run_background_stream_back_loop = self._engine.run_background_stream_back_loop
        self.exit_background_loop = self._engine.exit_background_loop
        self.get_model_bundle = self._engine.get_model_bundle

    def init_background_engine(
        self, device_type: int, device_id: int, callback: Callable[[str], Any] | None
    ) -> None:
        """`device_type`: DLPack's number. Raises `MLCError` without a callback."""
        if device_type not in DEVICE_TYPES:
            known = ", ".join(f"{number} {name}" for number, name in DEVICE_TYPES.items())
            raise InvalidField("device_type", device_type, f"known: {known}")
        device = f"{DEVICE_TYPES[device_type]}:{device_id}"
        deliver = None if callback is None else self._deliver
        self._engine.init_threaded_engine(device, deliver, None)
        self._callback = callback

    def chat_completion(self, request_json_str: str, request_id: str) -> bool:
        """Queue a request. False when it is rejected: then the callback has had an error reply.

        There is no reply while another request runs under this id, since it would end the other's
        stream; `get_last_error` says so. Raises `MLCError` before `init_background_engine` and in
        a forked process.
        """
        self._engine.check_usable()
        try:
            model = self._model()
            request = codec.parse_request(request_json_str)
            return self._start(request, request_id, model)
        except _Taken as error:
            self._last_error = str(error)
            return False
        except Exception as error:
            if not isinstance(error, MLCError):
                _log.exception("request %s could not be read", request_id)
            self._last_error = str(error) or type(error).__name__
            self._call_back(codec.error_reply(request_id, error))
            return False

    def abort(self, request_id: str) -> bool:
        """End a request: its stream ends with `abort` and a usage. Unknown ids are ignored."""
        self._engine.abort_request(request_id)
        return True

    def get_last_error(self) -> str:
        """Why the last request was rejected; empty if none was."""
        return self._last_error

    def get_complete_engine_config(self) -> str:
        """The config with every limit, as JSON."""
        return self._engine.get_complete_engine_config().asjson()

    def _model(self) -> codec.LoadedModel:
        loaded = self._engine.loaded
        window = loaded.config.max_single_sequence_length
        bundle = loaded.bundle
        return codec.LoadedModel(
            bundle, bundle.context_window if window is None else window, loaded.load_id
        )

    def _start(
        self, request: ChatCompletionRequest, request_id: str, model: codec.LoadedModel
    ) -> bool:
        """Queue a request. What takes time comes after its id is known, so that an abort ends it
        meanwhile too."""
        config = codec.engine_config(request, model.bundle)
        answer = AnswerStream(model.bundle.tokenizer, config.n)
        writer = codec.ChunkWriter(request_id, request.model or "", answer)
        self._open(request_id, writer)
        try:
            self._engine.make_and_add(
                request_id,
                config.n,
                lambda: codec.engine_request(request, request_id, config, model),
            )
        except BaseException:
            self._close(request_id, writer)
            raise
        return True

    def _open(self, request_id: str, writer: codec.ChunkWriter) -> None:
        if self._writers.setdefault(request_id, writer) is not writer:
            raise _Taken("request_id", request_id, "it names a request that runs")

    def _close(self, request_id: str, writer: codec.ChunkWriter) -> None:
        """Unless it was closed, and the id is another request's by now."""
        if self._writers.get(request_id) is writer:
            del self._writers[request_id]

    def _deliver(self, outputs: list[RequestStreamOutput]) -> None:
        """The threaded engine's callback: one call of ours for each request that has news."""
        chunks: dict[str, list[str]] = {}
        for output in outputs:
            chunk = self._chunk(output)
            if chunk:
                chunks.setdefault(output.request_id, []).append(chunk)
        for request_id, texts in chunks.items():
            try:
                self._call_back(codec.array(texts))
            except BaseException:
                _log.exception("the callback raised; request %s is aborted", request_id)
                self._engine.abort_request(request_id)

    def _chunk(self, output: RequestStreamOutput) -> str:
        request_id = output.request_id
        writer = self._writers.get(request_id)
        if writer is None:
            return ""
        if output.request_final_usage_json_str is not None:
            self._close(request_id, writer)
        try:
            return writer.put(output)
        except Exception as error:
            # Nobody else's text is lost: only this request ends here.
            _log.exception("the answer to request %s cannot be written", request_id)
            self._close(request_id, writer)
            self._engine.abort_request(request_id)
            return codec.error_reply(request_id, error)[1:-1]

    def _call_back(self, text: str) -> None:
        assert self._callback is not None  # checked before there is anything to say
        self._callback(text)


class _Taken(InvalidField):
    """Another request runs under this id."""


def create_json_ffi_engine() -> Any:
    """A new engine's table of functions."""
    return function_table(JSONFFIModule(), FUNCTIONS + MORE_FUNCTIONS)


tvm_ffi.register_global_func(
    "mlc.json_ffi.CreateJSONFFIEngine", create_json_ffi_engine, override=True
)
