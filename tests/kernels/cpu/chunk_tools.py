"""Steps of sequences whose states have bases and slots, for kernels that work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from kernel_tools import Array

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.chunks import FORGOTTEN, Blocks
from mlc_llm.library.state_format import CHUNK, NUMBERS

ROOM = 40
"""Slots, and bases, of a test."""
Step: TypeAlias = Sequence[tuple[str, int]]
"""Names of sequences, and how many tokens each gets; "b<a" is a new one that begins as a."""
_STEPS: Sequence[Step] = (
    [("a", 9), ("b", 1), ("a", 4), ("c", 40), ("d", 16)],
    [("a", 1), ("b", 1), ("c", 1), ("d", 1)],
    [("e<a", 1), ("a", 1), ("f<c", 12), ("b", 14)],
    [("e", 1), ("a", 1), ("f", 1), ("b", 1)],
    [("b", 33), ("a", 16), ("c", 7), ("f", 1)],
)
_PIECES = 1, 2, 8, 1, 1, 7, 16, 14
Given: TypeAlias = tuple[Array, ...]
"""Arguments of the kernels; the first two have a row for each token."""


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


class Kernels(Protocol):
    """The kernels of a layer's states."""

    states: States

    def run(self, rows: Sequence[Sequence[int]], given: Given) -> Array:
        """What the tokens give. rows: `state_rows`."""


def assert_states(
    kernels: Kernels,
    isa: Isa,
    arguments: Callable[[int, int], Given],
    expected_of: Callable[[Array, Given, int, int], tuple[Array, Array]],
) -> None:
    """AssertionError unless all tokens of some steps give what they should.

    arguments: of how many tokens, by a seed. expected_of: what some tokens give behind a state, and
    the state behind them, by the first of them and their number.
    """
    sequences, known = Sequences(), {"": np.zeros(kernels.states.bases.shape[1:])}
    for seed, step in enumerate(_STEPS):
        given = arguments(sum(count for _, count in step), seed)
        rows, before = sequences.rows(step), kernels.states.copies()
        out = kernels.run([row for _, row in rows], given)
        kernels.states.assert_only_written(before, [row for _, row in rows])
        weights = kernels.states.numbers[..., : CHUNK + 1]
        assert not ((weights > 0) & (weights < FORGOTTEN)).any(), "slow numbers"
        for (name, (first, count, *_)), (written, _) in zip(rows, step, strict=True):
            h = known.get(written.partition("<")[2] or name, known[""])
            expected, known[name] = expected_of(h, given, first, count)
            _assert_near(out[first : first + count], expected)
            place = sequences.places[name]
            if place.length % CHUNK == 0:
                _assert_near(kernels.states.base(place.base, isa), known[name])


def _assert_near(found: Array, expected: Array) -> None:
    assert np.abs(found - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


def assert_same_bits_in_pieces(new: Callable[[], Kernels], given: Given) -> None:
    """AssertionError unless tokens have the same bits in one step and in several."""
    whole, parts, sequences, first = new(), new(), Sequences(), 0
    ((_, row),) = Sequences().rows([("a", sum(_PIECES))])
    expected = whole.run([row], given)
    for count in _PIECES:
        of = slice(first, first + count)
        ((_, row),) = sequences.rows([("a", count)])
        found = parts.run([row], (given[0][of], given[1][of], *given[2:]))
        assert found.tobytes() == expected[of].tobytes()
        first += count
    base = sequences.places["a"].base
    assert parts.states.bases[base].tobytes() == whole.states.bases[1].tobytes()
