"""The LoRA adapters of an engine: their names, where they lie in the runner, and who uses them.

An adapter that is dropped takes no more requests. Its slot is free when the last request that has
it is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.runtime.batch import AdapterParts

MAX_NAME_CHARS = 256
_MARK = "adapter "
"""How the salts of adapters begin."""
Load: TypeAlias = Callable[[int, AdapterParts], None]


@dataclass(eq=False)
class Adapter:
    """One that was loaded."""

    name: str
    slot: int
    number: int
    """Another one each time that an adapter is loaded."""
    users: int = 0
    """Requests that have it."""
    is_dropped: bool = False


class Adapters:
    """One thread changes it, between two steps. Any thread may call `find` and read `names`."""

    def __init__(self, slots: int, load: Load) -> None:
        """load: puts an adapter into a slot."""
        self._slots, self._load = slots, load
        self._free = list(range(slots))[::-1]
        self._by_name: dict[str, Adapter] = {}
        self._numbers = itertools.count(1)

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def find(self, name: str) -> Adapter:
        """Raises `InvalidField` for a name that is not there."""
        found = self._by_name.get(name)
        if found is None:
            known = ", ".join(self._by_name) or "none"
            raise InvalidField("adapter", name, f"there is no such adapter; there is: {known}")
        return found

    def load(self, name: str, parts: AdapterParts) -> None:
        """Raises `InvalidField` for a name that is taken, and if all slots are."""
        checks.string("adapter", name, MAX_NAME_CHARS, min_chars=1)
        if name in self._by_name:
            raise InvalidField("adapter", name, "an adapter has this name; drop it first")
        if not self._free:
            words = f"{self._slots} adapters are loaded or in use; drop one, or raise max_adapters"
            raise InvalidField("adapter", name, words)
        self._load(self._free[-1], parts)
        self._by_name[name] = Adapter(name, self._free.pop(), next(self._numbers))

    def drop(self, name: str) -> None:
        """Raises `InvalidField` for a name that is not there."""
        found = self.find(name)
        del self._by_name[name]
        found.is_dropped = True
        self._free_slot(found)

    def take(self, adapter: Adapter | None) -> None:
        """A request with this adapter begins."""
        if adapter is not None:
            adapter.users += 1

    def give_back(self, adapter: Adapter | None) -> None:
        """It is over."""
        if adapter is not None:
            adapter.users -= 1
            self._free_slot(adapter)

    def check_integrity(self) -> None:
        """AssertionError unless each slot is free or has one adapter."""
        taken = [one.slot for one in self._by_name.values()]
        assert len({*self._free, *taken}) == len(self._free) + len(taken), "a slot is used twice"

    def _free_slot(self, adapter: Adapter) -> None:
        if adapter.is_dropped and not adapter.users:
            self._free.append(adapter.slot)


def salt_of(adapter: Adapter | None, own: str, *, is_exact: bool = False) -> str:
    """The salt of a request, with its `own` one: keys and values are those of the adapter, and
    others where its prompt is computed exactly and most are not. If nothing of this is so, it is
    the own one, unless that looks like another."""
    if adapter is None and not is_exact and not own.startswith(_MARK):
        return own
    exactly = " exactly" if is_exact else ""
    return f"{_MARK}{0 if adapter is None else adapter.number}{exactly}:{own}"


def no_adapters() -> Adapters:
    """Those of an engine that takes none."""
    return Adapters(0, lambda slot, parts: None)
