"""Errors as answers over HTTP, in the shape of OpenAI's API."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import JSONResponse

from mlc_llm.errors import EngineDead, RequestError, UserError
from mlc_llm.protocol.error_protocol import ErrorBody, ErrorResponse

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


def not_found(message: str, *, code: str, param: str | None = None) -> HTTPError:
    """What was asked for is not there."""
    return HTTPError(404, message, kind="not_found_error", code=code, param=param)


def overloaded(message: str, *, retry_s: int) -> HTTPError:
    """The server is full. retry_s: when to try again."""
    headers = {"retry-after": str(retry_s)}
    return HTTPError(503, message, kind="overloaded_error", code="overloaded", headers=headers)


def http_error(error: Exception) -> HTTPError:
    """The answer for an error of ours; one that we do not know is logged and named a server's."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, UserError):
        body = ErrorResponse.of(error).error
        return HTTPError(
            400, body.message, kind=body.type, code=body.code, param=body.param, headers=NO_RETRY
        )
    if isinstance(error, EngineDead):
        return HTTPError(503, str(error), kind="server_error", code="engine_dead")
    if isinstance(error, RequestError):
        return HTTPError(500, str(error), kind="server_error", code="request_failed")
    _log.error("an answer failed", exc_info=error)
    message = "the server made a mistake; its log says which"
    return HTTPError(500, message, kind="server_error", headers=NO_RETRY)


def error_response(error: HTTPError) -> JSONResponse:
    """The body has one key, `error`."""
    body = ErrorResponse(error=error.body).model_dump()
    return JSONResponse(body, status_code=error.status, headers=error.headers)
