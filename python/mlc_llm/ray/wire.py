"""What the ingress and a replica send each other: plain values."""

from __future__ import annotations

from mlc_llm import __version__
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.record import record
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request

STATS = "mlc_llm"
"""The key of the stats of a replica, in Ray's routing stats."""


class WrongReplica(Exception):
    """The replica has another version or another model than the ingress expects."""


@record()
class ReplicaFacts:
    """What an ingress has to know of a model. All replicas of a model have the same ones."""

    version: str
    fingerprint: str
    config: str
    """The engine's config with every limit, as JSON."""
    limits: RunnerLimits
    longest_sequence: int
    hidden_size: int


@record()
class ReplicaStats:
    """What a replica tells routers every half second."""

    speed: float
    """Prompt tokens a second, as measured."""
    events: str | None = None
    """Where it publishes KV events; None: nowhere."""
    replay: str | None = None
    topic: str = ""
    """Of its events: only who gets these stats knows it."""


@record()
class Aim:
    """The replica that a call of Ray is for."""

    replica: str


@record()
class WireRequest:
    """A request of which nothing is left to prepare but its grammar."""

    request_id: str
    token_ids: tuple[int, ...]
    config: str
    """The complete `GenerationConfig`, as JSON."""
    fingerprint: str
    """Of the model that it was made for."""
    version: str = __version__
    """Of the ingress."""
    cache_salt: str = ""
    prompt_logprobs: int | None = None
    is_embedding: bool = False
    second_at: int = 0
    keys: tuple[int, ...] = ()
    """Of the cache blocks of its prompt, for the router."""
    arrived: float = 0.0
    """When it began to wait, on the clock of the process that has it (`time.perf_counter`); 0: that
    is not known."""

    def request(self, load_id: int) -> Request:
        """For the engine that has opened the model."""
        config = GenerationConfig.from_json(self.config)
        return Request(
            self.request_id,
            [TokenData(self.token_ids)] if self.token_ids else [],
            config,
            load_id,
            self.cache_salt,
            self.prompt_logprobs,
            self.is_embedding,
            self.second_at,
            arrived=self.arrived,
        )
