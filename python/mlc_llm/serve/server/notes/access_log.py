"""One line a request, without what it says; and the count of requests for metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlc_llm.serve.server.notes.note import RequestNote, begin_note

REQUEST_ID_HEADER = "x-request-id"
LONGEST_ID = 128
COUNT_S = 5.0
"""The line of an answer that was ended early waits so long for its tokens to be counted."""

_log = logging.getLogger("mlc_llm.access")

Ended = Callable[[RequestNote], None]


class AccessLog:
    """ASGI middleware, the outermost one. It writes down how each request began and ended."""

    def __init__(self, app: ASGIApp, ended: Ended) -> None:
        """ended: is told of each request at its end."""
        self._app, self._ended = app, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note = _note_of(scope)
        begin_note(note)
        is_complete = False

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not is_complete:
                note.is_aborted = True
            return message

        async def sending(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                note.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = note.request_id
            elif not message.get("more_body", False):
                is_complete = True
            await send(message)

        try:
            await self._app(scope, receiving, sending)
            note.ended = time.monotonic()
            with suppress(asyncio.CancelledError):  # the server ends without it
                await note.counted(COUNT_S)
        finally:
            note.ended = note.ended or time.monotonic()
            self._ended(note)
            write_line(note)


def write_line(note: RequestNote) -> None:
    """Log a request that has ended."""
    if not _log.isEnabledFor(logging.INFO):
        return
    fields = note.fields()
    said = [f"{name}={value}" for name, value in fields.items() if value not in (None, 0, False)]
    _log.info("request %s", " ".join(said), extra={"fields": {"message": "request", **fields}})


def _note_of(scope: Scope) -> RequestNote:
    note, headers = RequestNote(method=scope["method"]), Headers(scope=scope)
    given = headers.get(REQUEST_ID_HEADER, "")
    is_word = given.isascii() and given.isprintable() and " " not in given
    if is_word and 0 < len(given) <= LONGEST_ID:  # a space would begin another field of a line
        note.request_id = given
    note.traceparent = headers.get("traceparent")
    return note
