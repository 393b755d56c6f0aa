"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from json.encoder import encode_basestring_ascii

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.openai_api_protocol import CompletionRequest
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.completions import CompletionChunks, CompletionPiece, completion_call
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.asked import read
from mlc_llm.serve.server.calls.context import new_id
from mlc_llm.serve.server.calls.echoes import bounded_echoes
from mlc_llm.serve.server.limits.whole_size import bounded_completion
from mlc_llm.serve.server.streams.stream_json import DataEvents, check_end

CHOICES = '"choices":['


class CompletionStream(DataEvents):
    """Writes the chunks of one call of the older API. No models are made: they would cost more than
    all else that the server does for a token."""

    def __init__(self, chunks: CompletionChunks) -> None:
        self._chunks, self._head = chunks, chunks.head
        whole = self._head.response([], None).model_dump_json()
        self._start, self._end = whole.split(CHOICES, 1)

    def texts(self, part: int, chunk: Chunk) -> Iterator[str]:
        """Raises `RequestError` for a request that failed or was ended."""
        check_end(chunk, self._head.request_id)
        pieces = self._chunks.pieces(part, chunk)
        if pieces:
            yield f"{self._start}{CHOICES}{','.join(map(_choice, pieces))}{self._end}"
        usage = self._chunks.usage(chunk)
        if usage is not None:
            yield self._head.response([], usage).model_dump_json()


def _choice(piece: CompletionPiece) -> str:
    """As `CompletionResponseChoice` writes it."""
    reason = "null" if piece.finish_reason is None else f'"{piece.finish_reason}"'
    logprobs = "null" if piece.logprobs is None else piece.logprobs.model_dump_json()
    text = encode_basestring_ascii(piece.text)
    return (
        f'{{"finish_reason":{reason},"index":{piece.choice},"text":{text},"logprobs":{logprobs}}}'
    )


async def completions(request: Request) -> Response:
    """What follows a prompt, or each of several."""
    given = await read(request, CompletionRequest)
    asked = await given.with_model(given.body.model)
    served = asked.served
    context = served.model.context
    body = bounded_completion(asked.body, context)
    request_id = new_id("cmpl")
    call = completion_call(body.model_copy(update={"model": served.name}), request_id, served.model)
    call = bounded_echoes(call, body, context)
    writer = CompletionStream(call.streamed) if body.stream else None
    return await answer_call(asked, call, writer, asked.ignoring(body.unknown_fields()))
