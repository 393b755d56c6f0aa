"""`/v1/chat/completions`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.calls import chat_call
from mlc_llm.serve.openai.requests import without_effect
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.context import context_of, ignored, new_id, served_model
from mlc_llm.serve.server.limits.body import read_json_text
from mlc_llm.serve.server.limits.order import order_of
from mlc_llm.serve.server.limits.whole_size import check_chat_size
from mlc_llm.serve.server.streams.stream_json import ChatStream


async def chat_completions(request: Request) -> Response:
    """The next message of a conversation."""
    context = context_of(request)
    data = await read_json_text(request, context.settings.limits)
    body = ChatCompletionRequest.parse_text(data)
    context.check_debug(body)
    order = order_of(request, body)
    served = await served_model(request, body.model)
    check_chat_size(body, served.model.context)
    request_id = new_id("chatcmpl")
    call = chat_call(body.model_copy(update={"model": served.name}), request_id, served.model)
    stream = ChatStream(
        request_id,
        served.name,
        include_usage=body.include_usage,
        fingerprint=served.model.fingerprint,
    )
    writer = stream if body.stream else None
    headers = ignored(body, without_effect(body, served.model.template))
    return await answer_call(
        request, served, call, writer, size=len(data), headers=headers, order=order
    )
