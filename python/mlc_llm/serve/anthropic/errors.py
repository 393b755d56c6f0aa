"""Errors in the shape of Anthropic's API."""

from __future__ import annotations

import re

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""HTTP status -> the type of the error."""
_TOO_LONG = re.compile(
    r"This model's maximum context length is (\d+) tokens\. Request prompt has (?:at least )?(\d+)"
)


def error_body(status: int, message: str) -> dict[str, object]:
    """The body of an error answer, and the data of an `error` event."""
    other = "invalid_request_error" if status < 500 else "api_error"
    error = {"type": KINDS.get(status, other), "message": _known_words(message)}
    return {"type": "error", "error": error}


def _known_words(message: str) -> str:
    """Clients know a prompt that is too long by the first words of the message."""
    found = _TOO_LONG.match(message)
    if found is None:
        return message
    limit, tokens = found.groups()
    return f"prompt is too long: {tokens} tokens > {limit} maximum. {message}"
