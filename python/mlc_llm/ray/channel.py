"""The ways between an ingress and its replicas: sockets (ZeroMQ) at which each side listens.

Ray would take a call for each request and an object for each output. Here one message carries the
requests that come in the same moment, or all outputs of a step. Whoever does not know the key of a
mailbox, which goes through Ray, sends nothing that is read.

Needs `pip install mlc-llm[ray]`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.asyncio

MOST_SOCKETS = 4096
"""That a sender keeps open: one for each address, until so many others came after it."""
LINGER_MS = 1000
KEY_BYTES = 16

_log = logging.getLogger(__name__)


class Sender:
    """Sends to mailboxes. One thread at a time uses it."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: OrderedDict[str, Any] = OrderedDict()

    def send(self, address: str, message: bytes) -> None:
        """address: of a `Mailbox`. It never waits."""
        endpoint, _, key = address.rpartition("#")
        socket = self._sockets.get(address) or self._connected(address, endpoint)
        self._sockets.move_to_end(address)
        socket.send_multipart([key.encode(), message])

    def forget(self, address: str) -> None:
        """Nothing more goes there."""
        socket = self._sockets.pop(address, None)
        if socket is not None:
            socket.close(linger=LINGER_MS)

    def _connected(self, address: str, endpoint: str) -> Any:
        while len(self._sockets) >= MOST_SOCKETS:
            self.forget(next(iter(self._sockets)))
        socket = self._sockets[address] = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.connect(endpoint)
        return socket

    def close(self) -> None:
        """What was sent goes out first, within a second."""
        self._context.destroy(linger=LINGER_MS)


class Mailbox:
    """Where messages come, with its key."""

    def __init__(self, context: Any, host: str) -> None:
        """host: an address of this node that the other side reaches."""
        self._key = secrets.token_hex(KEY_BYTES).encode()
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        port = self.socket.bind_to_random_port(f"tcp://{host}")
        self.address = f"tcp://{host}:{port}#{self._key.decode()}"
        """For `Sender.send`."""

    def message(self, frames: Sequence[bytes]) -> bytes | None:
        """What was sent. None, with a warning: a stranger has sent it."""
        if len(frames) == 2 and hmac.compare_digest(frames[0], self._key):
            return frames[1]
        _log.warning("a message from a stranger was dropped")
        return None


class Receiver:
    """A mailbox that the event loop reads."""

    def __init__(self, host: str, take: Callable[[bytes], None]) -> None:
        """take: gets each message, on the loop; it raises nothing."""
        self._context = zmq.asyncio.Context()
        self._mailbox = Mailbox(self._context, host)
        self.address = self._mailbox.address
        self._take = take
        self._task = asyncio.ensure_future(self._read())

    def close(self) -> None:
        """Read no more."""
        self._task.cancel()
        self._context.destroy(linger=0)

    async def _read(self) -> None:
        while True:
            message = self._mailbox.message(await self._mailbox.socket.recv_multipart())
            if message is not None:
                self._take(message)
