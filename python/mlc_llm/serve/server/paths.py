"""A path means the same with a slash at its end."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class WithoutSlash:
    """ASGI middleware that takes one slash off the end of a path.

    Starlette itself would redirect to an address made of the `Host` header, which is not the
    client's behind a proxy, and for `/v1/models/` there would be a model without a name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path.endswith("/") and not path.endswith("//") and path != "/":
                scope = {**scope, "path": path[:-1]}
        await self._app(scope, receive, send)
