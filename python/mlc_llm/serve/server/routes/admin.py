"""Routes for those who run the server: open and close models, load and drop LoRA adapters.

They are there with `--enable-debug`, or if a key of the file has the word `admin`; then only such a
key may call them.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.serve.server.calls.context import ServerContext, context_of, served_model
from mlc_llm.serve.server.errors import HTTPError, not_found
from mlc_llm.serve.server.limits.tenants import tenant_of
from mlc_llm.serve.server.pool.registry import DEFAULT_NAME
from mlc_llm.serve.server.pool.slot import ModelSlot
from mlc_llm.serve.server.streams.gone import unless_gone

MAX_NAME_CHARS = 256
MAX_PATH_CHARS = 4096


async def load_model(request: Request) -> Response:
    """Open a model: `{"model": name}`. It answers when the model is open."""
    context, slot = await _named(request)
    await served_model(request, slot.names[0])
    return JSONResponse(context.model_entry(slot, slot.names[0]).model_dump())


async def unload_model(request: Request) -> Response:
    """Close a model when its answers have ended: `{"model": name}`."""
    context, slot = await _named(request)
    await unless_gone(request, context.models.close(slot))
    return JSONResponse(context.model_entry(slot, slot.names[0]).model_dump())


async def load_adapter(request: Request) -> Response:
    """Load a LoRA adapter into an open model: `{"name": name, "source": path, "model": name}`."""
    context, slot, fields = await _of_adapter(request, {"name", "source", "model"})
    name, source = fields["name"], checks.string("source", fields.get("source"), MAX_PATH_CHARS)
    if name in (DEFAULT_NAME, *(one for each in context.models.slots for one in each.all_names)):
        raise InvalidField("name", name, "a model or an adapter has this name")
    served = await served_model(request, slot.names[0])
    await asyncio.to_thread(served.client.load_adapter, name, source)
    return JSONResponse(context.model_entry(slot, name).model_dump())


async def drop_adapter(request: Request) -> Response:
    """Drop a LoRA adapter: `{"name": name}`. Answers with it go on to their end."""
    context, slot, fields = await _of_adapter(request, {"name"})
    name = fields["name"]
    if name in slot.names or name not in slot.adapters:
        raise not_found(f"there is no adapter {name!r}", code="model_not_found", param="name")
    served = await served_model(request, slot.names[0])
    await asyncio.to_thread(served.client.drop_adapter, name)
    return JSONResponse(context.model_entry(slot, slot.names[0]).model_dump())


async def _of_adapter(
    request: Request, known: set[str]
) -> tuple[ServerContext, ModelSlot, dict[str, str]]:
    """The model that is meant, and the fields of the body. Raises `HTTPError`, `InvalidField`."""
    context = context_of(request)
    check_admin(request, context)
    data = await context.bodies.json_text(request)
    fields = parse_json_object(data, "the request")
    for name in sorted(set(fields) - known):
        raise InvalidField(name, fields[name], f"unknown field; known: {', '.join(sorted(known))}")
    if "name" not in fields:
        raise MissingKey("name", "name")
    texts = {
        field: checks.string(field, value, MAX_PATH_CHARS, min_chars=1)
        for field, value in fields.items()
    }
    checks.string("name", texts["name"], MAX_NAME_CHARS)
    meant = texts.get("model") if "source" in known else texts["name"]
    return context, context.models.find(meant), texts


async def _named(request: Request) -> tuple[ServerContext, ModelSlot]:
    """The model of the body. Raises `HTTPError`, `InvalidField`."""
    context = context_of(request)
    check_admin(request, context)
    data = await context.bodies.json_text(request)
    fields = parse_json_object(data, "the request")
    for name in sorted(set(fields) - {"model"}):
        raise InvalidField(name, fields[name], "unknown field; known: model")
    if "model" not in fields:
        raise MissingKey("model", "model")
    name = checks.string("model", fields["model"], MAX_NAME_CHARS, min_chars=1)
    return context, context.models.find(name)


def check_admin(request: Request, context: ServerContext) -> None:
    """Raises `HTTPError`: 404 if nobody may do this, 403 without an admin's key."""
    has_admin = context.settings.keys.has_admin
    if not has_admin and not context.settings.debug:
        words = f"{request.method} {request.url.path}: Not Found"
        raise not_found(words, code="not_found")
    if has_admin and not tenant_of(request).is_admin:
        words = "only a key with the word admin may do this"
        raise HTTPError(403, words, kind="permission_error", code="not_admin")
