"""Speculative decoding gives the very tokens of plain decoding, whatever is drafted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from core_harness import Harness, alone, prompt_of
from eager_drafts import draft_always
from hostile_grammars import regex
from hypothesis import given
from hypothesis import strategies as st
from spec_tools import Broken, Seer, drafted, longest_row, speculative

from mlc_llm.runtime.batch import Batch
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.speculation.draft_model import DraftModel
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.testing.fake_runner import FakeRunner


def small_runner(**limits: Any) -> FakeRunner:
    values = {"num_pages": 24, "page_size": 4, "max_num_sequence": 4, "max_batch_tokens": 24}
    return FakeRunner(**{**values, "context_window": 60, **limits})


FEW = dict.fromkeys((5, 6, 7), 100.0)
"""A text of these tokens alone repeats pairs of them."""
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 12},
    "sampled": {"temperature": 1.0, "seed": 5, "max_tokens": 15},
    "sequences": {"temperature": 1.0, "seed": 6, "n": 3, "max_tokens": 9},
    "penalties": {
        "temperature": 0.7,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "max_tokens": 12,
    },
    "few words": {"temperature": 1.0, "seed": 2, "logit_bias": FEW, "max_tokens": 30},
    "few, in full": {"logit_bias": FEW, "max_tokens": 25, "stop_token_ids": [5]},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "max_tokens": 10},
    "stops": {"temperature": 1.0, "seed": 8, "stop_strs": ["e", "zz"], "max_tokens": 20},
    "stop tokens": {"temperature": 1.0, "seed": 9, "stop_token_ids": list(range(0, 300, 7))},
    "one": {"max_tokens": 1},
    "to the end": {"max_tokens": -1},
    "grammar": {"temperature": 1.0, "response_format": regex("[ab]{3}, and so on[a-f]*")},
    "free grammar": {"temperature": 1.0, "seed": 3, "response_format": regex("[a-z ]{5,40}")},
}


def answers(harness: Harness, names: Sequence[str]) -> dict[str, Any]:
    for i, name in enumerate(names):
        harness.add(name, prompt_of(7 + i % 3, i % 2), **{"seed": 1, **REQUESTS[name]})
    seen = harness.run(limit=4000)
    return {name: (one.tokens, one.reasons, one.cut, one.logprobs) for name, one in seen.items()}


def drafters() -> dict[str, Any]:
    return {
        "seer": Seer(1),
        "always right": Seer(2, right=1.0),
        "lookup": PromptLookup(),
        "model": DraftModel(small_runner()),
    }


@pytest.mark.parametrize("name", drafters())
@pytest.mark.parametrize("most", [1, 5, 16])
def test_nothing_but_the_speed_changes(name: str, most: int) -> None:
    plain = answers(Harness(small_runner()), list(REQUESTS))
    harness = speculative(drafters()[name], small_runner(), most=most)
    assert answers(harness, list(REQUESTS)) == plain
    num_drafted, accepted = drafted(harness)
    assert num_drafted > 0 and (accepted > 0 or name == "lookup")
    assert 1 < longest_row(harness.runner.batches) <= most + 1


@given(data=st.data())
def test_nothing_but_the_speed_changes_with_any_limits(data: st.DataObject) -> None:
    limits = data.draw(
        st.fixed_dictionaries(
            {
                "num_pages": st.integers(8, 40),
                "max_num_sequence": st.integers(1, 6),
                "max_batch_tokens": st.integers(4, 30),
            }
        )
    )
    names = data.draw(st.lists(st.sampled_from(sorted(REQUESTS)), min_size=1, unique=True))
    names = [name for name in names if name != "to the end" or limits["num_pages"] >= 15]
    drafter = drafters()[data.draw(st.sampled_from(sorted(drafters())))]
    cache: Any = data.draw(st.sampled_from(["radix", "disable"]))
    config = EngineConfig(prefix_cache_mode=cache)
    plain = answers(Harness(small_runner(**limits), config), names)
    harness = speculative(
        drafter, small_runner(**limits), config, most=data.draw(st.integers(1, 16))
    )
    assert answers(harness, names) == plain


def test_fewer_steps_when_the_drafts_are_right() -> None:
    config: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "seed": 4}
    harness = speculative(Seer(right=1.0), FakeRunner(), most=5)
    harness.add("a", prompt_of(20), **config)
    seen = harness.run()
    assert seen["a"].tokens == alone("a", prompt_of(20), **config)
    assert harness.steps == 1 + 10  # six tokens a step behind the first
    usage = seen["a"].usage
    assert usage is not None and usage["extra"]["decode_tokens"] == 59
    metrics = harness.core.metrics()
    assert metrics["decode_tokens_sum"] == 59
    assert metrics["spec_decode"]["draft_count"] == metrics["spec_decode"]["accept_count"]
    assert "count{batch_size=1}" in metrics["verify_time_by_batch_size"]
    assert "count{batch_size=1}" in metrics["draft_time_by_batch_size"]
    assert metrics["decode_time_by_batch_size"] == {}


def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    """Also of those for which nobody ever had an offer."""
    drafter = PromptLookup()
    harness = speculative(drafter, FakeRunner(), most=4)
    for i in range(12):
        harness.add(str(i), prompt_of(30, i), max_tokens=5)
        harness.run()
    assert not drafter._texts
    harness.core.check_integrity()


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    runner = small_runner(num_pages=64)
    harness = speculative(DraftModel(small_runner(num_pages=64)), runner, most=4)
    for i in range(4):
        harness.add(str(i), prompt_of(5 + i), temperature=1.0, seed=i, max_tokens=30)
    harness.run()
    num_drafted, accepted = drafted(harness)
    assert num_drafted > 60 and accepted == num_drafted


def test_a_draft_model_with_less_room_drafts_less() -> None:
    draft = small_runner(num_pages=8, max_num_sequence=2, context_window=30)
    harness = speculative(DraftModel(draft), small_runner(num_pages=64), most=4)
    for i in range(4):
        harness.add(str(i), prompt_of(5 + i), temperature=1.0, seed=i, max_tokens=30)
    seen = harness.run()
    for i in range(4):
        config: dict[str, Any] = {"temperature": 1.0, "seed": i, "max_tokens": 30}
        assert seen[str(i)].tokens == alone("a", prompt_of(5 + i), **config)
    assert drafted(harness)[1] > 0
    assert not draft.sequences and draft.free_pages == 8


@pytest.mark.parametrize("max_num_sequence", [2, 4])
def test_a_draft_model_offers_no_more_than_all_its_texts_have_room_for(
    max_num_sequence: int,
) -> None:
    """Answers to one prompt share its pages, and their copies in the draft model do not."""
    draft = small_runner(max_num_sequence=max_num_sequence)
    harness = speculative(DraftModel(draft), small_runner(), most=None)
    draft_always(harness.core, 4)  # a drafter that fails ends the requests
    config: dict[str, Any] = {"n": 4, "temperature": 1.0, "seed": 1, "max_tokens": 16}
    harness.add("a", prompt_of(30), **config)
    assert harness.run()["a"].tokens == alone("a", prompt_of(30), **config)
    assert drafted(harness)[1] > 0


def test_draft_tokens_take_no_pages_from_anybody() -> None:
    """A full machine: everything runs in as many steps, with as many preemptions, as without."""
    counts = []
    for drafter in (None, Seer(right=0.0)):
        runner = small_runner(num_pages=10)
        harness = speculative(drafter, runner) if drafter else Harness(runner)
        for i in range(4):
            harness.add(str(i), prompt_of(9, i), temperature=1.0, seed=i, max_tokens=24)
        harness.run()
        counts.append((harness.steps, harness.core.num_preemptions))
    assert counts[0] == counts[1] and counts[0][1] > 0


def test_bad_numbers_behind_a_draft_token_fail_nobody_until_they_are_needed() -> None:
    """The model breaks down behind a token that it would not have said itself."""
    harness = speculative(Seer(right=0.5), FakeRunner(), most=4)
    said = alone("a", prompt_of(9), max_tokens=20)[0]

    def is_bad(tokens: Sequence[int]) -> bool:
        return list(tokens[9:]) != said[: len(tokens) - 9]

    harness.runner.bad_rows = is_bad
    harness.add("a", prompt_of(9), max_tokens=20)
    assert harness.run()["a"].tokens == [said]
    num_drafted, accepted = drafted(harness)
    assert 0 < accepted < num_drafted


def test_bad_numbers_in_the_text_itself_fail_it_where_they_are() -> None:
    harness = speculative(Seer(right=1.0), FakeRunner(), most=4)
    harness.expected_error = "finite"
    said = alone("a", prompt_of(9), max_tokens=20)[0]
    harness.runner.bad_rows = lambda tokens: len(tokens) == 9 + 7
    harness.add("a", prompt_of(9), max_tokens=20)
    harness.add("b", prompt_of(4), max_tokens=8)
    seen = harness.run()
    assert (seen["a"].reasons, seen["a"].tokens) == (["error"], [said[:7]])
    assert seen["b"].tokens == alone("b", prompt_of(4), max_tokens=8)


def test_a_step_that_fails_with_draft_tokens_is_run_without_them() -> None:
    harness = speculative(Seer(right=1.0), FakeRunner(), most=4)

    def no_drafts(batch: Batch) -> None:
        if any(len(row.samplings) > 1 for row in batch.rows):
            raise RuntimeError("too much for this machine")

    harness.runner.faults.append(no_drafts)
    harness.add("a", prompt_of(9), max_tokens=9)
    assert harness.run()["a"].tokens == alone("a", prompt_of(9), max_tokens=9)
    assert drafted(harness) == (0, 0)


def test_a_broken_drafter_costs_its_drafts_alone(caplog: pytest.LogCaptureFixture) -> None:
    harness = speculative(Broken(), FakeRunner())
    harness.add("a", prompt_of(9), max_tokens=9)
    assert harness.run()["a"].tokens == alone("a", prompt_of(9), max_tokens=9)
    assert [record.message.split(",")[0] for record in caplog.records] == ["drafting failed"]


def test_a_draft_model_that_fails_at_times_is_used_again() -> None:
    draft = FakeRunner(num_pages=256)
    count = 0

    def fail(batch: Batch) -> None:
        nonlocal count
        count += 1
        if count % 5 == 0:
            raise RuntimeError("at times")

    draft.faults.append(fail)
    harness = speculative(DraftModel(draft), FakeRunner(num_pages=256), most=3)
    harness.add("a", prompt_of(9), max_tokens=60, temperature=1.0, seed=3)
    expected = alone("a", prompt_of(9), max_tokens=60, temperature=1.0, seed=3)
    assert harness.run()["a"].tokens == expected
    assert drafted(harness)[0] > 20


def test_a_draft_model_catches_up_in_bounded_steps_and_not_for_short_answers() -> None:
    draft = FakeRunner(num_pages=256, max_batch_tokens=512)
    runner = FakeRunner(num_pages=256, max_batch_tokens=512)
    harness = speculative(DraftModel(draft), runner, most=3)
    harness.add("short", prompt_of(500), max_tokens=10)
    harness.run()
    assert draft.batches == []
    harness.add("long", prompt_of(500, 1), max_tokens=120)
    harness.run()
    sizes = [sum(len(row.token_ids) for row in batch.rows) for batch in draft.batches]
    assert 100 < max(sizes) <= 130 and sum(sizes) > 500
    assert drafted(harness)[1] > 0


def test_what_was_drafted_wrong_never_reaches_the_prefix_cache() -> None:
    harness = speculative(Seer(right=0.3), FakeRunner(), most=6)
    for name in ("a", "b"):
        harness.add(name, prompt_of(40), max_tokens=30, temperature=1.0, seed=2)
        seen = harness.run()  # compares the cache with the pages
    assert seen["a"].tokens == seen["b"].tokens
    usage = seen["b"].usage
    assert usage is not None and usage["prompt_tokens_details"]["cached_tokens"] > 30


def test_drafts_and_their_acceptances_are_in_the_trace() -> None:
    trace = EventTraceRecorder()
    harness = speculative(Seer(right=1.0), FakeRunner(), most=2, trace=trace)
    harness.add("a", prompt_of(5), max_tokens=4)
    harness.run()
    names = [event["name"] for event in json.loads(trace.dump_json())]
    order = ["draft 2 tokens (0)", "verify (0)", "verify (0)", "accepted 2 of 2 drafted tokens (0)"]
    first = names.index(order[0])
    assert names[first : first + 4] == order


def test_the_core_drafts_from_the_text_by_itself() -> None:
    config = EngineConfig(speculative_mode="prompt_lookup", spec_draft_length=3)
    harness = Harness(FakeRunner(), config)
    harness.add("a", [7] * 30, max_tokens=20, logit_bias={7: 100.0})
    seen = harness.run()
    assert seen["a"].tokens == [[7] * 20]
    assert seen["a"].tokens == alone("a", [7] * 30, max_tokens=20, logit_bias={7: 100.0})
