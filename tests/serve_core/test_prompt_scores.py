"""Log-probabilities of prompts, and embeddings: requests about the prompt itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core_harness import Harness, PieceTokenizer, Seen, alone, prompt_of

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime import limits
from mlc_llm.runtime.batch import Batch, Sampled
from mlc_llm.serve.core.prompt_scores import PromptScores
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import HIDDEN, FakeRunner
from mlc_llm.testing.fake_sampling import fake_logits, log_softmax


@pytest.fixture(autouse=True)
def few_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step scores at most seven tokens."""
    monkeypatch.setattr(limits, "LEAST_SCORES", 7)
    monkeypatch.setattr(limits, "MOST_SCORES", 7)


def ask(
    harness: Harness,
    request_id: str,
    prompt: Sequence[int],
    *,
    top: int | None = None,
    is_embedding: bool = False,
    **config: Any,
) -> None:
    """top: of the prompt's log-probabilities; None asks for none."""
    values = GenerationConfig(**{"temperature": 0.0, "max_tokens": 4, **config})
    made = Request(
        request_id, [TokenData(prompt)], values, prompt_logprobs=top, is_embedding=is_embedding
    )
    harness.add_request(made)


def check_scores(seen: Seen, prompt: Sequence[int], top: int) -> None:
    """They are the softmax of the runner's logits behind each part of the prompt."""
    assert seen.prompt_logprobs is not None
    first, *others = map(json.loads, seen.prompt_logprobs)
    assert first["logprob"] is None and first["top_logprobs"] is None
    assert len(others) == len(prompt) - 1
    assert bytes(first["bytes"]) == bytes([prompt[0]])
    for i, one in enumerate(others, 1):
        expected = log_softmax(fake_logits(prompt[:i], 300))
        assert bytes(one["bytes"]) == bytes([prompt[i]])
        assert one["logprob"] == pytest.approx(expected[prompt[i]])
        best = np.sort(expected)[::-1][:top]
        assert [two["logprob"] for two in one["top_logprobs"]] == pytest.approx(best.tolist())


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_every_token_but_the_first_is_scored(length: int, top: int, max_tokens: int) -> None:
    harness, prompt = Harness(), prompt_of(length)
    ask(harness, "a", prompt, top=top, max_tokens=max_tokens)
    seen = harness.run()["a"]
    check_scores(seen, prompt, top)
    assert seen.reasons == ["length"] and seen.usage is not None
    assert seen.usage["completion_tokens"] == max_tokens
    assert seen.tokens == ([[]] if max_tokens == 0 else alone("a", prompt, max_tokens=max_tokens))


def test_nothing_is_taken_from_the_prefix_cache_and_all_is_left_there() -> None:
    harness, prompt = Harness(), prompt_of(50)
    for name in ("a", "b"):
        ask(harness, name, prompt, top=1)
        usage = harness.run()[name].usage
        assert usage is not None and usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert usage["extra"]["prefill_tokens"] == 50
        check_scores(harness.seen[name], prompt, 1)
    ask(harness, "c", [*prompt, 1, 2])
    usage = harness.run()["c"].usage
    assert usage is not None and usage["prompt_tokens_details"]["cached_tokens"] == 50


def test_several_answers_share_the_scores_of_the_first() -> None:
    harness, prompt = Harness(), prompt_of(40)
    ask(harness, "a", prompt, top=2, n=3, temperature=1.0, seed=5)
    check_scores(harness.run()["a"], prompt, 2)
    scored = [row.scoring for one in harness.runner.batches for row in one.rows]
    assert sum(len(one.next_ids) for one in scored if one is not None) == 39
    assert harness.seen["a"].tokens == alone("a", prompt, max_tokens=4, n=3, temperature=1, seed=5)


def test_others_get_the_same_tokens_and_go_on_meanwhile() -> None:
    harness = Harness()
    ask(harness, "talk", prompt_of(20, 3), max_tokens=30)
    harness.step()
    ask(harness, "scored", prompt_of(60), top=0, max_tokens=1)
    harness.step()
    before = len(harness.seen["talk"].tokens[0])
    for _ in range(5):
        harness.step()
    assert len(harness.seen["talk"].tokens[0]) == before + 5
    seen = harness.run()
    assert seen["talk"].tokens == alone("talk", prompt_of(20, 3), max_tokens=30)
    check_scores(seen["scored"], prompt_of(60), 0)


def test_a_preempted_prompt_is_scored_once() -> None:
    """Its pages go to those before it; what was scored is kept."""
    harness = Harness(FakeRunner(num_pages=18, page_size=4, max_num_sequence=3))
    ask(harness, "a", prompt_of(4, 1), max_tokens=30)
    harness.step()
    ask(harness, "scored", prompt_of(60), top=1, max_tokens=1)
    seen = harness.run()
    assert harness.core.num_preemptions > 0
    check_scores(seen["scored"], prompt_of(60), 1)
    scored = [row.scoring for one in harness.runner.batches for row in one.rows]
    assert sum(len(one.next_ids) for one in scored if one is not None) == 59


