"""Closes models that nobody has asked for, for as long as they may stay so.

The server has a time for that, and a request of Ollama's API may give another one, which counts
until the next request for the model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from mlc_llm.serve.server.pool.registry import ModelRegistry
from mlc_llm.serve.server.pool.slot import ModelSlot

_log = logging.getLogger(__name__)


class IdleModels:
    """Looks at all open models. It belongs to the event loop."""

    def __init__(self, models: ModelRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._models, self._clock = models, clock
        self._closing: dict[ModelSlot, asyncio.Task[None]] = {}

    def look(self) -> None:
        """To be called several times a second."""
        for slot in self._models.open_slots:
            if slot not in self._closing and slot.is_over(self._clock()):
                self._closing[slot] = asyncio.ensure_future(self._close(slot))

    async def _close(self, slot: ModelSlot) -> None:
        try:
            if await self._models.close(slot, lambda: slot.is_over(self._clock())):
                _log.info("model %s is closed: nobody asked for it any more", slot.names[0])
        finally:
            del self._closing[slot]
