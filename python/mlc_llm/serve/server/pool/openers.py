"""How the models of a server are opened, and how much memory each of them gets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from mlc_llm.errors import UserError
from mlc_llm.record import record
from mlc_llm.serve.async_reader import AsyncClient, deliver_to_loops
from mlc_llm.serve.client import EngineClient
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.echo_model import is_echo
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.limits import DEFAULT_UTILIZATION, complete_config
from mlc_llm.serve.memory_plan import ModelSize
from mlc_llm.serve.opening.adapters import with_adapter_room
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.memory import look_at_memory, model_size
from mlc_llm.serve.opening.shares import shards_of
from mlc_llm.serve.opening.vision import with_vision

_log = logging.getLogger(__name__)
ALONE = 0.5
"""What one model takes of the free memory if nobody says how much and if it fits: other programs of
the machine want some too."""


@record()
class Plan:
    """How a model is opened."""

    config: EngineConfig
    bytes: int = 0
    """All that its engine needs; 0: nobody counts it."""
    size: ModelSize | None = None
    """Of the model, if how many tokens it holds follows from `bytes`."""


class Opener(Protocol):
    """Plans and opens models, on any thread."""

    def plan(self, model: str | None, budget: int | None, share: int | None) -> Plan:
        """How a model is opened within `share` bytes, or within the `budget` of all if it does not
        fit its share. None: as it is opened alone. Raises `UserError` if it does not fit."""
        ...

    def open(self, model: str | None, plan: Plan) -> AsyncClient:
        """The engine. Raises what opening raises."""
        ...


class EngineOpener:
    """Opens engines that compute."""

    def __init__(self, device: str, config: EngineConfig, *, traces: bool = False) -> None:
        """config: of each model. traces: each engine records its events."""
        self._device, self._config, self._traces = device, config, traces

    def plan(self, model: str | None, budget: int | None, share: int | None) -> Plan:
        """Reads the header of the model, no weights."""
        if budget is None or share is None or is_echo(model):
            return Plan(self._config)
        config = self._config
        bundle = open_model(
            model, quantization=config.quantization, rope_scaling=config.rope_scaling
        )
        bundle = with_vision(bundle, config)
        kinds = (config.kernels, config.kv_cache_dtype)
        size = model_size(bundle, *kinds, shards_of(config))
        config = with_adapter_room(config)
        try:
            return plan_within(config, size, share)
        except UserError:
            return plan_within(config, size, budget)

    def open(self, model: str | None, plan: Plan) -> AsyncClient:
        """Compiles the model's library if it is not there yet."""
        config = plan_of_free(plan, _free).config
        return EngineClient(
            deliver_to_loops,
            model,
            self._device,
            model_lib=config.model_lib,
            mode=config.mode or "server",
            engine_config=config,
            trace=EventTraceRecorder() if self._traces else None,
        )


def plan_within(config: EngineConfig, size: ModelSize, budget: int) -> Plan:
    """How a model is opened in so many bytes. Its limits are those that `fit` would show for a
    machine with this memory. Raises `UserError` if it does not fit."""
    all_of_it = replace(config, gpu_memory_utilization=1.0)
    complete, plan = complete_config(all_of_it, size, budget)
    tokens = complete.max_total_sequence_length or 0
    own = replace(all_of_it, max_total_sequence_length=tokens)
    is_free = config.max_total_sequence_length is None
    return Plan(own, plan.total(tokens), size if is_free else None)


def plan_of_free(plan: Plan, free: Callable[[], int]) -> Plan:
    """The plan, or one for the usual share of what is free if other programs have taken memory
    since the server began. free: bytes, now. Raises `UserError` if the model does not fit."""
    if plan.size is None or plan.bytes <= (left := usual_budget(free)):
        return plan
    smaller = plan_within(replace(plan.config, max_total_sequence_length=None), plan.size, left)
    _log.warning(
        "other programs leave %d MB now, not %d MB: the KV cache holds %s tokens, not %s",
        left >> 20, plan.bytes >> 20,
        smaller.config.max_total_sequence_length, plan.config.max_total_sequence_length,
    )  # fmt: skip
    return smaller


def usual_budget(look: Callable[[], int] | None = None) -> int:
    """The memory for all models if nobody says how much: the usual share of what is free."""
    return int((look or _free)() * DEFAULT_UTILIZATION)


def share_alone(budget: int) -> int:
    """What one model takes of a `usual_budget`, unless it needs more."""
    return int(budget / DEFAULT_UTILIZATION * ALONE)


def _free() -> int:
    memory = look_at_memory()
    return memory.left(memory.standing)[0]
