"""One request of `soak.py`, and what became of it."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import h11
from soak_requests import Wanted

PATIENCE_S = 900.0
"""A request that has not ended then is lost."""
SILENCE_S = 75.0
"""Longer than the server waits for a reader."""
SMALL_BUFFER = 4096
REASONS = {"stop", "length", "tool_calls"}
LAST = ("[DONE]", '"type":"message_stop"', '"type":"response.completed"', '"done":true')
"""One of these ends a stream that is whole."""
TOO_LATE = b"it was not its turn within"
"""In the error with which a stream ends that has waited too long in the queue."""
LAST_CUT = '"type":"response.incomplete"'
"""The end of a response that has all tokens that it may have."""


class Lost(Exception):
    """A promise is broken; the text says which."""


@dataclass
class Reply:
    """What has come so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    is_whole: bool = False


async def outcome(port: int, wanted: Wanted, chance: random.Random) -> str:
    """Send a request: "ended", "refused", "malformed", "cancelled" or "given up". Raises `Lost`."""
    try:
        return await asyncio.wait_for(_outcome(port, wanted, chance), PATIENCE_S)
    except asyncio.TimeoutError:
        raise Lost(f"{wanted.name}: no end within {PATIENCE_S:g} s") from None
    except json.JSONDecodeError as error:
        raise Lost(f"{wanted.name}: no JSON: {error}") from None


async def _outcome(port: int, wanted: Wanted, chance: random.Random) -> str:
    async with _connected(port, wanted) as (reader, writer):
        reply = Reply()
        try:
            writer.write(wanted.data)
            await writer.drain()
            if wanted.manner == "leaves":
                await _leave(reader, writer, reply, chance)
                return _judged(wanted, reply) if reply.is_whole else "cancelled"
            if wanted.manner == "is silent":
                await asyncio.sleep(SILENCE_S)
            slow = 0.02 if wanted.manner == "is slow" else 0.0
            await _read(reader, reply, pause_s=slow)
        except (OSError, h11.RemoteProtocolError):
            pass  # `_judged` says whether the server may have cut it
        return _judged(wanted, reply)


@asynccontextmanager
async def _connected(
    port: int, wanted: Wanted
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection; slow readers have small buffers."""
    made = socket.socket()
    made.setblocking(False)
    small = wanted.manner in ("is slow", "is silent")
    if small:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    limit = SMALL_BUFFER if small else 1 << 16
    reader, writer = await asyncio.open_connection(sock=made, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # a reader that is paused would never see the end


async def _leave(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply, chance: random.Random
) -> None:
    """Go at any moment, in order or with a reset."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_read(reader, reply), chance.random() ** 2 * 12)
    if chance.random() < 0.5:
        own: socket.socket = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader, reply: Reply, *, pause_s: float = 0.0) -> None:
    """Read the answer to its end, as far as it comes."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    parser.send(h11.EndOfMessage())
    while not reply.is_whole:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            piece = await reader.read(512 if pause_s else 1 << 16)
            await asyncio.sleep(pause_s)
            parser.receive_data(piece)
        elif isinstance(event, h11.Response):
            reply.status = event.status_code
            reply.headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            reply.data += event.data
        elif isinstance(event, h11.EndOfMessage):
            reply.is_whole = True
        elif isinstance(event, h11.ConnectionClosed):
            return


def _judged(wanted: Wanted, reply: Reply) -> str:
    """What the answer means. Raises `Lost` for one that breaks a promise."""
    if reply.status in (429, 503):
        if "retry-after" not in reply.headers:
            raise Lost(f"{wanted.name}: {reply.status} without Retry-After: {_tail(reply)}")
        return "refused"
    if wanted.manner == "is wrong":
        if reply.status == 0 or 400 <= reply.status < 500:
            return "malformed"
        raise Lost(f"{wanted.name}: {reply.status} for a request that is wrong: {_tail(reply)}")
    if wanted.manner == "is silent" and not (reply.status and reply.is_whole):
        return "given up"
    if reply.status != 200 or not reply.is_whole:
        raise Lost(f"{wanted.name}: {reply.status}, whole: {reply.is_whole}: {_tail(reply)}")
    if wanted.streams and TOO_LATE in reply.data:
        return "refused"
    if wanted.streams:
        _check_stream(wanted, reply.data.decode())
    else:
        _check_whole(wanted, json.loads(reply.data))
    return "ended"


def _check_whole(wanted: Wanted, body: dict[str, Any]) -> None:
    choices = body.get("choices", [])
    if any(one["finish_reason"] not in REASONS for one in choices):
        raise Lost(f"{wanted.name}: no finish reason in {body}")
    if choices and not body.get("usage"):
        raise Lost(f"{wanted.name}: no usage in {body}")


def _check_stream(wanted: Wanted, text: str) -> None:
    """A stream has one end, and each of its choices has one finish reason."""
    squeezed = text.replace('": ', '":')
    ends = sum(squeezed.count(one) for one in (*LAST, LAST_CUT))
    if ends != 1 or '"error":{' in squeezed:
        raise Lost(f"{wanted.name}: a stream with {ends} ends: {text[-500:]}")
    if LAST[0] in text:
        _check_chunks(wanted, text)


def _check_chunks(wanted: Wanted, text: str) -> None:
    """Those of OpenAI's API."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    usages = sum(1 for one in events if one.get("usage"))
    reasons: dict[int, int] = {}
    for choice in (choice for one in events for choice in one["choices"]):
        known = reasons.setdefault(choice["index"], 0)
        reasons[choice["index"]] = known + (choice["finish_reason"] is not None)
    if usages != 1 or set(reasons.values()) != {1}:
        raise Lost(f"{wanted.name}: {usages} usages, finish reasons of choices {reasons}")


def _tail(reply: Reply) -> str:
    return reply.data[-300:].decode(errors="replace")
