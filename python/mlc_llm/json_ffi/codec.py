"""JSON texts to requests, outputs to JSON texts. Pure; nothing here knows an engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from mlc_llm.protocol.error_protocol import ErrorBody, ErrorResponse
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.data import Data, RequestStreamOutput, TokenData
from mlc_llm.serve.metrics import zero_usage_json
from mlc_llm.serve.model_args import ModelBundle
from mlc_llm.serve.openai.chunks import AnswerStream, ChoicePiece
from mlc_llm.serve.openai.prompt import check_chat_request, request_prompt
from mlc_llm.serve.request import Request

ERROR_MODEL = "json_ffi"
"""The model's name in an error reply."""
REQUEST_FAILED = "request_error"
"""The `type` of an error with which the engine ended a request that it had accepted."""


class LoadedModel(NamedTuple):
    """What requests are made with."""

    bundle: ModelBundle
    window: int
    """Tokens of a prompt and its answer."""
    load_id: int
    """As `OpenEngine.load_id`."""


def parse_request(text: str) -> ChatCompletionRequest:
    """The request of a JSON text; this boundary always streams, whatever it says about that.

    Raises `UserError` naming the field, or beginning "Failed to parse JSON".
    """
    values = parse_json_object(text, "the request")
    request = ChatCompletionRequest.parse({**values, "stream": True})
    check_chat_request(request)
    return request


def engine_config(request: ChatCompletionRequest, bundle: ModelBundle) -> GenerationConfig:
    """The request's own settings, with the model's defaults merged under them. Raises `UserError`
    for what is wrong together."""
    return request.generation_config().merged_over(bundle.defaults)


def engine_request(
    request: ChatCompletionRequest, request_id: str, config: GenerationConfig, model: LoadedModel
) -> Request:
    """What the engine is asked. config: as of `engine_config`.

    Raises `UserError`, and `ContextLengthExceeded` for a prompt that leaves no room for an answer
    in the model's window.
    """
    inputs: list[Data] = []
    if config.debug_config.special_request is None:
        tokenizer, template = model.bundle.tokenizer, model.bundle.chat_template
        ids = request_prompt(request, tokenizer=tokenizer, template=template, context=model.window)
        inputs = [TokenData(ids)]
    return Request(request_id, inputs, config, model.load_id)


class ChunkWriter:
    """Makes the chunks of one request, as JSON objects.

    They are put together as texts: this runs for every token while the model has all cores, so
    what it costs is taken from the model. The id comes first in each.
    """

    def __init__(self, request_id: str, model: str, answer: AnswerStream | None = None) -> None:
        """`answer` makes text of the outputs for `put`."""
        self._answer = answer
        head = {
            "id": request_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": _utf8(model),
            "system_fingerprint": "",
        }
        self._head = json.dumps(head)[:-1] + ', "choices": ['

    def put(self, output: RequestStreamOutput) -> str:
        """The chunk of an output; empty where there is nothing to show yet."""
        if output.request_final_usage_json_str is not None:
            return self.usage(output.request_final_usage_json_str)
        assert self._answer is not None
        pieces = self._answer.put(output)
        if output.error is not None:
            return self.choices(pieces, ErrorBody(message=_utf8(output.error), type=REQUEST_FAILED))
        return self.choices(pieces) if pieces else ""

    def choices(self, pieces: Iterable[ChoicePiece], error: ErrorBody | None = None) -> str:
        """A chunk that adds to choices, or ends them with an error."""
        end = "]}" if error is None else f'], "error": {json.dumps(error.model_dump())}}}'
        return self._head + ", ".join(map(_choice, pieces)) + end

    def usage(self, usage_json: str) -> str:
        """The request's last chunk."""
        return f'{self._head}], "usage": {usage_json}}}'


def array(chunks: Iterable[str]) -> str:
    """What a callback gets: chunks of one request."""
    return "[" + ", ".join(chunks) + "]"


def error_reply(request_id: str, error: Exception) -> str:
    """The whole answer to a request that was rejected: one choice with the reason as its text and
    an `error` beside it, and a usage."""
    body = ErrorResponse.of(error).error
    body = body.model_copy(update={"message": _utf8(body.message or type(error).__name__)})
    writer = ChunkWriter(request_id, ERROR_MODEL)
    reason = ChoicePiece(0, body.message, "error", None)
    return array([writer.choices([reason], body), writer.usage(zero_usage_json())])


def _utf8(text: str) -> str:
    """A user's text, which may hold half a character: no JSON reader would take that."""
    return text.encode("utf-8", "replace").decode()


def _choice(piece: ChoicePiece) -> str:
    reason = "null" if piece.finish_reason is None else f'"{piece.finish_reason}"'
    delta = f'{{"content": {encode_basestring_ascii(piece.text)}, "role": "assistant"}}'
    text = f'{{"finish_reason": {reason}, "index": {piece.choice}, "delta": {delta}'
    if piece.logprobs is None:
        return text + "}"
    return f'{text}, "logprobs": {{"content": [{", ".join(piece.logprobs)}]}}}}'
