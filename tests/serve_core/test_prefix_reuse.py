"""The prefix cache inside the engine: what is computed once, and that it never shows in a text."""

from __future__ import annotations

from typing import Any

import pytest
from core_harness import Harness, PieceTokenizer, alone, prompt_of

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.mock_echo import echo_config, echo_core
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import FakeRunner

PIN = {"debug_config": {"pinned_system_prompt": True}}


def one(harness: Harness, name: str, prompt: list[int], **config: Any) -> dict[str, Any]:
    """Serve one request to its end and compare it with a run of its own; returns its usage."""
    harness.add(name, prompt, **config)
    seen = harness.run()[name]
    assert seen.tokens == alone(name, prompt, **{**config, "debug_config": None})
    assert seen.usage is not None
    return seen.usage


def cached(usage: dict[str, Any]) -> int:
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["extra"]["prefill_tokens"] == usage["prompt_tokens"] - found
    return found


def test_second_request_computes_only_what_is_new() -> None:
    harness = Harness(FakeRunner(max_num_sequence=4))
    system = prompt_of(50)
    assert cached(one(harness, "a", [*system, 1, 2])) == 0
    before = harness.core.metrics()["prefill_tokens_sum"]
    assert before == 52
    assert cached(one(harness, "b", [*system, 3, 4, 5])) == 50
    assert harness.core.metrics()["prefill_tokens_sum"] == before + 3


def test_a_prompt_is_shared_while_its_first_owner_still_runs() -> None:
    harness = Harness()
    harness.add("a", prompt_of(50), max_tokens=30)
    harness.step()
    harness.add("b", [*prompt_of(50), 3, 4], max_tokens=30)
    seen = harness.run()
    assert seen["b"].usage is not None and cached(seen["b"].usage) == 50
    assert seen["b"].tokens == alone("b", [*prompt_of(50), 3, 4], max_tokens=30)


def test_second_round_of_a_talk_computes_the_answer_s_last_token_and_the_question() -> None:
    harness = Harness(FakeRunner(max_num_sequence=1))
    first = prompt_of(30)
    harness.add("a", first, max_tokens=10)
    answer = harness.run()["a"].tokens[0]
    usage = one(harness, "b", [*first, *answer, 7])
    assert cached(usage) == 39 and usage["extra"]["prefill_tokens"] == 2


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_last_k_finished_survive(limit: int) -> None:
    config = EngineConfig(prefix_cache_max_num_recycling_seqs=limit)
    harness = Harness(FakeRunner(max_num_sequence=16, num_pages=200), config)
    for i in range(10):
        harness.add(str(i), prompt_of(20, i), max_tokens=2)
    harness.run()
    assert len(harness.core.prefix_cache.recycling) == limit
    lookups = [harness.core.prefix_cache.lookup(prompt_of(20, i)).length for i in range(10)]
    assert lookups == [0] * (10 - limit) + [19] * limit


def test_a_pinned_prompt_survives_eviction() -> None:
    harness = Harness(FakeRunner(num_pages=24, max_num_sequence=3))
    one(harness, "pin", prompt_of(33), **PIN)
    for i in range(1, 8):
        one(harness, str(i), prompt_of(150, i), max_tokens=20)
    assert cached(one(harness, "again", [*prompt_of(33), 9])) == 33
    harness.reset()
    assert cached(one(harness, "after", [*prompt_of(33), 9])) == 0


@pytest.mark.parametrize("n", [1, 2])
def test_only_the_prompt_is_pinned(n: int) -> None:
    harness = Harness(FakeRunner(num_pages=64, max_num_sequence=8))
    for i in range(3):
        one(harness, str(i), prompt_of(16, i), max_tokens=300, n=n, seed=1, **PIN)
    cache = harness.core.prefix_cache
    assert [cache.tokens(seq_id) for seq_id in cache.pinned] == [prompt_of(16, i) for i in range(3)]
    while cache.evict():
        pass
    assert harness.runner.free_pages == 64 - 3
    for i in range(3):
        assert cached(one(harness, f"again {i}", [*prompt_of(16, i), 9])) == 16


def test_a_pin_never_stops_the_engine() -> None:
    harness = Harness(FakeRunner(num_pages=8, max_num_sequence=2))
    one(harness, "pin", prompt_of(60), **PIN)
    one(harness, "large", prompt_of(100, 1), max_tokens=20)
    assert harness.core.prefix_cache.pinned == []
    one(harness, "pin2", prompt_of(40, 2), max_tokens=1, **PIN)
    one(harness, "growing", prompt_of(20, 3), max_tokens=100)
    assert harness.core.num_preemptions == 0


