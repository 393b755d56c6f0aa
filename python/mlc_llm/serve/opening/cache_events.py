"""Lets an engine publish what its prefix cache holds, if its config says where."""

from __future__ import annotations

import weakref

from mlc_llm.errors import InvalidField
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore


def publish_events(core: EngineCore, limits: RunnerLimits | None, config: EngineConfig) -> None:
    """limits: of the model's runner; None: the echo engine's, which has none that matter here.

    Raises `InvalidField` for an address that cannot be used, or a model whose cached prompts are
    taken over whole or not at all: no part of them is of use to another prompt.
    """
    if config.kv_events is None:
        return
    if limits is not None and limits.is_encoder:
        words = "this model is an encoder, which keeps nothing of a prompt; leave it out"
        raise InvalidField("kv_events", config.kv_events.endpoint, words)
    if limits is not None and limits.only_whole:
        words = "this model takes cached prompts over whole or not at all, and has no blocks"
        raise InvalidField("kv_events", config.kv_events.endpoint, f"{words}; leave it out")
    from mlc_llm.serve.kv_events.ledger import BlockLedger
    from mlc_llm.serve.kv_events.publisher import EventPublisher

    publisher = EventPublisher(config.kv_events)
    weakref.finalize(core, publisher.close)
    core.prefix_cache.observer = BlockLedger(publisher.publish, publisher)
