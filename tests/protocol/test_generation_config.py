"""GenerationConfig: every field at its limits, merging, JSON."""

from __future__ import annotations

import ast
import inspect
import json
import math
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.generation_rules import RULES
from mlc_llm.protocol.response_format import RequestResponseFormat

# field: (least, greatest, just below, just above)
INTEGERS: dict[str, tuple[int, int]] = {
    "n": (1, 128),
    "top_k": (0, 2**31 - 1),
    "top_logprobs": (0, 20),
    "max_tokens": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**63 - 1),
}
NUMBERS: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (1e-6, 100),
}
FAR_OUT = [2**63, -(2**63) - 1, 10**5000, math.nan, math.inf, -math.inf]
WRONG_TYPES = ["1", "", b"1", [1], {}, True, object(), 1j]


def make(field: str, value: Any) -> GenerationConfig:
    more = {"logprobs": True} if field == "top_logprobs" else {}
    return GenerationConfig(**{field: value, **more})


def refused(field: str, value: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        make(field, value)
    assert caught.value.field.startswith(field)
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("field", INTEGERS)
def test_an_integer_field_takes_its_range_and_nothing_else(field: str) -> None:
    low, high = INTEGERS[field]
    for value in (low, high):
        assert getattr(make(field, value), field) == value
    for value in [low - 1, high + 1, *FAR_OUT, 1.0, 0.5, *WRONG_TYPES]:
        assert refused(field, value).field == field
    if high < 2**31:
        refused(field, 2**31)
    if low >= 0:
        refused(field, -1)


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_field_takes_its_range_and_nothing_else(field: str) -> None:
    low, high = NUMBERS[field]
    for value in (low, high, (low + high) / 2):
        found = getattr(make(field, value), field)
        assert found == value
        assert type(found) is float
    above, below = math.nextafter(high, math.inf), math.nextafter(low, -math.inf)
    for value in [below, above, high + 1, low - 1, 2**31, *FAR_OUT, *WRONG_TYPES]:
        assert refused(field, value).field == field


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", -1, "should be non-negative"),
        ("top_p", 100, "in range [0, 1]"),
        ("frequency_penalty", 100, "[-2, 2]"),
        ("presence_penalty", -3, "[-2, 2]"),
        ("n", 0, '"n" should be at least 1'),
        ("top_logprobs", 21, "At most 20 top logprob"),
        ("logit_bias", {1: 101}, "in range [-100, 100]"),
        ("debug_config", {"special_request": "x"}, "Unknown special request x"),
        ("debug_config", {"special_request": "x\ny"}, r"Unknown special request 'x\ny'"),
        ("debug_config", {"grammar_execution_mode": "x"}, "Unknown grammar execution mode x"),
        ("response_format", {"type": "x"}, "Unknown response_format type x"),
        ("response_format", {"type": "x\ny"}, r"Unknown response_format type 'x\ny'"),
        ("repetition_penalty", 0, "should be greater than 0"),
    ],
)
def test_the_words_callers_look_for(field: str, value: Any, words: str) -> None:
    assert words in str(refused(field, value))


@pytest.mark.parametrize("value", [1, 0, "true", [], 1.0])
def test_logprobs_is_a_flag(value: Any) -> None:
    refused("logprobs", value)


@pytest.mark.parametrize(
    "value",
    [
        [(1, 2)],
        {"x": 1},
        {"-1": 1},
        {"1_0": 1},
        {"１": 1},
        {"12345678901": 1},
        {-1: 1},
        {2**31: 1},
        {2**63: 1},
        {1.5: 1},
        {True: 1},
        {1: math.nan},
        {1: -100.5},
        {1: "1"},
        {1: None},
        dict.fromkeys(range(16385), 1),
    ],
)
def test_a_bad_logit_bias_is_refused(value: Any) -> None:
    refused("logit_bias", value)


def test_a_logit_bias_takes_ids_as_numbers_and_as_json_writes_them() -> None:
    assert make("logit_bias", {"5": -100, 7: 100}).logit_bias == {5: -100.0, 7: 100.0}
    assert len(make("logit_bias", dict.fromkeys(range(16384), 1)).logit_bias) == 16384


@pytest.mark.parametrize("value", ["x", [""], [1], ["a"] * 65, ["a" * 1025], ["\ud800"], {"a": 1}])
def test_bad_stop_strings_are_refused(value: Any) -> None:
    refused("stop_strs", value)


