"""Routes that compute nothing: models, tokens, health, metrics."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from mlc_llm import __version__
from mlc_llm.errors import InvalidField, MissingKey, MLCError
from mlc_llm.protocol import checks
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.protocol.openai_api_protocol import ListResponse
from mlc_llm.serve.anthropic.models import VERSION_HEADER, model_body, page_body
from mlc_llm.serve.async_reader import AsyncClient, AsyncReader, begin
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.model import ChatModel
from mlc_llm.serve.openai.raw_calls import metrics_in
from mlc_llm.serve.prometheus import CONTENT_TYPE, Page
from mlc_llm.serve.server.calls.context import (
    ServedModel,
    ServerContext,
    context_of,
    new_id,
    served_model,
)
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.limits.threads import PREPARING
from mlc_llm.serve.server.notes.note import current_note
from mlc_llm.serve.server.pool.slot import ModelSlot
from mlc_llm.serve.server.pool.watch import stalled
from mlc_llm.serve.server.routes.chat_tokens import KNOWN, chat_ids
from mlc_llm.serve.server.routes.openapi import openapi_text
from mlc_llm.serve.server.routes.page import PAGE_PATHS
from mlc_llm.serve.serving_page import SERVING, add_engine

_log = logging.getLogger(__name__)

MAX_IDS = 1 << 24
MAX_NAME_CHARS = 256
MOST_CONTEXTS = 4
"""`tokenize` takes texts of so many contexts at most."""


async def models(request: Request) -> Response:
    """All names of all models, and which of them are open."""
    entries = context_of(request).entries
    if VERSION_HEADER in request.headers:
        return JSONResponse(page_body(entries, request.query_params))
    return JSONResponse(ListResponse(data=entries).model_dump())


async def one_model(request: Request) -> Response:
    """What `models` says of one name."""
    context = context_of(request)
    current_note().is_anthropic = VERSION_HEADER in request.headers
    name = request.path_params["model"]
    slot = context.models.find(name)
    entry = context.model_entry(slot, name)
    if VERSION_HEADER in request.headers:
        return JSONResponse(model_body(entry))
    return JSONResponse(entry.model_dump())


async def tokenize(request: Request) -> Response:
    """Token ids of a text: `{"prompt": text, "add_special_tokens": true}`; or of the prompt of a
    chat: `{"messages": [...]}`, with `tools` and other fields that shape it.

    A text that is the name of a control token, and nothing else, is this token: clients find out
    its id so. In any other text, such a name is ordinary text, as it is in prompts.
    """
    served, fields = await small_fields(request, {"prompt", "model", "add_special_tokens", *KNOWN})
    if "messages" in fields and "prompt" not in fields:
        return _tokens(await chat_ids(request, served, fields), served.model)
    if "prompt" not in fields:
        raise MissingKey("prompt", "prompt")
    for name in sorted(KNOWN & set(fields)):
        raise InvalidField(name, json.dumps(fields[name]), "it goes with messages, not with prompt")
    text = checks.string("prompt", fields["prompt"], served.settings.limits.body_bytes)
    has_start = checks.boolean("add_special_tokens", fields.get("add_special_tokens", True))
    model = served.model
    control = model.tokenizer.special_tokens.get(text)

    def encode() -> list[int]:
        model.tokenizer.check_size([text], MOST_CONTEXTS * model.context)
        if control is not None:
            return [control]
        if has_start and model.is_encoder:
            return model.tokenizer.frame.around(model.tokenizer.encode(text))
        return (model.tokenizer.encode_prompt if has_start else model.tokenizer.encode)(text)

    ids = await asyncio.get_running_loop().run_in_executor(PREPARING, encode)
    return _tokens(ids, model)


def _tokens(ids: list[int], model: ChatModel) -> Response:
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def detokenize(request: Request) -> Response:
    """The text of token ids: `{"tokens": [ids]}`."""
    served, fields = await small_fields(request, {"tokens", "model"})
    if "tokens" not in fields:
        raise MissingKey("tokens", "tokens")
    ids = checks.token_ids("tokens", fields["tokens"], MAX_IDS)
    tokenizer = served.model.tokenizer
    size = tokenizer.vocab_size
    wrong = next((one for one in ids if not 0 <= one < size), None)
    if wrong is not None:
        raise InvalidField("tokens", wrong, f"this model's token ids are 0 to {size - 1}")
    loop = asyncio.get_running_loop()
    return JSONResponse({"prompt": await loop.run_in_executor(PREPARING, tokenizer.decode, ids)})


async def tokenizer_info(request: Request) -> Response:
    """Names of control tokens, and whether prompts begin with one."""
    served = await served_model(request, request.query_params.get("model"))
    tokenizer, template = served.model.tokenizer, served.model.template
    names = {one: name for name, one in tokenizer.special_tokens.items()}
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return JSONResponse(
        {
            "vocab_size": tokenizer.vocab_size,
            "bos_token": None if bos is None else names.get(bos),
            "eos_token": None if eos is None else names.get(eos),
            "add_bos_token": tokenizer.add_bos,
            "has_chat_template": template is not None,
        }
    )


async def health(_: Request) -> Response:
    """The process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Requests are taken on, and the engines move. If not, the reason is in the answer."""
    context = context_of(request)
    if context.admission.is_draining:
        raise HTTPError(503, "the server is ending", kind="server_error", code="draining")
    for slot in context.models.stalled:
        raise stalled(slot)
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Numbers of the engines and of the server, as text for Prometheus."""
    context, page = context_of(request), Page()
    for slot in context.models.open_slots:
        await _add_model(page, context, slot)
    page.add_all(
        {
            "server_answers": context.admission.answers,
            "server_answers_limit": context.admission.limit,
            "server_refused_total": context.admission.refused,
        }
    )
    context.metrics.add_to(page, context.models.default.names[0])
    return PlainTextResponse(page.text(), headers={"content-type": CONTENT_TYPE})


