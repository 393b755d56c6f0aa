"""What never reaches the queue, and how requests end that do not end by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_harness import Harness, PieceTokenizer, alone, prompt_of

from mlc_llm.errors import ContextLengthExceeded, InvalidField, RequestError, UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Batch
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.data import TextData, TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import FakeRunner

ENGINE_KEYS = (
    "engine_prefill_time_sum",
    "engine_decode_time_sum",
    "engine_jump_forward_time_sum",
    "prompt_tokens_sum",
    "completion_tokens_sum",
    "prefill_tokens_sum",
    "decode_tokens_sum",
    "jump_forward_tokens_sum",
    "last_finished_request",
    "decode_time_by_batch_size",
)


def test_abort_frees_the_pages_at_once() -> None:
    harness = Harness()
    harness.add("other", prompt_of(10), max_tokens=30)
    harness.step()
    before = harness.runner.free_pages
    harness.add("a", prompt_of(50, 1), n=3)
    harness.step()
    harness.step()
    assert harness.runner.free_pages < before - 3
    harness.abort("a")
    harness.core.check_integrity()
    seen = harness.seen["a"]
    assert harness.runner.free_pages == before and not harness.core.has_request("a")
    assert seen.reasons == ["abort"] * 3 and seen.usage is not None
    assert harness.run()["other"].tokens == alone("other", prompt_of(10), max_tokens=30)


def test_abort_of_an_unknown_or_finished_request_does_nothing() -> None:
    harness = Harness()
    harness.add("a", prompt_of(4))
    harness.run()
    assert harness.core.abort_request("a") == [] and harness.core.abort_request("no") == []
    harness.add("other", prompt_of(9), temperature=1.0, seed=1, max_tokens=12)
    while not harness.core.is_idle:
        assert harness.core.abort_request("a") == [] and harness.core.abort_request("no") == []
        harness.step()
    config = {"temperature": 1.0, "seed": 1, "max_tokens": 12}
    assert harness.seen["other"].tokens == alone("other", prompt_of(9), **config)


def test_abort_while_waiting_runs_no_model() -> None:
    harness = Harness()
    harness.add("a", prompt_of(4), n=2)
    harness.abort("a")
    assert harness.seen["a"].reasons == ["abort", "abort"] and harness.runner.batches == []
    assert harness.seen["a"].tokens == [[], []]
    harness.run()


def test_reset_ends_everything_and_clears_the_sums() -> None:
    harness = Harness(FakeRunner(max_num_sequence=2))
    harness.add("done", prompt_of(4), max_tokens=1)
    harness.run()
    for i in range(5):
        harness.add(str(i), prompt_of(20, i))
    harness.step()
    harness.reset()
    assert [harness.seen[str(i)].reasons for i in range(5)] == [["abort"]] * 5
    assert harness.core.metrics()["prefill_tokens_sum"] == 0 and harness.core.is_idle
    harness.run()
    harness.add("again", prompt_of(20))
    assert harness.run()["again"].tokens == alone("again", prompt_of(20))


@pytest.mark.parametrize("max_tokens", [-1, 0, 5])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_sizes(max_tokens: int) -> None:
    harness = Harness(config=EngineConfig(max_single_sequence_length=32))
    for size in (32, 33):
        with pytest.raises(ContextLengthExceeded, match=f"length is 32 .* has {size} tokens"):
            harness.add("a", prompt_of(size), max_tokens=max_tokens)
    assert harness.runner.batches == [] and harness.core.is_idle
    harness.add("b", prompt_of(31))
    seen = harness.run()["b"]
    assert len(seen.tokens[0]) == 1 and seen.reasons == ["length"]


@pytest.mark.parametrize("pieces", [["x" * 100_000], ["x" * 100] * 1000, ["x" * 300]])
def test_a_text_that_must_be_too_long_is_not_tokenised(pieces: list[str]) -> None:
    """The longest token has 8 characters, the context 32 tokens."""
    harness = Harness(config=EngineConfig(max_single_sequence_length=32))
    texts = [TextData(piece) for piece in pieces]
    with pytest.raises(ContextLengthExceeded, match="has at least"):
        harness.add_request(Request("a", texts, GenerationConfig(n=2)))
    assert harness.tokenizer.encoded == 0
    with pytest.raises(ContextLengthExceeded, match="has 250 tokens"):
        harness.add_request(Request("b", [TextData("x" * 250)], GenerationConfig()))
    assert harness.tokenizer.encoded == 250 and harness.runner.batches == []


def test_prompt_that_can_never_fit_the_pages_ends_with_error() -> None:
    harness = Harness(FakeRunner(num_pages=4), expected_error="65 tokens")
    harness.add("a", prompt_of(65))
    assert harness.seen["a"].reasons == ["error"] and harness.core.is_idle
    assert "65 tokens" in str(harness.seen["a"].error) and "64" in str(harness.seen["a"].error)
    harness.add("b", prompt_of(64))
    assert len(harness.run()["b"].tokens[0]) == 1
    harness.add("c", prompt_of(60), max_tokens=-1, n=3, temperature=1.0)
    assert [len(tokens) for tokens in harness.run()["c"].tokens] == [5, 5, 5]


def test_max_tokens_zero_yields_none() -> None:
    harness = Harness()
    harness.add("a", prompt_of(5), max_tokens=0, n=2)
    seen = harness.run()["a"]
    assert seen.reasons == ["length", "length"] and harness.runner.batches == []
    assert seen.usage is not None and seen.usage["prompt_tokens"] == 5


def test_a_second_request_of_the_same_name_is_refused() -> None:
    harness = Harness()
    harness.add("a", prompt_of(5))
    with pytest.raises(InvalidField, match="request_id"):
        harness.core.add_request(Request("a", [TextData("x")], GenerationConfig()))
    assert harness.run()["a"].tokens == alone("a", prompt_of(5))


@pytest.mark.parametrize(
    ("inputs", "config", "named"),
    [
        ([TokenData([1, 300])], {}, "prompt token id = 300"),
        ([TokenData([])], {}, "prompt"),
        ([TextData("")], {}, "prompt"),
        ([TextData("x")], {"logit_bias": {300: 1.0}}, "logit_bias = 300"),
        (
            [TextData("x")],
            {"response_format": {"type": "json_object", "schema": {"$ref": "x"}}},
            "response_format.schema $ref",
        ),
    ],
)
def test_refused_requests_leave_no_trace(
    inputs: list[Any], config: dict[str, Any], named: str
) -> None:
    harness = Harness()
    before = harness.core.metrics().metrics
    with pytest.raises(InvalidField) as caught:
        harness.core.add_request(Request("a", inputs, GenerationConfig(**config)))
    assert named in str(caught.value)
    assert harness.core.is_idle and not harness.core.has_request("a")
    assert harness.core.metrics().metrics == before and harness.runner.batches == []
    assert harness.runner.free_pages == harness.runner.limits.num_pages
    harness.core.check_integrity()


def test_a_pin_needs_the_prefix_cache() -> None:
    harness = Harness(config=EngineConfig(prefix_cache_mode="disable"))
    with pytest.raises(InvalidField, match="pinned_system_prompt"):
        harness.add("a", prompt_of(5), debug_config={"pinned_system_prompt": True})


def test_bad_logits_end_their_own_request_alone() -> None:
    harness = Harness(expected_error="finite")
    harness.add("good", prompt_of(8), max_tokens=12)
    harness.add("bad", prompt_of(9, 1), n=2, temperature=1.0, seed=1, max_tokens=12)
    harness.runner.bad_rows = lambda tokens: tokens[:9] == prompt_of(9, 1) and len(tokens) == 13
    seen = harness.run()
    assert seen["bad"].reasons == ["error", "error"] and "finite" in str(seen["bad"].error)
    assert len(seen["bad"].tokens[0]) == 4
    assert seen["good"].tokens == alone("good", prompt_of(8), max_tokens=12)


def test_a_token_without_a_text_fails_its_request() -> None:
    harness = Harness(FakeRunner(vocab_size=310), expected_error="chose token 305")
    harness.add("a", prompt_of(4), logit_bias={305: 100.0})
    harness.add("b", prompt_of(4), logprobs=True, top_logprobs=20)
    seen = harness.run()
    assert seen["a"].reasons == ["error"] and seen["b"].reasons == ["length"]


@pytest.mark.parametrize("kind", [RequestError, RuntimeError, ZeroDivisionError])
def test_a_run_that_raises_ends_the_request_it_belongs_to(kind: type[Exception]) -> None:
    harness = Harness(expected_error="injected")

    def fault(batch: Batch) -> None:
        if any(list(row.token_ids)[:3] == [66, 66, 66] for row in batch.rows):
            raise kind("injected")

    harness.runner.faults.append(fault)
    harness.add("good", prompt_of(8), max_tokens=12)
    harness.add("bad", [66] * 9)
    harness.add("later", prompt_of(12, 4), max_tokens=5)
    seen = harness.run()
    assert seen["bad"].reasons == ["error"] and seen["bad"].error == "injected"
    assert seen["bad"].usage is not None
    assert seen["good"].tokens == alone("good", prompt_of(8), max_tokens=12)
    assert seen["later"].tokens == alone("later", prompt_of(12, 4), max_tokens=5)


def test_broken_bookkeeping_ends_everything_and_the_engine_goes_on() -> None:
    class Broken(FakeRunner):
        def fork_sequence(self, parent: int, child: int, length: int) -> None:
            raise RuntimeError("fork is broken")

    harness = Harness(Broken(), expected_error="fork is broken")
    harness.add("a", prompt_of(8), max_tokens=12)
    harness.add("b", prompt_of(8), n=2)
    seen = harness.run()
    assert seen["a"].reasons == ["error"] and seen["b"].reasons == ["error", "error"]
    assert seen["a"].error == "fork is broken"
    harness.add("c", prompt_of(8))
    assert harness.run()["c"].tokens == alone("c", prompt_of(8))


def test_metrics_while_a_stream_is_open_and_as_a_special_request() -> None:
    harness = Harness()
    harness.add("a", prompt_of(8), max_tokens=12)
    harness.add("b", prompt_of(3), max_tokens=2)
    for _ in range(4):
        harness.step()
    special = GenerationConfig(debug_config={"special_request": "query_engine_metrics"})
    harness.seen["q"] = harness.seen["a"].__class__([], [], [], [])
    harness.take(harness.core.add_request(Request("q", [], special)))
    usage = harness.seen["q"].usage
    assert usage is not None and set(ENGINE_KEYS) <= set(usage["extra"])
    metrics = harness.core.metrics()
    assert metrics["prefill_tokens_sum"] == 11 and metrics["completion_tokens_sum"] == 2
    assert metrics["last_finished_request"]["completion_tokens"] == 2
    harness.run()
    assert harness.core.metrics()["decode_tokens_sum"] == 11 + 1


def test_a_model_that_ranks_documents_gives_vectors_alone() -> None:
    tokenizer: Any = PieceTokenizer()
    policy = RequestPolicy(writes=False)
    core = EngineCore(FakeRunner(), tokenizer, EngineConfig(), policy=policy)
    text = Request("a", [TokenData([97])], GenerationConfig(max_tokens=0))
    with pytest.raises(UserError, match="this model ranks documents"):
        core.add_request(text)
    core.add_request(replace(text, is_embedding=True))
    assert core.has_request("a")
