"""Free memory, and what of it other engines of this user have promised themselves."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import MemoryPlan, ModelSize, complete_config
from mlc_llm.serve.sizing import free_memory
from mlc_llm.support import promises
from mlc_llm.support.promises import PromiseHandle, Promises

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Memory:
    """As it was at one moment, in bytes."""

    free: int
    """As the system counts it."""
    standing: Promises

    def left(self, standing: Promises) -> tuple[int, str]:
        """Free memory without what is promised by now, and those promises in words.

        Of a promise that is newer than this look, nothing was touched then.
        """
        then = [self.standing.get(name, one.fresh()) for name, one in standing.items()]
        free = self.free - sum(one.untouched for one in then)
        return max(free, 0), promises.in_words(then)

    def take(
        self, config: EngineConfig, size: ModelSize, model: str
    ) -> tuple[EngineConfig, MemoryPlan, PromiseHandle]:
        """The complete config and its plan, of which the memory is promised to the caller now.

        Raises like `complete_config`.
        """
        with promises.turn():
            free, words = self.left(promises.standing())
            complete, plan = complete_config(config, size, free, words)
            total = plan.total(complete.max_total_sequence_length or 0)
            held = promises.promise(model, total)
        if words:
            alone, _ = complete_config(config, size, self.free)
            _warn_if_less(complete, alone, words)
        return complete, plan, held

    def opened(self, held: PromiseHandle, size: ModelSize) -> None:
        """The engine for which memory was taken has read its weights."""
        weights = size.weight_bytes + (0 if size.draft is None else size.draft.weight_bytes)
        with promises.turn():
            promises.settle(held, weights, self.standing)


def look_at_memory() -> Memory:
    """Now."""
    with promises.turn():
        standing = promises.standing()
    if any(one.is_own for one in standing.values()):
        gc.collect()  # an engine that was let go of may still wait for it
        with promises.turn():
            standing = promises.standing()
    return Memory(free_memory(), standing)


def _warn_if_less(complete: EngineConfig, alone: EngineConfig, words: str) -> None:
    now, otherwise = complete.max_total_sequence_length, alone.max_total_sequence_length
    if now != otherwise:
        _log.warning("the KV cache holds %s tokens, not %s: memory is %s", now, otherwise, words)
