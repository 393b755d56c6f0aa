"""What a request holds until its answer has ended, whether it is whole, streamed or an error."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

_KEY = "mlc_llm.holds"


class Holding:
    """ASGI middleware. It gives back what `holds_of` has taken in, when all has been sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as holds:
            scope[_KEY] = holds
            await self._app(scope, receive, send)


def holds_of(request: Request) -> ExitStack:
    """Contexts that end with the answer to this request."""
    found = request.scope[_KEY]
    assert isinstance(found, ExitStack)
    return found
