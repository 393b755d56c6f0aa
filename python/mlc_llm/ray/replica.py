"""A replica of a model: an engine, and the requests that are sent to it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace

from mlc_llm import __version__
from mlc_llm.errors import RequestError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.ray.cores import OwnCores
from mlc_llm.ray.prefix_choice import USUAL_SPEED
from mlc_llm.ray.raw_engine import Outputs, Put, RawEngine
from mlc_llm.ray.settings import ModelSettings
from mlc_llm.ray.wire import ReplicaFacts, ReplicaStats, WireRequest, WrongReplica
from mlc_llm.runtime.transfer import Transfer
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.kv_events.ledger import BlockLedger
from mlc_llm.serve.kv_events.publisher import EventPublisher
from mlc_llm.serve.request import Request

THREADS = "TVM_NUM_THREADS"
PROBE_S = 600.0
LEAST_MEASURED = 2000
"""Prompt tokens from which on a speed is one."""

_log = logging.getLogger(__name__)


class ModelReplica:
    """Opens the model. It is ready when `probe` has ended."""

    def __init__(self, settings: ModelSettings, config: EngineConfig) -> None:
        """Raises what opening the model raises."""
        os.environ.setdefault(THREADS, str(max(1, int(settings.num_cpus))))
        self._cores = OwnCores(int(settings.num_cpus)) if settings.own_cores else None
        self._waiting: dict[str, int] = {}
        """Prompt tokens of requests without an output."""
        on_start = None if self._cores is None else self._cores.stay
        try:
            self._engine = RawEngine(settings.model, settings.device, config, self._seen, on_start)
        except BaseException:  # Ray may keep the process, and so its locks
            self._release_cores()
            raise
        self._load = self._engine.loaded

    def facts(self) -> ReplicaFacts:
        """What an ingress has to know."""
        core = self._load.core
        return ReplicaFacts(
            __version__,
            self._load.fingerprint,
            self._load.config.asjson(),
            core.limits,
            core.longest_sequence,
            core.hidden_size,
        )

    async def generate(self, wire: WireRequest) -> AsyncIterator[Outputs]:
        """The outputs of a request, those of a step together; the last one has its usage. Closing
        it, or cancelling its task, aborts the request.

        Raises `WrongReplica`.
        """
        self._check(wire)
        request = wire.request(self._load.load_id)
        self._waiting[wire.request_id] = len(wire.token_ids)
        stream = self._engine.stream(request)
        try:
            async for outputs in stream:
                yield outputs
        finally:
            self._waiting.pop(wire.request_id, None)
            await stream.aclose()

    def takes_long(self, wire: WireRequest) -> bool:
        """See `Taker`: a grammar may have to be compiled."""
        return '"response_format"' in wire.config

    def begin(self, wire: WireRequest, put: Put) -> None:
        """See `Taker`. Raises `WrongReplica`, and `UserError` for what the engine refuses at
        once."""
        self._check(wire)
        request = wire.request(self._load.load_id)
        name = wire.request_id
        self._waiting[name] = len(wire.token_ids)
        try:
            self._engine.begin(request, put)
        except BaseException:
            self._waiting.pop(name, None)
            raise

    def abort(self, request_id: str) -> None:
        """See `Taker`."""
        self._engine.abort(request_id)

    async def prefill(self, wire: WireRequest) -> Transfer:
        """Compute all tokens of the prompt but the last, for `take_in` of another replica. Raises
        `WrongReplica`, and `RequestError` if that fails."""
        self._check(wire)
        config = json.dumps({**json.loads(wire.config), "max_tokens": 1, "n": 1})
        request = replace(wire, config=config).request(self._load.load_id)
        async for outputs in self._engine.stream(request):
            errors = [one.error for one in outputs if one.error]
            if errors:
                raise RequestError(f"the prompt was not computed: {errors[0]}")
        tokens = wire.token_ids[:-1]
        return await self._engine.call_core(
            lambda core: core.export_prefix(tokens, wire.cache_salt)
        )

    async def take_in(self, wire: WireRequest, transfer: Transfer) -> bool:
        """Take over what another replica has computed of the prompt. False: it was refused, and the
        prompt is computed here."""
        tokens = wire.token_ids[:-1]
        try:
            await self._engine.call_core(
                lambda core: core.import_prefix(tokens, transfer, wire.cache_salt)
            )
        except RequestError as error:
            _log.warning("request %s: its prompt is computed here: %s", wire.request_id, error)
            return False
        return True

    def _seen(self, outputs: Outputs) -> None:
        for one in outputs:
            self._waiting.pop(one.request_id, None)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that wait here."""
        return sum(list(self._waiting.values()))

    def stats(self) -> ReplicaStats:
        """What routers want to know of it."""
        ledger = self._load.core.prefix_cache.observer
        if not isinstance(ledger, BlockLedger) or not isinstance(ledger.publisher, EventPublisher):
            return ReplicaStats(self._speed())
        publisher = ledger.publisher
        places = publisher.endpoint, publisher.replay_endpoint, publisher.topic
        return ReplicaStats(self._speed(), *places)

    def _check(self, wire: WireRequest) -> None:
        """Raises `WrongReplica`."""
        if wire.version != __version__:
            words = f"made by version {wire.version}, and this replica has {__version__}"
            raise WrongReplica(f"{wire.request_id}: {words}")
        own = self._load.fingerprint
        if wire.fingerprint != own:
            words = f"{wire.request_id}: made for {wire.fingerprint}, and this replica has {own}"
            raise WrongReplica(words)

    def _speed(self) -> float:
        """Prompt tokens a second so far, rounded so that it seldom changes."""
        tokens, seconds = self._load.core.prefill_speed
        if tokens < LEAST_MEASURED or seconds <= 0:
            return USUAL_SPEED
        return float(f"{tokens / seconds:.1g}")

    def check_health(self) -> None:
        """Raises if the engine has died: then Ray starts another replica."""
        died = self._engine.progress.died
        if died is not None:
            raise RuntimeError(died)

    def close(self) -> None:
        """Abort everything, and free the model and its cores."""
        self._engine.terminate()
        self._release_cores()

    def _release_cores(self) -> None:
        if self._cores is not None:
            self._cores.release()

    async def probe(self) -> None:
        """One token of an answer. Raises `RuntimeError` if it does not come."""
        config = GenerationConfig(max_tokens=1, temperature=0.0).merged_over(
            self._load.bundle.defaults
        )
        request = Request("probe", [TokenData([0])], config, self._load.load_id)

        async def ask() -> list[Outputs]:
            return [outputs async for outputs in self._engine.stream(request)]

        found = await asyncio.wait_for(ask(), PROBE_S)
        errors = [one.error for outputs in found for one in outputs if one.error]
        if errors:
            raise RuntimeError(f"the model does not answer: {errors[0]}")
