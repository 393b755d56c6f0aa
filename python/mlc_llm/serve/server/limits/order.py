"""How a request wants to be served: whose it is, how urgent it is, and how long it may take."""

from __future__ import annotations

import time

from starlette.requests import Request

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.protocol.base import AnswerModel
from mlc_llm.record import record
from mlc_llm.serve.server.limits.fair_queue import MAX_PRIORITY
from mlc_llm.serve.server.limits.tenants import ANYBODY, Tenant, tenant_of

PRIORITY_HEADER = "x-priority"
TIMEOUT_HEADER = "x-request-timeout"
MAX_TIMEOUT_S = 86_400.0
MAX_SALT_CHARS = 256


@record()
class Order:
    """What the server itself has to know of a request."""

    tenant: Tenant = ANYBODY
    arrival: float = 0.0
    """In seconds, monotonic."""
    priority: int = 0
    """-10 (first) to 10 (last)."""
    timeout_s: float | None = None
    """It should have ended so long after its arrival."""
    cache_salt: str = ""
    """Only prompts with the same salt share what is computed of them."""


def order_of(request: Request, body: AnswerModel | None = None) -> Order:
    """The fields `priority`, `timeout` and `cache_salt` of a body, which are taken out of its
    unknown fields, or the headers of this name. Raises `InvalidField`."""
    extra = (body.model_extra if body is not None else None) or {}
    priority = _given(request, extra, "priority", PRIORITY_HEADER, int)
    timeout = _given(request, extra, "timeout", TIMEOUT_HEADER, float)
    salt = extra.pop("cache_salt", None)
    tenant = tenant_of(request)
    own = "" if salt is None else checks.string("cache_salt", salt, MAX_SALT_CHARS)
    return Order(
        tenant,
        time.monotonic(),
        0 if priority is None else _priority(priority),
        None if timeout is None else _timeout(timeout),
        f"{tenant.salt}:{own}" if tenant.salt or own else "",
    )


def _given(
    request: Request, extra: dict[str, object], field: str, header: str, kind: type[int | float]
) -> object:
    """The value in the body, else the one in the header."""
    value = extra.pop(field, None)
    text = request.headers.get(header)
    if value is not None or text is None:
        return value
    try:
        return kind(text)
    except ValueError:
        raise InvalidField(header, text, "should be a number") from None


def _priority(value: object) -> int:
    allowed = f"should be an integer from {-MAX_PRIORITY} (first) to {MAX_PRIORITY} (last)"
    return checks.integer("priority", value, -MAX_PRIORITY, MAX_PRIORITY, allowed)


def _timeout(value: object) -> float:
    allowed = f"should be above 0 and at most {MAX_TIMEOUT_S:g} seconds"
    seconds = checks.number("timeout", value, 0, MAX_TIMEOUT_S, allowed)
    if seconds <= 0:
        raise InvalidField("timeout", value, allowed)
    return seconds
