"""EngineConfig: ranges, JSON, nearest names, and that nothing is changed silently."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.config import EngineConfig

# field: (least, greatest) of what this version takes
INTEGERS = {
    "tensor_parallel_shards": (1, 32),
    "pipeline_parallel_stages": (1, 1),
    "kv_cache_page_size": (16, 16),
    "max_num_sequence": (1, 2**31 - 1),
    "max_total_sequence_length": (1, 2**31 - 1),
    "max_single_sequence_length": (1, 2**31 - 1),
    "prefill_chunk_size": (1, 2**31 - 1),
    "sliding_window_size": (-1, 2**31 - 1),
    "attention_sink_size": (0, 2**31 - 1),
    "max_history_size": (0, 1),
    "spec_draft_length": (0, 16),
    "spec_tree_width": (1, 1),
    "prefix_cache_max_num_recycling_seqs": (-1, 2**31 - 1),
    "max_adapters": (0, 1024),
    "max_adapter_rank": (1, 1024),
}
WRONG = [-2, 2**31, 2**63, 10**5000, math.nan, math.inf, 1.0, "1", True, [1], {}]


def test_the_table_covers_every_number() -> None:
    kinds = {field.name: str(field.type) for field in dataclasses.fields(EngineConfig)}
    assert {name for name, kind in kinds.items() if re.search(r"\bint\b", kind)} == set(INTEGERS)


@pytest.mark.parametrize("field", INTEGERS)
def test_an_integer_takes_its_range_and_nothing_else(field: str) -> None:
    low, high = INTEGERS[field]
    mode: Any = "prompt_lookup" if field == "spec_draft_length" else "disable"
    for value in (low, high):
        config = EngineConfig(**{field: value}, speculative_mode=mode)
        assert getattr(config, field) == value
    for value in [low - 1, high + 1, *WRONG]:
        with pytest.raises(InvalidField) as caught:
            EngineConfig(**{field: value}, speculative_mode=mode)
        assert caught.value.field == field


@pytest.mark.parametrize(
    "value",
    ["a", ["a"], {"a": 1}, {1: "a"}, {"": "a"}, {"a": ""}, {str(i): "a" for i in range(1025)}],
)
def test_adapters_are_names_and_paths(value: Any) -> None:
    with pytest.raises(InvalidField, match="adapters"):
        EngineConfig(adapters=value)


def test_adapters_need_their_room() -> None:
    both = {"a": "x", "b": "y"}
    assert EngineConfig(adapters=both, max_adapters=2).adapters == both
    assert EngineConfig.from_json(EngineConfig(adapters=both).asjson()).adapters == both
    with pytest.raises(InvalidField, match="there are 2 in adapters; give at least that"):
        EngineConfig(adapters=both, max_adapters=1)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidField, match="sliding_window_size"):
        EngineConfig(sliding_window_size=0)


@pytest.mark.parametrize("value", [0, -0.1, 1.01, 2**63, math.nan, math.inf, "1", True])
def test_memory_share(value: Any) -> None:
    with pytest.raises(InvalidField, match="gpu_memory_utilization"):
        EngineConfig(gpu_memory_utilization=value)
    assert EngineConfig(gpu_memory_utilization=1).gpu_memory_utilization == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "fast"),
        ("mode", 3),
        ("speculative_mode", "magic"),
        ("prefix_cache_mode", "tree"),
        ("prefill_mode", ""),
        ("prompt_precision", "8bit"),
        ("kv_cache_dtype", "int4"),
        ("kv_state_kind", "x"),
        ("verbose", 1),
        ("model", ""),
        ("model", 3),
        ("model", "x" * 4097),
        ("additional_models", "m"),
        ("additional_models", [3]),
        ("additional_models", [("a", "b", "c")]),
        ("additional_models", [("a", "")]),
    ],
)
def test_words_and_paths(field: str, value: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        EngineConfig(**{field: value})
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pipeline_parallel_stages", 2),
        ("opt", "O3"),
        ("spec_tree_width", 2),
        ("kv_state_kind", "rnn_state"),
        ("max_history_size", 2),
    ],
)
def test_what_is_not_built_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidField, match="this version") as caught:
        EngineConfig(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("additional_models", {"additional_models": ["draft"]}),
        ("additional_models", {"additional_models": ["d"], "speculative_mode": "prompt_lookup"}),
        ("additional_models", {"speculative_mode": "small_draft"}),
        ("additional_models", {"speculative_mode": "medusa"}),
        ("additional_models", {"speculative_mode": "small_draft", "additional_models": ["a", "b"]}),
        ("spec_draft_length", {"spec_draft_length": 4}),
    ],
)
def test_drafts_are_wanted_wholly_or_not_at_all(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidField, match="speculative_mode") as caught:
        EngineConfig(**values)
    assert caught.value.field == field


def test_a_draft_model_comes_with_its_mode() -> None:
    models: list[Any] = [["draft", "lib"]]
    config = EngineConfig(speculative_mode="small_draft", additional_models=models)
    assert config.additional_models == [("draft", "lib")]
    assert EngineConfig.from_json(config.asjson()) == config


def test_defaults_are_those_of_the_table() -> None:
    config = EngineConfig()
    assert (config.kv_cache_page_size, config.speculative_mode) == (16, "auto")
    assert (config.prefix_cache_mode, config.prefill_mode, config.verbose) == (
        "radix",
        "hybrid",
        True,
    )
    assert (config.mode, config.max_num_sequence, config.additional_models) == (None, None, [])


def test_null_stands_for_the_default() -> None:
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    assert EngineConfig(**dict.fromkeys(names)) == EngineConfig()


def test_it_is_frozen_and_copies() -> None:
    config = EngineConfig(model="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model = "b"  # type: ignore[misc]
    assert dataclasses.replace(config, mode="server") == EngineConfig(model="a", mode="server")
    with pytest.raises(InvalidField, match="max_num_sequence"):
        dataclasses.replace(config, max_num_sequence=0)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InvalidField, match="the nearest known is 'max_num_sequence'"):
        EngineConfig.from_json('{"max_num_sequences": 3}')
    with pytest.raises(InvalidField, match="unknown field"):
        EngineConfig.from_mapping({"x" * 100_000: 3})


@pytest.mark.parametrize("text", ["", "[]", "null", '{"max_num_sequence": NaN}', "{"])
def test_bad_json_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"\AFailed to parse JSON of the engine config[^\n]*\Z"):
        EngineConfig.from_json(text)


@given(
    st.builds(
        EngineConfig,
        model=st.none() | st.text("ab/ü", min_size=1, max_size=9),
        mode=st.sampled_from([None, "local", "interactive", "server"]),
        gpu_memory_utilization=st.none() | st.floats(1e-9, 1),
        max_num_sequence=st.none() | st.integers(1, 2**31 - 1),
        sliding_window_size=st.none() | st.just(-1) | st.integers(1, 2**31 - 1),
        prefix_cache_mode=st.sampled_from(["radix", "disable"]),
        verbose=st.booleans(),
    )
)
def test_json_gives_an_equal_config_back(config: EngineConfig) -> None:
    assert EngineConfig.from_json(config.asjson()) == config
    assert set(json.loads(config.asjson())) == {f.name for f in dataclasses.fields(EngineConfig)}


def test_the_older_name_of_precision_means_the_same() -> None:
    for older, newer in (("exact", "exact"), ("fast", "fast-prompts")):
        config = EngineConfig(prompt_precision=older)  # type: ignore[arg-type]
        assert config == EngineConfig(precision=newer)  # type: ignore[arg-type]
        assert config == EngineConfig(precision=newer, prompt_precision=older)  # type: ignore[arg-type]
        assert EngineConfig.from_json(config.asjson()) == config
    assert dataclasses.replace(EngineConfig(), prompt_precision="fast").precision == "fast-prompts"


def test_two_names_of_precision_have_to_agree() -> None:
    with pytest.raises(InvalidField, match=r"prompt_precision = 'fast'.*is 'fast'; leave"):
        EngineConfig(precision="fast", prompt_precision="fast")
    with pytest.raises(InvalidField, match=r"precision = '8bit'.*exact.*fast-prompts.*fast.*auto"):
        EngineConfig.from_mapping({"precision": "8bit"})
