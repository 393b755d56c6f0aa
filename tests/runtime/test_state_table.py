"""Slots of states under random use: each sequence finds what its own tokens have left."""

from __future__ import annotations

import random

import pytest

from mlc_llm.runtime.batch import state_slots
from mlc_llm.runtime.state_table import EMPTY, StateTable

SEQUENCES = 4


class Slots:
    """A table, and slots that hold the tokens of a sequence where a model holds a state."""

    def __init__(self) -> None:
        self.table = StateTable(SEQUENCES)
        self.slots: list[tuple[int, ...]] = [()] * state_slots(SEQUENCES)
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.before: dict[int, tuple[int, ...]] = {}
        """Tokens before the last step, where it can be undone."""

    def step(self, rows: list[tuple[int, tuple[int, ...]]]) -> None:
        numbers = self.table.place([(seq_id, len(new)) for seq_id, new in rows])
        assert len(numbers) == 4 * len(rows)
        found, first = list(self.slots), 0
        for i, (seq_id, new) in enumerate(rows):
            start, count, source, target = numbers[4 * i : 4 * i + 4]
            assert (start, count) == (first, len(new))
            assert target not in (EMPTY, source)
            assert self.slots[source] == self.tokens[seq_id], "another sequence's state"
            found[target] = self.slots[source] + new
            self.before[seq_id] = self.tokens[seq_id]
            self.tokens[seq_id] += new
            first += count
        self.slots = found

    def check(self) -> None:
        self.table.check_integrity()
        assert self.table.lengths() == {i: len(tokens) for i, tokens in self.tokens.items()}
        assert self.slots[EMPTY] == ()


@pytest.mark.parametrize("seed", range(30))
def test_every_sequence_has_its_own_state(seed: int) -> None:
    rng, slots = random.Random(seed), Slots()
    for number in range(300):
        alive = list(slots.tokens)
        act = rng.choice(("add", "step", "step", "step", "fork", "undo", "remove"))
        if act == "add" and len(alive) < SEQUENCES:
            slots.table.add(number)
            slots.tokens[number] = ()
        elif act == "step" and alive:
            chosen = rng.sample(alive, rng.randint(1, len(alive)))
            slots.step([(one, (number,) * rng.randint(1, 4)) for one in chosen])
        elif act == "fork" and alive and len(alive) < SEQUENCES:
            parent = rng.choice(alive)
            if slots.tokens[parent]:
                slots.table.fork(parent, number, len(slots.tokens[parent]))
                slots.tokens[number] = slots.tokens[parent]
        elif act == "undo" and slots.before:
            one = rng.choice(list(slots.before))
            before = slots.before.pop(one)
            slots.table.rollback(one, len(slots.tokens[one]) - len(before))
            slots.tokens[one] = before
        elif act == "remove" and alive:
            one = rng.choice(alive)
            slots.table.remove(one)
            del slots.tokens[one]
            slots.before.pop(one, None)
        slots.check()
    slots.table.reset()
    slots.table.check_integrity()


def test_a_state_is_not_cut() -> None:
    table = StateTable(SEQUENCES)
    table.add(0)
    table.place([(0, 5)])
    table.place([(0, 3)])
    for wrong in (1, 2, 4, 8):
        with pytest.raises(AssertionError, match="cannot be cut"):
            table.rollback(0, wrong)
    for wrong in (1, 5, 7, 9):
        with pytest.raises(AssertionError, match="cannot be cut"):
            table.fork(0, 1, wrong)
    table.rollback(0, 0)
    table.rollback(0, 3)
    assert table.lengths() == {0: 5}
    with pytest.raises(AssertionError, match="cannot be cut"):
        table.rollback(0, 5)  # only one step is remembered
    with pytest.raises(AssertionError, match="twice"):
        table.place([(0, 1), (0, 1)])
    table.check_integrity()
