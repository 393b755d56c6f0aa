"""What an engine holds: inferred by mode, obeyed or refused with the numbers where it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.runtime.limits import DRAFT_STATES
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import (
    STREAM_LENGTH,
    complete_config,
    infer_limits,
    plan_memory,
)
from mlc_llm.serve.memory_plan import KVSize, ModelSize, StateSize

GB = 2**30
SMALL = ModelSize(
    groups=(KVSize(layers=30, elements=2 * 30 * 3 * 64, element_bytes=2),),
    query_width=9 * 64,
    kv_width=3 * 64,
    head_dim=64,
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49152,
    context_window=8192,
    weight_bytes=100 * 2**20,
)


def limits(config: EngineConfig) -> tuple[int | None, ...]:
    return (
        config.max_num_sequence,
        config.max_single_sequence_length,
        config.max_total_sequence_length,
        config.prefill_chunk_size,
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, (4, 8192, 8192, 512)),
        ("local", (4, 8192, 8192, 512)),
        ("interactive", (1, 8192, 8192, 512)),
        ("server", (128, 8192, 128 * 8192, 512)),
    ],
)
def test_limits_by_mode(mode: Any, expected: tuple[int, ...]) -> None:
    config, _ = complete_config(EngineConfig(mode=mode), SMALL, 64 * GB)
    assert limits(config) == expected


def test_kernels_bound_what_is_inferred_and_given() -> None:
    """They count the numbers of a layer's pages in 32 bits."""
    large, memory = replace(SMALL, most_tokens=1_000_000), 2**20 * GB
    config, _ = complete_config(EngineConfig(mode="server"), large, memory)
    assert config.max_total_sequence_length == 1_000_000
    drafted = replace(SMALL, draft=replace(SMALL, most_tokens=500_000))
    config, _ = complete_config(EngineConfig(mode="server"), drafted, memory)
    assert config.max_total_sequence_length == 500_000
    with pytest.raises(
        InvalidField, match=r"max_total_sequence_length = 1000001.*counted up to 1000000 tokens"
    ):
        complete_config(EngineConfig(max_total_sequence_length=1_000_001), large, memory)


def test_memory_bounds_what_is_inferred() -> None:
    config, plan = complete_config(EngineConfig(mode="server"), SMALL, 2 * GB)
    assert plan.kv_per_token == 30 * 3 * 64 * 2 * 2
    used = plan.weights + plan.workspace + plan.fit * plan.kv_per_token
    assert used == plan.total(plan.fit)
    assert 0 <= int(2 * GB * 0.85) - used < 16 * plan.kv_per_token, "whole pages"
    assert config.max_total_sequence_length == plan.fit


def test_sums_do_not_overflow() -> None:
    config, plan = complete_config(EngineConfig(mode="server"), SMALL, 2**50)
    assert plan.fit > 2**31 and config.max_total_sequence_length == 128 * 8192
    _, plan = complete_config(EngineConfig(gpu_memory_utilization=1.0), SMALL, 2**63)
    assert plan.budget == 2**63 and 2**63 - plan.total(plan.fit) < 16 * plan.kv_per_token
    huge = replace(SMALL, weight_bytes=2**63, context_window=2**31 - 1)
    plan = plan_memory(infer_limits(EngineConfig(mode="server"), huge), huge, 2**62)
    assert plan.fit < 0 and plan.total(2**31 - 1) > 2**63 + 2**31 * plan.kv_per_token - 2**20


def test_given_limits_are_obeyed() -> None:
    given = EngineConfig(
        max_num_sequence=7,
        max_single_sequence_length=100,
        max_total_sequence_length=333,
        prefill_chunk_size=50,
    )
    assert limits(complete_config(given, SMALL, 8 * GB)[0]) == (7, 100, 333, 50)


def test_a_given_context_is_not_cut_by_the_mode() -> None:
    wide = replace(SMALL, context_window=32768)
    config, _ = complete_config(EngineConfig(max_single_sequence_length=20000), wide, 8 * GB)
    assert limits(config) == (4, 20000, 20000, 512)
    assert limits(complete_config(EngineConfig(), wide, 8 * GB)[0]) == (4, 32768, 8192, 512)


def test_a_step_is_no_longer_than_all_that_can_be_held() -> None:
    assert limits(complete_config(EngineConfig(max_total_sequence_length=100), SMALL, GB)[0]) == (
        4,
        8192,
        100,
        100,
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_single_sequence_length": 8193}, "8192 tokens"),
        ({"max_total_sequence_length": 2**31 - 1}, "tokens fit"),
        ({"prefill_chunk_size": 2**31 - 1}, "MB workspace"),
        ({"max_num_sequence": 2**31 - 1}, "MB workspace"),
        ({"gpu_memory_utilization": 0.01}, "1% may be used"),
        (
            {"max_single_sequence_length": 200, "max_total_sequence_length": 100},
            "longer than max_total_sequence_length, 100",
        ),
        ({"attention_sink_size": 4}, "needs a sliding_window_size"),
        ({"attention_sink_size": 4, "sliding_window_size": -1}, "needs a sliding_window_size"),
        (
            {"sliding_window_size": 128, "speculative_mode": "prompt_lookup"},
            "not together with speculative_mode",
        ),
    ],
)
def test_given_limits_are_refused_with_the_numbers(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidField, match=named) as caught:
        complete_config(EngineConfig(**given), SMALL, 8 * GB)
    assert caught.value.field in given


