"""Spans of OpenTelemetry: one a request, with the names that the convention gives them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from server_harness import JSON, Running, running
from threaded_harness import eventually

from mlc_llm.errors import RequestError
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.routes.completion import CompletionStream

SECRET = "the-word-that-nobody-may-read"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Running, Any]]:
    pytest.importorskip("opentelemetry.sdk", reason="needs pip install 'mlc-llm[otel]'")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mlc_llm.serve.server.notes.otel import Spans

    exporter = InMemorySpanExporter()
    spans = Spans(SimpleSpanProcessor(exporter))
    with running(ServerSettings(port=0)) as server:
        server.context.watchers.append(spans.ended)
        yield server, exporter
    spans.close()


def one_span(exporter: Any) -> Any:
    eventually(exporter.get_finished_spans, "there is no span")
    (span,) = exporter.get_finished_spans()
    exporter.clear()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_the_span_of_a_chat(traced: tuple[Running, Any], stream: bool) -> None:
    server, exporter = traced
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3, "stream": stream}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert server.call("POST", "/v1/chat/completions", body, headers).status == 200
    span = one_span(exporter)
    assert span.name == "chat mock://echo" and span.kind.name == "SERVER"
    assert format(span.context.trace_id, "032x") == TRACE
    assert format(span.parent.span_id, "016x") == PARENT
    found = span.attributes
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == "mock://echo"
    assert found["gen_ai.usage.input_tokens"] == len(SECRET)
    assert found["gen_ai.usage.output_tokens"] == 3
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert found["gen_ai.response.id"].startswith("chatcmpl-")
    assert found["http.route"] == "/v1/chat/completions" and "error.type" not in found
    (first,) = span.events
    assert span.start_time < first.timestamp <= span.end_time
    assert SECRET not in span.to_json()


def test_spans_of_what_fails(traced: tuple[Running, Any]) -> None:
    server, exporter = traced
    server.call("GET", "/health")
    assert server.chat("a", model="other").status == 404
    span = one_span(exporter)
    assert span.name == "chat" and span.attributes["error.type"] == "model_not_found"
    assert span.status.status_code.name == "UNSET" and span.parent is None
    connection = server.connect()
    body = {"prompt": "abc " * 500, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), JSON)
    connection.getresponse().readline()
    connection.close()
    span = one_span(exporter)
    assert span.attributes["gen_ai.operation.name"] == "text_completion"
    assert span.attributes["error.type"] == "client_left"


def test_the_span_of_a_stream_that_ends_with_an_error(
    traced: tuple[Running, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, exporter = traced

    def fail(*_: object) -> Any:
        raise RequestError("the model failed")

    with monkeypatch.context() as patched:
        patched.setattr(CompletionStream, "events", fail)
        reply = server.call("POST", "/v1/completions", {"prompt": "a", "stream": True})
    assert reply.status == 200 and b"the model failed" in reply.data
    span = one_span(exporter)
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["error.type"] == "request_failed"
    assert span.attributes["http.response.status_code"] == 200


@pytest.mark.parametrize("value", ["nonsense", "grpc://localhost:4317", SECRET])
def test_an_address_that_is_none(value: str) -> None:
    code, words = served("--otlp-traces-endpoint", value)
    assert code != 0 and "--otlp-traces-endpoint" in words and "http://" in words


def test_without_the_packages_the_option_says_what_to_install() -> None:
    """None of them is imported without the option, so the server does not need them."""
    code, words = served("--otlp-traces-endpoint", "http://localhost:1", hide="opentelemetry")
    assert code != 0 and "pip install 'mlc-llm[otel]'" in words
    assert "Traceback" not in words


def served(*arguments: str, hide: str = "") -> tuple[int, str]:
    """The end of `mlc_llm serve`. hide: a package that cannot be imported."""
    code = f"""
import sys
if {hide!r}:
    sys.modules[{hide!r}] = None
from mlc_llm.cli.__main__ import program
sys.exit(program())
"""
    command = [sys.executable, "-c", code, "serve", "--model", "mock://echo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stderr