def test_a_scored_prompt_is_computed_exactly_every_time() -> None:
    harness = Harness(FakeRunner(num_pages=18, page_size=4, max_num_sequence=3))
    ask(harness, "a", prompt_of(4, 1), max_tokens=30)
    harness.step()
    ask(harness, "scored", prompt_of(56), top=1, n=2, max_tokens=5)
    harness.run()
    assert harness.core.num_preemptions > 0
    rows = [row for one in harness.runner.batches for row in one.rows]
    assert sum(len(row.token_ids) for row in rows) > 4 + 30 + 56 + 5 + 5, "computed again"
    assert sum(row.prompt_tokens for row in rows) == 4, "those of the other request"


def test_where_prompts_are_less_exact_others_take_nothing_over() -> None:
    runner, prompt = FakeRunner(), prompt_of(40)
    runner.limits = replace(runner.limits, precision="fast-prompts")
    harness, cached = Harness(runner), []
    for i, top in enumerate([0, None, None, 0]):
        ask(harness, str(i), prompt, top=top, n=2)
        usage = harness.run()[str(i)].usage
        assert usage is not None
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 39, 0]


def test_a_fault_in_a_score_ends_the_request_alone() -> None:
    harness = Harness(FakeRunner(), expected_error="not finite")
    harness.runner.bad_rows = lambda tokens: list(tokens[:2]) == [0, 7] and len(tokens) == 12
    ask(harness, "bad", prompt_of(30), top=1)
    ask(harness, "good", prompt_of(30, 9), top=1)
    seen = harness.run()
    assert seen["bad"].reasons == ["error"] and seen["bad"].prompt_logprobs is None
    check_scores(seen["good"], prompt_of(30, 9), 1)


def test_a_step_that_fails_is_tried_again_row_by_row() -> None:
    harness = Harness(FakeRunner(), expected_error="broken")

    def fault(one: Batch) -> None:
        if len(one.rows) > 1 or one.rows[0].token_ids[0] == 9:
            raise ValueError("broken")

    harness.runner.faults.append(fault)
    ask(harness, "good", prompt_of(5), top=1)
    ask(harness, "bad", prompt_of(5, 9), top=1)
    seen = harness.run()
    assert seen["bad"].reasons == ["error"]
    check_scores(seen["good"], prompt_of(5), 1)


def test_scores_are_not_kept_once_they_are_taken() -> None:
    scores = PromptScores([1, 2, 3], 0, PieceTokenizer())  # type: ignore[arg-type]
    assert scores.take() is None
    scores.put([Sampled(2, -0.5), Sampled(3, -0.25)])
    assert len(scores.take() or ()) == 3
    assert not scores._texts and scores.is_complete
    assert scores.take() is None and scores.scoring(0, 3) is None


def test_an_embedding_is_the_hidden_vector_behind_the_prompt() -> None:
    harness, prompt = Harness(), prompt_of(150)
    ask(harness, "talk", prompt_of(5, 1), max_tokens=20)
    ask(harness, "a", prompt, is_embedding=True)
    ask(harness, "b", [*prompt, 3], is_embedding=True)
    seen = harness.run()
    for name, tokens in (("a", prompt), ("b", [*prompt, 3])):
        assert seen[name].embedding == fake_logits(tokens, 300)[:HIDDEN].tolist()
        assert seen[name].tokens == [[]] and seen[name].reasons == ["length"]
        usage = seen[name].usage
        assert usage is not None and usage["completion_tokens"] == 0
        assert usage["prompt_tokens"] == len(tokens)
    assert seen["talk"].embedding is None
    ask(harness, "c", prompt, is_embedding=True)
    seen = harness.run()
    assert seen["c"].embedding == seen["a"].embedding
    usage = seen["c"].usage
    assert usage is not None and usage["prompt_tokens_details"]["cached_tokens"] == 149


def test_a_faulty_embedding_is_an_error() -> None:
    harness = Harness(FakeRunner(), expected_error="not finite")
    harness.runner.bad_rows = lambda tokens: True
    ask(harness, "a", prompt_of(5), is_embedding=True)
    seen = harness.run()["a"]
    assert seen.reasons == ["error"] and seen.embedding is None


def test_an_abort_frees_the_pages() -> None:
    harness = Harness()
    ask(harness, "a", prompt_of(60), top=0)
    ask(harness, "b", prompt_of(60), is_embedding=True)
    harness.step()
    for name in ("a", "b"):
        harness.abort(name)
    seen = harness.run()
    assert all(one.reasons == ["abort"] and one.prompt_logprobs is None for one in seen.values())
    assert harness.runner.free_pages == harness.runner.limits.num_pages
