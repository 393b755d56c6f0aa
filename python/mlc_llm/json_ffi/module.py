"""The engine that the global function `mlc.json_ffi.CreateJSONFFIEngine` makes.

Only strings, numbers and functions go in and out, so any language can use it. The callback gets one
string: a JSON array of OpenAI's chat chunks, all of one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import tvm_ffi

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.json_ffi import codec
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.chat_model import chat_model_of
from mlc_llm.serve.data import RequestStreamOutput, checked_callback
from mlc_llm.serve.ffi_table import function_table
from mlc_llm.serve.openai.chunk_json import ChunkJSON
from mlc_llm.serve.openai.chunks import AnswerStream
from mlc_llm.serve.openai.requests import ChatForm, ChatModel, engine_config, engine_request
from mlc_llm.serve.streams import IdInUse, OpenStreams
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
"""DLPack's number -> the name of the device type."""

_log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """A running request: it makes chunks of outputs, and JSON of chunks."""

    stream: AnswerStream
    json: ChunkJSON


class JSONFFIModule:
    """A threaded engine that speaks JSON. Every function may be called from any thread."""

    def __init__(self) -> None:
        self._engine = ThreadedEngine.Create()
        self._callback: Callable[[str], object] | None = None
        self._answers: OpenStreams[_Answer] = OpenStreams()
        self._last_error = ""
        # These are the same as in the threaded engine.
        self.reload = self._engine.reload
        self.unload = self._engine.unload
        self.reset = self._engine.reset
        self.run_background_loop = self._engine.run_background_loop
        self.run_background_stream_back_loop = self._engine.run_background_stream_back_loop
        self.exit_background_loop = self._engine.exit_background_loop
        self.get_model_bundle = self._engine.get_model_bundle

    def init_background_engine(
        self, device_type: int, device_id: int, callback: Callable[[str], object] | None
    ) -> None:
        """`device_type`: DLPack's number. `device_id`: 0. Raises `InvalidField`, and `MLCError`
        without a callback; the call may come again then."""
        if device_type not in DEVICE_TYPES:
            known = ", ".join(f"{number} {name}" for number, name in DEVICE_TYPES.items())
            raise InvalidField("device_type", device_type, f"known: {known}")
        if device_id:
            words = "it is 0; CUDA_VISIBLE_DEVICES says which GPU that is"
            raise InvalidField("device_id", device_id, words)
        checked_callback(callback, "callback")
        device = f"{DEVICE_TYPES[device_type]}:{device_id}"
        deliver = None if callback is None else self._deliver
        self._engine.init_threaded_engine(device, deliver, None)
        self._callback = callback

    def chat_completion(self, request_json_str: str, request_id: str) -> bool:
        """Queue a request. Returns False if it is rejected; then the callback got an error reply.

        There is no reply if another request with this id is running, because the reply would end
        the stream of the other. `get_last_error` has the reason then. Raises `MLCError` before
        `init_background_engine` and in a forked process.
        """
        self._engine.check_usable()
        try:
            model = chat_model_of(self._engine.loaded)
            request = codec.parse_request(request_json_str)
            return self._start(request, request_id, model)
        except IdInUse as error:
            self._last_error = str(error)
            return False
        except Exception as error:
            if not isinstance(error, MLCError):
                _log.exception("request %s could not be read", request_id)
            self._last_error = str(error) or type(error).__name__
            self._call_back(codec.error_reply(request_id, error))
            return False

    def abort(self, request_id: str) -> bool:
        """End a request. Its stream ends with `abort` and a usage. Unknown ids are ignored."""
        self._engine.abort_request(request_id)
        return True

    def get_last_error(self) -> str:
        """The reason why the last request was rejected. Empty if none was."""
        return self._last_error

    def get_complete_engine_config(self) -> str:
        """The config with every limit, as JSON."""
        return self._engine.get_complete_engine_config().asjson()

    def _start(self, request: ChatCompletionRequest, request_id: str, model: ChatModel) -> bool:
        """Queue a request. The slow work comes after its id is known, so that an abort can end it
        during that work."""
        config, form = engine_config(request, model), ChatForm(request, model)
        stream = AnswerStream(model.tokenizer, config.n, form.reader)
        answer = _Answer(stream, ChunkJSON(request_id, request.model or "", model.fingerprint))
        self._answers.open(request_id, answer)
        try:
            self._engine.make_and_add(
                request_id, config.n, lambda: engine_request(form, request_id, config)
            )
        except BaseException:
            self._answers.leave(request_id, answer)
            raise
        return True

    def _deliver(self, outputs: list[RequestStreamOutput]) -> None:
        """The callback of the threaded engine. It calls our callback once for each request with
        news."""
        news: dict[str, list[str]] = {}
        for output in outputs:
            text = self._text(output)
            if text:
                news.setdefault(output.request_id, []).append(text)
        for request_id, texts in news.items():
            try:
                self._call_back(codec.array(texts))
            except BaseException:
                _log.exception("the callback raised; request %s is aborted", request_id)
                self._engine.abort_request(request_id)

    def _text(self, output: RequestStreamOutput) -> str:
        """The chunk of an output as JSON. Empty if the output has no chunk."""
        request_id = output.request_id
        answer = self._answers.find(request_id)
        if answer is None:
            return ""
        if output.request_final_usage_json_str is not None:
            self._answers.leave(request_id, answer)
        try:
            chunk = answer.stream.put(output)
            return "" if chunk is None else answer.json.text(chunk)
        except Exception as error:
            # Only this request ends here; the texts of the others go on.
            _log.exception("the answer to request %s cannot be written", request_id)
            self._answers.leave(request_id, answer)
            self._engine.abort_request(request_id)
            return codec.error_reply(request_id, error)[1:-1]

    def _call_back(self, text: str) -> None:
        assert self._callback is not None  # the engine was initialized before there was an output
        self._callback(text)


def create_json_ffi_engine() -> tvm_ffi.Map:
    """The table of functions of a new engine."""
    return function_table(JSONFFIModule(), FUNCTIONS + MORE_FUNCTIONS)


tvm_ffi.register_global_func(
    "mlc.json_ffi.CreateJSONFFIEngine", create_json_ffi_engine, override=True
)