@pytest.mark.parametrize("value", ["1", 1, [-1], [2**31], [2**63], [1.0], [True], [1] * 1025])
def test_bad_stop_ids_are_refused(value: Any) -> None:
    refused("stop_token_ids", value)


def test_stops_at_their_limits_are_taken() -> None:
    config = GenerationConfig(stop_strs=["a" * 1024] * 64, stop_token_ids=[2**31 - 1] * 1024)
    assert len(config.stop_strs) == 64
    assert len(config.stop_token_ids) == 1024


def test_an_unknown_field_names_the_nearest_known_one() -> None:
    with pytest.raises(InvalidField, match="the nearest known is 'temperature'"):
        GenerationConfig(**{"temprature": 1})


def test_top_logprobs_need_logprobs() -> None:
    with pytest.raises(InvalidField, match="needs logprobs"):
        GenerationConfig(top_logprobs=1)


def test_the_reference_page_construction() -> None:
    config = GenerationConfig(temperature=0.7, top_p=0.9, max_tokens=256)
    assert config.given == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 256}
    assert (config.n, config.seed, config.stop_strs) == (1, None, [])


def test_none_means_not_given() -> None:
    config = GenerationConfig(**dict.fromkeys(RULES))
    assert config == GenerationConfig()
    assert config.given == {}


def test_merging_puts_defaults_under_what_is_set() -> None:
    config = GenerationConfig(temperature=1.0, n=2)
    merged = config.merged_over({"temperature": 0.2, "top_p": 0.5})
    assert (merged.temperature, merged.top_p, merged.n) == (1.0, 0.5, 2)
    assert merged.given == {"temperature": 1.0, "top_p": 0.5, "n": 2}
    assert config.given == {"temperature": 1.0, "n": 2}
    again = merged.merged_over(GenerationConfig(top_k=5, top_p=0.1))
    assert (again.top_k, again.top_p) == (5, 0.5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["<end>"]),
        ({"stop_strs": []}, ["<end>"]),
        ({"stop_strs": ["a", "<end>"]}, ["<end>", "a"]),
        ({"stop_strs": [str(i) for i in range(64)]}, ["<end>", *map(str, range(64))]),
    ],
)
def test_a_chat_ends_where_its_template_says_too(given: Any, expected: list[str]) -> None:
    defaults = GenerationConfig(stop_strs=["<end>"], top_p=0.5)
    merged = GenerationConfig(**given).for_chat(defaults)
    assert merged.stop_strs == expected and merged.top_p == 0.5
    own = given.get("stop_strs", [])
    assert GenerationConfig(**given).for_chat(GenerationConfig()).stop_strs == own


def test_bad_defaults_are_refused_like_everything_else() -> None:
    with pytest.raises(InvalidField, match="top_p"):
        GenerationConfig().merged_over({"top_p": 2})


def test_it_is_frozen_and_its_own() -> None:
    stops = ["a"]
    config = GenerationConfig(stop_strs=stops)
    stops.append("")
    assert config.stop_strs == ["a"]
    with pytest.raises(ValueError, match="frozen"):
        config.n = 3  # type: ignore[misc]


def test_a_copy_made_around_the_constructor_can_be_checked() -> None:
    GenerationConfig(n=2, stop_strs=["x"]).validate_ranges()
    bad = GenerationConfig().model_copy(update={"n": 0})
    with pytest.raises(InvalidField, match="n = 0"):
        bad.validate_ranges()


@pytest.mark.parametrize("text", ["", "x", "[]", "1", '{"n": NaN}', '{"n": Infinity}', "[" * 99999])
def test_bad_json_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"\AFailed to parse JSON[^\n]*\Z"):
        GenerationConfig.from_json(text)


@pytest.mark.parametrize(
    "text", ['{"temperature": 1e999}', '{"n": 1e2}', '{"seed": 1' + "0" * 99 + "}"]
)
def test_json_numbers_are_checked(text: str) -> None:
    with pytest.raises(InvalidField):
        GenerationConfig.from_json(text)


