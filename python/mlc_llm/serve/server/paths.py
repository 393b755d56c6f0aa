"""Paths as the routes know them: without the address of the server, or a slash at the end."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_ABSOLUTE = re.compile(rb"(?i:https?)://([^/@]+)(/.*)?")
"""An address as the target of a request: its host, and its path."""


class PlainPath:
    """ASGI middleware that takes the address of the server off the front of a path, and one slash
    off its end.

    A target may be a whole address (RFC 9112, section 3.2.2). Its host counts then, and not the one
    of the `Host` header. One with a user's name in it is left as it is, and so it is no route.

    Starlette itself would redirect a path with a slash to an address made of the `Host` header,
    which is not the client's behind a proxy, and for `/v1/models/` there would be a model without a
    name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = _from_address(scope)
            path = scope["path"]
            if path.endswith("/") and not path.endswith("//") and path != "/":
                scope = {**scope, "path": path[:-1]}
        await self._app(scope, receive, send)


def _from_address(scope: Scope) -> Scope:
    found = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if found is None:
        return scope
    host, raw_path = found[1], found[2] or b"/"
    headers = [one for one in scope["headers"] if one[0] != b"host"]
    return {
        **scope,
        "path": unquote(raw_path.decode("ascii")),
        "raw_path": raw_path,
        "headers": [(b"host", host), *headers],
    }
