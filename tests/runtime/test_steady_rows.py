"""Tables that are changed where they lie say what new ones would."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tiny_models import TinyModels

from mlc_llm.errors import RequestError
from mlc_llm.library.metadata import KVGroupInfo
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.page_table import PageTable
from mlc_llm.runtime.steady_rows import Placement

PAGE, PAGES, SEQUENCES = 4, 160, 12
INFO = KVGroupInfo((0,), 1, 16, None, 1, 1, 2)
Row = tuple[int, int, list[int]]


def table_of() -> PageTable:
    return PageTable(INFO, PAGE, PAGES, SEQUENCES, copy_pages=lambda source, target: None)


def rows_of(placed: Placement) -> list[Row]:
    """Of each token its slot, its place, and the pages that it sees. Kernels need the lists of
    pages in the order of the tokens."""
    found, free = [], 0
    for token, count, start in zip(*[iter(placed.query_blocks)] * 3, strict=True):
        assert count == 1 and start >= free
        place = placed.places[token]
        pages = placed.page_ids[start : start + place // PAGE + 1].tolist()
        assert len(pages) == place // PAGE + 1
        free = start + len(pages)
        found.append((placed.slots[token], place, pages))
    return found


class Pair:
    """A table, and one that makes its tables anew in each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.plain = table_of(), table_of()
        monkeypatch.setattr(self.plain, "_is_steady", lambda rows: False)
        self.ids: list[int] = []
        self.next_id = 0

    def both(self, name: str, *arguments: object) -> None:
        for table in (self.table, self.plain):
            getattr(table, name)(*arguments)

    def step(self, rows: list[tuple[int, int]]) -> bool:
        """False if pages lack, in both alike."""
        found = []
        for table in (self.table, self.plain):
            try:
                found.append(rows_of(table.place(list(rows))))
            except RequestError as error:
                found.append([str(error)])
        assert found[0] == found[1]
        assert self.table.free_pages == self.plain.free_pages
        return not isinstance(found[0][0], str)

    def add(self) -> None:
        if len(self.ids) < SEQUENCES:
            self.next_id += 1
            self.both("add", self.next_id)
            self.ids.append(self.next_id)

    def change(self, chance: random.Random) -> None:
        """Something happens to a sequence between two steps."""
        seq_id = chance.choice(self.ids)
        length, kind = self.plain.length(seq_id), chance.randrange(5)
        if kind == 0 and length > 1:
            self.both("rollback", seq_id, chance.randint(1, min(length - 1, 6)))
        elif kind == 1:
            self.both("remove", seq_id)
            self.ids.remove(seq_id)
        elif kind == 2 and length and len(self.ids) < SEQUENCES and self.plain.free_pages:
            self.next_id += 1
            self.both("fork", seq_id, self.next_id, chance.randint(1, length))
            self.ids.append(self.next_id)
        elif kind == 3:
            assert self.table.lengths() == self.plain.lengths()
            assert self.table.last_slots([(seq_id, 1)]) == self.plain.last_slots([(seq_id, 1)])
            assert self.table.contents(seq_id) == self.plain.contents(seq_id)
        else:
            self.add()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance, pair = random.Random(seed), Pair(monkeypatch)
    steady = 0
    for _ in range(60):
        while len(pair.ids) < 4:
            pair.add()
        rows = [(seq_id, 1) for seq_id in pair.ids if chance.random() < 0.9] or [(pair.ids[0], 1)]
        for _ in range(chance.randint(1, 40)):
            if not pair.step(rows):
                pair.both("remove", pair.ids.pop(0))
                break
            steady += pair.table._steady is not None
        pair.change(chance)
        pair.table.check_integrity()
        assert pair.table.lengths() == pair.plain.lengths()
    assert steady > 100


def test_little_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in which no row needs a page asks for nothing of any sequence."""
    table = table_of()
    for seq_id in range(SEQUENCES):
        table.add(seq_id)
    rows = [(seq_id, 1) for seq_id in range(SEQUENCES)]
    for _ in range(PAGE + 1):
        placed = table.place(list(rows))
    monkeypatch.setattr(table, "_sequences", None)
    monkeypatch.setattr(table, "_free", None)
    for step in range(PAGE - 1):
        assert table._steady is not None
        again = Placement(*placed)
        monkeypatch.setattr(table, "_check_free", lambda wanted: None)
        placed = table.place(list(rows))
        assert placed.page_ids is again.page_ids and placed.places is again.places
        assert placed.places.tolist() == [PAGE + 1 + step] * SEQUENCES


def test_rows_that_outgrow_their_room_have_the_logits_of_prompts(tiny_models: TinyModels) -> None:
    """Of several KV splits, whose results lie side by side."""
    runner, firsts, steps = (
        tiny_models.runner("plain", "portable", num_pages=80), (150, 90, 30, 3), 160
    )  # fmt: skip
    chance, greedy = np.random.default_rng(3), Sampling(temperature=0)
    texts = [chance.integers(0, 300, first + steps).tolist() for first in firsts]
    expected = [runner.logits(text).argmax(axis=1) for text in texts]
    runner.reset()
    for seq_id, (text, first) in enumerate(zip(texts, firsts, strict=True)):
        runner.add_sequence(seq_id)
        for start in range(0, first, 64):
            runner.run(Batch([BatchRow(seq_id, text[start : min(start + 64, first)], ())]))
    for step in range(steps):
        at = [first + step for first in firsts]
        rows = [BatchRow(i, [text[at[i]]], (greedy,)) for i, text in enumerate(texts)]
        found = [samples[0].token_id for samples in runner.run(Batch(rows)).samples]
        assert found == [int(expected[i][at[i]]) for i in range(len(texts))], f"step {step}"
