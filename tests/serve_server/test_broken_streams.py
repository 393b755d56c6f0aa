"""A bug in what writes a stream: the client gets an error, and the log says where it is."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from server_harness import Running

from mlc_llm.serve.server.routes.completion import CompletionStream
from mlc_llm.serve.server.routes.ollama import LineStream
from mlc_llm.serve.server.streams.named_events import NamedEvents
from mlc_llm.serve.server.streams.stream_json import ChatStream

SAID = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "stream": True}
STREAMS: list[tuple[str, dict[str, Any], type]] = [
    ("/v1/chat/completions", SAID, ChatStream),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 3, "stream": True}, CompletionStream),
    ("/v1/messages", SAID, NamedEvents),
    ("/v1/responses", {"input": "hello", "stream": True}, NamedEvents),
    ("/api/generate", {"prompt": "hello"}, LineStream),
]
ROUTES = [path for path, _, _ in STREAMS]


def failing(*_: object) -> Any:
    raise TypeError("a bug of the writer")


@pytest.mark.parametrize("method", ["begin", "events", "end"])
@pytest.mark.parametrize("stream", STREAMS, ids=ROUTES)
def test_the_client_gets_an_error_and_the_log_the_traceback(
    server: Running,
    stream: tuple[str, dict[str, Any], type],
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, body, writer = stream
    monkeypatch.setattr(writer, method, failing)
    reply = server.call("POST", path, body)
    monkeypatch.undo()
    last = json.loads(reply.data.decode().strip().split("\n")[-1].removeprefix("data: "))
    assert reply.status == 200 and "its log says which" in json.dumps(last)
    assert "error" in str(last.get("type", last)) and b"[DONE]" not in reply.data
    assert "TypeError: a bug of the writer" in caplog.text and "Traceback" in caplog.text
    server.wait_idle()


def test_an_error_that_cannot_be_written_is_in_the_log(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("events", "failed"):
        monkeypatch.setattr(ChatStream, method, failing)
    with pytest.raises(http.client.IncompleteRead):
        server.call("POST", ROUTES[0], SAID)
    server.wait_idle()
    assert "a stream broke off" in caplog.text
