"""Requests in the shapes that real clients send, and every wrong number refused."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField, MissingKey, UserError
from mlc_llm.protocol.error_protocol import ErrorResponse
from mlc_llm.protocol.openai_api_protocol import (
    CHAT_COMPLETION_MAX_TOP_LOGPROBS,
    COMPLETION_MAX_TOP_LOGPROBS,
    ChatCompletionRequest,
    CompletionRequest,
)

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.parse({"messages": [USER], **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.parse({"prompt": "Hi", **fields})


# field: values at the limits, then values just outside
LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "n": ([1, 128], [0, 129]),
    "temperature": ([0, 100], [-0.1, 100.1]),
    "top_p": ([0, 1], [-0.1, 1.1]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "top_k": ([0, 2**31 - 1], [-1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "repetition_penalty": ([0.5, 100], [0, 100.1]),
    "max_tokens": ([1, 2**31 - 1], []),
}
CHAT_ONLY = {
    "max_tokens": ([1], [0]),
    "max_completion_tokens": ([1, 2**31 - 1], [0]),
    "top_logprobs": ([0, 20], [21]),
}
COMPLETION_ONLY: dict[str, tuple[list[Any], list[Any]]] = {
    "logprobs": ([0, 5], [6]),
    "max_tokens": ([0], []),
    "best_of": ([1], [0, 129]),
}
ALWAYS_WRONG = [-3, 2**31, 2**63, 10**5000, math.nan, math.inf, -math.inf, "1", [1], {}, True]
CASES = [
    *((chat, field, *values) for field, values in {**LIMITS, **CHAT_ONLY}.items()),
    *((completion, field, *values) for field, values in {**LIMITS, **COMPLETION_ONLY}.items()),
]


@pytest.mark.parametrize(
    ("make", "field", "good", "bad"), CASES, ids=[f"{c[0].__name__}-{c[1]}" for c in CASES]
)
def test_every_number_at_its_limits(make: Any, field: str, good: list[Any], bad: list[Any]) -> None:
    more = {"logprobs": True} if field == "top_logprobs" else {}
    for value in good:
        assert getattr(make(**{field: value}, **more), field) == value
    for value in [*bad, *ALWAYS_WRONG]:
        with pytest.raises(InvalidField) as caught:
            make(**{field: value}, **more)
        assert caught.value.field == field


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 0.5, math.nan, "1", True])
def test_seed_is_a_64_bit_number(make: Any, value: Any) -> None:
    with pytest.raises(InvalidField, match="seed"):
        make(seed=value)
    assert make(seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
def test_null_is_the_default_everywhere(model: Any) -> None:
    needed = {"messages": [USER]} if model is ChatCompletionRequest else {"prompt": "Hi"}
    nulls = {name: None for name in model.model_fields if name not in needed}
    request = model.parse({**nulls, **needed, "something_unknown": None})
    assert request == model.parse(needed)
    assert request.generation_config().given == {}
    assert request.unknown_fields() == []


def test_unknown_fields_are_reported_with_their_path() -> None:
    message = {"role": "user", "content": "Hi", "mood": "good"}
    tool = {"type": "function", "function": {"name": "f", "cost": 3}}
    request = chat(messages=[USER, message], tools=[tool], verbosity="low")
    assert sorted(request.unknown_fields()) == [
        "messages[1].mood",
        "tools[0].function.cost",
        "verbosity",
    ]


def test_max_completion_tokens_wins() -> None:
    both = chat(max_tokens=5, max_completion_tokens=7)
    assert both.generation_config().max_tokens == 7
    assert chat(max_tokens=5).generation_config().max_tokens == 5
    assert "max_tokens" not in chat().generation_config().given


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "poet", "content": "x"}, "role"),
        ({"role": "po\net", "content": "x"}, "role"),
        ({"role": 3, "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "assistant"}, "content"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": {"type": "text"}}, "content"),
        ({"role": "user", "content": "\ud800"}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "audio"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].image_url"),
        ({"role": "user", "content": [{"type": "refusal"}]}, "content[0].refusal"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "content[0].type"),
        ({"role": "assistant", "content": None, "refusal": 3}, "refusal"),
        ({"role": "user", "content": "x", "name": 3}, "name"),
    ],
)
def test_a_bad_message_names_the_path(message: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidField) as caught:
        chat(messages=[USER, message])
    assert caught.value.field == f"messages[1].{path}" and "\n" not in str(caught.value)


def test_missing_keys_say_so() -> None:
    with pytest.raises(MissingKey, match='key "messages" not found'):
        ChatCompletionRequest.parse({})
    with pytest.raises(MissingKey, match='key "content" not found'):
        chat(messages=[{"role": "user"}])
    with pytest.raises(MissingKey, match='key "prompt" not found'):
        CompletionRequest.parse({})


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidField, match="messages"):
        chat(messages=[])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ({"a": "ä"}, '{"a": "ä"}'),
        ("", "{}"),
        (None, "{}"),
        ("{no", "{no"),
    ],
)
def test_arguments_of_a_call_are_text(given: Any, text: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = chat(messages=[USER, message]).messages[1]
    assert found.tool_calls is not None
    assert found.tool_calls[0].function.arguments == text


@pytest.mark.parametrize(
    ("choice", "usable", "chosen"),
    [
        (None, 2, None),
        ("auto", 2, None),
        ("required", 2, None),
        ("none", 0, None),
        ("f", 1, "f"),
        (NAMED, 1, "f"),
    ],
)
def test_forms_of_tool_choice(choice: Any, usable: int, chosen: str | None) -> None:
    other = {"type": "function", "function": {"name": "g", "description": None}}
    request = chat(tools=[TOOL, other], tool_choice=choice, parallel_tool_calls=False)
    assert len(request.usable_tools) == usable
    assert request.chosen_tool == chosen


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        ("g", [TOOL]),
        ("f", None),
        (NAMED, []),
        ("required", None),
        ("required", []),
        ({"type": "function", "function": {"name": "g"}}, [TOOL]),
        ({"type": "allowed_tools"}, [TOOL]),
        ({"type": "function"}, [TOOL]),
        ({"type": "function", "function": {"name": 3}}, [TOOL]),
        (3, [TOOL]),
        ([], [TOOL]),
    ],
)
def test_a_bad_tool_choice_is_refused(choice: Any, tools: Any) -> None:
    with pytest.raises(InvalidField, match="tool_choice"):
        chat(tools=tools, tool_choice=choice)


def test_a_choice_of_no_tool_has_the_known_words() -> None:
    words = "Invalid tool_choice value; should be none, auto, required or one of the tools: "
    with pytest.raises(InvalidField, match=words):
        chat(tools=[TOOL], tool_choice="g")


@pytest.mark.parametrize(
    "tool", [{"type": "web"}, {"function": {}}, {"function": {"name": ""}}, {"function": 3}, 3]
)
def test_a_bad_tool_is_refused(tool: Any) -> None:
    with pytest.raises(InvalidField, match=r"tools\[0\]"):
        chat(tools=[tool])


def test_stop_is_a_string_or_a_list() -> None:
    assert chat(stop="x").generation_config().stop_strs == ["x"]
    assert chat(stop=["x", "y"]).generation_config().stop_strs == ["x", "y"]
    for bad in ("", [""], ["x"] * 65, [3], 3):
        with pytest.raises(InvalidField, match="stop"):
            chat(stop=bad)


def test_stream_options_need_a_stream() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    with pytest.raises(InvalidField, match="stream_options"):
        chat(stream_options={"include_usage": True})


def test_top_logprobs_need_logprobs() -> None:
    assert chat(top_logprobs=0).generation_config().given == {}
    with pytest.raises(InvalidField, match="needs logprobs"):
        chat(top_logprobs=1)
    assert CHAT_COMPLETION_MAX_TOP_LOGPROBS == 20


@pytest.mark.parametrize("field", ["stream", "logprobs", "parallel_tool_calls"])
@pytest.mark.parametrize("value", ["true", 1, 0.0, []])
def test_flags_are_flags(field: str, value: Any) -> None:
    with pytest.raises(InvalidField, match=field):
        chat(**{field: value})


def test_the_whole_request_becomes_a_generation_config() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    request = chat(
        n=2,
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        frequency_penalty=1,
        presence_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": 1},
        seed=3,
        stop="x",
        logprobs=True,
        top_logprobs=2,
        max_tokens=9,
        response_format=schema,
        debug_config={"ignore_eos": True},
        user="me",
    )
    config = request.generation_config()
    assert config.temperature == 0.0
    assert config.logit_bias == {5: 1.0}
    assert config.debug_config.ignore_eos
    assert config.response_format.needs_grammar
    assert set(type(config).model_fields) - set(config.given) == {"stop_token_ids"}


def test_a_malformed_string_is_one_line() -> None:
    for text in ("malformed_string", "[]", "null", "3", '{"messages": NaN}', "[" * 99999, "{"):
        with pytest.raises(UserError, match=r"\AFailed to parse JSON[^\n]*\Z"):
            ChatCompletionRequest.parse_text(text)
    assert ChatCompletionRequest.parse_text('{"messages":[{"role":"user","content":"é"}]}')


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[]], [[]]),
    ],
)
def test_forms_of_a_prompt(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        3,
        None,
        {},
        ["a", 1],
        [1, "a"],
        [[1], "b"],
        [[1], 2],
        [True],
        [-1],
        [2**31],
        ["a"] * 1025,
    ],
)
def test_a_bad_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        completion(prompt=prompt)
    assert caught.value.field.startswith("prompt")


def test_completion_logprobs() -> None:
    assert completion(logprobs=0).generation_config().given == {"logprobs": True}
    config = completion(logprobs=5).generation_config()
    assert config.top_logprobs == COMPLETION_MAX_TOP_LOGPROBS == 5


def test_best_of_is_refused_unless_it_changes_nothing() -> None:
    assert completion(n=3, best_of=3).n == 3
    with pytest.raises(InvalidField, match="best_of is not supported"):
        completion(best_of=2)
    with pytest.raises(InvalidField, match="best_of is not supported"):
        completion(best_of=1, n=2)


def test_an_error_body_names_the_field() -> None:
    with pytest.raises(InvalidField) as caught:
        chat(temperature=-1)
    body = ErrorResponse.of(caught.value).error
    assert (body.param, body.type) == ("temperature", "invalid_request_error")
    assert "should be non-negative" in body.message
    assert ErrorResponse.of(RuntimeError("x")).error.type == "server_error"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(
    st.sampled_from([ChatCompletionRequest, CompletionRequest]),
    st.dictionaries(
        st.sampled_from([*ChatCompletionRequest.model_fields, "prompt", "echo"]) | st.text(),
        json_values,
        max_size=4,
    ),
    st.booleans(),
)
def test_any_json_is_taken_or_refused_as_ours(
    model: Any, values: dict[str, Any], complete: bool
) -> None:
    if complete:
        values = {"messages": [USER], "prompt": "Hi", **values}
    try:
        request = model.parse(values)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        request.generation_config().validate_ranges()


def test_importing_the_contracts_leaves_tvm_alone() -> None:
    code = (
        "import sys, mlc_llm.protocol.openai_api_protocol, mlc_llm.protocol.mlc_chat_config, "
        "mlc_llm.serve.data, mlc_llm.serve.request, mlc_llm.serve.config, mlc_llm.serve.metrics, "
        "mlc_llm.serve.event_trace_recorder, mlc_llm.serve.engine_utils; "
        "sys.exit('tvm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
