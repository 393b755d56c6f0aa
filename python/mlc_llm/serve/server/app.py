"""The application: its routes, and what stands before them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mlc_llm.serve.server.calls.context import ServerContext, context_of
from mlc_llm.serve.server.errors import HTTPError, error_response, http_error
from mlc_llm.serve.server.limits.guard import Guard
from mlc_llm.serve.server.limits.holding import Holding
from mlc_llm.serve.server.limits.refusing import EarlyRefusal
from mlc_llm.serve.server.notes.access_log import AccessLog
from mlc_llm.serve.server.notes.note import current_note
from mlc_llm.serve.server.paths import PlainPath
from mlc_llm.serve.server.routes import admin, balancers, debug, info, ollama
from mlc_llm.serve.server.routes.anthropic import count_message_tokens, messages
from mlc_llm.serve.server.routes.chat import chat_completions
from mlc_llm.serve.server.routes.completion import completions
from mlc_llm.serve.server.routes.embedding import embeddings
from mlc_llm.serve.server.routes.operations import OPEN_PATHS
from mlc_llm.serve.server.routes.page import PAGE_PATHS, page
from mlc_llm.serve.server.routes.rerank import rerank
from mlc_llm.serve.server.routes.responses import responses

Endpoint = Callable[[Request], Awaitable[Response]]

ANSWERS: tuple[Endpoint, ...] = (
    *(chat_completions, completions, responses, messages, embeddings, rerank),
    *(ollama.chat, ollama.generate, ollama.embed, ollama.old_embed),
)
"""Their requests take a place, so they are refused early where there is none."""
V1_ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/chat/completions", chat_completions),
    ("POST", "/completions", completions),
    ("POST", "/responses", responses),
    ("POST", "/messages", messages),
    ("POST", "/messages/count_tokens", count_message_tokens),
    ("POST", "/embeddings", embeddings),
    ("POST", "/rerank", rerank),
    ("GET", "/models", info.models),
    ("GET", "/models/{model:path}", info.one_model),
)
"""Below /v1, and without it: clients are often given the address alone."""
OTHER_ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/api/chat", ollama.chat),
    ("POST", "/api/generate", ollama.generate),
    ("POST", "/api/embed", ollama.embed),
    ("POST", "/api/embeddings", ollama.old_embed),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/ps", ollama.loaded),
    ("POST", "/api/show", ollama.show),
    ("GET", "/api/version", ollama.version),
    ("POST", "/tokenize", info.tokenize),
    ("POST", "/detokenize", info.detokenize),
    ("GET", "/tokenizer_info", info.tokenizer_info),
    ("GET", "/health", info.health),
    ("GET", "/ready", info.ready),
    ("GET", "/metrics", info.metrics),
    ("GET", "/openapi.json", info.openapi),
    ("GET", "/server_info", balancers.server_info),
    ("GET", "/get_server_info", balancers.server_info),
    ("GET", "/model_info", balancers.model_info),
    ("GET", "/get_model_info", balancers.model_info),
    ("GET", "/get_load", balancers.load),
    ("POST", "/models/load", admin.load_model),
    ("POST", "/models/unload", admin.unload_model),
    ("POST", "/adapters/load", admin.load_adapter),
    ("POST", "/adapters/drop", admin.drop_adapter),
    *(("GET", path, page) for path in PAGE_PATHS),
)

DEBUG_ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/debug/dump_event_trace", debug.dump_event_trace),
    ("POST", "/debug/dump_engine_metrics", debug.dump_engine_metrics),
    ("POST", "/debug/reset_engine", debug.reset_engine),
    ("POST", "/debug/cuda_profiler_start", debug.cuda_profiler),
    ("POST", "/debug/cuda_profiler_stop", debug.cuda_profiler),
)
"""Not there without `--enable-debug`."""
OLLAMA_MODELS = tuple(f"/api/{name}" for name in ("pull", "create", "copy", "push", "delete"))
"""What Ollama's server does with models, and ours does not."""


def create_app(context: ServerContext) -> Starlette:
    """The application of one server."""
    table = [
        *((method, f"/v1{path}", endpoint) for method, path, endpoint in V1_ROUTES),
        *OTHER_ROUTES,
        *(DEBUG_ROUTES if context.settings.debug else ()),
        *V1_ROUTES,
    ]
    routes = [
        Route(path, _answering(path, endpoint), methods=[method])
        for method, path, endpoint in table
    ]
    app = Starlette(
        routes=routes,
        middleware=_middleware(context, [p for _, p, endpoint in table if endpoint in ANSWERS]),
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False
    app.state.context = context
    return app


def _middleware(context: ServerContext, answers: Sequence[str]) -> list[Middleware]:
    """From the outside in. answers: paths of requests for answers."""
    settings, origins = context.settings, context.settings.allowed_origins
    for_pages = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    return [
        Middleware(PlainPath),
        Middleware(AccessLog, ended=context.ended),
        *([for_pages] if origins else []),
        Middleware(Guard, settings=settings, open_paths=OPEN_PATHS),
        Middleware(
            EarlyRefusal,
            admission=context.admission,
            pace=context.pace,
            limits=settings.limits,
            paths=answers,
        ),
        Middleware(Holding),
    ]


def _answering(path: str, endpoint: Endpoint) -> Endpoint:
    """An endpoint whose errors are answers. path: its route's."""

    async def answer(request: Request) -> Response:
        current_note().route = path
        try:
            return await endpoint(request)
        except Exception as error:
            return await _refused(request, error)

    return answer


async def _refused(request: Request, error: Exception) -> Response:
    """The answer for an error. It is kept here and not in a frame that its traceback leads to: such
    a cycle keeps the whole request until Python looks for garbage."""
    found = http_error(error)
    await context_of(request).pace.hold(found)
    return error_response(found, request.url.path)


def _no_route(request: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    words = f"{request.method} {request.url.path[:200]}: {error.detail}"
    if request.url.path in OLLAMA_MODELS:
        words += "; mlc_llm pull and mlc_llm convert_weight make models, mlc_llm serve names them"
    found = HTTPError(error.status_code, words, code=code, headers=error.headers)
    return error_response(found, request.url.path)
