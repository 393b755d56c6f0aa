"""Who runs when: batching, chunks, preemption and sequences never change what is said."""

from __future__ import annotations

import sys

import pytest
from core_harness import Harness, alone, prompt_of

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.testing.fake_runner import FakeRunner


def test_requests_added_together_end_at_step_max_tokens_minus_one() -> None:
    harness = Harness(FakeRunner(num_pages=100, max_num_sequence=10, max_batch_tokens=256))
    for i in range(10):
        harness.add(str(i), prompt_of(5 + i, i), max_tokens=3 + i)
    for i, seen in enumerate(harness.run().values()):
        assert seen.last_step == 3 + i - 1
        assert len(seen.tokens[0]) == 3 + i and seen.reasons == ["length"]


def test_late_request_joins_while_others_decode_every_step() -> None:
    harness = Harness()
    harness.add("early", prompt_of(9), max_tokens=20)
    for _ in range(5):
        harness.step()
    harness.add("late", prompt_of(30, 1), max_tokens=6)
    harness.run()
    assert harness.seen["late"].last_step == 5 + 6 - 1
    assert harness.seen["early"].last_step == 20 - 1


@pytest.mark.parametrize("mode", ["hybrid", "chunked"])
def test_long_prompt_is_computed_in_chunks(mode: str) -> None:
    harness = Harness(
        FakeRunner(max_batch_tokens=16),
        EngineConfig(prefill_mode=mode),  # type: ignore[arg-type]
    )
    harness.add("a", prompt_of(100), max_tokens=1)
    harness.run()
    assert harness.steps == 7  # ceil(100 / 16)
    assert harness.seen["a"].tokens == alone("a", prompt_of(100), max_tokens=1)


def test_decode_goes_on_beside_a_long_prompt_in_hybrid_mode_only() -> None:
    sizes = {}
    for mode in ("hybrid", "chunked"):
        harness = Harness(
            FakeRunner(max_batch_tokens=16),
            EngineConfig(prefill_mode=mode),  # type: ignore[arg-type]
        )
        harness.add("short", prompt_of(4), max_tokens=30)
        harness.step()
        harness.add("long", prompt_of(90, 3), max_tokens=2)
        for _ in range(5):
            harness.step()
        sizes[mode] = len(harness.seen["short"].tokens[0])
        harness.run()
    assert sizes == {"hybrid": 6, "chunked": 1}


def test_output_does_not_depend_on_what_else_runs() -> None:
    prompts = {str(i): prompt_of(10 + 13 * i, i) for i in range(8)}
    config = {"temperature": 1.0, "seed": 5, "max_tokens": 25}
    harness = Harness(FakeRunner(num_pages=60, max_num_sequence=3, max_batch_tokens=24))
    for name, prompt in prompts.items():
        harness.add(name, prompt, **config)
    for name, seen in harness.run().items():
        assert seen.tokens == alone(name, prompts[name], **config)


def test_preemption_changes_nothing_and_streams_nothing_twice() -> None:
    trace = EventTraceRecorder()
    runner = FakeRunner(num_pages=10, max_num_sequence=4, max_batch_tokens=64)
    harness = Harness(runner, trace=trace)
    prompts = {str(i): prompt_of(20, i) for i in range(4)}
    for name, prompt in prompts.items():
        harness.add(name, prompt, max_tokens=50)
    harness.run()
    assert harness.core.num_preemptions > 0 and "preempt (0)" in trace.dump_json()
    for name, prompt in prompts.items():
        assert harness.seen[name].tokens == alone(name, prompt, max_tokens=50)


def test_preempted_sampling_draws_the_same_numbers() -> None:
    harness = Harness(FakeRunner(num_pages=8, max_num_sequence=4, max_batch_tokens=40))
    prompts = {str(i): prompt_of(18, i) for i in range(4)}
    config = {"temperature": 0.9, "seed": 11, "max_tokens": 40, "n": 2}
    for name, prompt in prompts.items():
        harness.add(name, prompt, **config)
    harness.run()
    assert harness.core.num_preemptions > 0
    for name, prompt in prompts.items():
        assert harness.seen[name].tokens == alone(name, prompt, **config)


def test_first_come_first_served() -> None:
    harness = Harness(FakeRunner(num_pages=12, max_num_sequence=2, max_batch_tokens=64))
    harness.add("big", prompt_of(100), max_tokens=3)
    harness.add("bigger", prompt_of(150, 1), max_tokens=3)
    harness.add("small", prompt_of(2, 2), max_tokens=3)
    harness.run()
    ends = [harness.seen[name].last_step for name in ("big", "bigger", "small")]
    assert ends == sorted(ends)


def test_more_sequences_than_slots() -> None:
    harness = Harness(FakeRunner(num_pages=64, max_num_sequence=4, max_batch_tokens=64))
    harness.add("a", prompt_of(21), n=7, temperature=1.0, seed=3, max_tokens=9)
    seen = harness.run()["a"]
    assert len({tuple(tokens) for tokens in seen.tokens}) == 7
    assert seen.usage is not None
    assert seen.usage["prompt_tokens"] == 21 and seen.usage["completion_tokens"] == 7 * 9
    assert seen.tokens == alone("a", prompt_of(21), n=7, temperature=1.0, seed=3, max_tokens=9)


def test_sequences_share_the_prompt() -> None:
    harness = Harness(FakeRunner(num_pages=64, max_num_sequence=4, max_batch_tokens=64))
    harness.add("a", prompt_of(40), n=4, temperature=1.0, max_tokens=4)
    computed = harness.runner.batches
    seen = harness.run()["a"]
    prompt_rows = [len(row.token_ids) for batch in computed for row in batch.rows]
    assert sorted(prompt_rows)[-2:] == [1, 40]
    assert seen.usage is not None and seen.usage["extra"]["prefill_tokens"] == 40 + 3


def test_single_sequence_uses_the_seed_and_several_the_seeds_after_it() -> None:
    def uniforms(n: int, seed: int) -> set[float]:
        harness = Harness()
        harness.add("a", [1, 2], n=n, temperature=1.0, seed=seed, max_tokens=1)
        harness.run()
        rows = [row for batch in harness.runner.batches for row in batch.rows]
        return {sampling.uniform for row in rows for sampling in row.samplings}

    assert uniforms(2, 10) == uniforms(1, 11) | uniforms(1, 12)
    assert uniforms(1, -1) != uniforms(1, 1)


def test_work_of_a_step_does_not_grow_with_the_queue() -> None:
    def calls(waiting: int) -> int:
        """Of any function, in a step with two running and so many waiting."""
        harness = Harness(FakeRunner(num_pages=16, max_num_sequence=2, max_batch_tokens=32))
        for i in range(waiting):
            harness.add(str(i), [1, 2, 3], max_tokens=500)
        for _ in range(5):
            harness.step()
        count = [0]
        sys.setprofile(lambda *_: count.__setitem__(0, count[0] + 1))
        try:
            harness.core.step()
        finally:
            sys.setprofile(None)
        return count[0]

    assert calls(2000) <= calls(10) + 10


def test_step_with_nothing_to_do() -> None:
    harness = Harness()
    assert harness.step() == [] and harness.runner.batches == []
