"""The replica's side of its sessions with ingresses: requests come, outputs go.

A thread reads the mailbox and gives requests to the engine; the engine's own thread sends outputs.
Neither waits for the event loop, nor for Ray.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol

import zmq

from mlc_llm.ray.channel import LINGER_MS, Mailbox, Sender
from mlc_llm.ray.messages import (
    FromReplica,
    Outputs,
    ToReplica,
    UnreadableMessage,
    encode,
    read_by_replica,
    row_of,
)
from mlc_llm.ray.wire import WireRequest
from mlc_llm.serve.data import RequestStreamOutput

PULSE_S = 1.0
"""So often a session has a message, also without outputs."""
SILENCE_S = 60.0
"""An ingress that has said nothing for so long is gone."""
GRAMMARS = 4
"""Threads for requests that take long to begin."""

Put = Callable[[Outputs], None]

_log = logging.getLogger(__name__)


class Taker(Protocol):
    """Computes requests."""

    def takes_long(self, wire: WireRequest) -> bool:
        """Whether `begin` may take more than some milliseconds."""
        ...

    def begin(self, wire: WireRequest, put: Put) -> None:
        """put: gets the outputs of a step, those of all requests that have the same one together;
        any thread may call it. Raises why the request is refused; then nothing comes."""
        ...

    def abort(self, request_id: str) -> None:
        """Its outputs may end at once. Unknown ids are ignored."""
        ...


class _Session:
    """With one ingress. See `messages` for the numbers."""

    def __init__(self, name: str, address: str, end: Callable[[], object]) -> None:
        self.name, self.address, self.end = name, address, end
        self.put: Put = lambda _: None
        """Sends outputs."""
        self.heard = self.sent = 0
        self.heard_at = time.monotonic()
        self.open: set[str] = set()
        """Requests that have not ended."""


class Sessions:
    """All of a replica, with its mailbox."""

    def __init__(self, host: str, taker: Taker) -> None:
        """host: an address of this node that ingresses reach."""
        self._taker = taker
        self._context = zmq.Context()
        self._mailbox = Mailbox(self._context, host)
        self._sender, self._sending = Sender(), threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._slow = ThreadPoolExecutor(GRAMMARS, "mlc-grammars")
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="mlc-mailbox", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return sum(len(one.open) for one in list(self._sessions.values()))

    async def attend(self, name: str, address: str) -> AsyncIterator[str]:
        """A session, for as long as this is read. Its only item is the address of the mailbox. It
        ends when the ingress says so, or says nothing for long. name: nobody else has it.
        address: of the ingress's mailbox."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        session = _Session(name, address, lambda: loop.call_soon_threadsafe(over.set))
        session.put = partial(self._send, session)
        self._sessions[name] = session
        try:
            yield self._mailbox.address
            await over.wait()
        finally:
            self._leave(session)

    def close(self) -> None:
        """Read no more. What was sent goes out first, within a second."""
        self._is_closed = True
        self._thread.join()
        self._slow.shutdown(wait=False)
        with self._sending:
            self._sender.close()

    def _leave(self, session: _Session) -> None:
        self._sessions.pop(session.name, None)
        for request_id in list(session.open):
            session.open.discard(request_id)
            self._taker.abort(request_id)
        with self._sending:
            if not self._is_closed and session.address not in self._addresses():
                self._sender.forget(session.address)

    def _addresses(self) -> set[str]:
        return {one.address for one in list(self._sessions.values())}

    def _run(self) -> None:
        poller, due = zmq.Poller(), time.monotonic() + PULSE_S
        poller.register(self._mailbox.socket, zmq.POLLIN)
        while not self._is_closed:
            poller.poll(max(0.0, due - time.monotonic()) * 1000)
            self._read_all()
            if time.monotonic() >= due:
                due = time.monotonic() + PULSE_S
                self._pulse()
        self._context.destroy(linger=LINGER_MS)

    def _read_all(self) -> None:
        """What is there."""
        while True:
            try:
                frames = self._mailbox.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = self._mailbox.message(frames)
            try:
                if message is not None:
                    self._take(read_by_replica(message))
            except UnreadableMessage as error:
                _log.warning("a message that cannot be read was dropped: %s", error)
            except Exception:  # a bug of ours, which must not end the other requests
                _log.exception("a message of an ingress failed")

    def _take(self, message: ToReplica) -> None:
        session = self._sessions.get(message.session)
        if session is None:
            return  # it has ended meanwhile
        if message.number != session.heard + 1:
            _log.warning("messages of an ingress were lost: its requests go elsewhere")
            session.end()
            return
        session.heard, session.heard_at = message.number, time.monotonic()
        ahead = time.perf_counter() - message.now
        for one in message.begin:
            wire = replace(one, arrived=one.arrived + ahead) if one.arrived else one
            session.open.add(wire.request_id)
            if self._taker.takes_long(wire):
                self._slow.submit(self._begin, session, wire)
            else:
                self._begin(session, wire)
        for request_id in message.abort:
            session.open.discard(request_id)
            self._taker.abort(request_id)
        if message.is_last:
            session.end()

    def _begin(self, session: _Session, wire: WireRequest) -> None:
        name = wire.request_id
        if name not in session.open:
            return  # aborted before its turn
        try:
            self._taker.begin(wire, session.put)
        except Exception as error:
            session.open.discard(name)
            self._say(session, refused=[(name, f"{type(error).__name__}: {error}")])
            return
        if name not in session.open:
            self._taker.abort(name)  # the abort has come before the engine had it

    def _send(self, session: _Session, outputs: Outputs) -> None:
        for one in outputs:
            if one.request_final_usage_json_str is not None:
                session.open.discard(one.request_id)
        self._say(session, outputs)

    def _say(
        self,
        session: _Session,
        outputs: Sequence[RequestStreamOutput] = (),
        refused: Sequence[tuple[str, str]] = (),
    ) -> None:
        others = self.running - len(session.open)
        rows = [row_of(one) for one in outputs]
        with self._sending:
            if self._is_closed or session.name not in self._sessions:
                return
            session.sent += 1
            message = FromReplica(
                session.name, session.sent, session.heard, others, rows, list(refused)
            )
            self._sender.send(session.address, encode(message))

    def _pulse(self) -> None:
        now = time.monotonic()
        for session in list(self._sessions.values()):
            if now - session.heard_at > SILENCE_S:
                _log.warning("an ingress has said nothing for %.0f s: its answers end", SILENCE_S)
                session.end()
            else:
                self._say(session)
