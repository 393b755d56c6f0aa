"""Slots and bases of states under random use: each sequence finds what its own tokens have left."""

from __future__ import annotations

import random

import pytest

from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.runtime.limits import state_bases, state_slots
from mlc_llm.runtime.state_table import EMPTY, StateTable

SEQUENCES, DRAFTS = 4, 5
Tokens = tuple[int, ...]


class Slots:
    """A table, and slots and bases that hold the tokens of a sequence where a model holds what they
    have left: a base those of full chunks, a slot the others."""

    def __init__(self, chunk: int) -> None:
        self.table, self.chunk = StateTable(SEQUENCES, DRAFTS, chunk), chunk
        self.slots: list[Tokens] = [()] * state_slots(SEQUENCES, DRAFTS, chunk)
        self.bases: list[Tokens] = [()] * state_bases(SEQUENCES, DRAFTS)
        self.tokens: dict[int, Tokens] = {}
        self.before: dict[int, list[int]] = {}
        """Numbers of tokens to which the last step can be undone."""

    def step(
        self,
        rows: list[tuple[int, tuple[int, ...]]],
        keep: dict[int, list[int]] | None = None,
        drafted: dict[int, int] | None = None,
    ) -> None:
        """Computes the rows in order, as a kernel does. With chunks, a kernel that comes behind
        it reads the slots once more."""
        self.read: list[tuple[int, Tokens]] = []
        drafted = drafted or {}
        for one in self.before:  # no draft token of an earlier step is undone alone
            self.before[one] = self.before[one][:1]
        for seq_id in {seq_id for seq_id, _ in rows}:
            self.before[seq_id] = [len(self.tokens[seq_id])]
        sizes = [(seq_id, len(new)) for seq_id, new in rows]
        for seq_id, count in sizes:
            end = len(self.tokens[seq_id]) + count
            self.before[seq_id] += range(end - drafted.get(seq_id, 0), end)
        numbers = self.table.place(sizes, keep or {}, drafted)
        new = [token for _, tokens in rows for token in tokens]
        whose = [seq_id for seq_id, tokens in rows for _ in tokens]
        first = 0
        for i in range(0, len(numbers), STATE_ROW):
            start, count, *row = numbers[i : i + STATE_ROW]
            assert start == first and count > 0
            (seq_id,) = {*whose[start : start + count]}
            self.compute(seq_id, tuple(new[start : start + count]), row)
            first += count
        assert first == len(new)
        for slot, tail in self.read if self.chunk > 1 else ():
            assert self.slots[slot] == tail, "written over before all have read it"

    def compute(self, seq_id: int, new: Tokens, row: list[int]) -> None:
        """One row. row: what follows its first token and how many."""
        source, target, old, base, place = row
        assert self.bases[old] + self.slots[source] == self.tokens[seq_id], "another one's state"
        assert place == len(self.slots[source]) == len(self.tokens[seq_id]) % self.chunk
        assert target not in (EMPTY, source)
        self.read.append((source, self.slots[source]))
        self.tokens[seq_id] += new
        full = len(self.tokens[seq_id]) // self.chunk * self.chunk
        if place + len(new) >= self.chunk:
            assert base not in (EMPTY, old)
            self.bases[base] = self.tokens[seq_id][:full]
        assert self.bases[base] == self.tokens[seq_id][:full], "a base that nobody writes"
        self.slots[target] = self.tokens[seq_id][full:]

    def restore(self, seq_id: int, tokens: Tokens) -> None:
        """A sequence that another table has computed."""
        slot, base = self.table.restore(seq_id, len(tokens))
        full = len(tokens) // self.chunk * self.chunk
        self.bases[base], self.slots[slot] = tokens[:full], tokens[full:]
        self.tokens[seq_id] = tokens

    def state(self, slot: int) -> Tokens:
        """What the model would go on with."""
        return self.bases[self.table._base_of[slot]] + self.slots[slot]

    def check(self) -> None:
        self.table.check_integrity()
        assert self.table.lengths() == {i: len(tokens) for i, tokens in self.tokens.items()}
        assert self.slots[EMPTY] == self.bases[EMPTY] == ()
        for seq_id, one in self.table._sequences.items():
            held = {**one.undo, **one.kept, one.length: one.slot}
            for length, slot in held.items():
                assert self.state(slot) == self.tokens[seq_id][:length]
            assert self.table.where(seq_id) == (one.slot, self.table._base_of[one.slot])


