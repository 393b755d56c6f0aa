"""How much a server takes on: a bounded number of answers and of prompt bytes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from mlc_llm.serve.server.errors import HTTPError, overloaded

REMEMBERED = 64
"""Ended answers by which the speed is measured."""
LONGEST_RETRY_S = 60


class Admission:
    """Counts what waits and runs. Whatever comes beyond the limits is refused at once, with the
    time after which there should be room. It belongs to the event loop."""

    def __init__(self, answers: int, prompt_bytes: int) -> None:
        """answers: those that may wait or run. prompt_bytes: of their requests."""
        self.limit, self._byte_limit = answers, prompt_bytes
        self.answers = self.bytes = self.refused = 0
        self.is_draining = False
        self._ends: deque[float] = deque(maxlen=REMEMBERED)

    @contextmanager
    def entered(self, answers: int, prompt_bytes: int) -> Iterator[None]:
        """A request is inside for as long as this. Raises `HTTPError` (503) if it has no room."""
        self._check(answers, prompt_bytes)
        self.answers += answers
        self.bytes += prompt_bytes
        try:
            yield
        finally:
            self.answers -= answers
            self.bytes -= prompt_bytes
            self._ends.extend([time.monotonic()] * answers)

    def retry_s(self) -> int:
        """Seconds until one answer should have ended, by the speed of the last ones."""
        if len(self._ends) < 2:
            return 1
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return max(1, min(LONGEST_RETRY_S, round(each * max(1, self.answers - self.limit + 1))))

    def _check(self, answers: int, prompt_bytes: int) -> None:
        if self.is_draining:
            raise self._refusal("the server is ending", LONGEST_RETRY_S)
        if answers > self.limit:
            words = f"n asks for {answers} answers; this server has room for {self.limit}"
            raise HTTPError(400, words, param="n")
        if self.answers + answers > self.limit:
            words = f"{self.answers} answers wait or run, and no more than {self.limit} may"
            raise self._refusal(words, self.retry_s())
        if self.bytes + prompt_bytes > self._byte_limit and self.bytes:
            words = "the requests that wait or run are too large for one more"
            raise self._refusal(words, self.retry_s())

    def _refusal(self, words: str, retry_s: int) -> HTTPError:
        self.refused += 1
        return overloaded(words, retry_s=retry_s)