def test_a_window_bounds_the_pages_of_a_sequence() -> None:
    """What is seen, a page for the ends on both sides, and the tokens of a step."""
    window = {"sliding_window_size": 100, "attention_sink_size": 4, "prefill_chunk_size": 64}
    held = 16 * (1 + 7 + 2)
    for given, total in (
        ({"mode": "interactive"}, held + 64),
        ({"mode": "server", "max_num_sequence": 3}, 3 * (held + 64)),
        ({"mode": "local", "max_single_sequence_length": 50}, 50),
        ({"max_total_sequence_length": held, "max_single_sequence_length": 4000}, held),
    ):
        config, _ = complete_config(EngineConfig(**window, **given), SMALL, 8 * GB)
        assert config.max_total_sequence_length == total
    too_few = EngineConfig(
        **window, max_total_sequence_length=held - 16, max_single_sequence_length=4000
    )
    with pytest.raises(InvalidField, match="longer than max_total_sequence_length, 144"):
        complete_config(too_few, SMALL, 8 * GB)


def test_a_window_lets_a_sequence_outgrow_the_context() -> None:
    """And no memory is reserved for its length."""
    window = {"sliding_window_size": 512, "attention_sink_size": 4}
    config, plan = complete_config(EngineConfig(**window), SMALL, 8 * GB)  # type: ignore[arg-type]
    assert config.max_single_sequence_length == STREAM_LENGTH > 8192
    assert config.max_total_sequence_length == 16 * (1 + 32 + 2) + 512
    at_most = EngineConfig(**window, max_single_sequence_length=2**31 - 1)  # type: ignore[arg-type]
    config, same = complete_config(at_most, SMALL, 8 * GB)
    assert config.max_single_sequence_length == 2**31 - 1
    assert same.total(0) == plan.total(0)


@pytest.mark.parametrize(("size", "sinks"), [(8192, 0), (8064, 1), (8064, 128)])
def test_a_window_as_large_as_the_context_may_be(size: int, sinks: int) -> None:
    """One token more and distances would come up that the model has never seen."""
    given = {"attention_sink_size": sinks, "sliding_window_size": size}
    config, _ = complete_config(EngineConfig(**given), SMALL, 8 * GB)  # type: ignore[arg-type]
    assert config.max_single_sequence_length == STREAM_LENGTH
    given["sliding_window_size"] += 1
    config, _ = complete_config(EngineConfig(**given), SMALL, 8 * GB)  # type: ignore[arg-type]
    assert config.max_single_sequence_length == 8192
    with pytest.raises(InvalidField, match=r"8192 tokens; longer needs .* here it is 8193"):
        longer = EngineConfig(**given, max_single_sequence_length=8193)  # type: ignore[arg-type]
        complete_config(longer, SMALL, 8 * GB)


def test_the_model_s_own_window() -> None:
    """It holds where the config says nothing; -1 switches it off."""
    size = replace(SMALL, sliding_window=64, attention_sinks=4)
    for given, window in (
        ({}, (64, 4)),
        ({"attention_sink_size": 0}, (64, 0)),
        ({"sliding_window_size": 32}, (32, None)),
        ({"sliding_window_size": -1}, (-1, None)),
    ):
        config, _ = complete_config(EngineConfig(**given), size, 8 * GB)  # type: ignore[arg-type]
        assert (config.sliding_window_size, config.attention_sink_size) == window
    with pytest.raises(InvalidField, match="not together with"):
        complete_config(EngineConfig(speculative_mode="prompt_lookup"), size, 8 * GB)


