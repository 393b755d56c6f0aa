"""Counts the requests of a server, for Prometheus."""

from __future__ import annotations

from collections import Counter

from mlc_llm.serve.histogram import SECONDS, Histogram
from mlc_llm.serve.prometheus import Page
from mlc_llm.serve.server.notes.note import RequestNote

REFUSALS = (429, 503)
"""Statuses of requests that are refused for want of room."""
BY_STATUS = {429: "rate_limited", 503: "unavailable"}
"""The reason of a refusal without a code."""


class ServerMetrics:
    """It belongs to the event loop. The names of routes are few, so its size is bounded."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._seconds: dict[tuple[str, str], Histogram] = {}
        self._refusals: Counter[str] = Counter()
        self._aborted = 0

    def ended(self, note: RequestNote) -> None:
        """A request has got its answer, or its client has gone."""
        route, method = note.route, note.method if note.method in _METHODS else "other"
        self._requests[route, method, f"{note.status // 100}xx"] += 1
        self._seconds.setdefault((route, method), Histogram(SECONDS)).add(note.seconds)
        self._aborted += note.is_aborted
        status = note.status
        if note.first_token_at is None and note.cut_status:  # refused after signs of life
            status = note.cut_status
        if status in REFUSALS:
            self._refusals[note.code or BY_STATUS[status]] += 1

    def add_to(self, page: Page, model_name: str) -> None:
        """Write all numbers down. model_name: a label of what has vLLM's names."""
        for (route, method, status), count in self._requests.items():
            labels = {"handler": route, "method": method, "status": status}
            words = "HTTP requests that have ended."
            page.add("http_requests_total", count, labels, kind="counter", help=words)
        for (route, method), seconds in self._seconds.items():
            labels = {"handler": route, "method": method}
            words = "From the first byte of a request to the last of its answer."
            page.add_histogram("http_request_duration_seconds", seconds.asdict(), labels, words)
        name, words = "vllm:admission_rejections_total", "Requests refused for want of room."
        for reason in {"overloaded", *self._refusals}:
            labels = {"engine": "0", "model_name": model_name, "reason": reason}
            page.add(name, self._refusals[reason], labels, kind="counter", help=words)
        words = "Requests whose clients left before the end."
        page.add("mlc_llm:client_aborts_total", self._aborted, kind="counter", help=words)


_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
