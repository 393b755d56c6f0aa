"""What an application of Ray Serve is made of: the `args` of its entry in the config file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.record import record
from mlc_llm.serve.config import EngineConfig

MAX_NAME_CHARS = 128
MOST_REPLICAS = 10_000
RESUME = ("error", "replica")
ROUTINGS = ("prefix", "power_of_two")


@record(kw_only=True)
class Autoscaling:
    """How many replicas there are."""

    min_replicas: int = 1
    max_replicas: int
    queued_tokens: int = 4096
    """Prompt tokens that may wait for each replica; with more, replicas are added."""

    def check(self, place: str) -> None:
        """Raises `InvalidField`."""
        checks.integer(f"{place}.min_replicas", self.min_replicas, 1, MOST_REPLICAS)
        checks.integer(f"{place}.max_replicas", self.max_replicas, self.min_replicas, MOST_REPLICAS)
        checks.integer(f"{place}.queued_tokens", self.queued_tokens, 1, checks.MAX_INT32)


@record(kw_only=True)
class Prefill:
    """Replicas that compute long prompts for the others while these are busy with answers."""

    replicas: int = 1
    min_tokens: int = 2048
    """Shorter prompts stay where their answer is computed."""
    busy_answers: int = 1
    """Answers for each replica of the model, from which on it counts as busy."""

    def check(self, place: str) -> None:
        """Raises `InvalidField`."""
        checks.integer(f"{place}.replicas", self.replicas, 1, MOST_REPLICAS)
        checks.integer(f"{place}.min_tokens", self.min_tokens, 2, checks.MAX_INT32)
        checks.integer(f"{place}.busy_answers", self.busy_answers, 0, checks.MAX_INT32)


@record(kw_only=True)
class ModelSettings:
    """A model, and its replicas."""

    name: str
    """In requests."""
    model: str | None = None
    """As for `mlc_llm serve`; None is the default model. Each node must be able to open it."""
    device: str = "auto"
    engine_config: Mapping[str, object] = field(default_factory=dict)
    """Fields of `EngineConfig`."""
    replicas: int = 1
    autoscaling: Autoscaling | None = None
    """None: always `replicas`."""
    prefill: Prefill | None = None
    """None: each replica computes the prompts of its answers."""
    num_cpus: float = 1
    """Of each replica. Its threads are as many, at least 1."""
    num_gpus: float = 0
    own_cores: bool = False
    """Whether its threads stay on `num_cpus` cores of the node that no other replica has."""
    routing: Literal["prefix", "power_of_two"] = "prefix"
    """`prefix`: where the beginning of a prompt is computed already, unless too much waits there.
    `power_of_two`: the one of two that has less to do."""
    resume: Literal["error", "replica"] = "error"
    """What becomes of an answer whose replica dies behind the first token. `error`: it ends with an
    error. `replica`: another replica computes it again, and it goes on where it was."""
    attempts: int = 3
    """Replicas that a request may be sent to, one after the other."""
    drain_s: float = 30.0
    """A replica that goes lets its answers end, for so long."""
    health_check_s: float = 5.0
    """How often Ray asks each replica whether it lives: a dead one is replaced so soon."""

    def check(self, place: str) -> None:
        """Raises `InvalidField`."""
        checks.string(f"{place}.name", self.name, MAX_NAME_CHARS, min_chars=1)
        if self.model is not None:
            checks.string(f"{place}.model", self.model, 4096, min_chars=1)
        checks.string(f"{place}.device", self.device, 64, min_chars=1)
        checks.integer(f"{place}.replicas", self.replicas, 1, MOST_REPLICAS)
        checks.number(f"{place}.num_cpus", self.num_cpus, 0.1, 1024)
        checks.number(f"{place}.num_gpus", self.num_gpus, 0, 64)
        checks.boolean(f"{place}.own_cores", self.own_cores)
        if self.own_cores and (self.num_cpus < 1 or self.num_cpus % 1):
            words = "should be a whole number with own_cores"
            raise InvalidField(f"{place}.num_cpus", self.num_cpus, words)
        checks.one_of(f"{place}.routing", self.routing, ROUTINGS)
        checks.one_of(f"{place}.resume", self.resume, RESUME)
        checks.integer(f"{place}.attempts", self.attempts, 1, 1000)
        checks.number(f"{place}.drain_s", self.drain_s, 0, 86_400)
        checks.number(f"{place}.health_check_s", self.health_check_s, 0.1, 3600)
        if self.engine.kv_events is not None:
            words = "replicas publish by themselves, at addresses of their own; leave it out"
            raise InvalidField(f"{place}.engine_config.kv_events", "given", words)
        for name in ("adapters", "max_adapters"):
            if value := getattr(self.engine, name):
                words = "replicas serve no adapters; merge them (convert_weight --lora)"
                raise InvalidField(f"{place}.engine_config.{name}", value, words)

    @property
    def prefill_name(self) -> str:
        """Of the deployment that computes its long prompts."""
        return f"{self.name}-prefill"

    @property
    def most_replicas(self) -> int:
        """As many as there may ever be."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def engine(self) -> EngineConfig:
        """Its config, checked."""
        return EngineConfig.from_mapping(self.engine_config)


