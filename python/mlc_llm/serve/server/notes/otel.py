"""A span of OpenTelemetry for each request, made of its note when it has ended.

Names: opentelemetry.io, "Semantic conventions for generative AI". No word of a request or of its
answer is in a span. Needs `pip install mlc-llm[otel]`; only the option imports this file.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mlc_llm.serve.server.notes.note import RequestNote

OPERATIONS = {
    "/chat/completions": "chat",
    "/responses": "chat",
    "/messages": "chat",
    "/api/chat": "chat",
    "/completions": "text_completion",
    "/api/generate": "text_completion",
    "/embeddings": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}
"""By route, without /v1. Other routes get no span."""
SERVICE = "mlc_llm"


class Spans:
    """Sends spans to a collector, on a thread of its own."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("mlc_llm.serve")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_collector(cls, endpoint: str) -> Spans:
        """endpoint: where OTLP over HTTP is taken, such as http://localhost:4318/v1/traces."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def ended(self, note: RequestNote) -> None:
        """Make the span of a request, inside the client's own span if it named one."""
        operation = OPERATIONS.get(note.route.removeprefix("/v1"))
        if operation is None:
            return
        carrier = {} if note.traceparent is None else {"traceparent": note.traceparent}
        span = self._tracer.start_span(
            f"{operation} {note.model}" if note.model else operation,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=note.started_ns,
            attributes=_attributes(note, operation),
        )
        if note.ttft is not None:
            span.add_event("first token", timestamp=note.started_ns + int(note.ttft * 1e9))
        if max(note.status, note.cut_status) >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(note.started_ns + int(note.seconds * 1e9))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _attributes(note: RequestNote, operation: str) -> dict[str, str | int | float | list[str]]:
    found: dict[str, str | int | float | list[str] | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": SERVICE,
        "gen_ai.request.model": note.model,
        "gen_ai.response.model": note.model,
        "gen_ai.response.id": note.answer_id,
        "gen_ai.response.finish_reasons": note.finish_reasons or None,
        "gen_ai.usage.input_tokens": note.prompt_tokens,
        "gen_ai.usage.output_tokens": note.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": note.cached_tokens,
        "http.request.method": note.method,
        "http.route": note.route,
        "http.response.status_code": note.status,
        "error.type": _error(note),
        "mlc_llm.time_to_first_token_s": note.ttft,
        "mlc_llm.request_id": note.request_id,
    }
    return {name: value for name, value in found.items() if value is not None}


def _error(note: RequestNote) -> str | None:
    if note.is_aborted:
        return "client_left"
    status = note.cut_status or note.status
    return note.code or str(status) if status >= 400 else None
