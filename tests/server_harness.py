"""A server on the echo engine in a thread of this process, and a plain HTTP client for it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.serve.async_reader import AsyncClient
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.server.calls.context import ServerContext
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.listening import bound
from mlc_llm.serve.server.pool.names import slots_of
from mlc_llm.serve.server.pool.openers import EngineOpener, Opener
from mlc_llm.serve.server.pool.registry import ModelRegistry
from mlc_llm.serve.server.run import Server

JSON = {"content-type": "application/json"}


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> dict[str, Any]:
        body = self.json
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
        found: dict[str, Any] = body["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The data of a stream, which must end as it should."""
        lines = [one for one in self.data.decode().split("\n\n") if one]
        assert all(one.startswith("data: ") for one in lines if not one.startswith(":"))
        found = [one.removeprefix("data: ") for one in lines if not one.startswith(":")]
        assert found[-1] == "[DONE]"
        return [json.loads(one) for one in found[:-1]]


@dataclass
class Running:
    """A server, and where it listens."""

    server: Server
    context: ServerContext
    port: int

    @property
    def client(self) -> AsyncClient:
        """Of the default model."""
        client = self.context.models.default.client
        assert client is not None
        return client

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """body: bytes, or what becomes JSON."""
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {**(JSON if data else {}), **(headers or {})})
            found = connection.getresponse()
            kept = {name.lower(): value for name, value in found.getheaders()}
            return Reply(found.status, kept, found.read())
        finally:
            connection.close()

    def chat(self, text: str, **more: Any) -> Reply:
        body = {"messages": [{"role": "user", "content": text}], **more}
        return self.call("POST", "/v1/chat/completions", body)

    @property
    def requests(self) -> int:
        """Requests that the engine has."""
        return len(self.client._callback.running)

    def wait_alone(self) -> None:
        """Until the server has done with every connection that was made to it before."""
        assert self.call("GET", "/health").status == 200  # connections are taken in order
        state = self.server.server_state
        eventually(lambda: not state.connections and not state.tasks, "a connection is kept")
        self.wait_idle()

    def wait_idle(self) -> None:
        eventually(lambda: self.requests == 0, "a request goes on")
        eventually(lambda: self.context.admission.answers == 0, "an answer goes on")


@contextmanager
def running(
    settings: ServerSettings | None = None,
    models: Sequence[str] = ("mock://echo",),
    opener: Opener | None = None,
    sequences: int | None = None,
    chunk: int | None = None,
    **more: Any,
) -> Iterator[Running]:
    """A server until the end of the block. opener: the usual one if None. sequences: answers that
    its engine computes at a time. chunk: tokens of a step. more: of the registry."""
    settings = settings or ServerSettings(port=0)
    settings.check()
    opener = opener or EngineOpener(
        "cpu",
        EngineConfig(mode="server", max_num_sequence=sequences, prefill_chunk_size=chunk),
        traces=settings.debug,
    )
    registry = ModelRegistry(
        slots_of(models, ()),
        opener,
        any_name=settings.any_name,
        **{"most_tokens": settings.limits.queue_tokens, **more},
    )
    registry.open_now(registry.default)
    context = ServerContext(registry, settings)
    with bound(settings) as own:
        server = Server(context)
        thread = threading.Thread(target=server.run, args=([own],))
        thread.start()
        try:
            eventually(lambda: server.started, "the server did not start")
            yield Running(server, context, own.getsockname()[1])
        finally:
            server.end(at_once=True)
            thread.join(PATIENCE_SECONDS)
            registry.terminate()
            assert not thread.is_alive()


def named_events(data: bytes) -> list[dict[str, Any]]:
    """The data of events, each of which has its name twice."""
    found = []
    for one in data.decode().strip().split("\n\n"):
        name, line = one.split("\n")
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
