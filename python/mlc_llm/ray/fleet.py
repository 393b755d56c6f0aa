"""The ingress's side of all replicas of a model: a session with each, and requests between them."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from mlc_llm.errors import RequestError
from mlc_llm.ray.channel import Receiver, Sender
from mlc_llm.ray.link import Link
from mlc_llm.ray.messages import Outputs, UnreadableMessage, read_by_ingress
from mlc_llm.ray.remote_engine import ReplicaDied, ReplicaLost
from mlc_llm.ray.replica_lists import Replicas
from mlc_llm.ray.replica_table import ReplicaTable
from mlc_llm.ray.wire import WireRequest

LIVING_S = 10.0
"""So often each replica hears that this ingress lives."""
SILENCE_S = 60.0
"""A replica speaks each second. After so long, what it says does not come here."""
AGAIN_S = 0.5
"""Until a session that has ended is begun anew, if the replica is still there."""

_log = logging.getLogger(__name__)


class Attend(Protocol):
    """Begins a session with a replica, and lasts as long as it. Its only item is the address of the
    replica's mailbox. Raises `ReplicaDied`, and `ReplicaLost` if it may be reached again."""

    def __call__(self, replica: str, session: str, address: str) -> AsyncGenerator[str, None]: ...


class Fleet:
    """It belongs to the event loop that makes it."""

    def __init__(self, host: str, attend: Attend, *, by_prefix: bool = True) -> None:
        """host: an address of this node that replicas reach. by_prefix: see `ReplicaTable`."""
        self._attend = attend
        self._table = ReplicaTable(by_prefix=by_prefix)
        self._receiver, self._sender = Receiver(host, self._take), Sender()
        self._replicas: Replicas = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By replica: what keeps a session with it."""
        self._sessions: dict[str, asyncio.Task[None]] = {}
        """By replica: the session of now."""
        self._dead: set[str] = set()
        """Replicas that have died, while Ray's controller still names them."""
        self._links: dict[str, Link] = {}
        """By session: those that are open."""
        self._of_replica: dict[str, Link] = {}
        """Those that take requests."""
        self._numbers = itertools.count(1)
        self._is_open = asyncio.Event()
        """Some replica takes requests."""
        self._is_ending = False
        self._living = asyncio.ensure_future(self._live())

    def update(self, replicas: Replicas) -> None:
        """These are all replicas now. Those that are not named get no other requests, and those
        that run there end."""
        self._replicas = {name: one for name, one in replicas.items() if name not in self._dead}
        self._dead.intersection_update(replicas)
        for name in self._replicas:
            if name not in self._tasks:
                keeping = asyncio.ensure_future
                self._tasks[name] = contextvars.Context().run(keeping, self._keep(name))
        for name in [one for one in self._tasks if one not in self._replicas]:
            link = self._of_replica.pop(name, None)
            if link is not None:
                link.leave()
            elif not any(one.replica == name for one in self._links.values()):
                self._tasks[name].cancel()  # its session has not begun
        self._look()

    async def send(
        self, wire: WireRequest, before: Callable[[str], Awaitable[None]] | None = None
    ) -> AsyncIterator[Outputs]:
        """Send a request to the replica that is best, as soon as there is one, and yield its
        outputs; the usage is in the last ones. Closing it aborts the request. before: is called
        with the name of the replica and awaited first. Raises `ReplicaLost`, and `RequestError` if
        the replica refuses the request."""
        link = await self._chosen(wire)
        if before is not None:
            await before(link.replica)
            if link.is_leaving:
                raise ReplicaLost("the replica has gone")
        name, is_over = wire.request_id, False
        self._table.sent(name, link.replica, wire)
        found = link.begin(wire)
        try:
            while not is_over:
                outputs = await found.get()
                if isinstance(outputs, Exception):
                    is_over = True
                    raise outputs
                is_over = outputs[-1].request_final_usage_json_str is not None
                yield outputs
        finally:
            self._table.ended(name)
            link.end(name, is_over=is_over)

    async def ask(self, wire: WireRequest, seconds: float) -> list[Outputs]:
        """What each replica answers to a question that needs no prompt. One that does not answer in
        `seconds` costs its own answer only."""
        links = list(self._of_replica.values())
        name = wire.request_id
        wires = [replace(wire, request_id=f"{name}~{i}") for i in range(len(links))]
        asking = [_answer(*one, seconds) for one in zip(links, wires, strict=True)]
        return [one for one in await asyncio.gather(*asking) if one is not None]

    def ending(self) -> None:
        """No other replicas will come: what would wait for one is refused."""
        self._is_ending = True
        self._is_open.set()

    async def close(self) -> None:
        """End all sessions."""
        self._living.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._receiver.close()
        self._sender.close()

    async def _chosen(self, wire: WireRequest) -> Link:
        while (name := self._table.choose(wire)) is None:
            if self._is_ending:
                raise RequestError("the server ends, and no replica is left")
            self._is_open.clear()
            await self._is_open.wait()
        return self._of_replica[name]

    async def _keep(self, name: str) -> None:
        """Sessions with a replica, one after the other, for as long as it is there."""
        try:
            while name in self._replicas:
                one = self._sessions[name] = asyncio.ensure_future(self._session(name))
                try:
                    await asyncio.wait([one])
                finally:
                    one.cancel()
                if name in self._replicas:
                    await asyncio.sleep(AGAIN_S)
        finally:
            del self._tasks[name], self._sessions[name]

    async def _session(self, name: str) -> None:
        session = f"{self._receiver.address}/{next(self._numbers)}"
        link: Link | None = None
        reason = "the session has ended"
        try:
            async with aclosing(self._attend(name, session, self._receiver.address)) as comes:
                async for address in comes:
                    link = self._began(name, session, address)
        except ReplicaLost as error:
            reason = str(error)
            if isinstance(error, ReplicaDied):
                self._died(name)
        except Exception:  # a bug of ours, which must not end the other sessions
            _log.exception("the session with replica %s failed", name)
        finally:
            if link is not None:
                self._ended(link, reason)

    def _began(self, name: str, session: str, address: str) -> Link:
        link = Link(name, session, address, lambda message: self._sender.send(address, message))
        self._links[session] = link
        if name in self._replicas:
            self._of_replica[name] = link
            self._look()
        else:
            link.leave()
        return link

    def _ended(self, link: Link, reason: str) -> None:
        self._links.pop(link.session, None)
        if self._of_replica.get(link.replica) is link:
            del self._of_replica[link.replica]
            self._look()
        link.lost(reason)
        self._sender.forget(link.address)

    def _died(self, name: str) -> None:
        """Ray's controller may not know of it for seconds: whatever is sent there is lost."""
        self._dead.add(name)
        self._replicas = {one: stats for one, stats in self._replicas.items() if one != name}

    def _look(self) -> None:
        """Let the table know which replicas take requests."""
        self._table.look_at({name: self._replicas.get(name) for name in self._of_replica})
        if self._of_replica:
            self._is_open.set()

    def _take(self, message: bytes) -> None:
        try:
            found, outputs = read_by_ingress(message)
        except UnreadableMessage as error:
            _log.warning("a message that cannot be read was dropped: %s", error)
            return
        link = self._links.get(found.session)
        if link is None:
            return  # it has ended meanwhile
        self._table.others(link.replica, found.others)
        try:
            link.take(found, outputs)
        except ReplicaLost as error:
            self._broken(link, str(error))

    def _broken(self, link: Link, reason: str) -> None:
        """Nothing that runs there is sure any more. The replica aborts it with the session."""
        _log.warning("replica %s: %s: its requests go elsewhere", link.replica, reason)
        self._ended(link, reason)
        self._sessions[link.replica].cancel()

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(LIVING_S)
            for link in list(self._links.values()):
                if link.silence_s > SILENCE_S:
                    self._broken(link, f"it has said nothing for {SILENCE_S:g} s")
                else:
                    link.say()


async def _answer(link: Link, wire: WireRequest, seconds: float) -> Outputs | None:
    """None: it does not come within `seconds`, or it is an error."""
    found, is_over = link.begin(wire), False
    try:
        outputs = await asyncio.wait_for(found.get(), seconds)
        is_over = True
        return None if isinstance(outputs, Exception) else outputs
    except asyncio.TimeoutError:
        return None
    finally:
        link.end(wire.request_id, is_over=is_over)
