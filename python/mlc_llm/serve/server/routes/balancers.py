"""Routes that routers in front of several servers ask, with SGLang's names: who is served here, and
how much is to do."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mlc_llm import __version__
from mlc_llm.serve.server.calls.context import context_of
from mlc_llm.serve.server.routes.info import engine_metrics
from mlc_llm.serve.serving_page import SERVING


async def server_info(request: Request) -> Response:
    """What the server is, and the names of its default model."""
    context = context_of(request)
    slot = context.models.default
    found: dict[str, Any] = {
        "served_model_name": slot.names[0],
        "version": __version__,
    }
    if slot.client is not None:
        found["is_embedding"] = not slot.client.model.writes
        config = slot.client.engine_config
        found["max_running_requests"] = config.max_num_sequence
        found["max_total_num_tokens"] = config.max_total_sequence_length
        found["max_model_len"] = slot.client.model.context
    return JSONResponse(found)


async def model_info(request: Request) -> Response:
    """What the default model is. Its files are nobody else's business."""
    slot = context_of(request).models.default
    found: dict[str, Any] = {"served_model_name": slot.names[0]}
    if slot.client is not None:
        found["is_generation"] = slot.client.model.writes
    return JSONResponse(found)


async def load(request: Request) -> Response:
    """Requests and tokens that the engines have to do. An engine that does not answer in time has
    no line."""
    context = context_of(request)
    found: list[dict[str, int]] = []
    for slot in context.models.open_slots:
        client, turns = slot.client, slot.turns
        if client is None or turns is None or slot.stalled:
            continue
        metrics = await engine_metrics(client, context.settings.limits.metrics_s)
        if metrics is None:
            continue
        serving = metrics.metrics[SERVING]
        waiting = serving["num_requests_waiting"] + turns.num_waiting
        room = client.engine_config.max_total_sequence_length or 0
        held = round(serving["kv_cache_usage"] * room)
        found.append(
            {
                "dp_rank": len(found),
                "num_reqs": serving["num_requests_running"] + waiting,
                "num_waiting_reqs": waiting,
                "num_tokens": held + turns.waiting_tokens,
            }
        )
    return JSONResponse(found)