def test_preemption_comes_before_a_pin_is_given_up() -> None:
    harness = Harness(FakeRunner(num_pages=12, max_num_sequence=3))
    one(harness, "pin", prompt_of(40), max_tokens=1, **PIN)
    for name, start in (("a", 1), ("b", 2)):
        harness.add(name, prompt_of(30, start), max_tokens=60)
    harness.run()
    assert harness.core.num_preemptions > 0 and len(harness.core.prefix_cache.pinned) == 1
    for name, start in (("a", 1), ("b", 2)):
        assert harness.seen[name].tokens == alone(name, prompt_of(30, start), max_tokens=60)


def test_reset_empties_the_cache() -> None:
    harness = Harness()
    one(harness, "a", prompt_of(40))
    one(harness, "b", prompt_of(40, 1), **PIN)
    harness.add("c", prompt_of(40, 2), max_tokens=30)
    harness.step()
    harness.reset()
    assert harness.seen["c"].reasons == ["abort"]
    assert harness.runner.free_pages == harness.runner.limits.num_pages
    assert harness.core.prefix_cache.num_sequences == 0
    assert harness.core.metrics()["prefill_tokens_sum"] == 0
    for name, start in (("a2", 0), ("b2", 1), ("c2", 2)):
        assert cached(one(harness, name, prompt_of(40, start))) == 0


