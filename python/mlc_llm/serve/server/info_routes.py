"""Routes that compute nothing: models, tokens, health, metrics."""

from __future__ import annotations

import asyncio
import json
from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.protocol.openai_api_protocol import ListResponse
from mlc_llm.serve.async_reader import begin
from mlc_llm.serve.openai.raw_calls import metrics_in
from mlc_llm.serve.prometheus import CONTENT_TYPE, prometheus_text
from mlc_llm.serve.server.body import read_json_text
from mlc_llm.serve.server.context import ServerContext, context_of, new_id
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.tokenizers import Tokenizer

MAX_IDS = 1 << 24


async def models(request: Request) -> Response:
    """All names of the model."""
    context = context_of(request)
    entries = [context.model_entry(name) for name in context.names]
    return JSONResponse(ListResponse(data=entries).model_dump())


async def one_model(request: Request) -> Response:
    """What `models` says of one name."""
    context = context_of(request)
    name = context.check_name(request.path_params["model"])
    return JSONResponse(context.model_entry(name).model_dump())


async def tokenize(request: Request) -> Response:
    """Token ids of a text: `{"prompt": text, "add_special_tokens": true}`."""
    context, fields = await _fields(request, {"prompt", "model", "add_special_tokens"})
    if "prompt" not in fields:
        raise MissingKey("prompt", "prompt")
    text = checks.string("prompt", fields["prompt"], context.settings.limits.body_bytes)
    has_start = checks.boolean("add_special_tokens", fields.get("add_special_tokens", True))
    model = context.model
    make = model.tokenizer.encode_prompt if has_start else model.tokenizer.encode
    ids = await asyncio.to_thread(make, text)
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": model.context})


async def detokenize(request: Request) -> Response:
    """The text of token ids: `{"tokens": [ids]}`."""
    context, fields = await _fields(request, {"tokens", "model"})
    if "tokens" not in fields:
        raise MissingKey("tokens", "tokens")
    ids = checks.token_ids("tokens", fields["tokens"], MAX_IDS)
    size = context.model.tokenizer.vocab_size
    wrong = next((one for one in ids if not 0 <= one < size), None)
    if wrong is not None:
        raise InvalidField("tokens", wrong, f"this model's token ids are 0 to {size - 1}")
    return JSONResponse({"prompt": await asyncio.to_thread(context.model.tokenizer.decode, ids)})


async def tokenizer_info(request: Request) -> Response:
    """Names of control tokens, and whether prompts begin with one."""
    context = context_of(request)
    tokenizer = context.model.tokenizer
    names = {one: name for name, one in tokenizer.special_tokens.items()}
    template = context.model.template
    return JSONResponse(
        {
            "vocab_size": tokenizer.vocab_size,
            "bos_token": names.get(cast(int, tokenizer.bos_token_id)),
            "eos_token": _eos(tokenizer, names),
            "add_bos_token": tokenizer.add_bos,
            "has_chat_template": template is not None,
        }
    )


async def health(_: Request) -> Response:
    """The process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Requests are taken on."""
    if context_of(request).admission.is_draining:
        raise HTTPError(503, "the server is ending", kind="server_error", code="draining")
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Numbers of the engine and of the server, as text for Prometheus."""
    context = context_of(request)
    part = context.client.metrics_part(new_id("metrics"))
    reader = await begin(context.client, [part])
    of_engine = metrics_in([chunk async for _, chunk in reader])
    admission = context.admission
    own = {
        "server_answers": admission.answers,
        "server_answers_limit": admission.limit,
        "server_refused_total": admission.refused,
    }
    text = of_engine.prometheus_text() + prometheus_text(own)
    return PlainTextResponse(text, headers={"content-type": CONTENT_TYPE})


async def _fields(request: Request, known: set[str]) -> tuple[ServerContext, dict[str, object]]:
    """The fields of a small body. Raises `HTTPError`, `UserError` (an unknown field too)."""
    context = context_of(request)
    data = await read_json_text(request, context.settings.limits)
    fields = dict[str, object](parse_json_object(data, "the request"))
    for name in sorted(set(fields) - known):
        allowed = f"unknown field; known: {', '.join(sorted(known))}"
        raise InvalidField(name, json.dumps(fields[name], default=str), allowed)
    model = fields.get("model")
    context.check_name(model if isinstance(model, str) else None)
    return context, fields


def _eos(tokenizer: Tokenizer, names: dict[int, str]) -> str | None:
    found = [names[one] for one in sorted(tokenizer.eos_token_ids) if one in names]
    return found[0] if found else None
