"""Reads the body of a request, within limits of size and time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.limits.settings import Limits

JSON_TYPES = ("application/json", "text/json", "application/x-www-form-urlencoded")
"""The last is what `curl -d` says of any body, and Ollama's own examples send it. Web pages of
others can send it too, without asking first: the guard turns them away by their origin."""


async def read_json_text(request: Request, limits: Limits) -> bytes:
    """The bytes of a JSON body. Raises `HTTPError` for another content type, a coded body, one that
    is too large, and one that comes too slowly."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() not in JSON_TYPES:
        raise HTTPError(415, f"content-type {kind[:60]!r}: application/json was expected")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPError(415, "content-encoding is not supported: send the body as it is")
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) > limits.body_bytes:
        raise _too_large(limits)
    try:
        return await asyncio.wait_for(_read(request, limits), limits.body_s)
    except asyncio.TimeoutError as error:
        words = f"the body did not come within {limits.body_s:g} s"
        raise HTTPError(408, words, headers={"connection": "close"}) from error
    except ClientDisconnect as error:
        raise HTTPError(499, "the client has gone") from error


async def _read(request: Request, limits: Limits) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limits.body_bytes:
            raise _too_large(limits)
    return bytes(data)


def _too_large(limits: Limits) -> HTTPError:
    words = f"the body may have {limits.body_bytes} bytes"
    return HTTPError(413, words, code="body_too_large", headers={"connection": "close"})
