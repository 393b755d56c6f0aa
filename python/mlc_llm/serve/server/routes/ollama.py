"""`/api/...`, Ollama's API."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator
from typing import Literal, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import mlc_llm
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.ollama.call import ollama_call
from mlc_llm.serve.ollama.embeddings import (
    embed_call,
    embed_request,
    old_embed_call,
    old_embed_request,
)
from mlc_llm.serve.ollama.errors import error_body
from mlc_llm.serve.ollama.fields import (
    ChatRequest,
    EmbedRequest,
    GenerateRequest,
    OldEmbedRequest,
    ShowRequest,
)
from mlc_llm.serve.ollama.lines import Clock, Kind, Lines
from mlc_llm.serve.ollama.model_facts import ModelFacts
from mlc_llm.serve.ollama.translation import translated_chat, translated_prompt
from mlc_llm.serve.openai.calls import Streamed
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.translated import Translated
from mlc_llm.serve.server.calls.answer import answer_call
from mlc_llm.serve.server.calls.asked import Asked, Read, read
from mlc_llm.serve.server.calls.context import (
    ServerContext,
    context_of,
    new_id,
    served_model,
)
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.limits.tenants import tenant_of
from mlc_llm.serve.server.limits.whole_size import bounded_chat, bounded_completion
from mlc_llm.serve.server.pool.slot import ModelSlot, State
from mlc_llm.serve.server.routes.model_facts import facts_of, facts_of_closed
from mlc_llm.serve.server.streams.stream_json import check_end

BodyT = TypeVar("BodyT", ChatRequest, GenerateRequest, EmbedRequest, OldEmbedRequest)
NEWEST = ":latest"
"""Ollama's clients put it behind names that have no other tag."""


class LineStream:
    """Writes the lines of a call."""

    media_type = "application/x-ndjson"
    ping = b" "
    """White space before a line, which has no meaning in JSON."""

    def __init__(self, request_id: str, lines: Streamed[str]) -> None:
        self._request_id, self._lines = request_id, lines

    def begin(self) -> bytes:
        return b""

    def events(self, part: int, chunk: Chunk) -> Iterator[bytes]:
        """Raises `RequestError` for a request that failed or was ended."""
        check_end(chunk, self._request_id)
        for line in self._lines.of(part, chunk):
            yield f"{line}\n".encode()

    def end(self) -> bytes:
        return b""

    def failed(self, error: HTTPError) -> bytes:
        return f"{json.dumps(error_body(error.body.message))}\n".encode()


async def chat(request: Request) -> Response:
    """The next message of a conversation."""
    given = await read(request, ChatRequest)
    asks_nothing = not given.body.messages
    if asks_nothing and _is_to_stay_closed(given):
        return _closed("chat", given)
    asked, clock = await _opened(given)
    lines, served = _lines("chat", asked, clock), asked.served
    if asks_nothing:
        return _nothing(asked, lines)
    return await _answer(
        asked, translated_chat(asked.body, served.name, served.model.context), lines
    )


async def generate(request: Request) -> Response:
    """The answer to a text."""
    given = await read(request, GenerateRequest)
    asks_nothing = not given.body.prompt
    if asks_nothing and _is_to_stay_closed(given):
        return _closed("generate", given)
    asked, clock = await _opened(given)
    lines, served = _lines("generate", asked, clock), asked.served
    if asks_nothing:
        return _nothing(asked, lines)
    return await _answer(
        asked, translated_prompt(asked.body, served.name, served.model.context), lines
    )


async def embed(request: Request) -> Response:
    """The embeddings of a text, or of several."""
    asked, clock = await _opened(await read(request, EmbedRequest))
    found, ignored = embed_request(asked.body, asked.served.name)
    ignored += _keep(asked)
    name = asked.body.model or asked.served.name
    call = embed_call(found, new_id("ollama"), name, clock, asked.served.model)
    return await answer_call(asked, call, None, asked.ignoring(ignored))


async def old_embed(request: Request) -> Response:
    """The embedding of one text, for older clients."""
    asked, _ = await _opened(await read(request, OldEmbedRequest))
    found, ignored = old_embed_request(asked.body, asked.served.name)
    ignored += _keep(asked)
    call = old_embed_call(found, new_id("ollama"), asked.served.model)
    return await answer_call(asked, call, None, asked.ignoring(ignored))


async def tags(request: Request) -> Response:
    """The models that there are."""
    slots = context_of(request).models.slots
    models = [(await _facts(slot)).listed(name) for slot in slots for name in slot.names]
    return JSONResponse({"models": models})


async def loaded(request: Request) -> Response:
    """The models that are in memory."""
    slots = context_of(request).models.open_slots
    now = time.monotonic()
    models = [
        (await _facts(slot)).loaded(name, slot.idle_left_s(now))
        for slot in slots
        for name in slot.names
    ]
    return JSONResponse({"models": models})


