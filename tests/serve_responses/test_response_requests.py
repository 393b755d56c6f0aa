"""Requests of the Responses API in the words of the chat API."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.translated import Translated
from mlc_llm.serve.responses.fields import LOGPROBS, ResponsesRequest
from mlc_llm.serve.responses.translation import translated

ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}
SUB = {"type": "function", "name": "sub", "parameters": None, "strict": True}


def of(**fields: Any) -> Translated[ChatCompletionRequest]:
    return translated(ResponsesRequest.parse({"input": "hello", **fields}), "m")


def said(**fields: Any) -> list[dict[str, Any]]:
    return [one.model_dump(exclude_none=True) for one in of(**fields).request.messages]


def test_the_settings_of_the_answer() -> None:
    found = of(
        max_output_tokens=9, temperature=0.5, top_p=0.5, top_logprobs=3, stream=True,
        parallel_tool_calls=False, metadata={"a": "b"}, user="u", truncation="disabled",
        include=[LOGPROBS], store=False,
    )  # fmt: skip
    request, ignored = found.request, found.ignored
    config = request.generation_config()
    assert (config.max_tokens, config.temperature, config.top_p) == (9, 0.5, 0.5)
    assert config.logprobs and config.top_logprobs == 3 and request.stream
    assert request.parallel_tool_calls is False and ignored == []
    assert not of().request.generation_config().logprobs
    assert of(include=[LOGPROBS]).request.generation_config().logprobs


def test_texts_and_instructions() -> None:
    assert said(instructions="S") == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "hello"},
    ]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert said(input=[{"role": "developer", "content": parts}])[0]["content"] == "ab"


def test_items_of_the_assistant_become_one_message() -> None:
    items = [
        {"role": "user", "content": "q"},
        {"type": "reasoning", "id": "rs", "summary": [],
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "I add.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c3",
         "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    ]  # fmt: skip
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ]
    assert said(input=items) == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "1"},
        {"role": "tool", "tool_call_id": "c3", "content": "2"},
        {"role": "assistant", "content": "Done.", "reasoning_content": "so"},
        {"role": "assistant", "content": "Really."},
    ]


def test_a_call_behind_a_result_or_a_question_is_another_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "1"}
    question = {"role": "user", "content": "q"}
    items = [question, call, result, call, question, call]
    roles = [one["role"] for one in said(input=items)]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]


def test_tools_and_the_choice_of_one() -> None:
    request = of(tools=[ADD, SUB], tool_choice={"type": "function", "name": "sub"}).request
    assert [one.function.name for one in request.tools or []] == ["add", "sub"]
    assert request.chosen_tool == "sub"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [SUB]}
    request = of(tools=[ADD, SUB], tool_choice=allowed).request
    assert [one.function.name for one in request.tools or []] == ["sub"]
    assert request.tool_choice == "required"
    assert of(tools=[ADD], tool_choice="none").request.tool_choice == "none"


def test_the_form_of_the_answer() -> None:
    schema = {"type": "object"}
    form = of(text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    found = form.request.response_format
    assert found is not None and found.json_schema == '{"type": "object"}'
    found = of(text={"format": {"type": "json_object"}}).request.response_format
    assert found is not None and found.type == "json_object"
    found = of(text={"format": {"type": "text"}}).request.response_format
    assert found is not None and not found.needs_grammar


def test_what_has_no_effect_is_listed() -> None:
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    found = of(
        input=[encrypted, {"role": "user", "content": "a"}],
        store=True,
        service_tier="auto",
        include=["reasoning.encrypted_content"],
        text={"verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
    )
    always = [
        "service_tier", "text.verbosity", "reasoning.summary", "input[0]",
        "include.reasoning.encrypted_content", "store",
    ]  # fmt: skip
    assert found.ignored_by(None) == [*always, "reasoning.effort"]
    assert found.ignored_by(ChatTemplate("{{ enable_thinking }}")) == always
    assert found.request.reasoning_effort == "low" and of().request.reasoning_effort is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": ""}, "input"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].image_url",
    ),
    ({"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]"),
    ({"input": [{"type": "function_call", "name": "a", "arguments": ""}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "a", "arguments": ""}]}, "input[0].name"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
    ({"tools": [{"name": "add"}]}, "tools[0].type"),
    ({"tools": [ADD, ADD]}, "tools[1].name"),
    ({"tools": [{"type": "namespace", "tools": [ADD]}]}, "tools[0].name"),
    (
        {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "x"}]}]},
        "tools[0].tools[0]",
    ),
    ({"tools": [{"type": "namespace", "name": "a", "tools": 1}]}, "tools[0].tools"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{**ADD, "parameters": 1}]}, "tools[0].parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "add"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "add"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "some"}}, "tool_choice.mode"),
    (
        {
            "tools": [ADD],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [SUB]},
        },
        "tool_choice.tools[0].name",
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
]


@pytest.mark.parametrize(("fields", "path"), WRONG, ids=[path for _, path in WRONG])
def test_what_is_wrong_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidField) as error:
        of(**fields)
    assert error.value.field == path


def test_functions_of_a_namespace_have_one_name() -> None:
    """As Codex sends those of an MCP server, and calls of them in later turns."""
    group = {"type": "namespace", "name": "mcp__math__", "tools": [ADD, SUB]}
    call = {"type": "function_call", "call_id": "c", "namespace": "mcp__math__", "name": "add",
            "arguments": "{}"}  # fmt: skip
    result = {"type": "function_call_output", "call_id": "c", "output": "3"}
    found = of(tools=[SUB, group, {**group, "name": "crm"}], input=[call, result])
    names = [tool.function.name for tool in found.request.tools or ()]
    assert names == ["sub", "mcp__math__add", "mcp__math__sub", "crm__add", "crm__sub"]
    said, answered = found.request.messages
    assert said.tool_calls and said.tool_calls[0].function.name == "mcp__math__add"
    assert answered.name == "mcp__math__add"
    for choice in ({"name": "add", "namespace": "mcp__math__"}, {"name": "mcp__math__add"}):
        asked = of(tools=[group], tool_choice={"type": "function", **choice}).request
        assert asked.tool_choice == {"type": "function", "function": {"name": "mcp__math__add"}}


def test_tools_that_a_server_runs_are_named_as_ignored() -> None:
    """Codex sends them unasked; whoever says that one has to be used is refused."""
    found = of(tools=[{"type": "web_search"}, ADD, {"type": "custom", "name": "patch"}])
    assert found.ignored == ["tools[0]", "tools[2]"]
    assert [tool.function.name for tool in found.request.tools or ()] == ["add"]


def test_images_are_parts() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,YWJj", "detail": "auto"},
    ]
    (message,) = said(input=[{"role": "user", "content": parts}])
    assert [one["type"] for one in message["content"]] == ["text", "image_url"]
    stored = {"type": "input_image", "file_id": "f"}
    with pytest.raises(InvalidField, match="file_id"):
        said(input=[{"role": "user", "content": [stored]}])
