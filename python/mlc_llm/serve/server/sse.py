"""A streamed answer: server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping

from starlette.types import Receive, Scope, Send

from mlc_llm.errors import RequestError
from mlc_llm.protocol.error_protocol import ErrorResponse
from mlc_llm.serve.async_reader import AsyncReader
from mlc_llm.serve.client import News
from mlc_llm.serve.server.errors import http_error
from mlc_llm.serve.server.settings import Limits
from mlc_llm.serve.server.stream_json import StreamWriter

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


class EventStream:
    """An ASGI response. The request ends when its client has gone, or takes nothing for too long.

    A request that fails ends with an `error` event and without `[DONE]`: clients take a stream that
    merely stops for a whole answer.
    """

    def __init__(
        self, reader: AsyncReader, writer: StreamWriter, limits: Limits, more: Mapping[str, str]
    ) -> None:
        """more: headers."""
        self._reader, self._writer, self._limits = reader, writer, limits
        self._headers = [(k.encode(), v.encode()) for k, v in {**HEADERS, **more}.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_until_gone(receive))
        sending = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._reader.close()
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self._headers}
        await self._send(send, start)
        try:
            while (news := await self._next()) is not None:
                data = b"".join(self._events(news)) if news else PING
                if data:
                    await self._send(send, _body(data))
            last = DONE
        except RequestError as error:
            body = ErrorResponse(error=http_error(error).body).model_dump()
            last = f"data: {json.dumps(body)}\n\n".encode()
        await self._send(send, _body(last, more=False))

    async def _next(self) -> list[News] | None:
        """All that has come; nothing if it is time for a sign of life, None at the end."""
        try:
            return await asyncio.wait_for(self._reader.next_all(), self._limits.ping_s)
        except asyncio.TimeoutError:
            return []

    def _events(self, all_news: list[News]) -> Iterator[bytes]:
        for part, chunk in all_news:
            for text in self._writer.texts(part, chunk):
                yield f"data: {text}\n\n".encode()

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        """Raises TimeoutError if the client takes nothing."""
        await asyncio.wait_for(send(message), self._limits.write_s)


def _body(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
