"""`/v1/rerank`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlc_llm.protocol.rerank_protocol import RerankRequest
from mlc_llm.serve.openai.rerank import rerank_call
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.asked import read
from mlc_llm.serve.server.calls.context import new_id


async def rerank(request: Request) -> Response:
    """Documents in the order of how well they answer a query."""
    given = await read(request, RerankRequest)
    asked = await given.with_model(given.body.model)
    served = asked.served
    named = asked.body.model_copy(update={"model": served.name})
    call = rerank_call(named, new_id("rank"), served.model)
    return await answer_call(asked, call, None, asked.ignoring(asked.body.unknown_fields()))
