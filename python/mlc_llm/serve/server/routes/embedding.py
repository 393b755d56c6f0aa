"""`/v1/embeddings`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.embedding_protocol import EmbeddingRequest
from mlc_llm.serve.openai.embeddings import embedding_call
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.context import context_of, ignored, new_id, served_model
from mlc_llm.serve.server.limits.body import read_json_text
from mlc_llm.serve.server.limits.order import order_of


async def embeddings(request: Request) -> Response:
    """The embeddings of one text or of several."""
    context = context_of(request)
    data = await read_json_text(request, context.settings.limits)
    body = EmbeddingRequest.parse_text(data)
    order = order_of(request, body)
    served = await served_model(request, body.model)
    named = body.model_copy(update={"model": served.name})
    call = embedding_call(named, new_id("embd"), served.model)
    headers = ignored(body)
    return await answer_call(
        request, served, call, None, size=len(data), headers=headers, order=order
    )
