"""The replicas of a model behind the handles of Ray Serve."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle

from mlc_llm.ray.remote_engine import Asker, Outputs, ReplicaLost, Sender
from mlc_llm.ray.settings import ModelSettings
from mlc_llm.ray.wire import ReplicaFacts, WireRequest

FACTS_S = 600.0
METRICS_S = 3.0
"""For all replicas together."""

_log = logging.getLogger(__name__)


class HandleReplicas:
    """See `Replicas`. With `prefill`, long prompts are computed behind that handle while the
    replicas of the answers are busy."""

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        settings: ModelSettings,
        prefill: DeploymentHandle[Any] | None = None,
    ) -> None:
        self._streams = handle.options(stream=True)
        self._handle, self._prefill = handle, prefill
        self._rules, self._replicas = settings.prefill, settings.replicas
        self._open = 0

    @property
    def send(self) -> Sender:
        return self._send

    @property
    def ask(self) -> Asker:
        return self._ask

    def facts(self) -> ReplicaFacts:
        """Waits until a replica is ready."""
        found = self._handle.facts.remote().result(timeout_s=FACTS_S)
        assert isinstance(found, ReplicaFacts)
        return found

    async def _send(self, wire: WireRequest) -> AsyncIterator[Outputs]:
        place = await self._prefilled(wire) if self._is_apart(wire) else None
        if place is None:
            response = self._streams.generate.remote(wire)
        else:
            response = self._streams.generate_from.remote(wire, place)
        is_over = False
        self._open += 1
        try:
            async for outputs in response:
                yield outputs
            is_over = True
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError):
                is_over = True  # the replica lives and has answered with an error
                raise
            raise ReplicaLost(f"the replica is gone: {type(error).__name__}") from error
        finally:
            self._open -= 1
            if not is_over:
                response.cancel()

    def _is_apart(self, wire: WireRequest) -> bool:
        """Its prompt is long, and the replicas have answers to compute."""
        rules = self._rules
        if rules is None or self._prefill is None or len(wire.token_ids) < rules.min_tokens:
            return False
        is_text = wire.prompt_logprobs is None and not wire.is_embedding
        return is_text and self._open >= rules.busy_answers * self._replicas

    async def _prefilled(self, wire: WireRequest) -> list[Any] | None:
        """Where the pages of its prompt lie. None: the replica of the answer computes them."""
        assert self._prefill is not None
        response = self._prefill.put_prefill.remote(wire)
        is_over = False
        try:
            place: list[Any] = await response
            is_over = True
            return place
        except ray.exceptions.RayError as error:
            is_over = True
            name = type(error).__name__
            _log.warning("request %s: no prefill replica: %s", wire.request_id, name)
            return None
        finally:
            if not is_over:
                response.cancel()

    async def _ask(self) -> list[Mapping[str, object]]:
        answers = self._handle.broadcast("metrics")
        found = await answers.results_async(timeout_s=METRICS_S, return_exceptions=True)
        return [one for one in found if not isinstance(one, BaseException)]
