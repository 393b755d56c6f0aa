"""JSON texts to requests, outputs to JSON texts. Pure; nothing here knows an engine."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.data import Data, RequestStreamOutput, TokenData
from mlc_llm.serve.metrics import zero_usage_json
from mlc_llm.serve.model_args import ModelBundle
from mlc_llm.serve.openai.chat import chat_prompt
from mlc_llm.serve.openai.chunks import AnswerStream, ChoicePiece
from mlc_llm.serve.request import Request

Chunk = dict[str, Any]

ERROR_MODEL = "json_ffi"
"""The model's name in an error reply."""

_log = logging.getLogger(__name__)


def parse_request(text: str) -> ChatCompletionRequest:
    """The request of a JSON text; this boundary always streams, whatever it says about that.

    Raises `UserError` naming the field, or beginning "Failed to parse JSON".
    """
    values = parse_json_object(text, "the request")
    request = ChatCompletionRequest.parse({**values, "stream": True})
    if request.tool_choice == "required":
        allowed = "Invalid tool_choice value; a call cannot be required in this version"
        raise InvalidField("tool_choice", request.tool_choice, allowed)
    unknown = request.unknown_fields()
    if unknown:
        _log.warning("fields of the request that have no effect: %s", ", ".join(unknown))
    return request


def engine_request(
    request: ChatCompletionRequest, request_id: str, bundle: ModelBundle, window: int
) -> Request:
    """What the engine is asked; the model's defaults are merged under the request's own settings.

    Raises `UserError`, and `ContextLengthExceeded` for texts that cannot fit into `window` tokens.
    """
    config = request.generation_config().merged_over(bundle.defaults)
    inputs: list[Data] = []
    if config.debug_config.special_request is None:
        inputs = [TokenData(_prompt(request, bundle, window))]
    return Request(request_id, inputs, config)


def _prompt(request: ChatCompletionRequest, bundle: ModelBundle, window: int) -> list[int]:
    return chat_prompt(
        [message.model_dump(exclude_none=True) for message in request.messages],
        tokenizer=bundle.tokenizer,
        template=bundle.chat_template,
        tools=[tool.model_dump(exclude_none=True) for tool in request.usable_tools],
        max_tokens=window,
    )


class ChunkWriter:
    """Makes the chunks of one request."""

    def __init__(self, request: Request, model: str, bundle: ModelBundle) -> None:
        self._request_id = request.request_id
        self._model = model
        self._created = int(time.time())
        self._answer = AnswerStream(bundle.tokenizer, request.n)

    def put(self, output: RequestStreamOutput) -> list[Chunk]:
        """No chunk or one: none where there is nothing to show yet."""
        if output.request_final_usage_json_str is not None:
            return [self.chunk([], json.loads(output.request_final_usage_json_str))]
        choices = [_choice(piece) for piece in self._answer.put(output)]
        return [self.chunk(choices)] if choices else []

    def chunk(self, choices: list[dict[str, Any]], usage: Any = None) -> Chunk:
        """A chunk of this request; the one with a usage is its last."""
        return _chunk(self._request_id, self._model, self._created, choices, usage)


def error_reply(request_id: str, message: str) -> str:
    """The whole answer to a request that was rejected: one choice with the reason, and a usage."""
    return _reply(request_id, ERROR_MODEL, [ChoicePiece(0, message, "error", None)])


def length_reply(request: ChatCompletionRequest, request_id: str) -> str:
    """The whole answer to a prompt that leaves no room for an answer."""
    ends = [ChoicePiece(i, "", "length", None) for i in range(request.n)]
    return _reply(request_id, request.model or "", ends)


def _reply(request_id: str, model: str, pieces: Sequence[ChoicePiece]) -> str:
    now = int(time.time())
    choices = [_choice(piece) for piece in pieces]
    usage = json.loads(zero_usage_json())
    return json.dumps(
        [_chunk(request_id, model, now, choices), _chunk(request_id, model, now, [], usage)]
    )


def _choice(piece: ChoicePiece) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "finish_reason": piece.finish_reason,
        "index": piece.index,
        "delta": {"content": piece.text, "role": "assistant"},
    }
    if piece.logprobs is not None:
        choice["logprobs"] = {"content": piece.logprobs}
    return choice


def _chunk(
    request_id: str, model: str, created: int, choices: list[dict[str, Any]], usage: Any = None
) -> Chunk:
    chunk = {
        "id": request_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "system_fingerprint": "",
        "choices": choices,
    }
    return chunk if usage is None else {**chunk, "usage": usage}
