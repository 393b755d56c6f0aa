"""What is known of one HTTP request: for its log line, the metrics of the server and traces.

It never has a word of the request or of its answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import uuid4

from mlc_llm.serve.openai.chunks import Chunk

UNKNOWN_ROUTE = "unknown"


@dataclass
class RequestNote:
    """Filled in by whoever learns something, all on the event loop."""

    request_id: str = field(default_factory=lambda: f"req-{uuid4().hex}")
    """The client's own `x-request-id`, or a new one."""
    method: str = ""
    route: str = UNKNOWN_ROUTE
    """The path of the route, with the names of its parameters."""
    status: int = 0
    """0: nothing was answered."""
    code: str | None = None
    """Which error was answered, or ended a stream."""
    cut_status: int = 0
    """What the status would have been if the stream that an error has ended had not begun; 0: none
    has."""
    model: str | None = None
    """The served name."""
    key: int | None = None
    """Which of the server's keys was given, counted from 1. Never the key."""
    key_name: str | None = None
    """What the file of keys calls it."""
    answer_id: str | None = None
    """The id of the answer in its own protocol."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    owed: int = 0
    """Parts of the answer that the engine computes, whose tokens it has yet to count."""
    ignored: int = 0
    """How many fields of the request had no effect."""
    finish_reasons: list[str] = field(default_factory=list)
    """Of all choices, in the order of their ends."""
    started: float = field(default_factory=time.monotonic)
    started_ns: int = field(default_factory=time.time_ns)
    """The same moment on the clock of the wall."""
    first_token_at: float | None = None
    ended: float | None = None
    is_aborted: bool = False
    """The client left before it had the whole answer."""
    is_anthropic: bool = False
    """Errors have the shape of Anthropic's API, also where the route is of several APIs."""
    traceparent: str | None = None
    """The span of the client's that this request belongs to."""
    _all_counted: asyncio.Event | None = None

    def saw(self, chunk: Chunk) -> None:
        """The engine gave a chunk of the answer."""
        if chunk.usage_json is not None:
            self._add_usage(chunk.usage_json)
            return
        if self.first_token_at is None and not self.is_aborted:
            self.first_token_at = time.monotonic()
        self.finish_reasons += [one.finish_reason for one in chunk.pieces if one.finish_reason]

    async def counted(self, seconds: float) -> None:
        """Wait until the engine has counted its tokens, which it does a step after an answer was
        ended early; but not for longer: it may hang."""
        if self.owed:
            self._all_counted = asyncio.Event()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_counted.wait(), seconds)

    def cut(self, status: int, code: str) -> None:
        """An error has ended a stream that had begun."""
        self.cut_status, self.code = status, code

    @property
    def seconds(self) -> float:
        """From the first byte of the request to the last of its answer."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.started

    def fields(self) -> dict[str, object]:
        """What a log line says. What is not known is None."""
        return {
            "id": self.request_id,
            "answer": self.answer_id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "code": self.code,
            "model": self.model,
            "key": self.key,
            "key_name": self.key_name,
            "tokens_in": self.prompt_tokens,
            "tokens_cached": self.cached_tokens,
            "tokens_out": self.completion_tokens,
            "ttft_s": None if self.ttft is None else round(self.ttft, 6),
            "duration_s": round(self.seconds, 6),
            "finish_reason": ",".join(dict.fromkeys(self.finish_reasons)) or None,
            "ignored_fields": self.ignored,
            "aborted": self.is_aborted,
        }

    def _add_usage(self, text: str) -> None:
        usage = json.loads(text)
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage["completion_tokens"]
        self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.owed -= 1
        if self.owed == 0 and self._all_counted is not None:
            self._all_counted.set()


_current: ContextVar[RequestNote | None] = ContextVar("mlc_llm_request_note", default=None)


def begin_note(note: RequestNote) -> None:
    """From now on, `current_note` in this task and in those that it starts is this one."""
    _current.set(note)


def current_note() -> RequestNote:
    """The note of the request that this task answers; outside of one, a note that nobody reads."""
    return _current.get() or RequestNote()
