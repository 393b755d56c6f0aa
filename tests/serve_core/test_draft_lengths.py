"""How much is drafted follows what is measured; all on a clock of our own."""

from __future__ import annotations

import itertools
from collections import abc
from collections.abc import Callable

import pytest
from core_harness import Harness, alone, prompt_of
from pairs import in_turn
from spec_tools import Seer, drafted, speculative

from mlc_llm.runtime.batch import Batch
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import MAX_DRAFTED
from mlc_llm.serve.core.speculation.draft_lengths import (
    FIRST_PAUSE,
    LAST_PAUSE,
    MOST_PATIENCE,
    REFRESH,
    AcceptanceRate,
    DraftLengths,
    StepTimes,
)
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Drafter
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.testing.fake_runner import FakeRunner

Cost = Callable[[int], float]


def flat(tokens: int) -> float:
    return 0.010 + 0.0001 * tokens


def steep(tokens: int) -> float:
    return 0.010 * tokens


def uneven(tokens: int) -> float:
    return {1: 5.4, 2: 6.3, 3: 7.5, 4: 12.6, 5: 11.3}.get(tokens, 3.0 * tokens)


def free(rows: int, depth: int) -> float:
    return 0.0


def settled(lengths: DraftLengths, offers: list[tuple[int, float]], cost: Cost) -> list[int]:
    """What is chosen most often in the end."""
    chosen = []
    for _ in range(300):
        chosen.append(tuple(lengths.choose(offers, free)))
        drafted = sum(chosen[-1])
        lengths.learn(len(offers), drafted, cost(len(offers) + drafted))
    late = chosen[200:]
    return list(max(set(late), key=late.count))


@pytest.mark.parametrize(
    ("rate", "cost", "expected"),
    [
        (0.98, flat, 16),
        (0.5, flat, 5),  # the sixth draft token is accepted once in 64 times, and costs 1 %
        (0.0, flat, 0),
        (0.98, steep, 0),
        (0.7, uneven, 2),
    ],
)
def test_the_length_that_gives_most_tokens_a_second(rate: float, cost: Cost, expected: int) -> None:
    assert settled(DraftLengths(), [(16, rate)], cost) == [expected]


def test_of_several_rows_the_likeliest_draft_tokens_are_taken() -> None:
    few = settled(DraftLengths(), [(16, 0.9), (16, 0.3), (0, 0.9)], flat)
    assert few[0] > few[1] > few[2] == 0
    many = settled(DraftLengths(), [(16, 0.98)] * 8, flat)
    assert sum(many) == MAX_DRAFTED and max(many) - min(many) <= 1


def test_a_fixed_length_is_drafted_or_nothing() -> None:
    assert settled(DraftLengths(4), [(16, 0.9), (2, 0.9)], flat) == [4, 2]
    assert settled(DraftLengths(4), [(16, 0.9)], steep) == [0]


def test_the_cost_of_drafting_counts() -> None:
    lengths = DraftLengths()
    for _ in range(3):
        lengths.learn(1, 0, flat(1))
    assert any(lengths.choose([(8, 0.8)], free))
    assert not any(lengths.choose([(8, 0.8)], lambda rows, depth: 0.010 * depth))


def test_plain_steps_come_first_and_are_measured_again_at_times() -> None:
    lengths = DraftLengths()
    gaps, gap = [], 0
    for _ in range(4 * REFRESH):
        drafted = sum(lengths.choose([(4, 0.9)], free))
        lengths.learn(1, drafted, flat(1 + drafted))
        if not drafted:
            gaps.append(gap)
        gap = gap + 1 if drafted else 0
    assert gaps[:2] == [0, 0] and set(gaps[2:]) == {REFRESH}


def test_attempts_become_rare_while_they_do_not_pay() -> None:
    lengths = DraftLengths()
    tries = []
    for step in range(6 * LAST_PAUSE):
        drafted = sum(lengths.choose([(4, 0.1)], free))
        lengths.learn(1, drafted, steep(1 + drafted))
        if drafted:
            tries.append(step)
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert min(gaps) >= FIRST_PAUSE and max(gaps) >= LAST_PAUSE
    assert sorted(gaps) == gaps


def test_one_slow_step_counts_for_little() -> None:
    times = StepTimes()
    for seconds in (5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0):
        times.learn(1, seconds)
    assert times.estimate(1) == pytest.approx(1.1, rel=0.1)


def test_a_draft_token_of_a_kind_that_is_known_starts_with_what_is_known_of_it() -> None:
    kind = AcceptanceRate()
    for _ in range(50):
        kind.learn(0, is_rejected=True)
    one = AcceptanceRate(kind)
    assert one.rate < 0.05
    for _ in range(5):
        one.learn(8, is_rejected=False)
    assert one.rate > 0.8 and kind.rate < 0.05


