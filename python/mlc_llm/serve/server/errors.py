"""Errors as answers over HTTP, in the shape of the API that was asked."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import JSONResponse

from mlc_llm.errors import ContextLengthExceeded, EngineDead, RequestError, UserError
from mlc_llm.protocol.error_protocol import ErrorBody, ErrorResponse
from mlc_llm.serve.anthropic.errors import error_body as anthropic_error
from mlc_llm.serve.ollama.errors import error_body as ollama_error
from mlc_llm.serve.server.notes.note import current_note

_log = logging.getLogger(__name__)

NO_RETRY = {"x-should-retry": "false"}
"""For OpenAI's clients: the same request would fail again."""


class HTTPError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """kind, code, param: the fields of the body. headers: more of them."""
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message=message, type=kind, param=param, code=code)
        self.headers = dict(headers or {})


class NoModel(HTTPError):
    """A model that is served could not be opened, or does not answer."""

    def __init__(self, name: str, reason: str) -> None:
        words = f"the model {name!r} could not be opened: {reason}"
        kind = "server_error"
        super().__init__(503, words, kind=kind, code="model_not_loaded", headers=NO_RETRY)


def not_found(message: str, *, code: str, param: str | None = None) -> HTTPError:
    """What was asked for is not there."""
    return HTTPError(404, message, kind="not_found_error", code=code, param=param)


def overloaded(message: str, *, retry_s: int) -> HTTPError:
    """The server is full. retry_s: when to try again."""
    headers = {"retry-after": str(retry_s)}
    return HTTPError(503, message, kind="overloaded_error", code="overloaded", headers=headers)


def too_many(message: str, *, retry_s: int) -> HTTPError:
    """One client wants too much. retry_s: when to try again."""
    headers = {"retry-after": str(retry_s)}
    return HTTPError(429, message, kind="rate_limit_error", code="key_limit", headers=headers)


def timed_out(seconds: float) -> HTTPError:
    """A request did not end within the time that it has given itself."""
    words = f"the request did not end within its timeout of {seconds:g} s"
    return HTTPError(408, words, kind="timeout_error", code="timeout", headers=NO_RETRY)


def http_error(error: Exception) -> HTTPError:
    """The answer for an error of ours; one that we do not know is logged and named a server's."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, UserError):
        body = ErrorResponse.of(error).error
        message = body.message
        if isinstance(error, ContextLengthExceeded):
            message += f" ({body.code})"  # LangChain looks for the code in the message
        return HTTPError(
            400, message, kind=body.type, code=body.code, param=body.param, headers=NO_RETRY
        )
    if isinstance(error, EngineDead):
        return HTTPError(503, str(error), kind="server_error", code="engine_dead")
    if isinstance(error, RequestError):
        return HTTPError(500, str(error), kind="server_error", code="request_failed")
    _log.error("an answer failed", exc_info=error)
    message = "the server made a mistake; its log says which"
    return HTTPError(500, message, kind="server_error", headers=NO_RETRY)


def error_response(error: HTTPError, path: str) -> JSONResponse:
    """In the shape of the API that the path belongs to."""
    note = current_note()
    note.code = error.body.code
    plain = path.removeprefix("/v1")
    if plain.startswith("/messages") or (note.is_anthropic and plain.startswith("/models")):
        body = anthropic_error(error.status, error.body.message)
        headers = {**error.headers, "request-id": note.request_id}  # its clients show this one
        return JSONResponse(body, status_code=error.status, headers=headers)
    return JSONResponse(_shape(error, path), status_code=error.status, headers=error.headers)


def _shape(error: HTTPError, path: str) -> dict[str, object]:
    if path.startswith("/api/"):
        return ollama_error(error.body.message)
    return ErrorResponse(error=error.body).model_dump()
