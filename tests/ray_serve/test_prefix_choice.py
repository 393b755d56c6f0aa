"""A prompt goes where it will be ready first: both parts of the time count."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.ray.prefix_choice import Load, PrefixChoice, PrefixIndex
from mlc_llm.serve.kv_events.blocks import BLOCK_TOKENS, block_keys

PROMPT = [1] * 640
KEYS = block_keys(PROMPT)


def choice_of(*speeds: float) -> PrefixChoice[str]:
    found: PrefixChoice[str] = PrefixChoice(random.Random(0))
    found.loads = {name: Load(speed) for name, speed in zip("abcdef", speeds, strict=False)}
    return found


def test_it_goes_where_its_beginning_is() -> None:
    choice = choice_of(100, 100, 100)
    choice.index.stored("b", KEYS[:3])
    choice.index.stored("c", KEYS[:7])
    assert choice.choose(KEYS, 640) == ("c", 640 - 7 * BLOCK_TOKENS)
    choice.index.removed("c", KEYS[2:7])
    assert choice.choose(KEYS, 640) == ("b", 640 - 3 * BLOCK_TOKENS)


def test_not_where_too_much_waits() -> None:
    choice = choice_of(100, 100)
    choice.index.stored("b", KEYS[:7])
    choice.loads["b"].add(447, 1)
    assert choice.choose(KEYS, 640) == ("b", 192)
    choice.loads["b"].add(2, 0)
    assert choice.choose(KEYS, 640) == ("a", 640)


def test_the_measured_speed_counts() -> None:
    choice = choice_of(1000, 100)
    choice.index.stored("b", KEYS[:5])
    assert choice.choose(KEYS, 640) == ("a", 640)  # 0.64 s against 3.2 s
    choice.loads["a"].measured(100)
    assert choice.choose(KEYS, 640) == ("b", 320)


def test_without_knowledge_it_is_the_better_one_of_two() -> None:
    choice = choice_of(100, 100, 100, 100)
    for name, tokens in zip("abcd", (400, 300, 200, 100), strict=True):
        choice.loads[name].add(tokens, 1)
    chosen = [choice.choose(KEYS, 640) for _ in range(300)]
    counts = {name: chosen.count((name, 640)) for name in "abcd"}
    assert counts["a"] == 0  # it is the worse one of every two
    assert counts["d"] > counts["c"] > counts["b"] > 20


def test_replicas_that_have_gone_are_not_chosen() -> None:
    choice = choice_of(100)
    choice.index.stored("z", KEYS)
    assert choice.choose(KEYS, 640) == ("a", 640)
    choice.loads.clear()
    assert choice.choose([], 640) is None
    choice.index.cleared("z")
    assert choice.choose(KEYS, 640) is None


def test_load_never_falls_below_nothing() -> None:
    load = Load(100)
    load.add(50, 1)
    load.add(-80, -1)
    assert (load.waiting_tokens, load.running, load.wait_s) == (0, 0, 0)


@given(st.integers(0, 1 << 30))
def test_the_choice_is_that_of_looking_at_all(seed: int) -> None:
    chance = random.Random(seed)
    choice: PrefixChoice[int] = PrefixChoice(random.Random(0))
    for number in range(chance.randint(1, 12)):
        choice.loads[number] = Load(chance.choice((100.0, 1000.0)))
        choice.loads[number].add(chance.randint(0, 500), 1)
        choice.index.stored(number, KEYS[: chance.randint(0, 10)])
    found = choice.choose(KEYS, 640)
    assert found is not None

    def seconds(one: int) -> float:
        left = max(640 - choice.cached_tokens(one, KEYS), 1)
        return choice.loads[one].wait_s + left * choice.loads[one].pace

    if choice.index.levels(KEYS):
        assert seconds(found[0]) == pytest.approx(min(map(seconds, choice.loads)))


@given(st.integers(0, 1 << 30))
def test_the_index_is_what_was_told(seed: int) -> None:
    chance = random.Random(seed)
    index: PrefixIndex[int] = PrefixIndex()
    told: dict[int, int] = {}
    for _ in range(40):
        number, blocks = chance.randint(0, 3), chance.randint(0, 10)
        before = told.get(number, 0)
        if chance.random() < 0.1:
            index.cleared(number)
            told[number] = 0
        elif blocks >= before:
            index.stored(number, KEYS[before:blocks])
            told[number] = blocks
        else:
            index.removed(number, KEYS[blocks:before])
            told[number] = blocks
        for level, holders in index.levels(KEYS):
            assert holders == {one for one, held in told.items() if held >= level}
        assert all(len(index.keys_of(one)) == held for one, held in told.items())