def test_a_rate_is_hoped_to_be_better_while_little_is_known() -> None:
    kind, other = AcceptanceRate(), AcceptanceRate()
    for _ in range(100):
        kind.learn(1, is_rejected=True)
    new, known = AcceptanceRate(kind), AcceptanceRate(kind)
    for _ in range(40):
        known.learn(1, is_rejected=True)
    assert new.rate == pytest.approx(0.5, abs=0.01) == known.rate
    assert new.hoped > known.hoped > known.rate
    for _ in range(50):
        other.learn(0, is_rejected=True)
    assert other.hoped - other.rate < 0.02


class Slow(Seer):
    """Takes time for each draft token, and says how much. most: it ends a draft there, which it
    does not say."""

    def __init__(self, clock: list[float], seconds: float, most: int) -> None:
        super().__init__(right=0.9)
        self._clock, self._seconds, self._most = clock, seconds, most

    def cost(self, rows: int, depth: int) -> float:
        return self._seconds * depth

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        lengths = [min(one, self._most) for one in lengths]
        self._clock[0] += self.cost(len(drafts), max(lengths))
        super().draft(drafts, lengths)


@pytest.mark.parametrize("most", [16, 1])
def test_the_time_of_drafting_is_counted_once(most: int) -> None:
    """It is in no step's time, since the drafter says what it takes."""
    clock = [0.0]
    runner = FakeRunner(num_pages=256, context_window=2048)
    runner.faults.append(lambda batch: clock.__setitem__(0, clock[0] + 0.010))
    drafter = Slow(clock, 0.004, most)
    harness = speculative(drafter, runner, most=None, clock=lambda: clock[0])
    harness.add("a", prompt_of(9), max_tokens=200)
    harness.run(limit=1000)
    speculator = harness.core._steps.speculator
    assert speculator is not None and isinstance(speculator.lengths, DraftLengths)
    times = speculator.lengths.times
    sizes = [size for size in range(2, 17) if times.samples(size) > 1]
    assert sizes
    for size in sizes:
        assert times.estimate(size) == pytest.approx(0.010)


USELESS = [
    pytest.param(Seer(right=0.0), id="always wrong"),
    pytest.param(Seer(right=0.3), id="mostly wrong"),
    pytest.param(PromptLookup(), id="prompt lookup"),
]


def on_a_clock(drafter: Drafter | None, cost: Cost, tokens: int = 400) -> tuple[float, Harness]:
    """Seconds that 4 requests take where a step costs what `cost` says of its tokens."""
    clock = [0.0]
    runner = FakeRunner(num_pages=256, context_window=2048)

    def work(batch: Batch) -> None:
        clock[0] += cost(sum(len(row.token_ids) for row in batch.rows))

    runner.faults.append(work)
    if drafter is None:
        harness = Harness(runner, EngineConfig(), clock=lambda: clock[0])
    else:
        harness = speculative(drafter, runner, most=None, clock=lambda: clock[0])
    for i in range(4):
        config = {"temperature": 1.0, "seed": i, "max_tokens": tokens}
        harness.add(str(i), prompt_of(9, i), **config)
        if i % 2:
            harness.run(limit=10_000)
    for i in range(4):
        config = {"temperature": 1.0, "seed": i, "max_tokens": tokens}
        assert harness.seen[str(i)].tokens == alone("a", prompt_of(9, i), **config)
    return clock[0], harness


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("drafter", "cost"), in_turn(USELESS, [flat, steep, uneven]))
def test_hardly_slower_than_plain_with_a_useless_drafter(drafter: Drafter, cost: Cost) -> None:
    """What the attempts cost is bounded, and soon they are rare."""
    plain, _ = on_a_clock(None, cost)
    seconds, harness = on_a_clock(drafter, cost)
    assert seconds <= 1.05 * plain
    assert harness.steps > 0


def test_much_faster_with_a_good_one() -> None:
    plain, _ = on_a_clock(None, flat)
    seconds, harness = on_a_clock(Seer(right=0.95), flat)
    assert seconds < plain / 4
    num_drafted, accepted = drafted(harness)
    assert accepted > 0.5 * num_drafted


def test_looks_become_rare_while_they_are_in_vain_and_not_otherwise() -> None:
    lengths = DraftLengths()
    assert lengths.patience == 0
    for _ in range(100):
        lengths.found_nothing()
    assert lengths.patience == MOST_PATIENCE
    for more in (0, 0, 1, 1):
        lengths.learn(1, more, flat(1 + more))
    assert any(lengths.choose([(4, 0.98)], free))
    assert lengths.patience == 0


@pytest.mark.parametrize(("max_rows", "most"), [(8, 0), (10, 2), (17, 9)])
def test_a_step_has_no_more_rows_than_there_is_memory_for(max_rows: int, most: int) -> None:
    lengths = DraftLengths(max_rows=max_rows)
    for more in (0, 0, 8):
        lengths.learn(8, more, flat(8 + more))
    assert sum(lengths.choose([(16, 0.98)] * 8, free)) == most
