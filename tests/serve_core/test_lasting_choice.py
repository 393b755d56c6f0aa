"""A choice is one object from token to token only where nothing in it changes."""

from __future__ import annotations

from typing import Any

import pytest
from core_harness import Harness, prompt_of

from mlc_llm.runtime.batch import LogitBias, Sampling


def samplings(**config: Any) -> list[Sampling]:
    """Of each token of one request."""
    harness = Harness()
    harness.add("a", prompt_of(5), max_tokens=4, **config)
    harness.run()
    return [row.samplings[0] for batch in harness.runner.batches for row in batch.rows]


def test_a_greedy_choice_lasts() -> None:
    found = samplings(temperature=0.0, logit_bias={7: 1.0})
    assert len(found) == 4
    assert all(one is found[0] for one in found)


@pytest.mark.parametrize(
    "config",
    [
        {"temperature": 0.7, "seed": 1},
        {"temperature": 0.0, "presence_penalty": 0.5},
        {"temperature": 0.0, "response_format": {"type": "json_object"}},
    ],
    ids=["random", "penalty", "grammar"],
)
def test_one_that_changes_does_not(config: dict[str, Any]) -> None:
    found = samplings(**config)
    assert len(found) >= 2
    assert len({id(one) for one in found}) == len(found)


def test_a_bias_is_one_object_in_every_step_and_sequence() -> None:
    found = samplings(temperature=1.0, seed=1, n=3, logit_bias={7: 1.0})
    assert len(found) >= 4
    assert isinstance(found[0].logit_bias, LogitBias)
    assert all(one.logit_bias is found[0].logit_bias for one in found)
