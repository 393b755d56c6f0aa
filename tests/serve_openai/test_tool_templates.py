"""Models with a template of its own for chats with tools."""

from __future__ import annotations

import pytest
from scripted import CHATML, Chat

from mlc_llm.conversation_template import ChatTemplate

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOLS = {"tools": [TOOL]}
MARKS = '{# <tool_call> "arguments" #}'
WITH_TOOLS = MARKS + "{{ tools | length }} tools{{ ', thinking' if enable_thinking }}\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.fixture
def template() -> ChatTemplate:
    return ChatTemplate(CHATML, tool_use=ChatTemplate(WITH_TOOLS + CHATML))


def test_tools_choose_their_template(template: ChatTemplate) -> None:
    shown = Chat({}, template).prompt
    assert shown.startswith("<|im_start|>user\nHi")
    assert Chat(TOOLS, template).prompt == "1 tools\n" + shown
    assert Chat({**TOOLS, "tool_choice": "none"}, template).prompt == shown
    template.close()


def test_calls_are_read_as_that_template_writes_them(template: ChatTemplate) -> None:
    (choice,) = Chat(TOOLS, template).said(CALL).choices
    assert choice.finish_reason == "tool_calls"
    template.close()


def test_thoughts_are_those_of_that_template() -> None:
    template = ChatTemplate(CHATML, tool_use=ChatTemplate(WITH_TOOLS + "{# </think> #}" + CHATML))
    said = "<think>a</think>b"
    for body, reasoning in (({}, None), (TOOLS, "a")):
        (choice,) = Chat(body, template).said(said).choices
        assert choice.message.reasoning_content == reasoning
    template.close()


def test_values_of_a_request_are_for_that_template(template: ChatTemplate) -> None:
    thinks = {**TOOLS, "reasoning_effort": "low"}
    assert Chat(thinks, template).prompt.startswith("1 tools, thinking\n")
    values = {**TOOLS, "chat_template_kwargs": {"enable_thinking": True}}
    assert Chat(values, template).prompt.startswith("1 tools, thinking\n")
    template.close()


def test_one_without_a_known_form_of_calls_is_not_taken() -> None:
    template = ChatTemplate(CHATML, tool_use=ChatTemplate("{{ tools[0].function.name }}: unknown"))
    prompt = Chat(TOOLS, template).prompt
    assert "unknown" not in prompt and '"name": "f"' in prompt
    template.close()
