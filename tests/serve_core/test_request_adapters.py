"""LoRA adapters of requests in the core: names, slots, and what the prefix cache shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_harness import Harness, prompt_of

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import NO_ADAPTER
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import FakeRunner


def harness_of(slots: int = 2, *names: str, config: EngineConfig | None = None) -> Harness:
    runner = FakeRunner(max_num_sequence=8, adapters=slots)
    harness = Harness(runner, config or EngineConfig())
    for name in names:
        harness.core.adapters.load(name, {name: ()})
    return harness


def request(name: str, adapter: str, length: int = 50, **more: Any) -> Request:
    config = GenerationConfig(**{"max_tokens": 4, "temperature": 0.0, "seed": 1, **more})
    return Request(name, [TokenData(prompt_of(length))], config, adapter=adapter)


def owners(harness: Harness) -> set[int]:
    """The slots of all rows so far."""
    rows = [row for batch in harness.runner.batches for row in batch.rows]
    harness.runner.batches.clear()
    return {row.adapter for row in rows}


def test_rows_have_the_slot_of_their_request() -> None:
    harness = harness_of(2, "a", "b")
    assert harness.runner.adapters == {0: {"a": ()}, 1: {"b": ()}}
    for adapter, slots in {"a": {0}, "b": {1}, "": {NO_ADAPTER}}.items():
        harness.add_request(request(f"of {adapter}", adapter, n=2))
        harness.run()
        assert owners(harness) == slots
    for adapter in ("a", "b", ""):
        harness.add_request(request(f"again {adapter}", adapter))
    harness.run()
    assert owners(harness) == {0, 1, NO_ADAPTER}


def test_draft_tokens_have_the_adapter_too() -> None:
    config = EngineConfig(speculative_mode="prompt_lookup")
    harness = harness_of(1, "a", config=config)
    harness.add_request(request("x", "a", max_tokens=200, logit_bias={5: 100.0, 6: 100.0}))
    harness.run()
    assert any(len(row.samplings) > 1 for b in harness.runner.batches for row in b.rows)
    assert owners(harness) == {0}


@pytest.mark.parametrize("salt", ["adapter 1:", "adapter 0:", "adapter 0:adapter 1:", "x"])
def test_no_salt_gives_the_prompts_of_an_adapter(salt: str) -> None:
    harness = harness_of(1, "a")
    for i, (adapter, own) in enumerate([("a", ""), ("a", "x"), ("", ""), ("", "adapter 1:x")]):
        harness.add_request(replace(request(str(i), adapter), cache_salt=own))
    harness.run()
    before = harness.core.metrics()["prefill_tokens_sum"]
    harness.add_request(replace(request("salted", ""), cache_salt=salt))
    harness.run()
    assert harness.core.metrics()["prefill_tokens_sum"] - before == 50
    harness.add_request(replace(request("again", ""), cache_salt=salt))
    harness.run()
    assert harness.core.metrics()["prefill_tokens_sum"] - before == 51


def test_prompts_of_another_adapter_are_not_shared() -> None:
    harness, found = harness_of(2, "a", "b"), []
    for i, adapter in enumerate(["", "a", "b", "a", "", "b"]):
        before = harness.core.metrics()["prefill_tokens_sum"]
        harness.add_request(request(str(i), adapter))
        harness.run()
        found.append(harness.core.metrics()["prefill_tokens_sum"] - before)
    assert found == [50, 50, 50, 1, 1, 1]


def test_an_adapter_that_comes_again_under_its_name_shares_nothing() -> None:
    harness = harness_of(2, "a")
    harness.add_request(request("1", "a"))
    harness.run()
    harness.core.adapters.drop("a")
    harness.core.adapters.load("a", {})
    before = harness.core.metrics()["prefill_tokens_sum"]
    harness.add_request(request("2", "a"))
    harness.run()
    assert harness.core.metrics()["prefill_tokens_sum"] == before + 50


def test_names_are_known_or_refused() -> None:
    harness = harness_of(2, "a")
    with pytest.raises(InvalidField, match="adapter = 'z' is not allowed: there is no"):
        harness.core.add_request(request("x", "z"))
    with pytest.raises(InvalidField, match="an adapter has this name"):
        harness.core.adapters.load("a", {})
    with pytest.raises(InvalidField, match="adapter"):
        harness.core.adapters.load("", {})
    with pytest.raises(InvalidField, match="there is no such adapter; there is: a"):
        harness.core.adapters.drop("b")
    harness.core.adapters.load("b", {})
    with pytest.raises(InvalidField, match="2 adapters are loaded or in use"):
        harness.core.adapters.load("c", {})
    assert harness.core.adapters.names == ["a", "b"]
    assert harness.core.is_idle


def test_a_dropped_adapter_serves_its_requests_to_the_end() -> None:
    harness = harness_of(1, "a")
    harness.add_request(request("x", "a", max_tokens=6))
    harness.step()
    harness.core.adapters.drop("a")
    with pytest.raises(InvalidField, match="there is: none"):
        harness.core.add_request(request("y", "a"))
    with pytest.raises(InvalidField, match="1 adapters are loaded or in use"):
        harness.core.adapters.load("b", {})
    assert harness.runner.adapters == {0: {"a": ()}}
    seen = harness.run()["x"]
    assert [len(tokens) for tokens in seen.tokens] == [6]
    harness.core.adapters.load("b", {"b": ()})
    assert harness.runner.adapters == {0: {"b": ()}}


@pytest.mark.parametrize("end", ["abort", "reset", "fault"])
def test_however_a_request_ends_its_slot_is_free(end: str) -> None:
    harness = harness_of(1, "a")
    harness.add_request(request("x", "a", max_tokens=100))
    harness.step()
    harness.core.adapters.drop("a")
    if end == "abort":
        harness.abort("x")
    elif end == "reset":
        harness.reset()
    else:
        harness.expected_error = "logits are not finite"
        harness.runner.bad_rows = lambda tokens: True
        harness.run()
    harness.core.adapters.load("b", {})
    harness.core.check_integrity()


def test_an_engine_without_adapters_says_so() -> None:
    harness = Harness()
    with pytest.raises(InvalidField, match="there is no such adapter; there is: none"):
        harness.core.add_request(request("x", "a"))
