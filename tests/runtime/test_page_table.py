"""KV pages under random use: what a sequence holds is always what was put into it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mlc_llm.errors import RequestError
from mlc_llm.library.metadata import KVGroupInfo
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.page_table import FEW, PageTable
from mlc_llm.runtime.steady_rows import LEAST_ROOM

PAGE, BLOCK, FAST_BLOCK, NUM_PAGES, MAX_SEQUENCES = 4, 3, 5, 6, 4
SPLIT = 2
INFO = KVGroupInfo((0,), 1, 16, None, BLOCK, FAST_BLOCK, SPLIT)


class Memory:
    """Pages of plain numbers behind a PageTable, written only where the cache says."""

    def __init__(self, num_pages: int = NUM_PAGES, window: Window | None = None) -> None:
        self.slots = np.full(num_pages * PAGE, -1)
        self.cache = PageTable(
            INFO, PAGE, num_pages, MAX_SEQUENCES, copy_pages=self.copy_pages, window=window
        )
        self.window, self.has_window = window or Window(10**6), window is not None
        self.next_token = 0

    def copy_pages(self, source: list[int], target: list[int]) -> None:
        pages = self.slots.reshape(-1, PAGE)
        pages[target] = pages[source]

    def run(
        self, rows: list[tuple[int, int]], held: dict[int, list[int]], fast_rows: int = 0
    ) -> None:
        """Places new tokens, checks the placement, writes them, and brings `held` up to date."""
        before = {s: list(tokens) for s, tokens in held.items()}
        fast = sum(n for _, n in rows[:fast_rows])
        place = self.cache.place(rows, fast)
        assert len(set(place.slots.tolist())) == len(place.slots) == sum(n for _, n in rows)
        first, listed = 0, 0
        may_have_room = all(n == 1 for _, n in rows)  # behind each list
        has_room = len(rows) == 1 and rows[0][1] <= FEW and not self.has_window
        tiles = np.reshape(place.query_blocks, (-1, 3))
        for seq_id, n in rows:
            new = list(range(self.next_token, self.next_token + n))
            self.next_token += n
            self.slots[place.slots[first : first + n]] = new
            held[seq_id] = before[seq_id] + new
            length = len(held[seq_id])
            own = place.places[first : first + n].tolist()
            left_out = length - n - own[0]
            assert left_out % (SPLIT * PAGE) == 0 and own == list(range(own[0], length - left_out))
            count = -(-(length - left_out) // PAGE)
            if may_have_room:
                assert tiles[first, 2] >= listed
                listed = int(tiles[first, 2])
            pages = place.page_ids[listed : listed + count]
            found = self.slots.reshape(-1, PAGE)[pages].reshape(-1)[: length - left_out].tolist()
            cut = -(-self.window.sinks // (SPLIT * PAGE)) * (SPLIT * PAGE)
            found[cut:cut] = [-1] * left_out
            seen = self.seen(length - n, length)
            assert [found[i] for i in seen] == [held[seq_id][i] for i in seen]
            block = FAST_BLOCK if first < fast else BLOCK
            self.check_tiles(tiles, first, n, listed, block)
            first, listed = first + n, listed + count
        if has_room:  # for the next power of two; rows that are steady may have filled theirs
            room = max(LEAST_ROOM, 1 << listed.bit_length())
            assert len(place.page_ids) == room or (may_have_room and len(place.page_ids) == listed)
        elif not (may_have_room and listed < len(place.page_ids)):
            assert listed == len(place.page_ids)

    def seen(self, start: int, length: int) -> list[int]:
        """Places that the tokens from `start` to `length` see."""
        oldest = start - self.window.size
        return [i for i in range(length) if i > oldest or i < self.window.sinks]

    def check_tiles(self, tiles: np.ndarray, first: int, n: int, start: int, most: int) -> None:
        """The tiles of these rows cover each of them once, as few as can be."""
        own = [t for t in tiles.tolist() if first <= t[0] < first + n]
        covered = [row for t in own for row in range(t[0], t[0] + t[1])]
        assert covered == list(range(first, first + n))
        assert all(1 <= count <= most and at == start for _, count, at in own)
        assert len(own) == -(-n // most)

    def held(self, seq_id: int) -> list[int]:
        """The tokens in the sequence's pages, -1 for those that are gone."""
        sequence = self.cache._sequences[seq_id]
        pages = self.slots.reshape(-1, PAGE)[sequence.pages]
        pages[list(sequence.freed)] = -1
        return pages.reshape(-1)[: sequence.length].tolist()

    def lacks(self, seq_id: int, length: int) -> bool:
        """Whether the token behind the first `length` would see one that is gone, or lie in a
        page that is."""
        held, freed = self.held(seq_id), self.cache._sequences[seq_id].freed
        return any(held[i] < 0 for i in self.seen(length, length)) or freed.stop * PAGE > length


