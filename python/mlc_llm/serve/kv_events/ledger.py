"""Which cache blocks a prefix cache holds, and what has changed since somebody asked."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlc_llm.serve.kv_events.blocks import BLOCK_TOKENS, next_key, root_key, salt_digest
from mlc_llm.serve.kv_events.events import CacheEvent, Cleared, Removed, Stored


@dataclass
class _Sequence:
    """A sequence of the cache."""

    salt: str
    tokens: array[int] = field(default_factory=lambda: array("i"))
    keys: list[int] = field(default_factory=list)
    """Of its whole blocks."""


class BlockLedger:
    """A `CacheObserver` that makes events about blocks of what happens to sequences.

    A block is there as long as a sequence has it, whether it runs or has ended: a new prompt may
    take it over from both.
    """

    def __init__(
        self, publish: Callable[[list[CacheEvent]], object], publisher: object = None
    ) -> None:
        """publish: gets the events of each operation that has changed something. It must not wait.
        publisher: whose method that is, for those who ask where it publishes.

        The first event says that nothing is there.
        """
        self._publish, self.publisher = publish, publisher
        self._events: list[CacheEvent] = []
        self._sequences: dict[int, _Sequence] = {}
        self._holders: Counter[int] = Counter()
        """Sequences that have a block, by its key."""
        self.cleared()
        self.settled()

    @property
    def keys(self) -> set[int]:
        """Of all blocks that are there."""
        return set(self._holders)

    def begun(self, seq_id: int, source: int | None, length: int, salt: str) -> None:
        """See `CacheObserver`."""
        new = _Sequence(salt)
        if source is not None:
            giver = self._sequences[source]
            new.tokens, new.keys = giver.tokens[:length], giver.keys[: length // BLOCK_TOKENS]
            self._holders.update(new.keys)
        self._sequences[seq_id] = new

    def extended(self, seq_id: int, tokens: Sequence[int]) -> None:
        """See `CacheObserver`."""
        one = self._sequences[seq_id]
        one.tokens.extend(tokens)
        first = len(one.keys)
        while (len(one.keys) + 1) * BLOCK_TOKENS <= len(one.tokens):
            at = len(one.keys) * BLOCK_TOKENS
            parent = one.keys[-1] if one.keys else root_key(one.salt)
            key = next_key(parent, one.tokens[at : at + BLOCK_TOKENS])
            one.keys.append(key)
            self._holders[key] += 1
            if self._holders[key] > 1:  # so far, another sequence has them as well
                first = len(one.keys)
        if first < len(one.keys):
            self._events.append(_stored(one, first))

    def cut(self, seq_id: int, length: int) -> None:
        """See `CacheObserver`."""
        one = self._sequences[seq_id]
        del one.tokens[length:]
        self._let_go(one, length // BLOCK_TOKENS)

    def removed(self, seq_id: int) -> None:
        """See `CacheObserver`."""
        self._let_go(self._sequences.pop(seq_id), 0)

    def cleared(self) -> None:
        """See `CacheObserver`."""
        self._sequences.clear()
        self._holders.clear()
        self._events = [Cleared()]

    def settled(self) -> None:
        """See `CacheObserver`."""
        if self._events:
            events, self._events = self._events, []
            self._publish(events)

    def _let_go(self, one: _Sequence, count: int) -> None:
        """It has its first `count` blocks only."""
        gone = []
        for key in reversed(one.keys[count:]):
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                gone.append(key)
        del one.keys[count:]
        if gone:
            self._events.append(Removed(tuple(gone)))


def _stored(one: _Sequence, first: int) -> Stored:
    """All its blocks from this one on are new."""
    return Stored(
        tuple(one.keys[first:]),
        one.keys[first - 1] if first else None,
        one.tokens[first * BLOCK_TOKENS : len(one.keys) * BLOCK_TOKENS],
        salt_digest(one.salt) if one.salt else "",
    )
