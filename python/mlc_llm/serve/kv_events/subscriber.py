"""Reads the KV events of several publishers, on a thread of its own.

What is told is what a publisher holds, or nothing: who has missed messages asks for them again. If
they are gone, all that was known of the publisher is forgotten, until it clears its blocks itself.
Behind a new connection may be a publisher that was started anew: then it does not have the last
message that has come, and all is read from its beginning.
Messages without the topic of the publisher are dropped: another program may have its port by now.

Needs `pip install mlc-llm[kv-events]`.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlc_llm.serve.kv_events.publisher import END, packages

POLL_MS = 20
REPLAY_MS = 2000
LOOK_S = 1.0
"""What is published while a connection is made passes by: a publisher is asked so long after it."""
RETRY_S = 30.0
"""Until a publisher that has not answered is asked for all again."""

_log = logging.getLogger(__name__)


class Told(Protocol):
    """Is told what publishers hold, on the thread of the subscriber."""

    def stored(self, name: str, keys: Sequence[int]) -> object: ...

    def removed(self, name: str, keys: Sequence[int]) -> object: ...

    def cleared(self, name: str) -> object: ...


@dataclass
class _Source:
    """One publisher."""

    name: str
    endpoint: str
    replay_endpoint: str
    topic: bytes
    live: Any
    connections: Any
    """Has a message for each connection of `live`."""
    replay: Any
    next: int = 0
    """The number of the message that comes next."""
    last: bytes = b""
    """The message before it; none is like another, as each has its time."""
    look_at: float = math.inf
    """When it is asked whether it has more, on the monotonic clock."""
    is_silent: bool = False
    """It has not answered."""
    is_known: bool = True
    """Nothing is missing since its last `AllBlocksCleared`."""


class EventSubscriber:
    """`follow` and `leave` may be called from any thread; they return at once."""

    def __init__(self, told: Told) -> None:
        """Raises `UserError` without the packages."""
        self._zmq, self._decode = packages()[0], packages()[2]
        self._told = told
        self._sources: dict[Any, _Source] = {}
        """By the sockets that are read: `live` and `connections`."""
        self._places = itertools.count()
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._context = self._zmq.Context()
        self._poller = self._zmq.Poller()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="mlc-kv-reader", daemon=True)
        self._thread.start()

    def follow(self, name: str, endpoint: str, replay_endpoint: str, topic: str = "") -> None:
        """Read the events of a publisher from now on, and first those that it has kept. topic: of
        the publisher; others are strangers."""
        self._todo.put(lambda: self._follow(name, endpoint, replay_endpoint, topic.encode()))

    def leave(self, name: str) -> None:
        """It is not there any more, and holds nothing."""
        self._todo.put(lambda: self._leave(name))

    def close(self) -> None:
        """End the thread."""
        self._is_ending = True
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_ending:
                while not self._todo.empty():
                    self._todo.get()()
                self._read_some()
        finally:
            self._context.destroy(linger=0)

    def _read_some(self) -> None:
        if not self._sources:  # a poll of no sockets returns at once
            time.sleep(POLL_MS / 1000)
            return
        for one, _ in self._poller.poll(POLL_MS):
            source = self._sources.get(one)  # None: it was followed anew meanwhile
            if source is not None:
                self._read(source)
        now = time.monotonic()
        for source in {one.name: one for one in self._sources.values()}.values():
            if source.look_at <= now:
                source.look_at = math.inf
                self._look(source)

    def _follow(self, name: str, endpoint: str, replay_endpoint: str, topic: bytes) -> None:
        live = self._context.socket(self._zmq.SUB)
        live.setsockopt(self._zmq.SUBSCRIBE, b"")
        place = f"inproc://connections-{next(self._places)}"
        connections = live.get_monitor_socket(self._zmq.EVENT_HANDSHAKE_SUCCEEDED, place)
        live.connect(endpoint)
        replay = self._asking(replay_endpoint)
        source = _Source(name, endpoint, replay_endpoint, topic, live, connections, replay)
        for one in (live, connections):
            self._sources[one] = source
            self._poller.register(one, self._zmq.POLLIN)
        self._ask(source)

    def _asking(self, endpoint: str) -> Any:
        made = self._context.socket(self._zmq.DEALER)
        made.connect(endpoint)
        return made

    def _leave(self, name: str) -> None:
        for one, source in list(self._sources.items()):
            if source.name == name:
                self._poller.unregister(one)
                if one is source.live:
                    one.disable_monitor()
                    source.replay.close(linger=0)
                one.close(linger=0)
                del self._sources[one]
        self._told.cleared(name)

    def _read(self, source: _Source) -> None:
        if source.connections.poll(0):
            source.connections.recv_multipart()
            source.look_at = min(source.look_at, time.monotonic() + LOOK_S)
            if not source.is_silent:
                self._look(source)
        elif source.live.poll(0):
            self._read_live(source)

    def _look(self, source: _Source) -> None:
        """Take what its publisher has more. If it is another one by now, read it from its
        beginning."""
        if source.is_silent or not self._is_same(source):
            _log.warning("KV events of %s are read from their beginning", source.name)
            self._leave(source.name)
            self._follow(source.name, source.endpoint, source.replay_endpoint, source.topic)

    def _is_same(self, source: _Source) -> bool:
        """Whether the publisher has the last message that has come. Then what came behind it is
        taken too."""
        kept = self._kept(source, max(0, source.next - 1))
        if source.next and next(kept, None) != (source.next - 1, source.last):
            return False
        self._take_kept(source, kept)
        return True

    def _read_live(self, source: _Source) -> None:
        known = _message(source, source.live.recv_multipart())
        if known is None:
            return
        found, payload = known
        if found > source.next:
            self._ask(source)
        if found > source.next:
            self._forget(source, found)
        self._take(source, found, payload)

    def _ask(self, source: _Source) -> None:
        """Take what the publisher has kept from the next message on."""
        self._take_kept(source, self._kept(source, source.next))

    def _take_kept(self, source: _Source, kept: Iterator[tuple[int, bytes]]) -> None:
        for found, payload in kept:
            if found > source.next:
                self._forget(source, found)
            self._take(source, found, payload)

    def _kept(self, source: _Source, first: int) -> Iterator[tuple[int, bytes]]:
        """What the publisher has kept from this number on."""
        source.replay.send_multipart([b"", first.to_bytes(8, "big")])
        while source.replay.poll(REPLAY_MS):
            _, *frames = source.replay.recv_multipart()
            if frames[1:] == [END, b""]:
                return
            known = _message(source, frames)
            if known is not None:
                yield known
        _log.warning("KV events of %s: no answer to a question for lost ones", source.name)
        source.is_silent, source.look_at = True, time.monotonic() + RETRY_S
        source.replay.close(linger=0)  # a late answer would be taken for one to the next question
        source.replay = self._asking(source.replay_endpoint)

    def _forget(self, source: _Source, number: int) -> None:
        """Messages are lost for good."""
        _log.warning("KV events of %s: %d are lost", source.name, number - source.next)
        source.is_known, source.next = False, number
        self._told.cleared(source.name)

    def _take(self, source: _Source, number: int, payload: bytes) -> None:
        if number != source.next:
            return  # it has come before
        source.next, source.last = number + 1, payload
        try:
            events = self._decode(payload)[1]
            for event in events:
                self._take_event(source, event)
        except Exception as error:
            _log.warning("KV events of %s cannot be read: %s", source.name, error)
            self._forget(source, source.next)

    def _take_event(self, source: _Source, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "AllBlocksCleared":
            source.is_known = True
            self._told.cleared(source.name)
        elif source.is_known and kind == "BlockStored":
            self._told.stored(source.name, event["block_hashes"])
        elif source.is_known and kind == "BlockRemoved":
            self._told.removed(source.name, event["block_hashes"])


def _message(source: _Source, frames: list[bytes]) -> tuple[int, bytes] | None:
    """The number and the events of a message; None: it is no message of this publisher."""
    if len(frames) != 3 or frames[0] != source.topic or len(frames[1]) != len(END):
        _log.warning("KV events of %s: a message from a stranger was dropped", source.name)
        return None
    return int.from_bytes(frames[1], "big"), frames[2]