def test_steps_of_one_sequence_keep_the_size_of_their_table() -> None:
    """Whether they verify draft tokens or not, until it has twice as many pages."""
    cache = PageTable(INFO, PAGE, 8, MAX_SEQUENCES, copy_pages=Memory().copy_pages)
    cache.add(0)
    sizes = set()
    cache.place([(0, 4 * PAGE)])
    for more in (1, 1, 4, 1, 4, 4, 1, 1, 1):
        sizes.add(len(cache.place([(0, more)]).page_ids))
        cache.rollback(0, more - 1)
    assert len(sizes) == 1


def test_few_tokens_of_a_row_get_a_query_block_and_a_list_of_pages_each() -> None:
    info = replace(INFO, apart=2)
    cache = PageTable(info, PAGE, NUM_PAGES, MAX_SEQUENCES, copy_pages=Memory().copy_pages)
    for seq_id in (0, 1):
        cache.add(seq_id)
    cache.place([(0, 4)])
    place = cache.place([(0, 2), (1, 3)])
    assert place.query_blocks.tolist() == [0, 1, 0, 1, 1, 2, 2, 3, 4]
    first, other = (cache.contents(seq_id)[0].tolist() for seq_id in (0, 1))
    assert place.page_ids.tolist() == first + first + other
    assert place.places.tolist() == [4, 5, 0, 1, 2]
    # Kernels compute the first tokens of a prompt in blocks of their own size where it differs.
    assert cache.place([(0, 2)], fast=2).query_blocks.tolist() == [0, 2, 0]


