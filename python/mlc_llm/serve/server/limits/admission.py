"""How much a server takes on: a bounded number of answers and of bytes of requests, for all and for
each tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlc_llm.serve.server.errors import HTTPError, overloaded, too_many
from mlc_llm.serve.server.limits.speed import LONGEST_RETRY_S
from mlc_llm.serve.server.limits.tenants import ANYBODY, Tenant

RetryS = Callable[[int], int]
"""Seconds in which so many answers end."""


class Admission:
    """Counts what waits and runs. Whatever comes beyond the limits is refused at once, with the
    time after which there should be room. It belongs to the event loop."""

    def __init__(
        self,
        places: Callable[[], int],
        queue: int,
        prompt_bytes: int,
        retry_s: RetryS,
        per_tenant: Callable[[], int | None] = lambda: None,
    ) -> None:
        """places: answers that the engines compute at a time. queue: those that may wait.
        prompt_bytes: of their requests. per_tenant: answers of one; None: no limit."""
        self._places, self._queue, self._byte_limit = places, queue, prompt_bytes
        self._retry_s, self._per_tenant = retry_s, per_tenant
        self.answers = self.bytes = self.refused = 0
        self.of_tenant: Counter[Tenant] = Counter()
        self.is_draining = False

    @property
    def limit(self) -> int:
        """Answers that may wait or run."""
        return self._places() + self._queue

    @contextmanager
    def entered(
        self, answers: int, prompt_bytes: int, tenant: Tenant = ANYBODY, field: str = "n"
    ) -> Iterator[None]:
        """A request is inside for as long as this. field: what asks for so many answers. Raises
        `HTTPError` (503, 429; 400 if there can never be room)."""
        self.check(answers, prompt_bytes, tenant, field)
        self.answers += answers
        self.of_tenant[tenant] += answers
        self.bytes += prompt_bytes
        try:
            yield
        finally:
            self.answers -= answers
            self.of_tenant[tenant] -= answers
            if not self.of_tenant[tenant]:
                del self.of_tenant[tenant]
            self.bytes -= prompt_bytes

    def check(
        self, answers: int, prompt_bytes: int, tenant: Tenant = ANYBODY, field: str = "n"
    ) -> None:
        """Raises what `entered` raises."""
        try:
            self._check(answers, prompt_bytes, tenant, field)
        except HTTPError:
            self.refused += 1
            raise

    def _check(self, answers: int, prompt_bytes: int, tenant: Tenant, field: str) -> None:
        if self.is_draining:
            raise overloaded("the server is ending", retry_s=LONGEST_RETRY_S)
        limit = self.limit
        if answers > limit:
            words = f"{field} counts as {answers} answers; this server has room for {limit}"
            raise HTTPError(400, words, param=field)
        if self.answers + answers > limit:
            words = f"{self.answers} answers wait or run, and no more than {limit} may"
            raise overloaded(words, retry_s=self._retry_s(self.answers + answers - limit))
        own, most = self.of_tenant[tenant], self._per_tenant()
        if most is not None and own + answers > most:
            words = f"{own} answers of this key wait or run, and no more than {most} may"
            raise too_many(words, retry_s=self._retry_s(own + answers - most))
        if self.bytes + prompt_bytes > self._byte_limit and self.bytes:
            words = "the requests that wait or run are too large for one more"
            raise overloaded(words, retry_s=self._retry_s(1))
