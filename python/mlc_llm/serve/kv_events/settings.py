"""Where an engine says what its prefix cache holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Literal

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.protocol.field_docs import with_field_docs
from mlc_llm.record import record

EventForm = Literal["map", "array"]
FORMS: tuple[EventForm, ...] = ("map", "array")
MAX_TOPIC_CHARS = 256
MOST_KEPT = 1_000_000
_LISTEN = re.compile(r"tcp://[^\s/>@]+:\d{1,5}|ipc://\S+")
_ENDPOINT = "should be tcp://ADDRESS:PORT or ipc://FILE"


@with_field_docs
@record(kw_only=True)
class KVEventsConfig:
    """How KV events are published. The messages and the sockets are those of vLLM 0.33."""

    endpoint: str
    """Where events are published: an address of ZeroMQ to listen on, such as tcp://127.0.0.1:5557
    (tcp://*:5557: for other machines too; port 0: a free one). With > before it, a subscriber
    listens there, and the engine connects to it."""
    replay_endpoint: str | None = None
    """Where the last events can be asked for again: an address to listen on. None: nowhere."""
    topic: str = ""
    """What stands before each message, for subscribers that choose."""
    form: EventForm = "map"
    """`map` is what vLLM writes since June 2026. `array` is what it wrote before, for older
    readers."""
    buffer_steps: int = 10_000
    """Messages that can be asked for again, at least 1."""

    def __post_init__(self) -> None:
        """Raises `InvalidField`."""
        name = "kv_events."
        endpoint = checks.string(f"{name}endpoint", self.endpoint, 4096)
        if not _LISTEN.fullmatch(endpoint.removeprefix(">")):
            raise InvalidField(
                f"{name}endpoint", endpoint, f"{_ENDPOINT}, with or without > before"
            )
        if self.replay_endpoint is not None:
            replay = checks.string(f"{name}replay_endpoint", self.replay_endpoint, 4096)
            if not _LISTEN.fullmatch(replay):
                raise InvalidField(f"{name}replay_endpoint", replay, _ENDPOINT)
        checks.string(f"{name}topic", self.topic, MAX_TOPIC_CHARS)
        checks.one_of(f"{name}form", self.form, FORMS)
        checks.integer(f"{name}buffer_steps", self.buffer_steps, 1, MOST_KEPT)

    @classmethod
    def of(cls, name: str, value: object) -> KVEventsConfig:
        """`value` itself, or a config of the fields of a mapping. Raises `InvalidField`."""
        if isinstance(value, KVEventsConfig):
            return value
        if not isinstance(value, Mapping):
            raise checks.wrong_type(name, value, "should be an object with an endpoint")
        for key, given in value.items():
            checks.known_field(key, given, [one.name for one in fields(cls)])
        if "endpoint" not in value:
            raise InvalidField(f"{name}.endpoint", None, _ENDPOINT)
        return cls(**value)
