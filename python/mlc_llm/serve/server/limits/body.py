"""Reads the bodies of requests, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from mlc_llm.serve.server.errors import HTTPError, overloaded
from mlc_llm.serve.server.limits.holding import holds_of
from mlc_llm.serve.server.limits.settings import Limits
from mlc_llm.serve.server.limits.speed import LONGEST_RETRY_S

JSON_TYPES = ("application/json", "text/json", "application/x-www-form-urlencoded")
"""The last is what `curl -d` says of any body, and Ollama's own examples send it. Web pages of
others can send it too, without asking first: the guard turns them away by their origin."""
SMALL_BYTES = 1 << 18
"""Bodies up to this size are not counted: connections bound them. So the large requests of some
clients never keep out the small ones of others."""
RETRY_S = 5
MOST_MARKS = {",": 1 << 21, ":": 1 << 18, "[": 1 << 18, "{": 1 << 18}
"""How often each may be in a body, texts included. One library call reads all values, and nothing
else runs meanwhile: a body of 32 MB can have ten million lists, or names."""


class Bodies:
    """The bodies that come, and those of requests that have not ended. It belongs to the event
    loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held = 0
        """Bytes of the large ones."""
        self._coming: set[asyncio.Task[bytes]] = set()
        self._is_ended = False

    def end(self) -> None:
        """The server ends: whoever still sends a body is told so."""
        self._is_ended = True
        for one in list(self._coming):
            one.cancel()

    async def json_text(self, request: Request) -> bytes:
        """The bytes of a JSON body. Raises `HTTPError` for another content type, a coded body, one
        that is too large, one that comes too slowly or too late, and one for which there is no
        room."""
        limits = self._limits
        _check_head(request, limits)
        grow = holds_of(request).enter_context(self._counted())
        coming = asyncio.ensure_future(_read(request, limits, grow))
        self._coming.add(coming)
        try:
            data = await asyncio.wait_for(coming, limits.body_s)
        except asyncio.CancelledError:
            if not self._is_ended:
                raise
            raise _no_room("the server is ending", LONGEST_RETRY_S) from None
        except asyncio.TimeoutError as error:
            words = f"the body did not come within {limits.body_s:g} s"
            raise HTTPError(408, words, headers={"connection": "close"}) from error
        except ClientDisconnect as error:
            raise HTTPError(499, "the client has gone") from error
        finally:
            self._coming.discard(coming)
        _check_marks(data)
        return data

    @contextmanager
    def _counted(self) -> Iterator[Callable[[int], None]]:
        """A function that is told how large a body is by now, and raises `HTTPError` (503) if all
        of them are too large together. They count until the end of the block."""
        own = 0

        def grow(size: int) -> None:
            nonlocal own
            if size <= SMALL_BYTES:
                return
            others = self.held - own
            if others and others + size > self._limits.held_bytes:
                raise _no_room("the requests that come are too large", RETRY_S)
            self.held, own = others + size, size

        try:
            yield grow
        finally:
            self.held -= own


def _check_head(request: Request, limits: Limits) -> None:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() not in JSON_TYPES:
        raise HTTPError(415, f"content-type {kind[:60]!r}: application/json was expected")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPError(415, "content-encoding is not supported: send the body as it is")
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) > limits.body_bytes:
        raise _too_large(limits)


async def _read(request: Request, limits: Limits, grow: Callable[[int], None]) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limits.body_bytes:
            raise _too_large(limits)
        grow(len(data))
    return bytes(data)


def _check_marks(data: bytes) -> None:
    """Raises `HTTPError` for a body with so many values that reading them takes seconds."""
    for mark, most in MOST_MARKS.items():
        if len(data) > most and data.count(mark.encode()) > most:
            words = f"the body may have {most} times {mark!r}: send less at a time"
            raise HTTPError(413, words, code="body_too_large")


def _no_room(words: str, retry_s: int) -> HTTPError:
    """The rest of the body is not read."""
    error = overloaded(words, retry_s=retry_s)
    error.headers["connection"] = "close"
    return error


def _too_large(limits: Limits) -> HTTPError:
    words = f"the body may have {limits.body_bytes} bytes"
    return HTTPError(413, words, code="body_too_large", headers={"connection": "close"})
