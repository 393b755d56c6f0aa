"""A cache of bounded size. The value that was not used for the longest time goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Costly(Protocol):
    """A value that says how many bytes it holds. The number may grow."""

    @property
    def cost(self) -> int: ...


Value = TypeVar("Value", bound=Costly)


class Cache(Generic[Value]):
    """Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    @property
    def cost(self) -> int:
        """Bytes held by all values as they are now."""
        with self._lock:
            return self._cost()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """The value, which then counts as used."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value, and drop old ones until all fit. A value that cannot fit is not kept."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while self._values and self._cost() > self._max_bytes:
                self._values.popitem(last=False)

    def drop(self, key: Hashable, value: Value) -> None:
        """Forget a value, if it is still the one under this key."""
        with self._lock:
            if self._values.get(key) is value:
                del self._values[key]

    def _cost(self) -> int:
        return sum(value.cost for value in self._values.values())
