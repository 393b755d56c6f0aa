"""The JSON texts that cross the FFI. These are pure functions without an engine."""

from __future__ import annotations

from collections.abc import Iterable

from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.chunk_json import ChunkJSON
from mlc_llm.serve.openai.chunks import refusal_chunks
from mlc_llm.serve.openai.requests import warn_of_ignored

ERROR_MODEL = "json_ffi"
"""The model's name in an error reply."""


def parse_request(text: str) -> ChatCompletionRequest:
    """The request of a JSON text. It always streams here, whatever its field `stream` says.

    Raises `UserError`. Its message names the field, or begins with "Failed to parse JSON".
    """
    values = parse_json_object(text, "the request")
    request = ChatCompletionRequest.parse({**values, "stream": True})
    warn_of_ignored(request)
    return request


def array(chunks: Iterable[str]) -> str:
    """The text that a callback gets: chunks of one request."""
    return "[" + ", ".join(chunks) + "]"


def error_reply(request_id: str, error: Exception) -> str:
    """The text that a callback gets for a request that is refused."""
    writer = ChunkJSON(request_id, ERROR_MODEL)
    return array(writer.text(chunk) for chunk in refusal_chunks(error))
