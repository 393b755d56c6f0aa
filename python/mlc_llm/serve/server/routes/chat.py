"""`/v1/chat/completions`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.calls import chat_call
from mlc_llm.serve.openai.requests import without_effect
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.asked import read
from mlc_llm.serve.server.calls.context import new_id
from mlc_llm.serve.server.limits.whole_size import bounded_chat
from mlc_llm.serve.server.streams.stream_json import ChatStream


async def chat_completions(request: Request) -> Response:
    """The next message of a conversation."""
    given = await read(request, ChatCompletionRequest)
    asked = await given.with_model(given.body.model)
    served = asked.served
    body = bounded_chat(asked.body, served.model.context)
    request_id = new_id("chatcmpl")
    call = chat_call(body.model_copy(update={"model": served.name}), request_id, served.model)
    stream = ChatStream(
        request_id,
        served.name,
        include_usage=body.include_usage,
        fingerprint=served.model.fingerprint,
    )
    writer = stream if body.stream else None
    headers = asked.ignoring([*body.unknown_fields(), *without_effect(body, served.model.template)])
    return await answer_call(asked, call, writer, headers)