def some_places(rng: random.Random, length: int, more: int) -> list[int]:
    """Where a step of `more` tokens may keep states: two at most, none before the first token."""
    places = range(max(length, 1), length + more)
    return sorted(rng.sample(places, min(rng.randint(0, 2), len(places))))


@pytest.mark.parametrize("chunk", [1, 3, 16])
@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_has_its_own_state(seed: int, chunk: int) -> None:
    rng, slots = random.Random(seed), Slots(chunk)
    for number in range(300):
        alive = list(slots.tokens)
        act = rng.choice(("add", "restore", *["step"] * 3, "fork", "undo", "cut", "remove"))
        if act == "add" and len(alive) < SEQUENCES:
            slots.table.add(number)
            slots.tokens[number] = ()
        elif act == "restore" and len(alive) < SEQUENCES:
            slots.restore(number, (1000 * number,) * rng.randint(1, 40))
        elif act == "step" and alive:
            chosen = rng.sample(alive, rng.randint(1, len(alive)))
            # No two rows have the same tokens: whatever is written over is found by `check`.
            rows = [(one, (1000 * number + one,) * rng.randint(1, 9)) for one in chosen]
            keep = {one: some_places(rng, len(slots.tokens[one]), len(new)) for one, new in rows}
            cut = rng.randint(0, len(rows))
            parts = [(one, new[:2]) for one, new in rows[:cut]]
            parts += [(one, new[2:] if i < cut else new) for i, (one, new) in enumerate(rows)]
            drafting = [one for one, new in rows[cut:] if len(new) > 1][:1]
            drafted = {
                one: rng.randint(1, min(DRAFTS, len(dict(rows)[one]) - 1)) for one in drafting
            }
            slots.step([part for part in parts if part[1]], keep, drafted)
        elif act == "fork" and alive and len(alive) < SEQUENCES:
            parent = rng.choice(alive)
            if slots.tokens[parent]:
                length = rng.choice([len(slots.tokens[parent]), *slots.table.kept(parent)])
                slots.table.fork(parent, number, length)
                slots.tokens[number] = slots.tokens[parent][:length]
        elif act == "cut" and alive:
            one = rng.choice(alive)
            if places := slots.table.kept(one):
                length = rng.choice(places)
                slots.table.rollback(one, len(slots.tokens[one]) - length)
                if length < len(slots.tokens[one]):
                    slots.before.pop(one, None)
                slots.tokens[one] = slots.tokens[one][:length]
        elif act == "undo" and slots.before:
            one = rng.choice(list(slots.before))
            length = rng.choice(slots.before.pop(one))
            slots.table.rollback(one, len(slots.tokens[one]) - length)
            slots.tokens[one] = slots.tokens[one][:length]
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
    table.check_integrity()


def test_the_first_and_the_last_places_are_kept() -> None:
    table = StateTable(SEQUENCES)
    table.add(0)
    assert len(table.place([(0, 10)], {0: [4, 9]})) == 3 * STATE_ROW
    assert table.kept(0) == (4, 9)
    table.place([(0, 10)], {0: [10, 15]})
    assert table.kept(0) == (4, 15)
    table.fork(0, 1, 15)
    assert table.kept(1) == (4, 15)
    table.rollback(0, 20 - 15)
    table.rollback(0, 15 - 4)
    assert table.lengths() == {0: 4, 1: 15} and table.kept(0) == (4,)
    with pytest.raises(AssertionError, match="cannot be cut"):
        table.fork(1, 2, 9)
    table.check_integrity()


def test_draft_tokens_are_undone_one_by_one_until_the_next_step() -> None:
    table = StateTable(1, DRAFTS)
    table.add(0)
    table.place([(0, 10)])
    assert len(table.place([(0, 4)], drafted={0: 3})) == 4 * STATE_ROW
    with pytest.raises(AssertionError, match="cannot be cut"):
        table.rollback(0, 5)
    table.rollback(0, 2)
    assert table.lengths() == {0: 12}
    with pytest.raises(AssertionError, match="cannot be cut"):
        table.rollback(0, 1)
    for _ in range(3 * DRAFTS):  # all are accepted, and none is rolled back
        table.place([(0, 1 + DRAFTS)], drafted={0: DRAFTS})
    table.place([(0, 1)])
    with pytest.raises(AssertionError, match="cannot be cut"):
        table.rollback(0, 2)
    table.check_integrity()
