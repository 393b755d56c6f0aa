"""The application: its routes, and what stands before them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlc_llm.serve.server import info_routes
from mlc_llm.serve.server.chat_route import chat_completions
from mlc_llm.serve.server.completion_route import completions
from mlc_llm.serve.server.context import ServerContext
from mlc_llm.serve.server.errors import HTTPError, error_response, http_error
from mlc_llm.serve.server.guard import Guard

Endpoint = Callable[[Request], Awaitable[Response]]

OPENAI_ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/chat/completions", chat_completions),
    ("POST", "/completions", completions),
    ("GET", "/models", info_routes.models),
    ("GET", "/models/{model:path}", info_routes.one_model),
)
"""Below /v1, and without it: clients are often given the address alone."""
OTHER_ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/tokenize", info_routes.tokenize),
    ("POST", "/detokenize", info_routes.detokenize),
    ("GET", "/tokenizer_info", info_routes.tokenizer_info),
    ("GET", "/health", info_routes.health),
    ("GET", "/ready", info_routes.ready),
    ("GET", "/metrics", info_routes.metrics),
)

_log = logging.getLogger("mlc_llm.access")


def create_app(context: ServerContext) -> Starlette:
    """The application of one served model."""
    table = [
        *((method, f"/v1{path}", endpoint) for method, path, endpoint in OPENAI_ROUTES),
        *OPENAI_ROUTES,
        *OTHER_ROUTES,
    ]
    routes = [
        Route(path, _answering(endpoint), methods=[method]) for method, path, endpoint in table
    ]
    origins = context.settings.allowed_origins
    middleware = [Middleware(AccessLog), Middleware(Guard, settings=context.settings)]
    if origins:
        middleware.insert(
            1,
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["*"],
                allow_headers=["*"],
            ),
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HTTPException: _no_route},
    )
    app.state.context = context
    return app


def _answering(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose errors are answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            return error_response(http_error(error))

    return answer


def _no_route(request: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    words = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(HTTPError(error.status_code, words, code=code, headers=error.headers))


class AccessLog:
    """ASGI middleware: one line a request, without what it says."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            seconds = time.monotonic() - started
            _log.info("%s %s %d %.3f s", scope["method"], scope["path"], status, seconds)
