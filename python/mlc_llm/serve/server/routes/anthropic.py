"""`/v1/messages` and `/v1/messages/count_tokens`, Anthropic's API."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.anthropic.call import count_tokens, message_call
from mlc_llm.serve.anthropic.fields import CountTokensRequest, MessagesRequest
from mlc_llm.serve.anthropic.translation import translated
from mlc_llm.serve.openai.model import ChatModel
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.context import context_of, ignored_header, new_id, served_model
from mlc_llm.serve.server.calls.start import PREPARING
from mlc_llm.serve.server.limits.body import read_json_text
from mlc_llm.serve.server.limits.holding import holds_of
from mlc_llm.serve.server.limits.order import order_of
from mlc_llm.serve.server.streams.gone import unless_gone
from mlc_llm.serve.server.streams.named_events import NamedEvents


async def messages(request: Request) -> Response:
    """The next message of a conversation."""
    data = await read_json_text(request, context_of(request).settings.limits)
    body = MessagesRequest.parse_text(data)
    order = order_of(request, body)
    served = await served_model(request, body.model)
    found = translated(body, served.name)
    request_id = new_id("msg", "_")
    call, events = message_call(found.request, request_id, served.model)
    writer = NamedEvents(request_id, events) if body.stream else None
    ignored = ignored_header(found.ignored_by(served.model.template))
    headers = {"request-id": new_id("req", "_"), **ignored}
    return await answer_call(
        request, served, call, writer, size=len(data), headers=headers, order=order
    )


async def count_message_tokens(request: Request) -> Response:
    """How many tokens the conversation of a request has."""
    data = await read_json_text(request, context_of(request).settings.limits)
    body = CountTokensRequest.parse_text(data)
    order = order_of(request, body)
    served = await served_model(request, body.model)
    found = translated(body, served.name)
    holds_of(request).enter_context(served.admission.entered(1, len(data), order.tenant))
    number = await unless_gone(request, _counted(found.request, served.model))
    headers = ignored_header(found.ignored_by(served.model.template))
    return JSONResponse({"input_tokens": number}, headers=headers)


async def _counted(chat: ChatCompletionRequest, model: ChatModel) -> int:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(PREPARING, count_tokens, chat, new_id("count"), model)
