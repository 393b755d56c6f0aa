"""Masks of a grammar, on their way to the sampler."""

from __future__ import annotations

import numpy as np
import pytest
from test_model_runner import last_logits, sampled
from tiny_models import TinyModels

from mlc_llm.runtime.batch import Sampling
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.sampler import NOT_FINITE


@pytest.fixture
def runner(tiny_models: TinyModels) -> ModelRunner:
    return tiny_models.runner("floats", "portable", num_pages=8)


def mask(runner: ModelRunner, allowed: list[int]) -> bytes:
    bits = np.zeros(32 * -(-runner.limits.vocab_size // 32), np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def test_only_what_a_mask_allows_is_chosen(runner: ModelRunner) -> None:
    allowed = [3, 31, 32, 200, runner.limits.vocab_size - 1]
    best = max(allowed, key=lambda i: last_logits(runner)[i])
    masked = mask(runner, allowed)
    greedy, free, *drawn = sampled(
        runner,
        Sampling(temperature=0, allowed=masked),
        Sampling(temperature=0),
        Sampling(temperature=5.0, uniform=0.999, top_p=0.9, top_k=2, allowed=masked),
    )
    assert greedy.token_id == best
    assert free.token_id == int(last_logits(runner).argmax())
    assert all(s.token_id in allowed for s in drawn)


def test_log_probabilities_know_nothing_of_a_mask(runner: ModelRunner) -> None:
    logits = last_logits(runner)
    exact = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    (found,) = sampled(runner, Sampling(temperature=0, allowed=mask(runner, [9]), top_logprobs=1))
    assert found.token_id == 9
    assert found.logprob == pytest.approx(exact[9], abs=1e-4)
    assert found.top[0][0] == int(logits.argmax())


def test_a_row_without_any_allowed_token_fails_alone(runner: ModelRunner) -> None:
    none, other = sampled(
        runner, Sampling(temperature=1.0, allowed=mask(runner, [])), Sampling(temperature=0)
    )
    assert none.error == NOT_FINITE
    assert other.token_id == int(last_logits(runner).argmax())