@pytest.mark.parametrize(
    "value", [{"ignore_eos": 1}, {"unknown": 1}, {"disagg_config": {}}, 3, "x", [1]]
)
def test_a_bad_debug_config_is_refused(value: Any) -> None:
    refused("debug_config", value)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"kind": "send"}, "kind"),
        ({"kind": "prepare_receive"}, "kv_window_end"),
        ({"kind": "prepare_receive", "kv_window_end": -1, "kv_window_begin": 0}, "kv_window_begin"),
        ({"kind": "remote_send", "kv_window_end": -1}, "kv_append_metadata"),
        ({"kind": "start_generation", "kv_window_begin": 1.0}, "kv_window_begin"),
        ({"kind": "start_generation", "kv_window_begin": 1, "dst_group_offset": 1}, "dst_group"),
        ({"kind": "start_generation", "kv_window_begin": 1, "port": 1}, "port"),
    ],
)
def test_a_bad_disagg_config_names_its_field(value: Any, field: str) -> None:
    with pytest.raises(UserError, match=rf"debug_config\.disagg_config\.{field}"):
        GenerationConfig(debug_config={"disagg_config": value})  # type: ignore[arg-type]


def test_debug_config_takes_null_for_every_field() -> None:
    assert DebugConfig(**dict.fromkeys(DebugConfig.model_fields)) == DebugConfig()


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_object", "schema": "{"},
        {"type": "json_object", "schema": "[]"},
        {"type": "json_object", "schema": 3},
        {"type": "json_object", "schema": '"' + "x" * 262144 + '"'},
        {"type": "text", "schema": "{}"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": "{}"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"schema": {"a": math.nan}}},
        {"type": ["text"]},
        {"type": "text", "more": 1},
        "text",
    ],
)
def test_a_bad_response_format_is_refused(value: Any) -> None:
    with pytest.raises(UserError):
        GenerationConfig(response_format=value)


def test_all_spellings_of_a_schema_become_one() -> None:
    schema = {"type": "object", "properties": {"ä": {"type": "integer"}}}
    spellings: list[dict[str, Any]] = [
        {"type": "json_object", "schema": json.dumps(schema)},
        {"type": "json_object", "schema": schema},
        {"type": "json_object", "json_schema": schema},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    ]
    for spelling in spellings:
        found = RequestResponseFormat.model_validate(spelling)
        assert found.type == "json_object"
        assert found.needs_grammar
        assert json.loads(found.json_schema or "") == schema
    assert not RequestResponseFormat().needs_grammar
    assert not RequestResponseFormat(type="function").needs_grammar


configs = st.builds(
    GenerationConfig,
    n=st.none() | st.integers(1, 128),
    temperature=st.none() | st.floats(0, 100),
    top_p=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(0, 2**31 - 1),
    min_p=st.none() | st.floats(0, 1),
    frequency_penalty=st.none() | st.floats(-2, 2),
    repetition_penalty=st.none() | st.floats(1e-6, 100),
    logprobs=st.just(True),
    top_logprobs=st.none() | st.integers(0, 20),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)),
    max_tokens=st.none() | st.integers(-1, 2**31 - 1),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop_strs=st.none() | st.lists(st.text(min_size=1, max_size=9), max_size=4),
    stop_token_ids=st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=4),
    response_format=st.none() | st.just({"type": "json_object", "schema": {"type": "array"}}),
    debug_config=st.none() | st.builds(DebugConfig, ignore_eos=st.booleans()),
)


@given(configs)
def test_json_gives_an_equal_config_back(config: GenerationConfig) -> None:
    again = GenerationConfig.from_json(config.asjson())
    assert again == config
    assert again.given == config.given


@given(configs, configs)
def test_merging_over_is_a_choice_per_field(
    over: GenerationConfig, under: GenerationConfig
) -> None:
    merged = over.merged_over(under)
    for name in RULES:
        source = over if name in over.given else under
        assert getattr(merged, name) == getattr(source, name)


@given(
    st.dictionaries(
        st.sampled_from(sorted(RULES)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=4,
        ),
        max_size=3,
    )
)
def test_whatever_comes_in_is_taken_or_refused_as_ours(values: dict[str, Any]) -> None:
    try:
        config = GenerationConfig(**values)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        config.validate_ranges()


def test_a_type_checker_knows_every_field() -> None:
    """`__init__` is for type checkers alone, so nothing else notices a name that it lacks."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(GenerationConfig))).body
    assert isinstance(body, ast.ClassDef)
    found = [one for one in ast.walk(body) if isinstance(one, ast.FunctionDef)]
    (made,) = [one for one in found if one.name == "__init__"]
    assert [one.arg for one in made.args.kwonlyargs] == list(RULES)