@pytest.mark.parametrize("config", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_output_is_the_same_with_and_without(config: dict[str, Any], sequences: int) -> None:
    harness = Harness(FakeRunner(num_pages=20, max_num_sequence=sequences, max_batch_tokens=24))
    for i in range(12):
        prompt = [*prompt_of(10 * (i % 4) + 8), *prompt_of(i, i)]
        harness.add(str(i), prompt, max_tokens=12, **config)
        harness.step()
    found = 0
    for i, seen in enumerate(harness.run().values()):
        prompt = [*prompt_of(10 * (i % 4) + 8), *prompt_of(i, i)]
        assert seen.tokens == alone(str(i), prompt, max_tokens=12, **config)
        assert seen.usage is not None
        found += seen.usage["prompt_tokens_details"]["cached_tokens"]
    assert found > 100


def test_switched_off_keeps_nothing() -> None:
    harness = Harness(config=EngineConfig(prefix_cache_mode="disable"))
    for name in "ab":
        assert cached(one(harness, name, prompt_of(40))) == 0
    assert harness.runner.free_pages == harness.runner.limits.num_pages


def test_an_aborted_request_leaves_nothing() -> None:
    harness = Harness()
    harness.add("a", prompt_of(40), max_tokens=30)
    harness.step()
    harness.step()
    harness.abort("a")
    assert harness.runner.free_pages == harness.runner.limits.num_pages
    assert cached(one(harness, "b", prompt_of(40))) == 0


def test_nothing_of_a_failed_request_is_found_again() -> None:
    harness = Harness(FakeRunner(max_batch_tokens=32), expected_error="finite")
    harness.runner.bad_rows = lambda tokens: tokens[:40] == prompt_of(40) and len(tokens) >= 40
    harness.add("prompt", prompt_of(40))  # fails in its second chunk
    harness.step()
    assert harness.core.prefix_cache.lookup(prompt_of(32)).length == 0
    harness.run()
    harness.runner.bad_rows = lambda tokens: len(tokens) == 23
    # Sequence 1 fails after sequence 0 has ended well.
    first = alone("x", prompt_of(20), n=2, temperature=1.0, seed=1)[0][1]
    config = {"n": 2, "temperature": 1.0, "seed": 1, "stop_token_ids": [first]}
    harness.add("sequences", prompt_of(20), **config)
    harness.step()
    harness.step()
    assert harness.seen["sequences"].reasons[0] == "stop"
    assert harness.core.prefix_cache.lookup(prompt_of(20)).length == 19
    assert harness.run()["sequences"].reasons == ["stop", "error"]
    harness.runner.bad_rows = lambda tokens: False
    assert harness.core.prefix_cache.num_sequences == 0
    assert cached(one(harness, "again", prompt_of(40))) == 0


def test_kept_sequences_give_way_to_running_ones() -> None:
    """They count against the pages and the sequences, and go before anyone is preempted."""
    harness = Harness(FakeRunner(num_pages=12, max_num_sequence=2, max_batch_tokens=64))
    one(harness, "a", prompt_of(60))
    one(harness, "b", prompt_of(60, 1))
    assert len(harness.runner.sequences) == 2
    for name, start in (("c", 2), ("d", 3)):
        harness.add(name, prompt_of(20, start), max_tokens=60)
    harness.run()
    assert harness.core.num_preemptions == 0
    for name, start in (("c", 2), ("d", 3)):
        assert harness.seen[name].tokens == alone(name, prompt_of(20, start), max_tokens=60)


def test_a_preempted_sequence_finds_what_others_kept_and_counts_it_once() -> None:
    harness = Harness(FakeRunner(num_pages=10, max_num_sequence=4, max_batch_tokens=64))
    for i in range(4):
        harness.add(str(i), prompt_of(20), max_tokens=50, temperature=1.0, seed=i)
    harness.run()
    assert harness.core.num_preemptions > 0
    for i, seen in enumerate(harness.seen.values()):
        expected = alone("x", prompt_of(20), max_tokens=50, temperature=1.0, seed=i)
        assert seen.tokens == expected and seen.usage is not None
        assert seen.usage["prompt_tokens_details"]["cached_tokens"] < 20


def test_trace_and_metrics_say_where_a_prompt_diverged() -> None:
    trace = EventTraceRecorder()
    harness = Harness(trace=trace)
    one(harness, "a", [1, 2, 3, 4, 5])
    one(harness, "b", [1, 2, 3, 9, 5])
    text = trace.dump_json()
    assert "prefix cache: 3 of 5 tokens" in text
    assert "has token 4 at 3, the prompt 9" in text
    found = harness.core.metrics()["prefix_cache"]
    assert (found["lookups_sum"], found["hits_sum"], found["cached_tokens_sum"]) == (2, 1, 3)
    last = found["last_divergence"]
    assert (last["position"], last["cached_token"], last["prompt_token"]) == (3, 4, 9)


def test_sequences_of_one_request_count_their_prompt_once() -> None:
    harness = Harness(FakeRunner(max_num_sequence=3))
    config = {"n": 5, "temperature": 1.0, "seed": 4}
    harness.add("a", prompt_of(30), **config)
    usage = harness.run()["a"].usage
    assert usage is not None and usage["prompt_tokens_details"]["cached_tokens"] == 0
    harness.add("b", prompt_of(30), **config)
    seen = harness.run()["b"]
    assert seen.usage is not None and seen.usage["prompt_tokens_details"]["cached_tokens"] == 29
    assert seen.tokens == alone("b", prompt_of(30), **config)


def test_the_echo_repeats_a_prompt_that_is_kept_already() -> None:
    core = echo_core(PieceTokenizer(), echo_config(EngineConfig()))  # type: ignore[arg-type]
    first, longer = [65, 66, 67], [65, 66, 67, 65, 66, 68]  # the second takes the first one over
    for i, prompt in enumerate((first, longer, longer, [65])):
        request = Request(str(i), [TokenData(prompt)], GenerationConfig(temperature=0.0))
        outputs = core.add_request(request)
        while not core.is_idle:
            outputs += core.step()
        said = [output.unpack()[1][0].delta_token_ids for output in outputs]
        assert [token for ids in said for token in ids] == prompt
    assert core.prefix_cache.num_sequences > 1


def test_prompts_of_another_salt_are_not_shared() -> None:
    harness = Harness(FakeRunner(max_num_sequence=8))
    prompt, found = prompt_of(50), []
    for i, salt in enumerate(["", "x", "y", "x", ""]):
        config = GenerationConfig(max_tokens=4, temperature=0.0, seed=1)
        request = Request(str(i), [TokenData(prompt)], config, cache_salt=salt)
        harness.core.add_request(request)
        before = harness.core.metrics()["prefill_tokens_sum"]
        while not harness.core.is_idle:
            harness.core.step()
            harness.core.check_integrity()
        found.append(harness.core.metrics()["prefill_tokens_sum"] - before)
    assert found == [50, 50, 50, 1, 1]
    cache = harness.core.prefix_cache
    assert cache.lookup(prompt, salt="z").length == 0
    assert cache.lookup(prompt, salt="x").length == cache.lookup(prompt).length == 49
