"""The ingress's side of a session with a replica: what has gone there, and what comes back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from time import perf_counter

from mlc_llm.errors import RequestError
from mlc_llm.ray.messages import FromReplica, Outputs, ToReplica, encode
from mlc_llm.ray.remote_engine import ReplicaLost
from mlc_llm.ray.wire import WireRequest

ARRIVAL_S = 10.0
"""A message that the replica has not read after so long is lost."""

Found = asyncio.Queue["Outputs | Exception"]


class Link:
    """It belongs to one event loop."""

    def __init__(
        self, replica: str, session: str, address: str, send: Callable[[bytes], None]
    ) -> None:
        """session: its name. address: of the replica's mailbox. send: sends a message there."""
        self.replica, self.session, self.address = replica, session, address
        self._send = send
        self._sent = self._heard = 0
        self._heard_at = time.monotonic()
        self._unread: deque[tuple[int, float]] = deque()
        """Numbers of messages that the replica has not read yet, and when they were sent."""
        self._found: dict[str, Found] = {}
        self._begin: list[WireRequest] = []
        self._abort: list[str] = []
        self._is_waiting = False
        """What is collected goes out at the end of this turn of the loop."""
        self.is_leaving = self._has_left = False
        """No other request goes there."""

    def begin(self, wire: WireRequest) -> Found:
        """Send a request. Returns where its outputs come, and why there are no more."""
        found: Found = asyncio.Queue()
        self._found[wire.request_id] = found
        self._begin.append(wire)
        self._soon()
        return found

    def end(self, request_id: str, *, is_over: bool) -> None:
        """Nothing more is wanted of a request. is_over: it has ended there too."""
        if self._found.pop(request_id, None) is not None and not is_over:
            self._abort.append(request_id)
            self._soon()
        if self.is_leaving:
            self.leave()

    def leave(self) -> None:
        """Take no other requests, and end the session when those that run have ended."""
        self.is_leaving = True
        if not self._found:
            self._soon()

    def lost(self, reason: str) -> None:
        """The session is over: what runs has to go elsewhere."""
        self.is_leaving = self._has_left = True
        for found in self._found.values():
            found.put_nowait(ReplicaLost(reason))
        self._found.clear()

    def take(self, message: FromReplica, outputs: Outputs) -> None:
        """A message has come. Raises `ReplicaLost` if one before it has not, in either way."""
        if message.number != self._heard + 1:
            raise ReplicaLost("messages of the replica were lost")
        self._heard, self._heard_at = message.number, time.monotonic()
        unread = self._unread
        while unread and unread[0][0] <= message.heard:
            unread.popleft()
        if unread and time.monotonic() - unread[0][1] > ARRIVAL_S:
            raise ReplicaLost("messages to the replica were lost")
        by_request: dict[str, Outputs] = {}
        for one in outputs:
            by_request.setdefault(one.request_id, []).append(one)
        for request_id, own in by_request.items():
            found = self._found.get(request_id)
            if found is not None:
                found.put_nowait(own)
        for request_id, reason in message.refused:
            found = self._found.get(request_id)
            if found is not None:
                found.put_nowait(RequestError(reason))

    @property
    def silence_s(self) -> float:
        """Seconds since its last message."""
        return time.monotonic() - self._heard_at

    def say(self) -> None:
        """Send what was collected, or that this ingress lives."""
        self._is_waiting = False
        if self._has_left:
            return
        self._has_left = self.is_leaving and not self._found
        self._sent += 1
        self._unread.append((self._sent, time.monotonic()))
        now = perf_counter()
        message = ToReplica(self.session, self._sent, self._begin, self._abort, self._has_left, now)
        self._begin, self._abort = [], []
        self._send(encode(message))

    def _soon(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            asyncio.get_running_loop().call_soon(self.say)
