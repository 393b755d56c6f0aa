"""Requests of Anthropic's API in OpenAI's words."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.anthropic.fields import MessagesRequest
from mlc_llm.serve.anthropic.translation import translated
from mlc_llm.serve.openai.translated import Translated

TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
HELLO = [{"role": "user", "content": "hello"}]


def of(**fields: Any) -> Translated[ChatCompletionRequest]:
    body = MessagesRequest.parse({"max_tokens": 9, "messages": HELLO, **fields})
    return translated(body, "m")


def said(**fields: Any) -> list[dict[str, Any]]:
    return [one.model_dump(exclude_none=True) for one in of(**fields).request.messages]


def test_the_settings_of_the_answer() -> None:
    found = of(
        stop_sequences=["a"], temperature=0.5, top_k=3, top_p=0.5, stream=True, metadata={"a": 1}
    )
    request, ignored = found.request, found.ignored
    assert (request.model, request.max_tokens, request.stop) == ("m", 9, ["a"])
    assert (request.temperature, request.top_k, request.top_p) == (0.5, 3, 0.5)
    assert request.stream and ignored == []


def test_a_conversation_with_thoughts_and_calls() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [
                    {"type": "text", "text": "bad"}], "is_error": True},
                {"type": "tool_result", "tool_use_id": "t2"},
                {"type": "text", "text": "go on"},
            ],
        },
    ]  # fmt: skip
    call = {"name": "add", "arguments": '{"a": 1}'}
    assert said(messages=turns) == [
        {"role": "user", "content": "a\n\nb\n\nc"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "add", "content": "Error: bad"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "go on"},
    ]


def test_the_system_text_and_the_block_that_is_no_text() -> None:
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=a1b2;"},
        {"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "T"},
    ]
    assert said(system=blocks)[0] == {"role": "system", "content": "S\n\nT"}
    assert said(system="S")[0] == {"role": "system", "content": "S"}
    assert said(system=blocks[:1]) == HELLO


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}, None),
    ],
)
def test_tools_and_the_choice_of_one(choice: Any, expected: Any, parallel: bool | None) -> None:
    request = of(tools=[TOOL], tool_choice=choice).request
    assert request.tools is not None
    function = request.tools[0].function
    assert (function.name, function.description) == ("add", "Adds.")
    assert function.parameters == {"type": "object"}
    assert request.tool_choice == expected and request.parallel_tool_calls is parallel


def test_the_form_of_the_answer() -> None:
    schema = {"type": "object", "properties": {}}
    request = of(output_config={"format": {"type": "json_schema", "schema": schema}}).request
    form = request.response_format
    assert form is not None and form.type == "json_object"
    assert form.json_schema == '{"type": "object", "properties": {}}'


def test_what_has_no_effect_is_listed() -> None:
    turns = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        *HELLO,
    ]
    found = of(
        messages=turns,
        service_tier="auto",
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "low"},
    )
    always = ["service_tier", "messages[1].content[0]", "thinking.budget_tokens"]
    assert found.ignored_by(None) == [*always, "output_config.effort", "thinking"]
    assert found.ignored_by(ChatTemplate("{{ enable_thinking }}")) == always
    assert of().ignored_by(None) == []


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "medium"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "high"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none"),
        ({"output_config": {"effort": "low"}}, "low"),
    ],
)
def test_how_much_the_model_thinks(fields: dict[str, Any], effort: str | None) -> None:
    assert of(**fields).request.reasoning_effort == effort


BLOCK: dict[str, Any] = {"role": "user"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"temperature": -1}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [BLOCK]}, "messages[0].content"),
    ({"messages": [{**BLOCK, "content": []}]}, "messages[0].content"),
    ({"messages": [{**BLOCK, "content": 1}]}, "messages[0].content"),
    ({"messages": [{**BLOCK, "content": ["a"]}]}, "messages[0].content[0]"),
    ({"messages": [{**BLOCK, "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{**BLOCK, "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
    ({"messages": [{**BLOCK, "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{**BLOCK, "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
    ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, "messages[1].role"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"output_config": {"effort": "much"}}, "output_config.effort"),
    ({"mcp_servers": [{"url": "a"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
]


@pytest.mark.parametrize(("fields", "path"), WRONG, ids=[path for _, path in WRONG])
def test_what_is_wrong_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidField) as error:
        of(**fields)
    assert error.value.field == path


def test_wrong_calls_and_results_are_named() -> None:
    for block, path in (
        ({"type": "tool_use", "id": "t", "name": "a", "input": "x"}, "input"),
        ({"type": "tool_use", "id": "t", "input": {}}, "name"),
        ({"type": "tool_use", "name": "a", "input": {}}, "id"),
        ({"type": "server_tool_use"}, "type"),
    ):
        with pytest.raises(InvalidField) as error:
            of(messages=[*HELLO, {"role": "assistant", "content": [block]}, *HELLO])
        assert error.value.field == f"messages[1].content[0].{path}"
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}
    with pytest.raises(InvalidField) as error:
        of(messages=[{"role": "user", "content": [result]}])
    assert error.value.field == "messages[0].content[0].content[0].source"


def test_images_are_parts() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "YWJj"}
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "text", "text": "c"},
    ]
    (message,) = said(messages=[{"role": "user", "content": blocks}])
    urls = [one["image_url"]["url"] for one in message["content"][2:4]]
    assert [one["text"] for one in message["content"][:2]] == ["a\n\n", "b"]
    assert urls == ["data:image/png;base64,YWJj", "https://example.org/a.png"]
    assert message["content"][4] == {"type": "text", "text": "c"}
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": blocks[2:3]}
    call = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    kinds = [one["type"] for one in said(messages=turns)[-1]["content"]]
    assert kinds == ["text", "image_url"]
