"""From a call to its answer over HTTP, streamed or whole. Chats and completions share it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import Response

from mlc_llm.serve.openai.calls import Call
from mlc_llm.serve.server.calls.asked import Asked
from mlc_llm.serve.server.calls.start import deadline, start_call
from mlc_llm.serve.server.limits.holding import holds_of
from mlc_llm.serve.server.notes.note import current_note
from mlc_llm.serve.server.streams.gone import unless_gone
from mlc_llm.serve.server.streams.large import built, size_of
from mlc_llm.serve.server.streams.reader import ServedReader
from mlc_llm.serve.server.streams.sse import EventStream
from mlc_llm.serve.server.streams.stream_json import StreamWriter, check_end

WholeT = TypeVar("WholeT", bound=BaseModel)


async def answer_call(
    asked: Asked[Any],
    call: Call[Any, WholeT],
    writer: StreamWriter | None,
    headers: Mapping[str, str],
) -> Response:
    """The response. writer: for a streamed answer; None: the answer comes as a whole. headers: more
    of them. Raises `HTTPError`, `UserError`."""
    request, served, order = asked.request, asked.served, asked.order
    limits, holds = served.settings.limits, holds_of(request)
    admission, tenant = served.admission, order.tenant
    holds.enter_context(admission.entered(call.answers, asked.size, tenant, call.counted))
    note = current_note()
    note.answer_id = call.parts[0].request_id
    reader = ServedReader(call.parts, served.client.abort, note.saw)
    holds.enter_context(served.reading(reader))
    holds.enter_context(deadline(reader, order))
    starting = asyncio.ensure_future(start_call(served, call.parts, reader, order))
    reader.when_over(starting.cancel)
    if writer is not None:
        # A client that waits longer gets signs of life, and errors as events.
        await unless_gone(request, asyncio.wait([starting], timeout=limits.ping_s))
        reader.check()
        return EventStream(reader, writer, limits, headers, is_late=not starting.done())
    body = await unless_gone(request, _collected(reader, call))
    return Response(body, media_type="application/json", headers=dict(headers))


async def _collected(reader: ServedReader, call: Call[Any, WholeT]) -> bytes:
    """The whole answer, as JSON. It ends the request if it is cancelled."""
    size = 0
    try:
        async for part, chunk in reader:
            check_end(chunk, call.parts[0].request_id)
            call.whole.put(part, chunk)
            size += size_of(chunk, reader.choices(part))
    finally:
        reader.close()
    return await built(size, lambda: call.whole.response().model_dump_json().encode())
