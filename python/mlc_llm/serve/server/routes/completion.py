"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.openai_api_protocol import CompletionRequest, CompletionResponse
from mlc_llm.serve.openai.calls import Streamed
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.completions import completion_call
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.asked import read
from mlc_llm.serve.server.calls.context import new_id
from mlc_llm.serve.server.limits.whole_size import check_completion_size
from mlc_llm.serve.server.streams.stream_json import DataEvents, check_end


class CompletionStream(DataEvents):
    """Writes the chunks of one call of the older API."""

    def __init__(self, request_id: str, streamed: Streamed[CompletionResponse]) -> None:
        self._request_id, self._streamed = request_id, streamed

    def texts(self, part: int, chunk: Chunk) -> Iterator[str]:
        """Raises `RequestError` for a request that failed or was ended."""
        check_end(chunk, self._request_id)
        for one in self._streamed.of(part, chunk):
            yield one.model_dump_json()


async def completions(request: Request) -> Response:
    """What follows a prompt, or each of several."""
    given = await read(request, CompletionRequest)
    asked = await given.with_model(given.body.model)
    body, served = asked.body, asked.served
    check_completion_size(body, served.model.context)
    request_id = new_id("cmpl")
    call = completion_call(body.model_copy(update={"model": served.name}), request_id, served.model)
    writer = CompletionStream(request_id, call.streamed) if body.stream else None
    return await answer_call(asked, call, writer, asked.ignoring(body.unknown_fields()))