async def _add_model(page: Page, context: ServerContext, slot: ModelSlot) -> None:
    """The numbers of one open model. Only those of the default one have no label."""
    name, client = slot.names[0], slot.client
    found = None
    if client is not None and not slot.stalled:
        try:
            found = await engine_metrics(client, context.settings.limits.metrics_s)
        except MLCError as error:  # it has just died, or no replica of it can be asked
            _log.warning("model %s gives no metrics: %s", name, error)
    if found is not None:
        numbers = _with_waiting(found.metrics, slot)
        add_engine(page, numbers, name, with_own=slot is context.models.default)
    words = "1 if the engine answered within a few seconds; 0: its numbers are missing."
    page.add("mlc_llm:engine_responds", found is not None, {"model_name": name}, help=words)


def _with_waiting(metrics: Mapping[str, Any], slot: ModelSlot) -> Mapping[str, object]:
    """The metrics of an engine, where requests that wait before the engine wait too."""
    serving = metrics.get(SERVING)
    if not isinstance(serving, Mapping) or slot.turns is None:
        return metrics
    waiting = serving["num_requests_waiting"] + slot.turns.num_waiting
    return {**metrics, SERVING: {**serving, "num_requests_waiting": waiting}}


async def engine_metrics(client: AsyncClient, seconds: float) -> EngineMetrics | None:
    """None if the engine does not answer in time: a page without its numbers is better than
    none. Raises `MLCError` if it answers with an error."""
    reader = await begin(client, [client.metrics_part(new_id("metrics"))])
    try:
        chunks = await asyncio.wait_for(_all(reader), seconds)
    except asyncio.TimeoutError:
        reader.close()
        return None
    return metrics_in(chunks)


async def _all(reader: AsyncReader) -> list[Chunk]:
    return [chunk async for _, chunk in reader]


async def openapi(request: Request) -> Response:
    """The OpenAPI file of this server, without its chat page."""
    state = request.app.state
    if not hasattr(state, "openapi"):
        routes = [
            (method, route.path)
            for route in request.app.routes
            if route.path not in PAGE_PATHS  # the chat page is no API
            for method in sorted(route.methods - {"HEAD"})
        ]
        state.openapi = await asyncio.to_thread(openapi_text, routes, "mlc_llm", __version__)
    return Response(state.openapi, media_type="application/json")


async def small_fields(request: Request, known: set[str]) -> tuple[ServedModel, dict[str, object]]:
    """The model and the fields of a small body; an empty one has none. Raises `HTTPError`,
    `UserError` (an unknown field too)."""
    context = context_of(request)
    data = await context.bodies.json_text(request)
    fields = dict[str, object](parse_json_object(data or b"{}", "the request"))
    for other in sorted(set(fields) - known):
        allowed = f"unknown field; known: {', '.join(sorted(known))}"
        raise InvalidField(other, json.dumps(fields[other], default=str), allowed)
    model = fields.get("model")
    wanted = None if model is None else checks.string("model", model, MAX_NAME_CHARS)
    return await served_model(request, wanted), fields
