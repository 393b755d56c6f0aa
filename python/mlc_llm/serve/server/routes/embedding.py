"""`/v1/embeddings`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.embedding_protocol import EmbeddingRequest
from mlc_llm.serve.openai.embeddings import embedding_call
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.asked import read
from mlc_llm.serve.server.calls.context import new_id


async def embeddings(request: Request) -> Response:
    """The embeddings of one text or of several."""
    given = await read(request, EmbeddingRequest)
    asked = await given.with_model(given.body.model)
    served = asked.served
    named = asked.body.model_copy(update={"model": served.name})
    call = embedding_call(named, new_id("embd"), served.model)
    return await answer_call(asked, call, None, asked.ignoring(asked.body.unknown_fields()))
