"""Which slot holds the state of which sequence: the only place that knows.

A recurrent layer keeps numbers of fixed size for a sequence. They lie in a slot of a tensor; a
sequence has the same slot in all layers. A step reads one slot and writes another one, so:

* no slot is written twice: a fork shares its parent's slot, and nothing is copied;
* the last step of a sequence can be undone, and draft tokens of it one by one;
* states in the middle of a step can be kept: its row is cut there into several, which are computed
  one behind the other, and a slot gets what lies between them.

A state cannot be cut at any other token: a sequence is forked, or rolled back to, where its state
is kept.

The large parts of a state may lie in a *base*: it is what they were behind the first tokens of the
sequence, a multiple of a chunk, and the slot has the rest. A base is written once, when the tokens
of a row fill a chunk, and belongs to all slots behind it until the next chunk is full.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from mlc_llm.runtime.limits import KEPT_STATES, state_bases, state_slots

Numbers: TypeAlias = "array[int]"
NOTHING: Mapping[int, Sequence[int]] = MappingProxyType({})
NO_DRAFTS: Mapping[int, int] = MappingProxyType({})
EMPTY = 0
"""The slot of a sequence without tokens, and the base of one that has not filled a chunk yet: all
zeros, and never written."""


class StatePlace(NamedTuple):
    """Where a state lies."""

    slot: int
    base: int


class Pool:
    """Numbers of slots, or of bases, and how often each is used. EMPTY is everybody's."""

    def __init__(self, size: int) -> None:
        self._counts = [0] * size
        self._free = list(range(size - 1, EMPTY, -1))
        self._later: list[int] = []

    def take(self) -> int:
        """One that nobody uses."""
        new = self._free.pop()
        self._counts[new] = 1
        return new

    def share(self, one: int) -> int:
        """It is used once more."""
        if one != EMPTY:
            self._counts[one] += 1
        return one

    def drop(self, one: int, *, later: bool = False) -> bool:
        """It is used once less. Whether nobody uses it any more. later: then it is free behind the
        next `settle`."""
        if one == EMPTY:
            return False
        self._counts[one] -= 1
        if self._counts[one] == 0:
            (self._later if later else self._free).append(one)
        return self._counts[one] == 0

    def settle(self) -> None:
        """All that nobody uses is free."""
        self._free.extend(self._later)
        self._later.clear()

    @property
    def used(self) -> Sequence[int]:
        return [one for one, count in enumerate(self._counts) if count]

    def check(self, uses: Iterable[int]) -> None:
        """AssertionError unless each is used as often as its count says, or free once."""
        counts = Counter(one for one in uses if one != EMPTY)
        found = [counts[one] for one in range(len(self._counts))]
        assert found == self._counts, "reference counts"
        free = [one for one, count in enumerate(found) if count == 0 and one != EMPTY]
        assert sorted(self._free) == free, "free list"


@dataclass
class SequenceState:
    """The slot of one sequence, with the state behind `length` tokens."""

    slot: int = EMPTY
    length: int = 0
    undo: dict[int, int] = field(default_factory=dict)
    """Slots of the state before its last step, and of those behind fewer draft tokens, by their
    number of tokens; none if there was no step, or if something of it was undone."""
    kept: dict[int, int] = field(default_factory=dict)
    """Slots of its states behind fewer tokens, by their number."""
    wanted: frozenset[int] = frozenset()
    """Where the step that runs keeps a state."""
    drafted: range = range(0)
    """Where it keeps one until the next step."""

    @property
    def owned(self) -> tuple[int, ...]:
        """All its slots."""
        return (self.slot, *self.undo.values(), *self.kept.values())


