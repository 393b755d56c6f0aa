"""From a call to its answer over HTTP, streamed or whole. Chats and completions share it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlc_llm.serve.async_reader import AsyncReader, begin
from mlc_llm.serve.openai.calls import Call
from mlc_llm.serve.server.context import ServerContext
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.sse import EventStream
from mlc_llm.serve.server.stream_json import StreamWriter, check_end

ResultT = TypeVar("ResultT")
WholeT = TypeVar("WholeT", bound=BaseModel)
GONE = 499
"""The status of a request whose client has gone; nobody reads it."""


async def answer_call(
    request: Request,
    context: ServerContext,
    call: Call[Any, WholeT],
    writer: StreamWriter | None,
    *,
    size: int,
    headers: Mapping[str, str],
) -> Response:
    """The response. writer: for a streamed answer; None: the answer comes as a whole. size: bytes
    of the request. headers: more of them. Raises `HTTPError`, `UserError`."""
    with ExitStack() as admitted:
        answers = sum(part.n for part in call.parts)
        admitted.enter_context(context.admission.entered(answers, size))
        reader = await unless_gone(request, begin(context.client, call.parts))
        if writer is not None:
            stream = EventStream(reader, writer, context.settings.limits, headers)
            return _Streaming(stream, admitted.pop_all())
        whole = await unless_gone(request, _collected(reader, call))
        body = whole.model_dump_json()
    return Response(body, media_type="application/json", headers=dict(headers))


class _Streaming(Response):
    """A stream that leaves the admission at its end."""

    def __init__(self, stream: EventStream, admitted: ExitStack) -> None:
        self._stream, self._admitted = stream, admitted
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._admitted:
            await self._stream(scope, receive, send)


async def _collected(reader: AsyncReader, call: Call[Any, WholeT]) -> WholeT:
    """The whole answer. It ends the request if it is cancelled."""
    try:
        async for part, chunk in reader:
            check_end(chunk, call.parts[0].request_id)
            call.whole.put(part, chunk)
    finally:
        reader.close()
    return call.whole.response()


async def unless_gone(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of some work, which is cancelled when the client goes. Raises `HTTPError` then.

    The body of the request must have been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPError(GONE, "the client has gone")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
