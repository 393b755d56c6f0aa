"""A streamed answer: what its API's writer makes of the chunks, as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlc_llm.serve.async_reader import AsyncReader
from mlc_llm.serve.client import News
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.server.errors import http_error
from mlc_llm.serve.server.limits.settings import Limits
from mlc_llm.serve.server.notes.note import current_note
from mlc_llm.serve.server.streams.gone import until_gone
from mlc_llm.serve.server.streams.large import LARGE, built, size_of
from mlc_llm.serve.server.streams.lazy_timer import LazyTimer
from mlc_llm.serve.server.streams.stream_json import StreamWriter

_log = logging.getLogger(__name__)

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class EventStream(Response):
    """The request ends when its client has gone. The connection of a client that takes nothing for
    too long is cut, so then it has gone.

    A request that fails ends with an error in the form of its API: clients take a stream that
    merely stops for a whole answer.
    """

    def __init__(
        self,
        reader: AsyncReader,
        writer: StreamWriter,
        limits: Limits,
        more: Mapping[str, str],
        *,
        is_late: bool = False,
    ) -> None:
        """more: headers. is_late: the client has waited already, so a sign of life comes first."""
        self._reader, self._writer, self._limits = reader, writer, limits
        self.background = None
        self._is_late = is_late
        self._size = 0
        """Of what has come, as `size_of` counts."""
        headers = {"content-type": writer.media_type, **HEADERS, **more}
        self._own_headers = [(k.encode(), v.encode()) for k, v in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(until_gone(receive))
        quiet = LazyTimer(self._limits.ping_s, self._reader.nudge)
        sending = asyncio.ensure_future(self._send_all(send, quiet))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._reader.close()
            for one in (quiet, gone, sending):
                one.cancel()
            _, failure = await asyncio.gather(gone, sending, return_exceptions=True)
            if isinstance(failure, Exception):
                _log.error("a stream broke off", exc_info=failure)

    async def _send_all(self, send: Send, quiet: LazyTimer) -> None:
        """quiet: wakes the reader when it is time for a sign of life."""
        start = {"type": "http.response.start", "status": 200, "headers": self._own_headers}
        await send(start)
        writer, reader = self._writer, self._reader
        try:
            first = writer.begin() + (writer.ping if self._is_late else b"")
            if first:
                await send(_body(first))
            quiet.begin()
            while (news := await reader.next_all()) is not None:
                quiet.begin()
                data = await self._data(news) if news else writer.ping
                if data:
                    await send(_body(data))
            last = writer.end()
        except Exception as error:  # a bug of a writer as well
            failure = http_error(error)
            current_note().cut(failure.status, failure.body.code or failure.body.type)
            last = writer.failed(failure)
        await send(_body(last, more=False))

    async def _data(self, news: Sequence[News]) -> bytes:
        """Some events say all that came before them once more, as in the Responses API."""
        choices = self._reader.choices
        size = sum(size_of(chunk, choices(part)) for part, chunk in news)
        self._size += size
        says_all = self._size >= LARGE and any(_ends_text(chunk) for _, chunk in news)
        return await built(self._size if says_all else size, lambda: b"".join(self._events(news)))

    def _events(self, all_news: Sequence[News]) -> Iterator[bytes]:
        for part, chunk in all_news:
            yield from self._writer.events(part, chunk)


def _ends_text(chunk: Chunk) -> bool:
    """The text of a choice ends with it, or the answer."""
    return chunk.usage_json is not None or any(
        one.finish_reason is not None or one.calls for one in chunk.pieces
    )


def _body(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}
