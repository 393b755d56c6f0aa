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
from mlc_llm.serve.server.calls.asked import read
from mlc_llm.serve.server.calls.context import new_id
from mlc_llm.serve.server.limits.holding import holds_of
from mlc_llm.serve.server.limits.threads import PREPARING
from mlc_llm.serve.server.streams.gone import unless_gone
from mlc_llm.serve.server.streams.named_events import NamedEvents


async def messages(request: Request) -> Response:
    """The next message of a conversation."""
    given = await read(request, MessagesRequest)
    asked = await given.with_model(given.body.model)
    body, served = asked.body, asked.served
    found = translated(body, served.name)
    request_id = new_id("msg", "_")
    call, events = message_call(found.request, request_id, served.model)
    writer = NamedEvents(request_id, events) if body.stream else None
    ignored = asked.ignoring(found.ignored_by(served.model.template))
    headers = {"request-id": new_id("req", "_"), **ignored}
    return await answer_call(asked, call, writer, headers)


async def count_message_tokens(request: Request) -> Response:
    """How many tokens the conversation of a request has."""
    given = await read(request, CountTokensRequest)
    asked = await given.with_model(given.body.model)
    served = asked.served
    found = translated(asked.body, served.name)
    entered = served.admission.entered(1, asked.size, asked.order.tenant)
    holds_of(request).enter_context(entered)
    number = await unless_gone(request, _counted(found.request, served.model))
    headers = asked.ignoring(found.ignored_by(served.model.template))
    return JSONResponse({"input_tokens": number}, headers=headers)


async def _counted(chat: ChatCompletionRequest, model: ChatModel) -> int:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(PREPARING, count_tokens, chat, new_id("count"), model)