class CacheMachine(RuleBasedStateMachine):
    window: Window | None = None

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(window=self.window)
        self.model: dict[int, list[int]] = {}
        self.next_id = 0

    @property
    def cache(self) -> PageTable:
        return self.memory.cache

    def pick(self, data: st.DataObject, *, filled: bool = False) -> int | None:
        ids = [s for s, tokens in self.model.items() if tokens or not filled]
        return data.draw(st.sampled_from(ids)) if ids else None

    @rule()
    def add(self) -> None:
        self.next_id += 1
        if len(self.model) == MAX_SEQUENCES:
            with pytest.raises(RequestError, match="sequences"):
                self.cache.add(self.next_id)
            return
        self.cache.add(self.next_id)
        self.model[self.next_id] = []

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, unique=True))
        rows = [(s, data.draw(st.integers(1, 2 * PAGE + 1))) for s in chosen]
        pages = {s: -(-len(self.model[s]) // PAGE) for s in chosen}
        trimmed = data.draw(st.booleans())
        needed = sum(-(-(len(self.model[s]) + n) // PAGE) - pages[s] for s, n in rows)
        if needed <= self.cache.free_pages:
            self.memory.run(rows, self.model, data.draw(st.integers(0, len(rows))))
            for seq_id in chosen if trimmed else ():
                self.cache.trim(seq_id)
                assert not self.memory.lacks(seq_id, len(self.model[seq_id]) - 1)
            return
        free = self.cache.free_pages
        with pytest.raises(RequestError, match="KV pages"):
            self.cache.place(rows)
        assert self.cache.free_pages == free

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.pick(data, filled=True)
        if parent is None:
            return
        self.next_id += 1
        length = data.draw(st.integers(1, len(self.model[parent])))
        free = self.cache.free_pages
        room = len(self.model) < MAX_SEQUENCES and (length % PAGE == 0 or free)
        if self.memory.lacks(parent, length):
            with pytest.raises(AssertionError, match="pages are gone"):
                self.cache.fork(parent, self.next_id, length)
            return
        try:
            self.cache.fork(parent, self.next_id, length)
        except RequestError:
            assert not room
            assert self.cache.free_pages == free
            return
        assert room
        self.model[self.next_id] = self.model[parent][:length]

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        seq_id = self.pick(data)
        if seq_id is None:
            return
        count = data.draw(st.integers(0, len(self.model[seq_id])))
        free = self.cache.free_pages
        if self.memory.lacks(seq_id, len(self.model[seq_id]) - count):
            with pytest.raises(AssertionError, match="pages are gone"):
                self.cache.rollback(seq_id, count)
            return
        try:
            self.cache.rollback(seq_id, count)
        except RequestError:
            assert free == 0
            assert (len(self.model[seq_id]) - count) % PAGE
            return
        del self.model[seq_id][len(self.model[seq_id]) - count :]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        seq_id = self.pick(data)
        if seq_id is not None:
            self.cache.remove(seq_id)
            del self.model[seq_id]

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.model.clear()
        assert self.cache.free_pages == NUM_PAGES

    @invariant()
    def all_is_as_it_was_put(self) -> None:
        """A write to a shared page would change another sequence's tokens."""
        self.cache.check_integrity()
        for seq_id, tokens in self.model.items():
            assert self.cache.length(seq_id) == len(tokens)
            pairs = zip(self.memory.held(seq_id), tokens, strict=True)
            assert all(held in (token, -1) for held, token in pairs)
            assert not self.memory.lacks(seq_id, len(tokens))


class WindowMachine(CacheMachine):
    window = Window(5, 3)


class NarrowMachine(CacheMachine):
    window = Window(1)


TestCacheMachine = CacheMachine.TestCase
TestWindowMachine, TestNarrowMachine = WindowMachine.TestCase, NarrowMachine.TestCase
for machine in (TestCacheMachine, TestWindowMachine, TestNarrowMachine):
    machine.settings = settings(
        max_examples=3 * settings.default.max_examples,
        stateful_step_count=40,
        derandomize=True,
    )


def filled(length: int, num_pages: int = NUM_PAGES) -> tuple[Memory, dict[int, list[int]]]:
    """A cache with one sequence, 1, of that many tokens."""
    memory, model = Memory(num_pages), {1: []}
    memory.cache.add(1)
    memory.run([(1, length)], model)
    return memory, model


def test_full_pages_are_shared_and_the_rest_copied() -> None:
    memory, _ = filled(2 * PAGE + 1)
    memory.cache.fork(1, 2, 2 * PAGE + 1)
    assert memory.cache.free_pages == NUM_PAGES - 4
    memory.cache.fork(1, 3, PAGE)
    assert memory.cache.free_pages == NUM_PAGES - 4


def test_rollback_into_a_shared_page_leaves_the_other_alone() -> None:
    memory, model = filled(2 * PAGE)
    memory.cache.fork(1, 2, 2 * PAGE)
    model[2] = list(model[1])
    memory.cache.rollback(2, 1)
    del model[2][-1:]
    memory.run([(2, 3)], model)
    assert memory.held(1) == model[1]
    memory.cache.check_integrity()


def test_rollback_without_a_page_to_copy_to_changes_nothing() -> None:
    """Also when whole pages go that are shared, and so do not become free."""
    memory, model = filled(3 * PAGE, num_pages=3)
    memory.cache.fork(1, 2, 3 * PAGE)
    for count in (1, PAGE + 1):
        with pytest.raises(RequestError, match="roll a sequence back"):
            memory.cache.rollback(2, count)
        memory.cache.check_integrity()
        assert memory.held(2) == memory.held(1) == model[1]
    memory.cache.rollback(2, PAGE)  # needs no page
    assert memory.cache.length(2) == 2 * PAGE


def test_rollback_may_use_a_page_that_it_frees() -> None:
    memory, model = filled(PAGE, num_pages=2)
    memory.cache.fork(1, 2, PAGE)
    model[2] = list(model[1])
    memory.run([(2, 1)], model)
    assert memory.cache.free_pages == 0
    memory.cache.rollback(2, 2)
    assert memory.held(2) == model[1][: PAGE - 1]
    memory.cache.check_integrity()


@pytest.mark.parametrize("window", [Window(5), Window(5, 3), Window(30, 9)], ids=str)
@pytest.mark.parametrize("step", [1, 7])
def test_page_lists_stay_short_however_long_the_text(window: Window, step: int) -> None:
    memory, model = Memory(40, window), {1: list[int]()}
    memory.cache.add(1)
    for _ in range(500 // step):
        memory.run([(1, step)], model)
        memory.cache.trim(1)
    place = memory.cache.place([(1, 1)])
    blocks = -(-window.sinks // (SPLIT * PAGE)) + 2
    assert len(place.page_ids) * PAGE <= window.size + blocks * (SPLIT * PAGE) + step + PAGE
    assert len(model[1]) - place.places[0] > 400


def test_misuse_is_noticed() -> None:
    memory, _ = filled(PAGE)
    with pytest.raises(AssertionError, match="exists"):
        memory.cache.add(1)
    with pytest.raises(AssertionError, match="past the parent's end"):
        memory.cache.fork(1, 2, PAGE + 1)
    with pytest.raises(AssertionError, match="past the beginning"):
        memory.cache.rollback(1, PAGE + 1)


@pytest.mark.parametrize("damage", ["leak", "double", "count"])
def test_check_integrity_sees_damage(damage: str) -> None:
    memory, _ = filled(PAGE)
    if damage == "leak":
        memory.cache._free.pop()
    elif damage == "double":
        memory.cache._free.append(memory.cache._free[0])
    else:
        memory.cache._sequences[1].length += 1
    with pytest.raises(AssertionError):
        memory.cache.check_integrity()