async def show(request: Request) -> Response:
    """All that is known of a model. It is opened for that."""
    context, body = context_of(request), (await read(request, ShowRequest)).body
    served = await served_model(request, _known_name(context, body.model or body.name))
    slot = context.models.find(served.name)
    return JSONResponse((await _facts(slot)).shown(served.name))


async def version(_: Request) -> Response:
    """The version of this server, which is not Ollama's."""
    return JSONResponse({"version": mlc_llm.__version__})


async def _opened(given: Read[BodyT]) -> tuple[Asked[BodyT], Clock]:
    """The request, and the clock that has measured how long its model took to open."""
    clock = Clock()
    asked = await given.with_model(_known_name(context_of(given.request), given.body.model))
    clock.loaded()
    return asked, clock


def _lines(kind: Kind, asked: Asked[ChatRequest] | Asked[GenerateRequest], clock: Clock) -> Lines:
    return Lines(kind, new_id("ollama"), asked.body.model or asked.served.name, clock)


def _known_name(context: ServerContext, name: str | None) -> str | None:
    known = any(name in slot.names for slot in context.models.slots)
    return name if known or name is None else name.removesuffix(NEWEST)


async def _facts(slot: ModelSlot) -> ModelFacts:
    client = slot.client
    if client is None:
        return await asyncio.to_thread(facts_of_closed, slot.source)
    return await asyncio.to_thread(facts_of, client.bundle, client.model)


def _slot(given: Read[ChatRequest] | Read[GenerateRequest]) -> ModelSlot:
    """Raises `HTTPError` for an unknown name."""
    context = context_of(given.request)
    return context.models.find(_known_name(context, given.body.model))


def _is_to_stay_closed(given: Read[ChatRequest] | Read[GenerateRequest]) -> bool:
    """A model that is closed is not opened to be closed again."""
    return given.body.keep_alive == 0 and _slot(given).state is State.CLOSED


def _closed(kind: Kind, given: Read[ChatRequest] | Read[GenerateRequest]) -> Response:
    """Raises `HTTPError` for a client that may not close models."""
    if not _may_close(given.request):
        raise _not_admin()
    name = given.body.model or _slot(given).names[0]
    return _line(Lines(kind, new_id("ollama"), name, Clock()), "unload", given.body.stream, {})


def _may_close(request: Request) -> bool:
    """Without keys everybody may, with keys an admin."""
    return not context_of(request).settings.keys or tenant_of(request).is_admin


def _not_admin() -> HTTPError:
    words = "keep_alive = 0: only a key with the word admin may close a model"
    return HTTPError(403, words, kind="permission_error", param="keep_alive", code="not_admin")


def _line(
    lines: Lines, reason: Literal["load", "unload"], is_stream: bool, headers: dict[str, str]
) -> Response:
    """The answer to a request for nothing."""
    media_type = LineStream.media_type if is_stream else "application/json"
    text = json.dumps(lines.nothing(reason)) + "\n"
    return Response(text, media_type=media_type, headers=headers)


def _nothing(asked: Asked[ChatRequest] | Asked[GenerateRequest], lines: Lines) -> Response:
    """Clients ask for nothing to have a model loaded, or unloaded. Raises `HTTPError`."""
    body, ignored = asked.body, _keep(asked)
    closes = body.keep_alive == 0
    if closes and ignored:
        raise _not_admin()
    return _line(lines, "unload" if closes else "load", body.stream, asked.ignoring(ignored))


def _keep(
    asked: Asked[ChatRequest]
    | Asked[GenerateRequest]
    | Asked[EmbedRequest]
    | Asked[OldEmbedRequest],
) -> list[str]:
    """Do what `keep_alive` says, if the client may close models. Returns the fields without
    effect."""
    seconds = asked.body.keep_alive
    if seconds is None:
        return []
    if not _may_close(asked.request):
        return ["keep_alive"]
    asked.served.keep(None if math.isinf(seconds) else seconds)
    return []


async def _answer(
    asked: Asked[ChatRequest] | Asked[GenerateRequest],
    found: Translated[ChatCompletionRequest] | Translated[CompletionRequest],
    lines: Lines,
) -> Response:
    model, chat = asked.served.model, found.request
    if isinstance(chat, ChatCompletionRequest):
        chat = bounded_chat(chat, model.context)
    else:
        chat = bounded_completion(chat, model.context)
    writer = LineStream(lines.request_id, lines) if chat.stream else None
    headers = asked.ignoring([*found.ignored_by(model.template), *_keep(asked)])
    return await answer_call(asked, ollama_call(chat, lines, model), writer, headers)
