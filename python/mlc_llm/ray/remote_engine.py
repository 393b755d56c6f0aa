"""The ingress's side of the replicas of a model: it looks like an engine, and sends requests away.

What can be refused is refused here, before a replica hears of it. A request whose replica dies
before its first token goes to another one. Behind that it ends with an error; or another replica
computes it again with the same seed, and what has been given out already is left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.ray.replay import Replay
from mlc_llm.ray.sum_metrics import summed
from mlc_llm.ray.wire import WireRequest
from mlc_llm.record import record
from mlc_llm.serve.core.admission import Admission
from mlc_llm.serve.data import Data, RequestStreamOutput
from mlc_llm.serve.kv_events.blocks import block_keys, root_key
from mlc_llm.serve.metrics import special_usage_json
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded.inbox import Arrival
from mlc_llm.serve.threaded.open_requests import OpenRequest

Outputs = list[RequestStreamOutput]

_log = logging.getLogger(__name__)


class ReplicaLost(Exception):
    """The replica that computed a request is gone, or cannot be reached."""


class ReplicaDied(ReplicaLost):
    """Its process has ended."""


class Sender(Protocol):
    """Sends a request to some replica. Raises `ReplicaLost`; cancelling it aborts the request."""

    def __call__(self, wire: WireRequest) -> AsyncIterator[Outputs]: ...


class Asker(Protocol):
    """Asks all replicas a question that needs no prompt. Those that do not answer are left out."""

    async def __call__(self, wire: WireRequest) -> list[Outputs]: ...


@dataclass
class _Sent:
    """A request that has not ended."""

    n: int
    task: asyncio.Task[None] | None = None
    is_aborted: bool = False


@record()
class Rules:
    """What becomes of requests whose replica dies."""

    attempts: int = 3
    resumes: bool = False


class RemoteEngine:
    """The part of `ThreadedEngine` that an `EngineClient` needs. Any thread may call it."""

    def __init__(
        self,
        send: Sender,
        ask: Asker,
        bundle: ModelBundle,
        admission: Admission,
        *,
        fingerprint: str,
        load_id: int,
        loop: asyncio.AbstractEventLoop,
        rules: Rules,
    ) -> None:
        """loop: where requests are sent from."""
        self._send, self._ask = send, ask
        self._bundle, self._admission = bundle, admission
        self._fingerprint, self._load_id = fingerprint, load_id
        self._loop, self._rules = loop, rules
        self._sent: dict[str, _Sent] = {}
        self.give: Callable[[Outputs], None] = lambda _: None
        """Gets all outputs, on the loop."""

    def create_request(
        self, request_id: str, inputs: list[Data], config: GenerationConfig
    ) -> Request:
        """See `ThreadedEngine`."""
        return Request(request_id, inputs, config.merged_over(self._bundle.defaults), self._load_id)

    def make_ready(
        self, request_id: str, n: int, make: Callable[[], Request], *, raises: bool = False
    ) -> Arrival | None:
        """See `ThreadedEngine`."""
        if request_id in self._sent:
            raise InvalidField("request_id", request_id, "it names a request that runs")
        sent = self._sent[request_id] = _Sent(n)
        try:
            request = make()
            prepared = None if request.is_special else self._admission.prepare(request)
            if raises and prepared is not None and prepared.error is not None:
                raise prepared.error
        except BaseException:
            del self._sent[request_id]
            if sent.is_aborted:
                return None
            raise
        return Arrival(request, OpenRequest(request_id, [True] * n), prepared)

    def add_ready(self, arrival: Arrival) -> None:
        """See `ThreadedEngine`."""
        self._loop.call_soon_threadsafe(self._start, arrival)

    def abort_request(self, request_id: str) -> None:
        """See `ThreadedEngine`."""
        sent = self._sent.get(request_id)
        if sent is None:
            return
        sent.is_aborted = True
        self._loop.call_soon_threadsafe(self._abort, request_id, sent)

    def _abort(self, request_id: str, sent: _Sent) -> None:
        if sent.task is not None:
            sent.task.cancel()
        elif self._sent.get(request_id) is sent:
            del self._sent[request_id]

    def _start(self, arrival: Arrival) -> None:
        request_id = arrival.request.request_id
        sent = self._sent.get(request_id)
        if sent is None or sent.is_aborted:
            return
        sent.task = asyncio.ensure_future(self._run(arrival, sent))

    async def _run(self, arrival: Arrival, sent: _Sent) -> None:
        """The whole life of a request. It gets exactly one end, whatever happens."""
        request_id = arrival.request.request_id
        wire = self._wire(arrival)
        replay = Replay(request_id, sent.n, len(wire.token_ids))
        try:
            if arrival.request.is_special:
                answers = [_numbers(one) for one in await self._ask(wire)]
                usage = special_usage_json(summed(answers))
                self.give(replay.fresh([RequestStreamOutput.usage(request_id, usage)]))
            else:
                await self._attempts(wire, replay)
        except asyncio.CancelledError:
            self.give(replay.end("abort"))
        except Exception as error:
            _log.warning("request %s failed: %s", request_id, error)
            self.give(replay.end("error", str(error) or type(error).__name__))
        finally:
            self._sent.pop(request_id, None)

    async def _attempts(self, wire: WireRequest, replay: Replay) -> None:
        """Send it until it has ended. Raises why that is not possible."""
        for left in range(self._rules.attempts - 1, -1, -1):
            try:
                async for outputs in self._send(wire):
                    self.give(replay.fresh(outputs))
                if replay.is_over:
                    return
                raise ReplicaLost("the replica ended the stream too soon")
            except ReplicaLost as error:
                if left == 0 or (replay.has_begun and not self._rules.resumes):
                    raise
                _log.warning("request %s goes to another replica: %s", wire.request_id, error)
                replay.begin_again()
                wire = replace(wire, request_id=_again(wire.request_id, left))

    def _wire(self, arrival: Arrival) -> WireRequest:
        request, prepared = arrival.request, arrival.prepared
        config = request.generation_config
        if config.seed is None:  # another replica must be able to choose the same tokens
            config = config.model_copy(update={"seed": random.getrandbits(63)})
        prompt = [] if prepared is None else prepared.prompt
        return WireRequest(
            request.request_id,
            tuple(prompt),
            config.asjson(),
            self._fingerprint,
            cache_salt=request.cache_salt,
            prompt_logprobs=request.prompt_logprobs,
            is_embedding=request.is_embedding,
            second_at=request.second_at,
            keys=tuple(block_keys(prompt[:-1], root_key(request.cache_salt))),
            arrived=0.0 if prepared is None else prepared.arrived,
        )


def _numbers(outputs: Outputs) -> Mapping[str, object]:
    """The metrics in an answer to a request for them."""
    usage = outputs[-1].request_final_usage_json_str
    assert usage is not None
    found: Mapping[str, object] = json.loads(usage)["extra"]
    return found


def _again(request_id: str, left: int) -> str:
    """A name for another attempt: the replica may still have the one before."""
    return f"{request_id.partition('~')[0]}~{left}"
