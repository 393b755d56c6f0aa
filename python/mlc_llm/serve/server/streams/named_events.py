"""Streams whose events have names."""

from __future__ import annotations

from collections.abc import Iterator

from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.events import Event, EventSource
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.streams.stream_json import COMMENT, EVENT_STREAM, check_end


class NamedEvents:
    """Writes the events of a source."""

    media_type = EVENT_STREAM

    def __init__(self, request_id: str, source: EventSource) -> None:
        self._request_id, self._source = request_id, source
        self.ping = COMMENT if source.ping is None else _bytes(source.ping)

    def begin(self) -> bytes:
        return b"".join(map(_bytes, self._source.begin()))

    def events(self, part: int, chunk: Chunk) -> Iterator[bytes]:
        """Raises `RequestError` for a request that failed or was ended."""
        check_end(chunk, self._request_id)
        for event in self._source.of(part, chunk):
            yield _bytes(event)

    def end(self) -> bytes:
        return b""

    def failed(self, error: HTTPError) -> bytes:
        return b"".join(map(_bytes, self._source.failed(error.status, error.body.message)))


def _bytes(event: Event) -> bytes:
    return f"event: {event.name}\ndata: {event.data}\n\n".encode()