@record(kw_only=True)
class AppSettings:
    """An application: its models, and the ingress before them."""

    models: tuple[ModelSettings, ...]
    """The first one is the default one."""
    api_key_file: str | None = None
    """As for `mlc_llm serve`. Without it, every request is served."""
    queue: int = 256
    """Answers that may wait beyond those that the replicas compute, for each ingress."""
    queue_tokens: int = 1 << 18
    """Prompt tokens that may wait for a model, for each ingress."""
    ingresses: int = 1
    """Processes that serve the routes. Keys share fairly within each of them."""

    def __post_init__(self) -> None:
        """Raises `InvalidField`."""
        if not self.models:
            raise InvalidField("models", [], "should have at least one model")
        for number, one in enumerate(self.models):
            one.check(f"models[{number}]")
        names = [one.name for one in self.models]
        names += [one.prefill_name for one in self.models if one.prefill is not None]
        for name in names:
            if names.count(name) > 1:
                raise InvalidField("models", name, "two models have this name")
        checks.integer("queue", self.queue, 0, checks.MAX_INT32)
        checks.integer("queue_tokens", self.queue_tokens, 1, checks.MAX_INT32)
        checks.integer("ingresses", self.ingresses, 1, MOST_REPLICAS)
        if self.api_key_file is not None:
            checks.string("api_key_file", self.api_key_file, 4096, min_chars=1)

    @property
    def keys(self) -> Path | None:
        return None if self.api_key_file is None else Path(self.api_key_file)

    @classmethod
    def of(cls, args: object) -> AppSettings:
        """The settings in `args`. Raises `InvalidField`, `MissingKey`."""
        values = dict(_object("args", args))
        models = values.get("models", [])
        if not isinstance(models, Sequence) or isinstance(models, str):
            raise checks.wrong_type("models", models, "should be a list of models")
        values["models"] = tuple(
            _model(f"models[{number}]", one) for number, one in enumerate(models)
        )
        return _made(cls, "args", values)


def _model(place: str, value: object) -> ModelSettings:
    values = dict(_object(place, value))
    scaling = values.get("autoscaling")
    if scaling is not None:
        own = f"{place}.autoscaling"
        values["autoscaling"] = _made(Autoscaling, own, _object(own, scaling))
        values["autoscaling"].check(own)
    prefill = values.get("prefill")
    if prefill is not None:
        own = f"{place}.prefill"
        values["prefill"] = _made(Prefill, own, _object(own, prefill))
        values["prefill"].check(own)
    config = _object(f"{place}.engine_config", values.get("engine_config", {}))
    return _made(ModelSettings, place, {**values, "engine_config": dict(config)})


MadeT = TypeVar("MadeT", AppSettings, ModelSettings, Autoscaling, Prefill)


def _made(kind: type[MadeT], place: str, values: Mapping[str, Any]) -> MadeT:
    known = {one.name: one for one in fields(kind)}
    for name, value in values.items():
        checks.known_field(name, value, known)
    for name in ("name", "max_replicas", "models"):
        if name in known and name not in values:
            raise MissingKey(f"{place}.{name}", name)
    return kind(**values)


def _object(place: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise checks.wrong_type(place, value, "should be an object")
    return cast("Mapping[str, Any]", value)
