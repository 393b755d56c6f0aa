"""One streamed request over asyncio, with the times of its pieces."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mlc_llm.record import record

MAX_LINE = 1 << 20
SAID_S = 1.0
"""The words of a refusal have so long to come: they are not what is measured."""


@record()
class Target:
    """Where requests go, and what is the same in all of them."""

    host: str
    port: int
    path: str
    """Of the API, such as /v1."""
    secure: bool
    model: str
    headers: tuple[tuple[str, str], ...] = ()
    fixed: tuple[tuple[str, object], ...] = ()
    """More fields of each request."""
    timeout_s: float = 600.0


@dataclass
class Result:
    """What one request took, in seconds since it was sent, on the clock of this side."""

    ttft: float | None = None
    total: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between pieces of text. A piece may have several tokens."""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cached_tokens: int = 0
    is_counted: bool = False
    """The server told its tokens."""
    error: str | None = None
    """The kind of the failure; None: the answer came to its end."""
    said: str = ""
    """What the server said of a request that it refused."""


class Failed(Exception):
    """A request failed; the text is the kind of the failure."""


async def send(target: Target, prompt: str, answer_tokens: int) -> Result:
    """Send one request and read its answer to the end. It raises nothing: errors are results."""
    result, started = Result(), time.perf_counter()
    try:
        await asyncio.wait_for(
            _send(target, prompt, answer_tokens, result, started), target.timeout_s
        )
    except Failed as error:
        result.error = str(error)
    except asyncio.TimeoutError:
        result.error = "timeout"
    except (OSError, asyncio.IncompleteReadError) as error:
        result.error = f"connection: {type(error).__name__}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        result.error = f"bad answer: {type(error).__name__}"
    result.total = time.perf_counter() - started
    return result


async def _send(
    target: Target, prompt: str, answer_tokens: int, result: Result, started: float
) -> None:
    context = _trusted() if target.secure else None
    reader, writer = await asyncio.open_connection(
        target.host, target.port, ssl=context, limit=MAX_LINE
    )
    try:
        writer.write(_request(target, prompt, answer_tokens))
        await writer.drain()
        await _read(reader, result, started)
    finally:
        writer.close()


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


def _request(target: Target, prompt: str, answer_tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": target.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": answer_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **dict(target.fixed),
        }
    ).encode()
    host = f"[{target.host}]" if ":" in target.host else target.host  # IPv6
    head = [
        f"POST {target.path}/chat/completions HTTP/1.1",
        f"Host: {host}:{target.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in target.headers),
    ]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


async def _read(reader: asyncio.StreamReader, result: Result, started: float) -> None:
    status = (await reader.readline()).split(b" ", 2)
    if len(status) < 2 or not status[0].startswith(b"HTTP/1."):
        raise Failed("bad answer: no HTTP")
    chunked = False
    while (line := await reader.readline()).strip():
        name, _, value = line.lower().partition(b":")
        chunked = chunked or (name == b"transfer-encoding" and b"chunked" in value)
    if status[1] != b"200":
        result.said = await _said(reader)
        raise Failed(f"status {status[1].decode('latin-1')[:3]}")
    last = started
    async for data in _events(_lines(_bytes(reader, chunked))):
        if data == b"[DONE]":
            return
        last = _take(json.loads(data), result, started, last)
    raise Failed("cut: the stream ended without [DONE]")


async def _said(reader: asyncio.StreamReader) -> str:
    """The message of an error in OpenAI's shape, else nothing."""
    with suppress(asyncio.TimeoutError, ValueError, KeyError, TypeError):
        body = await asyncio.wait_for(reader.read(1 << 16), SAID_S)
        return str(json.loads(body)["error"]["message"])[:500]
    return ""


def _take(event: Any, result: Result, started: float, last: float) -> float:
    """Note one event. Returns the time of the last piece of text."""
    if event.get("error"):
        raise Failed("error event")
    usage = event.get("usage")
    if usage:
        result.is_counted = True
        result.prompt_tokens = usage["prompt_tokens"]
        result.answer_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        result.cached_tokens = details.get("cached_tokens") or 0
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    if not (delta.get("content") or delta.get("reasoning_content")):
        return last
    now = time.perf_counter()
    if result.ttft is None:
        result.ttft = now - started
    else:
        result.gaps.append(now - last)
    return now


async def _bytes(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    if not chunked:
        while data := await reader.read(1 << 16):
            yield data
        return
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MAX_LINE:
            raise Failed("bad answer: a line of more than 1 MB")
        for line in lines:
            yield line.rstrip(b"\r")


async def _events(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events of one line each, as all servers of this API write them."""
    async for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip()
