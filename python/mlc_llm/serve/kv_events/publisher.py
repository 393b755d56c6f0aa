"""Publishes cache events over ZeroMQ, as vLLM does.

Each message has three frames: the topic, a number of 8 bytes (the highest byte first) that grows by
one, and a batch in msgpack. Whoever has missed some asks the replay socket (ROUTER) for all from a
number on, and gets those that are kept; the number -1 without a batch ends them.

Needs `pip install mlc-llm[kv-events]`.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.kv_events.events import CacheEvent
from mlc_llm.serve.kv_events.messages import batch
from mlc_llm.serve.kv_events.settings import KVEventsConfig

if TYPE_CHECKING:
    import zmq

END = (-1).to_bytes(8, "big", signed=True)
"""The number behind the last message of a replay."""
MOST_UNSENT = 100_000
"""Messages that a subscriber may be behind; beyond them, it misses some."""
END_S = 2.0

_log = logging.getLogger(__name__)


class _Batch(NamedTuple):
    seconds: float
    events: list[CacheEvent]


class EventPublisher:
    """Has a thread of its own. `publish` never waits for it, nor for subscribers."""

    def __init__(self, config: KVEventsConfig) -> None:
        """Raises `UserError` without the packages, `InvalidField` for an address that cannot be
        used."""
        self._zmq, self._encode, _ = packages()
        self._config = config
        self._waiting: deque[_Batch] = deque()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._number = 0
        self._is_ending = False
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._context = self._zmq.Context()
        try:
            self._events = self._events_socket()
            self._replay = self._replay_socket()
        except BaseException:
            self._free()
            raise
        self._thread = threading.Thread(target=self._run, name="mlc-kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: list[CacheEvent]) -> None:
        """Send events, in one message. Any thread may call it."""
        self._waiting.append(_Batch(time.time(), events))
        self._wake_up()

    def close(self) -> None:
        """Send what waits, then end the thread. It may be called more than once."""
        self._is_ending = True
        if self._thread.is_alive():
            self._wake_up()
            self._thread.join(END_S)

    @property
    def endpoint(self) -> str:
        """Where subscribers connect, with the port that was free."""
        return _bound_at(self._events)

    @property
    def replay_endpoint(self) -> str | None:
        """The same, for the replay socket."""
        return None if self._replay is None else _bound_at(self._replay)

    @property
    def topic(self) -> str:
        """What stands before each message."""
        return self._config.topic

    def _wake_up(self) -> None:
        with suppress(OSError):  # it is awake already, or has ended
            self._wake.send(b"\0")

    def _events_socket(self) -> zmq.Socket[bytes]:
        made = self._context.socket(self._zmq.PUB)
        made.set_hwm(MOST_UNSENT)
        endpoint = self._config.endpoint
        if endpoint.startswith(">"):
            self._use("endpoint", endpoint, lambda: made.connect(endpoint[1:]))
        else:
            self._use("endpoint", endpoint, lambda: made.bind(endpoint))
            _warn_of_readers(endpoint)
        return made

    def _replay_socket(self) -> zmq.Socket[bytes] | None:
        endpoint = self._config.replay_endpoint
        if endpoint is None:
            return None
        made = self._context.socket(self._zmq.ROUTER)
        made.setsockopt(self._zmq.SNDHWM, 2 * (self._config.buffer_steps + 1))
        self._use("replay_endpoint", endpoint, lambda: made.bind(endpoint))
        _warn_of_readers(endpoint)
        return made

    def _use(self, field: str, endpoint: str, call: Callable[[], object]) -> None:
        try:
            call()
        except self._zmq.ZMQError as error:
            raise InvalidField(
                f"kv_events.{field}", endpoint, f"cannot be used: {error}"
            ) from error

    def _run(self) -> None:
        poller = self._zmq.Poller()
        poller.register(self._woken, self._zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, self._zmq.POLLIN)
        try:
            while not self._is_ending or self._waiting:
                ready = dict(poller.poll())
                try:
                    self._look(ready)
                except Exception:
                    _log.exception("KV events: a message could not be sent")
        finally:
            self._free()

    def _look(self, ready: dict[object, int]) -> None:
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
        while self._waiting:
            try:
                self._send(self._waiting[0])
            finally:
                self._waiting.popleft()  # only now: nothing waits means that all have gone
        if self._replay is not None and self._replay in ready:
            self._send_again(self._replay)

    def _send(self, one: _Batch) -> None:
        payload = self._encode(batch(one.events, one.seconds, self._config.form))
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._kept.append((number, payload))
        self._events.send_multipart([self._config.topic.encode(), number, payload])

    def _send_again(self, replay: zmq.Socket[bytes]) -> None:
        """Answer one question."""
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            _log.warning("KV events: a question for a replay should be a number of 8 bytes")
            return
        client, _, first = frames
        topic = self._config.topic.encode()
        for number, payload in self._kept:
            if number >= first:
                replay.send_multipart([client, b"", topic, number, payload])
        replay.send_multipart([client, b"", b"", END, b""])

    def _free(self) -> None:
        self._context.destroy(linger=int(END_S * 500))
        self._woken.close()
        self._wake.close()


def packages() -> tuple[ModuleType, Callable[[object], bytes], Callable[[bytes], Any]]:
    """ZeroMQ, and what writes and reads msgpack. Raises `UserError`."""
    try:
        import zmq
        from msgspec.msgpack import decode, encode
    except ImportError as error:
        words = f"needs packages that are not here ({error}): pip install 'mlc-llm[kv-events]'"
        raise UserError(f"kv_events: {words}") from error
    return zmq, encode, decode


def _bound_at(one: zmq.Socket[bytes]) -> str:
    return str(one.last_endpoint.decode().rstrip("\0"))


def _warn_of_readers(endpoint: str) -> None:
    """Events show the prompts of everybody."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if not endpoint.startswith("tcp://") or host == "localhost":
        return
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        _log.warning(
            "KV events at %s: whoever reaches it can read all prompts and answers", endpoint
        )
