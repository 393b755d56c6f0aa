"""The replicas of a model behind the handles of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from mlc_llm.errors import RequestError
from mlc_llm.ray.channel import Receiver
from mlc_llm.ray.remote_engine import Asker, Outputs, ReplicaLost, Sender
from mlc_llm.ray.settings import ModelSettings
from mlc_llm.ray.wire import ReplicaFacts, WireRequest

FACTS_S = 600.0
ARRIVAL_S = 10.0
"""For outputs that were sent before the end of the request."""
METRICS_S = 3.0
"""For all replicas together."""

_log = logging.getLogger(__name__)


class HandleReplicas:
    """See `Replicas`. With `prefill`, long prompts are computed behind that handle while the
    replicas of the answers are busy. It belongs to the event loop that makes it."""

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        settings: ModelSettings,
        prefill: DeploymentHandle[Any] | None = None,
    ) -> None:
        self._receiver: Receiver | None = None
        self._handle, self._prefill = handle, prefill
        self._rules, self._replicas = settings.prefill, settings.replicas
        self._open = 0
        self._loop = asyncio.get_running_loop()

    @property
    def send(self) -> Sender:
        return self._send

    @property
    def ask(self) -> Asker:
        return self._ask

    def facts(self) -> ReplicaFacts:
        """Waits until a replica is ready. Ray may route on the loop, so it is asked there."""
        found = asyncio.run_coroutine_threadsafe(self._facts(), self._loop).result(FACTS_S)
        assert isinstance(found, ReplicaFacts)
        return found

    async def _facts(self) -> object:
        return await self._handle.facts.remote()

    async def _send(self, wire: WireRequest) -> AsyncIterator[Outputs]:
        place = await self._prefilled(wire) if self._is_apart(wire) else None
        receiver = self._listening()
        come = receiver.open(wire.request_id)
        response = self._handle.answer.remote(wire, receiver.address, place)
        task = asyncio.ensure_future(_ended(response))
        task.add_done_callback(lambda done: come.put_nowait(_why(done)))
        has_usage = False
        self._open += 1
        try:
            async for outputs in _outputs(come):
                has_usage = outputs[-1].request_final_usage_json_str is not None
                yield outputs
        finally:
            self._open -= 1
            receiver.close_request(wire.request_id)
            if not has_usage and not task.done():
                response.cancel()

    def _listening(self) -> Receiver:
        """On the loop that sends."""
        if self._receiver is None:
            self._receiver = Receiver(ray.util.get_node_ip_address())
        return self._receiver

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


async def _ended(response: DeploymentResponse[None]) -> None:
    """Waits for the end of a request on its replica. Raises `ReplicaLost`, `RequestError`."""
    try:
        await response
    except ray.exceptions.RayTaskError as error:  # the replica lives and has said why
        cause = getattr(error, "cause", None) or error
        raise RequestError(f"{type(cause).__name__}: {cause}".splitlines()[0]) from error
    except ray.exceptions.RayError as error:
        raise ReplicaLost(f"the replica is gone: {type(error).__name__}") from error


def _why(done: asyncio.Task[None]) -> BaseException | None:
    """Why a request has ended there; None: it was answered."""
    return asyncio.CancelledError() if done.cancelled() else done.exception()


async def _outputs(come: asyncio.Queue[Outputs | BaseException | None]) -> AsyncIterator[Outputs]:
    """Up to the usage. Raises why the request ended without one."""
    left: float | None = None
    while True:
        try:
            found = await asyncio.wait_for(come.get(), left)
        except asyncio.TimeoutError:
            raise ReplicaLost("the end of the answer was lost on its way") from None
        if isinstance(found, BaseException):
            raise found
        if found is None:  # the replica has sent all of it; some may still be on its way
            left = ARRIVAL_S
        else:
            yield found
            if found[-1].request_final_usage_json_str is not None:
                return
