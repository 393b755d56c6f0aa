"""Refuses what there is no room for as cheaply as that can be done.

A refusal costs processor time, which the answers that run would have used. So a full server does
not look into the body of a request. And clients that come again at once do not get their refusals
at once: they are held back so that not more than `PER_SECOND` go out, as long as nobody waits
longer than `MOST_HELD_S` for that. What `Retry-After` asks for is less by this time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlc_llm.serve.server.errors import HTTPError, error_response
from mlc_llm.serve.server.limits.admission import Admission
from mlc_llm.serve.server.limits.settings import Limits
from mlc_llm.serve.server.limits.tenants import ANYBODY, TENANT
from mlc_llm.serve.server.notes.note import current_note

RETRY_AFTER = "retry-after"
PER_SECOND = 50.0
"""Refusals that go out while those behind them are held back. One costs the server and a client on
the same machine about a millisecond."""
MOST_HELD_S = 5.0
"""A refusal is held back for so long at most."""
DISCARDED_BYTES = 1 << 20
"""A refused request may have so large a body. With a larger one, its connection is closed."""


class Pace:
    """When refusals go out. It belongs to the event loop."""

    def __init__(
        self,
        most: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """most: refusals that may be held back at a time. Any more go out at once."""
        self._most, self._clock, self._sleep = most, clock, sleep
        self._next = 0.0
        self.held = 0

    def delay(self) -> float:
        """Seconds for which the next refusal is held back.

        If there are too many for the pace, they are spread over the second half of the longest
        time. If all of them waited for all of it, they would come back as one crowd.
        """
        now = self._clock()
        at = max(self._next, now)
        if at > now + MOST_HELD_S:
            at = now + MOST_HELD_S / 2
        self._next = at + 1 / PER_SECOND
        return at - now if self.held < self._most() else 0.0

    async def hold(self, error: HTTPError) -> None:
        """Wait until a refusal may go out. Other errors are not held back."""
        retry_s = int(error.headers.get(RETRY_AFTER, 0))
        delay = self.delay() if retry_s else 0.0
        if delay:
            self.held += 1
            try:
                await self._sleep(delay)
            finally:
                self.held -= 1
            error.headers[RETRY_AFTER] = str(max(1, retry_s - int(delay)))


class EarlyRefusal:
    """ASGI middleware. It refuses a request for an answer if not even the smallest one has room."""

    def __init__(
        self, app: ASGIApp, admission: Admission, pace: Pace, limits: Limits, paths: Collection[str]
    ) -> None:
        """paths: whose requests are for answers."""
        self._app, self._admission, self._pace, self._limits = app, admission, pace, limits
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope)
        if error is None:
            await self._app(scope, receive, send)
            return
        current_note().route = scope["path"]
        if not await self._discarded(scope, receive):
            error.headers["connection"] = "close"
        await self._pace.hold(error)
        await error_response(error, scope["path"])(scope, receive, send)

    def _refusal(self, scope: Scope) -> HTTPError | None:
        if scope["type"] != "http" or scope["path"] not in self._paths or scope["method"] != "POST":
            return None
        try:
            self._admission.check(1, 0, scope.get(TENANT, ANYBODY))
        except HTTPError as error:
            return error.with_traceback(None)  # it leads to the caller, who keeps the error
        return None

    async def _discarded(self, scope: Scope, receive: Receive) -> bool:
        """Whether the body was read to its end. Else the next request of the connection could not
        be told from it; and where a connection is closed with a body unread, the client may get no
        answer."""
        if int(Headers(scope=scope).get("content-length", "0")) > DISCARDED_BYTES:
            return False
        try:
            return await asyncio.wait_for(_read_to_end(receive), self._limits.body_s)
        except asyncio.TimeoutError:
            return False


async def _read_to_end(receive: Receive) -> bool:
    left = DISCARDED_BYTES
    while left >= 0:
        message = await receive()
        if not message.get("more_body", False):
            return True
        left -= len(message.get("body", b""))
    return False
