"""The models of an ingress: their tokenizers are here, their engines are replicas elsewhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, cast

from mlc_llm import __version__
from mlc_llm.errors import EngineDead
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.ray.remote_engine import Asker, RemoteEngine, Rules, Sender
from mlc_llm.ray.settings import ModelSettings
from mlc_llm.ray.wire import ReplicaFacts
from mlc_llm.serve.async_reader import AsyncClient, AsyncReader, deliver_to_loops
from mlc_llm.serve.client import EngineCallback, EngineClient
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.admission import Admission
from mlc_llm.serve.core.mock_echo import EchoPolicy
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.echo_model import is_echo
from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.opening.bundle import ModelBundle, echo_bundle, open_model, with_pooling
from mlc_llm.serve.server.pool.openers import Plan
from mlc_llm.serve.threaded.work_loop import Progress
from mlc_llm.serve.threaded_engine import TERMINATED, ThreadedEngine

_load_ids = itertools.count(1)


class Replicas(Protocol):
    """The replicas of a model, as an ingress sees them."""

    @property
    def send(self) -> Sender: ...

    @property
    def ask(self) -> Asker: ...

    def facts(self) -> ReplicaFacts:
        """Of any of them. It waits; not for the event loop. Raises if there is none."""
        ...


class ReplicaClient(EngineClient[AsyncReader]):
    """An `EngineClient` whose engine is somewhere else."""

    def __init__(
        self, replicas: Replicas, settings: ModelSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        """loop: the one of the ingress. Raises what opening the model's files raises, and
        `EngineDead` for replicas of another version."""
        self.trace = None
        facts = self.facts = replicas.facts()
        if facts.version != __version__:
            words = f"replicas of {settings.name!r} have version {facts.version}"
            raise EngineDead(f"{words}, and the ingress has {__version__}")
        self._config = EngineConfig.from_json(facts.config)
        self._most_replicas = settings.most_replicas
        scaling = settings.autoscaling
        self._queued_tokens = 0 if scaling is None else scaling.queued_tokens
        self._bundle = _bundle(settings, self._config)
        self._model = ChatModel(
            self._bundle.tokenizer,
            self._bundle.chat_template,
            self._bundle.defaults,
            facts.longest_sequence,
            next(_load_ids),
            facts.hidden_size,
            facts.fingerprint,
            self._bundle.pooling,
            self._bundle.is_encoder,
            self._bundle.scores,
            ranking=self._bundle.ranking,
        )
        remote = RemoteEngine(
            replicas.send,
            replicas.ask,
            self._bundle,
            _admission(self._bundle, facts, self._config, is_echo=is_echo(settings.model)),
            fingerprint=facts.fingerprint,
            load_id=self._model.load_id,
            loop=loop,
            rules=Rules(settings.attempts, settings.resume == "replica"),
        )
        # `RemoteEngine` has what `EngineClient` calls.
        self._engine = cast(ThreadedEngine, remote)
        self._callback = EngineCallback(deliver_to_loops, remote.abort_request)
        remote.give = self._callback

    @property
    def model(self) -> ChatModel:
        """See `EngineClient`."""
        return self._model

    @property
    def bundle(self) -> ModelBundle:
        """See `EngineClient`; its files have no weights."""
        return self._bundle

    @property
    def adapters(self) -> list[str]:
        """Replicas serve none."""
        return []

    @property
    def engine_config(self) -> EngineConfig:
        """Of one replica, with the answers and the prompt tokens that all of them take on at a
        time. What waits beyond them waits in the ingress."""
        answers = (self._config.max_num_sequence or 1) * self._most_replicas
        step = max(self._config.prefill_chunk_size or 1, self._queued_tokens)
        return replace(
            self._config,
            max_num_sequence=answers,
            prefill_chunk_size=min(step * self._most_replicas, MAX_INT32),
        )

    @property
    def progress(self) -> Progress:
        """Ray watches the replicas; here nothing can stall."""
        return Progress(0, True, None)

    def terminate(self) -> None:
        """Abort everything."""
        self.abort_all()
        self._callback.end(TERMINATED)


@dataclass
class ReplicaOpener:
    """Opens the models of an ingress. See `Opener`."""

    replicas: Mapping[str | None, Replicas]
    settings: Mapping[str | None, ModelSettings]
    """Both by the name of the model."""
    loop: Callable[[], asyncio.AbstractEventLoop]

    def plan(self, model: str | None, budget: int | None, share: int | None) -> Plan:
        """Its memory is that of other machines."""
        return Plan(self.settings[model].engine)

    def open(self, model: str | None, plan: Plan) -> AsyncClient:
        """Asks a replica what it is."""
        return ReplicaClient(self.replicas[model], self.settings[model], self.loop())


def _bundle(settings: ModelSettings, config: EngineConfig) -> ModelBundle:
    if is_echo(settings.model):
        return echo_bundle(config.max_single_sequence_length or 0)
    quantization, scaling = config.quantization, config.rope_scaling
    bundle = open_model(settings.model, quantization=quantization, rope_scaling=scaling)
    return with_pooling(bundle, config.pooling)


def _admission(
    bundle: ModelBundle, facts: ReplicaFacts, config: EngineConfig, *, is_echo: bool
) -> Admission:
    policy = RequestPolicy(writes=bundle.ranking is None)
    stops = frozenset(bundle.stop_token_ids)
    if is_echo:
        policy, stops = EchoPolicy(), frozenset()
    return Admission(bundle.tokenizer, facts.limits, replace(config, kv_events=None), stops, policy)
