"""`/debug/...`: what a developer looks at. The routes are there with `--enable-debug` only.

They have the names of MLC LLM's. If a key has the word `admin`, only such a key may call them.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mlc_llm.serve.server.calls.context import ServedModel, context_of
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.routes.admin import check_admin
from mlc_llm.serve.server.routes.info import engine_metrics, small_fields


async def dump_event_trace(request: Request) -> Response:
    """The events of all requests, as a Chrome trace: Perfetto and chrome://tracing open it."""
    trace = (await _model(request)).client.trace
    if trace is None:
        raise HTTPError(400, "the engine was opened without a recorder of events")
    text = await asyncio.to_thread(trace.dump_json)
    headers = {"x-dropped-events": str(trace.dropped)}
    return Response(text, media_type="application/json", headers=headers)


async def dump_engine_metrics(request: Request) -> Response:
    """The numbers of the engine, as JSON."""
    served = await _model(request)
    seconds = served.settings.limits.metrics_s
    found = await engine_metrics(served.client, seconds)
    if found is None:
        words = f"the engine did not answer in {seconds:g} s"
        raise HTTPError(503, words, kind="server_error", code="engine_busy")
    return JSONResponse(found.metrics)


async def reset_engine(request: Request) -> Response:
    """End all requests, and forget the prefix cache and the numbers of the engine."""
    served = await _model(request)
    await asyncio.to_thread(served.client.reset)
    return JSONResponse({"status": "ok"})


async def _model(request: Request) -> ServedModel:
    """The one that the body names. Raises `HTTPError`, `UserError`."""
    check_admin(request, context_of(request))
    served, _ = await small_fields(request, {"model"})
    return served


async def cuda_profiler(_: Request) -> Response:
    """Refused by name: this engine computes on processors."""
    raise HTTPError(400, "there is no CUDA profiler: this engine computes on CPUs", code="no_cuda")
