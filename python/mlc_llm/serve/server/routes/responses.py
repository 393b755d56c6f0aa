"""`/v1/responses`, OpenAI's newer API, without a store."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.serve.responses.call import response_call
from mlc_llm.serve.responses.fields import ResponsesRequest
from mlc_llm.serve.responses.translation import translated
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.asked import read
from mlc_llm.serve.server.calls.context import new_id
from mlc_llm.serve.server.limits.whole_size import bounded_chat
from mlc_llm.serve.server.streams.named_events import NamedEvents


async def responses(request: Request) -> Response:
    """The next items of a conversation."""
    given = await read(request, ResponsesRequest)
    asked = await given.with_model(given.body.model)
    body, served = asked.body, asked.served
    found = translated(body, served.name)
    chat = bounded_chat(found.request, served.model.context, keeps_streamed=True)
    request_id = new_id("resp", "_")
    call, events = response_call(body, chat, request_id, served.model)
    writer = NamedEvents(request_id, events) if body.stream else None
    headers = asked.ignoring(found.ignored_by(served.model.template))
    return await answer_call(asked, call, writer, headers)
