"""Sees that an engine does not move any more, and says so: to those who wait, and to probes.

A server that answers probes while its engine hangs looks well for hours. An engine moves when its
thread has done a step, and a long prompt is many steps. On a CPU it moves with every kernel of a
step as well: a slow processor may take minutes for a step of a large model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.limits.settings import OnStall
from mlc_llm.serve.server.pool.registry import ModelRegistry
from mlc_llm.serve.server.pool.slot import ModelSlot

_log = logging.getLogger(__name__)


class _Seen(NamedTuple):
    client: object
    rounds: int
    launches: int
    since: float


class Watch:
    """Looks at all open engines. It belongs to the event loop."""

    def __init__(
        self,
        models: ModelRegistry,
        stall_s: float,
        on_stall: OnStall,
        leave: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """stall_s: an engine with work that has not moved for so long is stalled. leave: ends the
        process, for `exit`."""
        self._models, self._stall_s, self._on_stall = models, stall_s, on_stall
        self._leave, self._clock = leave, clock
        self._seen: dict[ModelSlot, _Seen] = {}

    def look(self) -> None:
        """Call it several times within `stall_s`."""
        for slot in self._models.open_slots:
            reason = self._reason(slot)
            if reason and not slot.stalled:
                self._stalled(slot, reason)
            elif slot.stalled and not reason:
                _log.warning("model %s moves again", slot.names[0])
                slot.stalled = ""

    def _reason(self, slot: ModelSlot) -> str:
        """Why the engine of a slot serves nobody; empty if it does."""
        assert slot.client is not None
        progress, now = slot.client.progress, self._clock()
        if progress.died is not None:
            return f"its engine has ended: {progress.died}"
        seen = self._seen.get(slot)
        at = slot.client, progress.rounds, progress.launches
        has_moved = seen is None or seen[:3] != at
        if has_moved or progress.is_idle or seen is None:
            self._seen[slot] = _Seen(*at, now)
            return ""
        idle_s = now - seen.since
        return "" if idle_s < self._stall_s else f"its engine has not moved for {idle_s:.1f} s"

    def _stalled(self, slot: ModelSlot, reason: str) -> None:
        slot.stalled = reason
        name, readers = slot.names[0], len(slot.readers)
        _log.critical("model %s: %s; %d answers end with an error", name, reason, readers)
        slot.fail_all(stalled(slot))
        if self._on_stall == "exit":
            self._leave()
        elif self._on_stall == "restart":
            self._models.replace(slot)


def stalled(slot: ModelSlot) -> HTTPError:
    """The error of those who wait for a model that is stalled."""
    words = f"the model {slot.names[0]!r} does not answer: {slot.stalled}"
    return HTTPError(503, words, kind="server_error", code="engine_stalled")