def test_a_given_context_that_does_not_fit_is_refused() -> None:
    config, plan = complete_config(EngineConfig(), SMALL, GB // 3)
    assert config.max_total_sequence_length == plan.fit < 8192
    fits = EngineConfig(max_single_sequence_length=plan.fit)
    assert complete_config(fits, SMALL, GB // 3)[0].max_total_sequence_length == plan.fit
    with pytest.raises(InvalidField, match=r"max_single_sequence_length = 8192.*tokens fit"):
        complete_config(EngineConfig(max_single_sequence_length=8192), SMALL, GB // 3)


@pytest.mark.parametrize("value", [2**31, 2**63, 2**64, -1, 0])
@pytest.mark.parametrize(
    "field",
    [
        "max_num_sequence",
        "max_single_sequence_length",
        "max_total_sequence_length",
        "prefill_chunk_size",
    ],
)
def test_what_is_no_limit_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(InvalidField, match=rf"{field} = {value}.*\[1, {2**31 - 1}\]"):
        EngineConfig(**{field: value})  # type: ignore[arg-type]


def test_too_little_memory_says_what_takes_it() -> None:
    with pytest.raises(UserError, match=r"Insufficient memory: 100 MB free.*100 MB weights"):
        complete_config(EngineConfig(), SMALL, 100 * 2**20)
    wide = replace(SMALL, vocab_size=2**20)
    with pytest.raises(UserError, match="Insufficient memory"):
        complete_config(EngineConfig(mode="server"), wide, GB)


def test_states_are_counted_and_rolled_back_where_they_are_kept() -> None:
    with_states = replace(SMALL, states=StateSize(1000, 0, 1))
    config = EngineConfig(max_num_sequence=8, speculative_mode="disable")
    plain, more = (complete_config(config, size, 8 * GB)[1] for size in (SMALL, with_states))
    assert more.total(0) - plain.total(0) == (4 * 8 + 2) * 1000
    in_chunks = replace(SMALL, states=StateSize(1000, 5000, 16))
    chunks = complete_config(config, in_chunks, 8 * GB)[1]
    assert chunks.total(0) - plain.total(0) == (5 * 8 + 2) * 1000 + (4 * 8 + 2) * 5000
    drafting = replace(config, speculative_mode="prompt_lookup")
    plain, more = (complete_config(drafting, size, 8 * GB)[1] for size in (SMALL, with_states))
    assert more.total(0) - plain.total(0) == (4 * 8 + 2 + DRAFT_STATES) * 1000
    eagle = EngineConfig(speculative_mode="eagle", additional_models=["head"])
    with pytest.raises(InvalidField, match=r"speculative_mode = 'eagle'.*this model keeps states"):
        infer_limits(eagle, with_states)
    with pytest.raises(InvalidField, match=r"sliding_window_size = 128.*keeps states"):
        infer_limits(EngineConfig(sliding_window_size=128), with_states)
    drafted = replace(SMALL, draft=with_states)
    with pytest.raises(InvalidField, match="the draft model keeps states"):
        infer_limits(
            EngineConfig(speculative_mode="small_draft", additional_models=["draft"]), drafted
        )


@pytest.mark.parametrize(
    ("size", "given", "found"),
    [
        (SMALL, {}, "prompt_lookup"),
        (SMALL, {"speculative_mode": "disable"}, "disable"),
        (SMALL, {"sliding_window_size": 128}, "disable"),
        (SMALL, {"tensor_parallel_shards": 2}, "disable"),
        (replace(SMALL, states=StateSize(1000, 0, 1)), {}, "disable"),
        (replace(SMALL, repeat_bytes=1000), {}, "disable"),  # a GPU
    ],
)
def test_who_drafts_if_nobody_is_asked_for(size: Any, given: Any, found: str) -> None:
    assert infer_limits(EngineConfig(**given), size).speculative_mode == found


@pytest.mark.parametrize(("sequences", "more"), [(1, 16), (8, 9), (17, 0), (64, 0)])
def test_drafts_take_memory_where_few_sequences_run(sequences: int, more: int) -> None:
    plain, drafting = (
        complete_config(EngineConfig(max_num_sequence=sequences, speculative_mode=mode), SMALL, GB)
        for mode in ("disable", "auto")
    )
    assert drafting[1].logits - plain[1].logits == SMALL.logits(more) - SMALL.logits(0)


def test_pages_of_bytes_need_pages() -> None:
    asked = EngineConfig(kv_cache_dtype="int8")
    assert infer_limits(asked, SMALL).kv_cache_dtype == "int8"
    for size, why in (
        (replace(SMALL, is_encoder=True), "encoder"),
        (replace(SMALL, groups=(KVSize(0, 1),)), "no attention"),
    ):
        with pytest.raises(InvalidField, match=rf"kv_cache_dtype = 'int8'.*{why}.*'auto'"):
            infer_limits(asked, size)


def test_an_encoder_has_room_for_one_step() -> None:
    """Each text begins a page. A config that was completed is complete again."""
    encoder = replace(SMALL, context_window=1000, is_encoder=True)
    for mode in ("local", "interactive", "server"):
        found, plan = complete_config(EngineConfig(mode=mode), encoder, GB)
        assert limits(found) == (128, 1000, 1000 + 128 * 16, 1000)
        assert plan.logits == 0 and limits(complete_config(found, encoder, GB)[0]) == limits(found)
    short = EngineConfig(max_single_sequence_length=100, max_num_sequence=2)
    assert limits(complete_config(short, encoder, GB)[0]) == (2, 100, 512 + 2 * 16, 512)


def test_an_encoder_that_does_not_fit_names_the_limit_that_is_too_large() -> None:
    encoder = replace(SMALL, is_encoder=True)
    enough = complete_config(EngineConfig(), encoder, GB)[1].total(8192 + 128 * 16)
    config = EngineConfig(gpu_memory_utilization=1.0)
    assert complete_config(config, encoder, enough)
    with pytest.raises(UserError, match="Insufficient memory") as raised:
        complete_config(config, encoder, enough - 16 * SMALL.kv_bytes_per_token)
    assert not isinstance(raised.value, InvalidField)
    with pytest.raises(InvalidField, match=r"prefill_chunk_size = 100000.*Insufficient memory"):
        complete_config(replace(config, prefill_chunk_size=100_000), encoder, enough)
