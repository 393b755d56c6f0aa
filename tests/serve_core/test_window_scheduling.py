"""Sliding windows in the engine core: what is said, and with how many pages."""

from __future__ import annotations

from typing import Any

import pytest
from core_harness import Harness, alone, prompt_of

from mlc_llm.errors import InvalidField
from mlc_llm.runtime.limits import Window
from mlc_llm.testing.fake_runner import FakeRunner

WINDOW = Window(40, 5)
LEAST = WINDOW.most_pages(16)


def harness_with(num_pages: int, **limits: Any) -> Harness:
    limits = {"max_num_sequence": 8, "context_window": 2000, **limits}
    return Harness(FakeRunner(num_pages=num_pages, window=WINDOW, **limits))


def test_an_answer_far_longer_than_the_pages() -> None:
    harness = harness_with(LEAST)
    harness.add("a", prompt_of(300), max_tokens=900)
    seen = harness.run()["a"]
    assert seen.tokens == alone_with(prompt_of(300), max_tokens=900)
    assert seen.reasons == ["length"] and len(seen.tokens[0]) == 900
    assert harness.core.num_preemptions == 0


def alone_with(prompt: list[int], **config: Any) -> list[list[int]]:
    """In an engine with room for everything."""
    harness = harness_with(1000, max_batch_tokens=400)
    harness.add("x", prompt, **config)
    return harness.run()["x"].tokens


def test_a_page_less_and_the_pages_are_the_limit() -> None:
    harness = harness_with(LEAST - 1)
    harness.add("a", prompt_of(30), max_tokens=900)
    seen = harness.run()["a"]
    assert len(seen.tokens[0]) == 16 * (LEAST - 1) + 1 - 30
    with_error = Harness(FakeRunner(num_pages=LEAST - 1, window=WINDOW), expected_error="KV cache")
    with_error.add("b", prompt_of(300))
    assert with_error.run()["b"].reasons == ["error"]


@pytest.mark.parametrize("num_pages", [LEAST, LEAST + 3, 2 * LEAST, 40])
def test_several_that_preempt_each_other_say_the_same(num_pages: int) -> None:
    harness = harness_with(num_pages)
    wanted = {
        str(i): (prompt_of(20 + 9 * i * i, i), {"max_tokens": 120, "temperature": 1.0, "seed": i})
        for i in range(5)
    }
    for name, (prompt, config) in wanted.items():
        harness.add(name, prompt, **config)
    seen = harness.run()
    for name, (prompt, config) in wanted.items():
        assert seen[name].tokens == alone_with(prompt, **config)
    assert (harness.core.num_preemptions > 0) == (num_pages < 40)


@pytest.mark.parametrize("max_num_sequence", [1, 2, 4])
def test_sequences_fork_or_compute_again(max_num_sequence: int) -> None:
    """A sequence that starts when the first has given pages of the prompt back computes its own."""
    harness = harness_with(60, max_num_sequence=max_num_sequence)
    config = {"n": 4, "temperature": 1.0, "seed": 3, "max_tokens": 80}
    harness.add("a", prompt_of(101), **config)
    assert harness.run()["a"].tokens == alone_with(prompt_of(101), **config)


def test_only_a_whole_sequence_is_taken_over() -> None:
    harness = harness_with(60)
    harness.add("a", prompt_of(100), max_tokens=5)
    said = harness.run()["a"].tokens[0]
    whole = [*prompt_of(100), *said[:-1]]  # the last token was never computed
    for name, prompt, cached in (("part", [*prompt_of(100), 9], 0), ("whole", [*whole, 9], 104)):
        harness.add(name, prompt, max_tokens=5)
        seen = harness.run()[name]
        assert seen.usage is not None
        assert seen.usage["prompt_tokens_details"]["cached_tokens"] == cached
        assert seen.tokens == alone("x", prompt, WINDOW, max_tokens=5)


def test_nothing_can_be_pinned() -> None:
    harness = harness_with(60)
    with pytest.raises(InvalidField, match="no sliding_window_size"):
        harness.add("a", [1, 2], debug_config={"pinned_system_prompt": True})
