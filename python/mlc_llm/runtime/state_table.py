"""Which slot holds the state of which sequence: the only place that knows.

A recurrent layer keeps numbers of fixed size for a sequence. They lie in a slot of a tensor; a
sequence has the same slot in all layers. A step reads one slot and writes another one, so:

* no slot is written twice: a fork shares its parent's slot, and nothing is copied;
* the last step of a sequence can be undone, and nothing more: a state cannot be cut at an earlier
  token. A sequence is forked at its end, or not at all.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlc_llm.runtime.batch import state_slots

Numbers: TypeAlias = "array[int]"
EMPTY = 0
"""The slot of a sequence without tokens: all zeros, and never written."""


@dataclass
class SequenceState:
    """The slot of one sequence, with the state behind `length` tokens."""

    slot: int = EMPTY
    length: int = 0
    slot_before: int | None = None
    """Before its last step; None: there was none, or it was undone."""
    length_before: int = 0


class StateTable:
    """Not thread safe: one engine thread owns it. Its sequences are those of the page tables, which
    check their number."""

    def __init__(self, max_num_sequence: int) -> None:
        self._num_slots = state_slots(max_num_sequence)
        self.reset()

    def lengths(self) -> dict[int, int]:
        """Tokens of every sequence."""
        return {seq_id: one.length for seq_id, one in self._sequences.items()}

    def add(self, seq_id: int) -> None:
        """An empty sequence."""
        assert seq_id not in self._sequences, f"sequence {seq_id} exists"
        self._sequences[seq_id] = SequenceState()

    def fork(self, parent: int, child: int, length: int) -> None:
        """AssertionError unless `length` is all of the parent."""
        source = self._sequences[parent]
        assert length == source.length, "a state cannot be cut"
        self._share(source.slot)
        self.add(child)
        self._sequences[child] = SequenceState(source.slot, length)

    def rollback(self, seq_id: int, num_tokens: int) -> None:
        """AssertionError unless `num_tokens` are none, or all of the last step."""
        one = self._sequences[seq_id]
        if num_tokens == 0:
            return
        length = one.length - num_tokens
        assert one.slot_before is not None and length == one.length_before, "a state cannot be cut"
        self._drop(one.slot)
        self._sequences[seq_id] = SequenceState(one.slot_before, length)

    def remove(self, seq_id: int) -> None:
        """Gives the sequence's slots back."""
        one = self._sequences.pop(seq_id)
        for slot in _owned(one):
            self._drop(slot)

    def reset(self) -> None:
        """Drops every sequence. Works whatever state an interrupted call has left."""
        self._references = [0] * self._num_slots
        self._free = list(range(self._num_slots - 1, EMPTY, -1))
        self._sequences: dict[int, SequenceState] = {}

    def place(self, rows: Sequence[tuple[int, int]]) -> Numbers:
        """`state_rows` (see `library/signatures.py`), four numbers a row, for `n` new tokens of
        each (seq_id, n). A sequence comes once."""
        assert len({seq_id for seq_id, _ in rows}) == len(rows), "a sequence twice in a step"
        found, first = array("i"), 0
        for seq_id, n in rows:
            one = self._sequences[seq_id]
            if one.slot_before is not None:
                self._drop(one.slot_before)
            new = self._free.pop()
            self._references[new] = 1
            found.extend((first, n, one.slot, new))
            self._sequences[seq_id] = SequenceState(new, one.length + n, one.slot, one.length)
            first += n
        return found

    def check_integrity(self) -> None:
        """AssertionError unless every slot is owned as often as its count says, or free once."""
        counts = [0] * self._num_slots
        for one in self._sequences.values():
            assert (one.slot == EMPTY) == (one.length == 0), "a state without tokens"
            for slot in _owned(one):
                counts[slot] += 1
        counts[EMPTY] = 0
        assert counts == self._references, "reference counts"
        free = [slot for slot, count in enumerate(counts) if count == 0 and slot != EMPTY]
        assert sorted(self._free) == free, "free list"

    def _share(self, slot: int) -> None:
        if slot != EMPTY:
            self._references[slot] += 1

    def _drop(self, slot: int) -> None:
        if slot == EMPTY:
            return
        self._references[slot] -= 1
        if self._references[slot] == 0:
            self._free.append(slot)


def _owned(one: SequenceState) -> tuple[int, ...]:
    return (one.slot,) if one.slot_before is None else (one.slot, one.slot_before)