class StateTable:
    """Not thread safe: one engine thread owns it. Its sequences are those of the page tables, which
    check their number."""

    def __init__(self, max_num_sequence: int, draft_tokens: int = 0, chunk: int = 1) -> None:
        """draft_tokens: so many of a step at most. chunk: tokens behind which a base changes."""
        self._num_bases = state_bases(max_num_sequence, draft_tokens)
        self._num_slots, self._chunk = state_slots(max_num_sequence, draft_tokens, chunk), chunk
        self.reset()

    def lengths(self) -> dict[int, int]:
        """Tokens of every sequence."""
        return {seq_id: one.length for seq_id, one in self._sequences.items()}

    def kept(self, seq_id: int) -> Sequence[int]:
        """Numbers of tokens behind which an earlier state of the sequence is kept."""
        return tuple(self._sequences[seq_id].kept)

    def add(self, seq_id: int) -> None:
        """An empty sequence."""
        assert seq_id not in self._sequences, f"sequence {seq_id} exists"
        self._sequences[seq_id] = SequenceState()

    def where(self, seq_id: int) -> StatePlace:
        """Where the state behind all its tokens lies."""
        slot = self._sequences[seq_id].slot
        return StatePlace(slot, self._base_of[slot])

    def restore(self, seq_id: int, length: int) -> StatePlace:
        """A sequence whose state comes from elsewhere. Returns where it belongs, which means
        nothing yet. What was before is not kept."""
        new = self._taken(self._bases.take())
        self._sequences[seq_id] = SequenceState(new.slot, length)
        return new

    def fork(self, parent: int, child: int, length: int) -> None:
        """AssertionError unless `length` is all of the parent, or its state there is kept. The
        child keeps the states before it too."""
        source = self._sequences[parent]
        slot = source.slot if length == source.length else source.kept.get(length)
        assert slot is not None, "a state cannot be cut"
        self.add(child)
        kept = {n: one for n, one in source.kept.items() if n <= length}
        self._sequences[child] = found = SequenceState(slot, length, kept=kept)
        for one in found.owned:
            self._slots.share(one)

    def rollback(self, seq_id: int, num_tokens: int) -> None:
        """AssertionError unless `num_tokens` are none, or all of the last step, or draft tokens of
        it, or the state before them is kept."""
        one = self._sequences[seq_id]
        if num_tokens == 0:
            return
        length = one.length - num_tokens
        slot = one.undo.get(length, one.kept.get(length))
        assert slot is not None, "a state cannot be cut"
        kept = {n: kept for n, kept in one.kept.items() if n <= length}
        self._sequences[seq_id] = found = SequenceState(slot, length, kept=kept)
        for each in found.owned:
            self._slots.share(each)
        for each in one.owned:
            self._drop(each)

    def remove(self, seq_id: int) -> None:
        """Gives the sequence's slots back."""
        one = self._sequences.pop(seq_id)
        for slot in one.owned:
            self._drop(slot)

    def reset(self) -> None:
        """Drops every sequence. Works whatever state an interrupted call has left."""
        self._slots, self._bases = Pool(self._num_slots), Pool(self._num_bases)
        self._base_of = [EMPTY] * self._num_slots
        """Of each slot in use. A base is used by these slots."""
        self._drafting = set[int]()
        self._sequences: dict[int, SequenceState] = {}

    def place(
        self,
        rows: Sequence[tuple[int, int]],
        keep: Mapping[int, Sequence[int]] = NOTHING,
        drafted: Mapping[int, int] = NO_DRAFTS,
    ) -> Numbers:
        """`state_rows` (see `library/signatures.py`) for `n` new tokens of each (seq_id, n). A
        sequence may come again, with the tokens behind.

        keep: by sequence, behind how many of its tokens the state is kept, if it lies before the
        last new one. Of all that a sequence keeps, the first and the last places stay.
        drafted: by sequence, how many of the tokens of its one row are draft tokens, before which
        the state is kept until the next step.
        """
        found, first, started = array("i"), 0, set[int]()
        self._forget_drafts()
        for seq_id, n in rows:
            if seq_id not in started:
                self._start(seq_id, keep.get(seq_id, ()))
                started.add(seq_id)
            one = self._sequences[seq_id]
            if seq_id in drafted:
                end = one.length + n
                one.drafted = range(end - drafted[seq_id], end)
                self._drafting.add(seq_id)
            for end in (*_inside(one, n, keep.get(seq_id, ())), one.length + n):
                count, old, at = end - one.length, one.slot, one.length % self._chunk
                base = self._base_of[old]
                new = self._advance(one, count)
                found.extend((first, count, old, new.slot, base, new.base, at))
                first += count
        self._slots.settle()
        return found

    def _start(self, seq_id: int, keep: Sequence[int]) -> None:
        """A step begins, which keeps some states of the sequence. What it does not keep any more is
        given back first."""
        one = self._sequences[seq_id]
        wanted = sorted({*one.kept, *keep})
        stays = {*wanted[:1], *wanted[1 - KEPT_STATES :]}
        kept = {n: slot for n, slot in one.kept.items() if n in stays}
        if one.length in stays:
            kept[one.length] = one.slot
        before = {one.length: one.slot}
        new = SequenceState(one.slot, one.length, before, kept, frozenset(stays))
        for slot in new.owned:
            self._slots.share(slot)
        for slot in one.owned:
            self._drop(slot)
        self._sequences[seq_id] = new

    def _forget_drafts(self) -> None:
        """Nobody rolls draft tokens of an earlier step back one by one."""
        for seq_id in self._drafting & self._sequences.keys():
            one = self._sequences[seq_id]
            for n in [n for n in one.undo if n in one.drafted]:
                self._drop(one.undo.pop(n))
        self._drafting.clear()

    def _advance(self, one: SequenceState, count: int) -> StatePlace:
        """A place for the state behind `count` more tokens; the slot before is given back, if
        nobody keeps it. The base is a new one if they fill a chunk.

        With chunks, kernels go through the rows twice: a slot that this step has written and read
        is not written by a later row. A base is for one of the passes alone.
        """
        fills = one.length % self._chunk + count >= self._chunk
        base = self._bases.take() if fills else self._bases.share(self._base_of[one.slot])
        new = self._taken(base)
        self._drop(one.slot, later=self._chunk > 1)
        one.slot, one.length = new.slot, one.length + count
        if one.length in one.wanted:
            one.kept[one.length] = self._slots.share(new.slot)
        if one.length in one.drafted:
            one.undo[one.length] = self._slots.share(new.slot)
        return new

    def check_integrity(self) -> None:
        """AssertionError unless every slot is owned, and every base referred to, as often as its
        count says, or free once."""
        for one in self._sequences.values():
            assert (one.slot == EMPTY) == (one.length == 0), "a state without tokens"
            for length, slot in {**one.undo, **one.kept, one.length: one.slot}.items():
                has_base = self._base_of[slot] != EMPTY
                assert has_base or length < self._chunk, "a full chunk without a base"
        self._slots.check(slot for one in self._sequences.values() for slot in one.owned)
        self._bases.check(self._base_of[slot] for slot in self._slots.used)

    def _taken(self, base: int) -> StatePlace:
        """A new slot with that base, which is counted already."""
        slot = self._slots.take()
        self._base_of[slot] = base
        return StatePlace(slot, base)

    def _drop(self, slot: int, *, later: bool = False) -> None:
        if self._slots.drop(slot, later=later):
            self._bases.drop(self._base_of[slot])


def _inside(one: SequenceState, n: int, places: Sequence[int]) -> list[int]:
    """The places within `n` more tokens where the state is kept, in order."""
    wanted = {*one.wanted.intersection(places), *one.drafted}
    return [at for at in sorted(wanted) if one.length < at < one.length + n]
