"""What an engine holds: inferred by mode, obeyed or refused with the numbers where it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import ModelSize, complete_config

GB = 2**30
SMALL = ModelSize(
    layers=30,
    query_heads=9,
    kv_heads=3,
    head_dim=64,
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49152,
    context_window=8192,
    weight_bytes=100 * 2**20,
    kv_element_bytes=2,
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


def test_memory_bounds_what_is_inferred() -> None:
    config, plan = complete_config(EngineConfig(mode="server"), SMALL, 2 * GB)
    assert plan.kv_per_token == 30 * 3 * 64 * 2 * 2
    used = plan.weights + plan.workspace + plan.fit * plan.kv_per_token
    assert 0 <= int(2 * GB * 0.85) - used < plan.kv_per_token
    assert config.max_total_sequence_length == plan.fit


def test_sums_do_not_overflow() -> None:
    config, plan = complete_config(EngineConfig(mode="server"), SMALL, 2**50)
    assert plan.fit > 2**31 and config.max_total_sequence_length == 128 * 8192


def test_given_limits_are_obeyed() -> None:
    given = EngineConfig(
        max_num_sequence=7,
        max_single_sequence_length=100,
        max_total_sequence_length=333,
        prefill_chunk_size=50,
    )
    assert limits(complete_config(given, SMALL, 8 * GB)[0]) == (7, 100, 333, 50)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_single_sequence_length": 8193}, "8192 tokens"),
        ({"max_total_sequence_length": 2**31 - 1}, "tokens fit"),
        ({"sliding_window_size": 128}, "sliding"),
    ],
)
def test_given_limits_are_refused_with_the_numbers(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidField, match=named) as caught:
        complete_config(EngineConfig(**given), SMALL, 8 * GB)
    assert caught.value.field in given


def test_too_little_memory_says_what_takes_it() -> None:
    with pytest.raises(UserError, match=r"Insufficient memory: 100 MB free.*100 MB weights"):
        complete_config(EngineConfig(), SMALL, 100 * 2**20)
    wide = replace(SMALL, vocab_size=2**20)
    with pytest.raises(UserError, match="Insufficient memory"):
        complete_config(EngineConfig(max_num_sequence=2**31 - 1), wide, 8 * GB)
