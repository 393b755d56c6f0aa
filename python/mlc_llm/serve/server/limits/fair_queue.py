"""Who is next, if several tenants wait.

Each tenant has a counter of the tokens that were computed for it, divided by its weight; the tenant
with the lowest counter is next. A tenant that comes after a pause starts at the lowest counter of
those who are there, so nobody saves up a share. Source: the Virtual Token Counter of "Fairness in
Serving Large Language Models" (arXiv 2401.00588), which also counts an answer's token twice.

Among the requests of one tenant, the order is that of arrival. A priority moves a request as though
it had come earlier or later. So no request waits for ever, and nobody gets ahead of other tenants.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mlc_llm.serve.server.limits.tenants import Tenant

ANSWER_WEIGHT = 2.0
"""Cost of a token of an answer, in tokens of a prompt."""
PRIORITY_S = 10.0
"""Seconds by which one step of priority moves a request."""
MAX_PRIORITY = 10

ItemT = TypeVar("ItemT")


@dataclass(order=True)
class _Entry(Generic[ItemT]):
    at: float
    number: int
    item: ItemT = field(compare=False)


class FairQueue(Generic[ItemT]):
    """Requests that wait. It belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Tenant, list[_Entry[ItemT]]] = {}
        self._inside: dict[Tenant, int] = {}
        """Requests that were taken and have not ended."""
        self._used: dict[Tenant, float] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, tenant: Tenant, item: ItemT, *, arrival: float, priority: int) -> None:
        """arrival: in seconds. priority: -10 (first) to 10 (last)."""
        if tenant not in self._waiting and tenant not in self._inside:
            present = [self._used[one] for one in {*self._waiting, *self._inside}]
            self._used[tenant] = max(self._used.get(tenant, 0.0), min(present, default=0.0))
        at = arrival + priority * PRIORITY_S
        entries = self._waiting.setdefault(tenant, [])
        heapq.heappush(entries, _Entry(at, next(self._numbers), item))

    def first(self) -> ItemT | None:
        """The next one, which stays."""
        tenant = self._next_tenant()
        return None if tenant is None else self._waiting[tenant][0].item

    def take(self, cost: float) -> ItemT | None:
        """The next one. cost: what it is expected to cost its tenant, in tokens of a prompt."""
        tenant = self._next_tenant()
        if tenant is None:
            return None
        entries = self._waiting[tenant]
        item = heapq.heappop(entries).item
        if not entries:
            del self._waiting[tenant]
        self._inside[tenant] = self._inside.get(tenant, 0) + 1
        self.charge(tenant, cost)
        return item

    def charge(self, tenant: Tenant, cost: float) -> None:
        """Add to what a tenant has used; below 0 if too much was expected."""
        self._used[tenant] = self._used.get(tenant, 0.0) + cost / tenant.weight

    def ended(self, tenant: Tenant) -> None:
        """A request that was taken has ended."""
        self._inside[tenant] -= 1
        if not self._inside[tenant]:
            del self._inside[tenant]
        if not self._inside and not self._waiting:
            self._used.clear()

    def remove(self, tenant: Tenant, item: ItemT) -> bool:
        """Forget one that waits. False: it does not wait."""
        entries = self._waiting.get(tenant, [])
        left = [one for one in entries if one.item is not item]
        if len(left) == len(entries):
            return False
        heapq.heapify(left)
        self._waiting[tenant] = left
        if not left:
            del self._waiting[tenant]
        return True

    def _next_tenant(self) -> Tenant | None:
        def rank(tenant: Tenant) -> tuple[float, _Entry[ItemT]]:
            return self._used.get(tenant, 0.0), self._waiting[tenant][0]

        return min(self._waiting, key=rank, default=None)
