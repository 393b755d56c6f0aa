"""`/v1/responses`, OpenAI's newer API, without a store."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.serve.responses.call import response_call
from mlc_llm.serve.responses.fields import ResponsesRequest
from mlc_llm.serve.responses.translation import translated
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.context import context_of, ignored_header, new_id, served_model
from mlc_llm.serve.server.limits.body import read_json_text
from mlc_llm.serve.server.limits.order import order_of
from mlc_llm.serve.server.streams.named_events import NamedEvents


async def responses(request: Request) -> Response:
    """The next items of a conversation."""
    data = await read_json_text(request, context_of(request).settings.limits)
    body = ResponsesRequest.parse_text(data)
    order = order_of(request, body)
    served = await served_model(request, body.model)
    found = translated(body, served.name)
    request_id = new_id("resp", "_")
    call, events = response_call(body, found.request, request_id, served.model)
    writer = NamedEvents(request_id, events) if body.stream else None
    return await answer_call(
        request,
        served,
        call,
        writer,
        size=len(data),
        headers=ignored_header(found.ignored_by(served.model.template)),
        order=order,
    )
