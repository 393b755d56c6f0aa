"""The cache's rules, and that it never lets the runner's pages and its own tokens part."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.serve.core.prefix_cache import Divergence, PrefixCache, PrefixMatch
from mlc_llm.testing.fake_runner import FakeRunner

GREEDY = Sampling(temperature=0.0)


class Driver:
    """Runs one sequence after the other, or a few side by side, as a scheduler would."""

    def __init__(self, *, sequences: int = 4, num_pages: int = 64, **options: Any) -> None:
        self.runner = FakeRunner(
            num_pages=num_pages, page_size=4, max_num_sequence=sequences, max_batch_tokens=1024
        )
        self.removed: list[int] = []
        self.free_ids = list(range(sequences))
        self.cache = PrefixCache(self._remove, max_num_sequence=sequences, **options)
        self.computed = 0

    def start(self, tokens: list[int]) -> tuple[int, PrefixMatch]:
        """Begin a sequence and compute all of `tokens`."""
        prefix = self.cache.lookup(tokens)
        while not self._fits(tokens, prefix):
            if not self.cache.evict(prefix.source):
                prefix = self.cache.lookup(tokens, may_fork=False)
                assert prefix.kind == "reuse" or self.cache.evict(), "it cannot fit"
                break
        seq_id = self._carry_out(prefix)
        self.runner.run(Batch([BatchRow(seq_id, tokens[prefix.length :], [GREEDY])]))
        self.cache.extend(seq_id, tokens[prefix.length :])
        self.computed += len(tokens) - prefix.length
        return seq_id, prefix

    def serve(self, tokens: list[int], **options: Any) -> PrefixMatch:
        """A sequence from its beginning to its end."""
        seq_id, prefix = self.start(tokens)
        surplus = self.cache.finish(seq_id, **options)
        if surplus:
            self.runner.rollback_sequence(seq_id, surplus)
        self.check()
        return prefix

    def check(self) -> None:
        self.cache.check_integrity()
        self.runner.check_integrity()
        assert self.cache.num_sequences == len(self.runner.sequences)
        for seq_id in self.runner.sequences if self.cache.is_enabled else ():
            assert self.runner.tokens_of(seq_id) == self.cache.tokens(seq_id)

    def _fits(self, tokens: list[int], prefix: PrefixMatch) -> bool:
        pages = -(-len(tokens) // 4) - prefix.length // 4
        return bool(self.free_ids or prefix.kind == "reuse") and pages <= self.runner.free_pages

    def _carry_out(self, prefix: PrefixMatch) -> int:
        if prefix.kind == "reuse":
            assert prefix.source is not None
            self.runner.rollback_sequence(prefix.source, prefix.rollback)
            self.cache.begin(prefix.source, prefix)
            return prefix.source
        seq_id = self.free_ids.pop()
        if prefix.source is None:
            self.runner.add_sequence(seq_id)
        else:
            self.runner.fork_sequence(prefix.source, seq_id, prefix.length)
        self.cache.begin(seq_id, prefix)
        return seq_id

    def _remove(self, seq_id: int) -> None:
        self.removed.append(seq_id)
        self.runner.remove_sequence(seq_id)
        self.free_ids.append(seq_id)


def test_at_least_one_token_is_left_to_compute() -> None:
    driver = Driver()
    assert driver.serve([1, 2, 3]) == PrefixMatch()
    prefix = driver.serve([1, 2, 3])
    assert (prefix.kind, prefix.length) == ("fork", 2) and driver.computed == 4
    assert driver.cache.lookup([1]) == PrefixMatch() == driver.cache.lookup([9, 1, 2])


def test_shortest_recycling_match_is_reused_above_nine_tenths_of_it() -> None:
    driver = Driver()
    prompts = ([*range(20), 99], list(range(20)), [*range(20), 98])
    ids = [driver.start(prompt)[0] for prompt in prompts]
    for seq_id in ids:
        driver.cache.finish(seq_id)
    assert driver.cache.recycling == ids
    _, shortest, last = ids
    assert driver.cache.lookup([*range(20), 50]) == PrefixMatch("reuse", 20, shortest)
    prefix = driver.cache.lookup([*range(19), 50, 51])
    assert (prefix.kind, prefix.source, prefix.rollback) == ("reuse", shortest, 1)
    # At exactly 90 % it is forked: the one that will stay longest.
    assert driver.cache.lookup([*range(18), 50]) == PrefixMatch("fork", 18, last)


def test_only_recycling_sequences_are_reused() -> None:
    driver = Driver()
    active, _ = driver.start(list(range(10)))
    assert driver.cache.lookup(list(range(11))) == PrefixMatch("fork", 10, active)
    assert driver.cache.lookup(list(range(11)), may_fork=False) == PrefixMatch()
    driver.cache.finish(active, pinned_length=10)
    assert driver.cache.lookup(list(range(11))) == PrefixMatch("fork", 10, active)
    assert driver.cache.lookup(list(range(11)), may_fork=False) == PrefixMatch()
    assert driver.cache.pinned == [active] and not driver.cache.evict()


def test_reuse_instead_of_a_fork_where_there_is_no_second_sequence() -> None:
    driver = Driver(sequences=1)
    driver.serve(list(range(10)))
    prefix = driver.serve([*range(4), 50, 51])
    assert (prefix.kind, prefix.length, prefix.rollback) == ("reuse", 4, 6)
    assert driver.removed == [] and driver.computed == 12


@pytest.mark.parametrize(
    ("max_recycling", "kept"), [(0, 0), (1, 1), (3, 3), (8, 8), (None, 8), (-1, 8)]
)
def test_the_last_that_finished_are_kept(max_recycling: int | None, kept: int) -> None:
    driver = Driver(sequences=8, max_recycling=max_recycling)
    ids = [driver.start([i] * 5)[0] for i in range(8)]
    order = [5, 0, 7, 2, 4, 6, 1, 3]
    for i in order:
        driver.cache.finish(ids[i])
        driver.check()
    assert driver.cache.recycling == [ids[i] for i in order[len(order) - kept :]]
    assert driver.removed == [ids[i] for i in order[: len(order) - kept]]


def test_reuse_makes_a_sequence_the_newest_and_a_fork_does_not() -> None:
    driver = Driver(sequences=8)
    for first in (1, 2, 3):
        driver.serve([first] * 10)
    one, two, three = driver.cache.recycling
    assert driver.serve([1] * 11).kind == "reuse"
    assert driver.cache.recycling == [two, three, one]
    assert driver.serve([2] * 3).kind == "fork"
    assert driver.cache.recycling[:3] == [two, three, one]


def test_eviction_spares_the_one_that_is_named() -> None:
    driver = Driver()
    for first in (1, 2, 3):
        driver.serve([first] * 4)
    one, two, three = driver.cache.recycling
    assert driver.cache.evict(keep=one) and driver.removed == [two]
    assert driver.cache.evict(keep=one) and driver.removed == [two, three]
    assert not driver.cache.evict(keep=one) and driver.cache.evict()
    assert driver.runner.free_pages == 64


def test_pins_survive_and_the_same_prompt_is_pinned_once(caplog: Any) -> None:
    driver = Driver(sequences=3)
    driver.serve([*range(8), 1], pinned_length=8)
    driver.serve([*range(8), 2, 3], pinned_length=8)
    assert len(driver.cache.pinned) == len(driver.cache.recycling) == 1
    assert driver.cache.tokens(driver.cache.pinned[0]) == list(range(8))
    driver.serve([5] * 6, pinned_length=6)
    driver.serve([6] * 6, pinned_length=6)
    assert len(driver.cache.pinned) == 2 and "not pinned" in caplog.text
    for i in range(10):
        driver.serve([20 + i] * 6)
    assert driver.cache.lookup([*range(8), 4]).length == 8
    assert driver.cache.lookup([5] * 8).length == 6
    assert driver.cache.evict() and not driver.cache.evict()
    assert driver.cache.evict(even_pinned=True) and "leaves the prefix cache" in caplog.text
    driver.check()


def test_where_a_prompt_diverges() -> None:
    driver = Driver()
    driver.serve([1, 2, 3, 4])
    (one,) = driver.cache.recycling
    assert driver.cache.lookup([1, 2, 9, 9]).divergence == Divergence(2, one, 3, 9)
    assert driver.cache.lookup([1, 2, 3, 4, 5]).divergence is None  # goes on where it ended
    assert driver.cache.lookup([1, 2, 3]).divergence is None  # the last is never looked for
    assert driver.cache.lookup([7, 2, 3]).divergence is None  # nothing in common


def test_a_sliding_window_takes_whole_sequences_only() -> None:
    driver = Driver(exact_only=True)
    driver.serve(list(range(10)))
    (one,) = driver.cache.recycling
    assert driver.cache.lookup([*range(10), 50]) == PrefixMatch("reuse", 10, one)
    for may_fork in (True, False):
        prefix = driver.cache.lookup([*range(9), 50, 51], may_fork=may_fork)
        assert prefix.kind == "new" and prefix.divergence == Divergence(9, one, 9, 50)
    active, _ = driver.start(list(range(100, 110)))
    assert driver.cache.lookup([*range(100, 111)]).kind == "new" and active != one


def test_what_a_failed_request_left_is_forgotten() -> None:
    driver = Driver()
    driver.serve([1] * 5, owner=7)
    driver.serve([2] * 5, owner=8)
    driver.serve([3] * 5, owner=7, pinned_length=5)
    driver.cache.forget(7)
    driver.check()
    assert driver.cache.lookup([1] * 5) == driver.cache.lookup([3] * 5) == PrefixMatch()
    assert driver.cache.lookup([2] * 5).length == 4
    assert driver.serve([2] * 6, owner=9).kind == "reuse"
    driver.cache.forget(8)  # it belongs to another by now
    assert driver.cache.lookup([2] * 5).length == 4


def test_tokens_that_nobody_vouched_for_are_not_found() -> None:
    driver = Driver()
    driver.cache.begin(0, PrefixMatch())
    assert driver.cache.lookup([1, 2, 3]) == PrefixMatch() and driver.cache.length(0) == 0
    driver.cache.begin(1, PrefixMatch("fork", 2, 0))
    assert driver.cache.length(1) == 0


def test_switched_off() -> None:
    driver = Driver(enabled=False)
    for _ in range(3):
        assert driver.serve([1, 2, 3, 4, 5], pinned_length=5) == PrefixMatch()
    assert driver.cache.num_sequences == 0 and driver.computed == 15
    assert driver.runner.free_pages == 64


def test_reset_gives_everything_back() -> None:
    driver = Driver()
    driver.serve([1] * 9, pinned_length=9)
    driver.serve([2] * 9)
    driver.start([3] * 9)
    driver.runner.reset()
    driver.cache.reset()
    driver.check()
    assert driver.cache.num_sequences == 0 and driver.runner.free_pages == 64
    assert driver.removed == [] and driver.cache.lookup([1] * 9) == PrefixMatch()


@given(
    seed=st.integers(0, 2**32),
    sequences=st.integers(1, 6),
    num_pages=st.integers(10, 40),
    max_recycling=st.sampled_from([None, -1, 0, 1, 2]),
)
def test_random_requests_hold_the_right_tokens(
    seed: int, sequences: int, num_pages: int, max_recycling: int | None
) -> None:
    rng = random.Random(seed)
    driver = Driver(sequences=sequences, num_pages=num_pages, max_recycling=max_recycling)
    known: list[list[int]] = [[]]
    for _ in range(30):
        start = rng.choice(known)
        tokens = [*start[: rng.randint(0, len(start))], *rng.choices(range(3), k=rng.randint(1, 9))]
        tokens = tokens[:36]
        seq_id, _ = driver.start(tokens)
        assert driver.runner.tokens_of(seq_id) == tokens
        driver.check()
        if rng.random() < 0.2:
            driver.cache.remove(seq_id)
        else:
            driver.cache.finish(seq_id, pinned_length=0)
        driver.check()
        known.append(tokens)
    while driver.cache.evict():
        driver.check()
    assert driver.runner.free_pages == num_pages and len(driver.free_ids) == sequences
