"""`/v1/chat/completions`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.calls import chat_call
from mlc_llm.serve.server.answer import answer_call
from mlc_llm.serve.server.body import read_json_text
from mlc_llm.serve.server.context import context_of, ignored, new_id
from mlc_llm.serve.server.stream_json import ChatStream


async def chat_completions(request: Request) -> Response:
    """The next message of a conversation."""
    context = context_of(request)
    data = await read_json_text(request, context.settings.limits)
    body = ChatCompletionRequest.parse_text(data)
    name = context.check_name(body.model)
    context.check_debug(body)
    request_id = new_id("chatcmpl")
    call = chat_call(body.model_copy(update={"model": name}), request_id, context.model)
    writer = ChatStream(request_id, name, include_usage=body.include_usage) if body.stream else None
    headers = ignored(body)
    return await answer_call(request, context, call, writer, size=len(data), headers=headers)
