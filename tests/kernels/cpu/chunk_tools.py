"""Steps of sequences whose states have bases and slots, for kernels that work on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from kernel_tools import Array

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.chunks import Blocks
from mlc_llm.library.state_format import CHUNK, NUMBERS

ROOM = 40
"""Slots, and bases, of a test."""
Step: TypeAlias = Sequence[tuple[str, int]]
"""Names of sequences, and how many tokens each gets; "b<a" is a new one that begins as a."""
STEPS: Sequence[Step] = (
    [("a", 9), ("b", 1), ("a", 4), ("c", 40), ("d", 16)],
    [("a", 1), ("b", 1), ("c", 1), ("d", 1)],
    [("e<a", 1), ("a", 1), ("f<c", 12), ("b", 14)],
    [("e", 1), ("a", 1), ("f", 1), ("b", 1)],
    [("b", 33), ("a", 16), ("c", 7), ("f", 1)],
)


@dataclass
class Place:
    """Of the state behind `length` tokens."""

    length: int = 0
    slot: int = 0
    base: int = 0


class Sequences:
    """Gives each step its rows; no slot and no base is given twice."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self._slots = self._bases = 0

    def rows(self, step: Step) -> list[tuple[str, list[int]]]:
        """Of each row its sequence, and its `state_rows`."""
        found, first = [], 0
        for written, count in step:
            name, _, parent = written.partition("<")
            old = self.places.get(parent or name, Place())
            self._slots += 1
            ends = old.length % CHUNK + count >= CHUNK
            self._bases += ends
            new = Place(old.length + count, self._slots, self._bases if ends else old.base)
            row = [first, count, old.slot, new.slot, old.base, new.base, old.length % CHUNK]
            self.places[name] = new
            found.append((name, row))
            first += count
        return found


@dataclass
class States:
    """The tensors of a layer: of slots that were never written, nothing is a number."""

    keys: Array
    changes: Array
    numbers: Array
    bases: Array

    @classmethod
    def new(cls, key_heads: int, heads: int, head_dim: int, size: int) -> States:
        def room(*shape: int) -> Array:
            found = np.full((ROOM, *shape), np.nan, np.float32)
            found[0] = 0
            return found

        return cls(
            room(key_heads, CHUNK, size),
            room(heads, CHUNK, head_dim),
            room(heads, NUMBERS),
            room(heads, head_dim, size),
        )

    def base(self, number: int, isa: Isa) -> Array:
        """[heads, head_dim, size]: as numbers lie in other programs."""
        heads, head_dim, size = self.bases.shape[1:]
        blocks = Blocks(head_dim, size, isa.lanes)
        cut = self.bases[number].reshape(heads, blocks.count, size, blocks.wide)
        return cut.swapaxes(2, 3).reshape(heads, head_dim, size)

    def copies(self) -> list[Array]:
        return [one.copy() for one in (self.keys, self.changes, self.numbers, self.bases)]

    def assert_only_written(self, before: Sequence[Array], rows: Sequence[Sequence[int]]) -> None:
        """AssertionError if anything has changed but what the rows may write."""
        slots = {row[3] for row in rows}
        bases = {row[5] for row in rows if row[5] != row[4]}
        after, own = self.copies(), (slots, slots, slots, bases)
        for old, new, may in zip(before, after, own, strict=True):
            others = [number for number in range(ROOM) if number not in may]
            assert old[others].tobytes() == new[others].tobytes()
