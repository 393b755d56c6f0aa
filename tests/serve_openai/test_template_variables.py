"""Values of a request for its chat template: passed on, or refused, or said to have no effect."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import CHATML, Chat, jinja

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.anthropic.fields import MessagesRequest
from mlc_llm.serve.anthropic.translation import translated
from mlc_llm.serve.ollama.fields import ChatRequest
from mlc_llm.serve.ollama.translation import translated_chat
from mlc_llm.serve.openai.requests import without_effect
from mlc_llm.serve.openai.tools.variables import effort_has_effect

SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
LEVELS = (
    "{%- if reasoning_effort is defined and reasoning_effort not in ('xhigh', 'medium', 'low') %}"
    "{{ raise_exception('no such effort: ' ~ reasoning_effort) }}{% endif %}"
)
LEVEL = "{{ 'level ' ~ (reasoning_effort or 'medium') }}"
SILENT = "{# enable_thinking #}{{ 'thinking' }}{{ messages[0].reasoning_effort }}"


def prompt(source: str, **body: Any) -> str:
    return Chat(body, jinja(CHATML + source)).prompt


def test_what_the_template_reads_is_passed_on() -> None:
    assert prompt(SWITCH, chat_template_kwargs={"enable_thinking": False}).endswith("</think>")
    assert not prompt(SWITCH, chat_template_kwargs={"enable_thinking": True}).endswith("</think>")
    assert prompt(LEVEL, reasoning_effort="high").endswith("level high")
    assert prompt(LEVEL, chat_template_kwargs={"reasoning_effort": "own"}).endswith("level own")
    assert prompt(LEVEL).endswith("level medium")


def test_an_effort_switches_thinking_where_there_are_no_levels() -> None:
    assert prompt(SWITCH, reasoning_effort="none").endswith("<think></think>")
    assert not prompt(SWITCH, reasoning_effort="low").endswith("</think>")


def test_no_effort_switches_thinking_off_beside_levels() -> None:
    assert prompt(SWITCH + LEVEL, reasoning_effort="none").endswith("<think></think>level medium")
    assert prompt(SWITCH + LEVEL, reasoning_effort="high").endswith("assistant\nlevel high")
    shows = "{{ enable_thinking | default('nothing') }} {{ reasoning_effort | default('-') }}"
    assert prompt(shows, reasoning_effort="none").endswith("\nFalse -")
    assert prompt(shows, reasoning_effort="max").endswith("\nTrue max")  # DeepSeek V4 wants both
    own = {"enable_thinking": True}
    assert prompt(shows, reasoning_effort="none", chat_template_kwargs=own).endswith("True -")
    assert prompt(LEVEL, reasoning_effort="none").endswith("level none")  # there is no switch


@pytest.mark.parametrize(
    ("effort", "level"),
    [
        ("none", "low"), ("minimal", "low"), ("low", "low"), ("medium", "medium"),
        ("high", "xhigh"), ("xhigh", "xhigh"), ("max", "xhigh"),
    ],
)  # fmt: skip
def test_an_effort_outside_the_templates_list_becomes_the_nearest(effort: str, level: str) -> None:
    source = LEVELS + LEVEL
    for one in (source, source.replace("('x", "['x").replace("'low')", "'low']")):
        assert prompt(one, reasoning_effort=effort).endswith(f"level {level}")
        request = ChatCompletionRequest.parse(
            {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": effort}
        )
        named = [] if effort == level else ["reasoning_effort"]
        assert without_effect(request, jinja(CHATML + one)) == named


def test_thoughts_never_become_none() -> None:
    listed = LEVELS.replace("'xhigh', 'medium', 'low'", "'high', 'no_think'") + LEVEL
    for effort, level in (("none", "no_think"), ("minimal", "high"), ("max", "high")):
        assert prompt(listed, reasoning_effort=effort).endswith(f"level {level}")
    assert effort_has_effect(jinja(CHATML + listed), "none")
    assert not effort_has_effect(jinja(CHATML + listed), "minimal")
    beside = "{{ messages[0].reasoning_effort not in ('low', 'max') }}" + LEVEL
    assert prompt(beside, reasoning_effort="high").endswith("level high")
    other = LEVELS.replace("'xhigh', 'medium', 'low'", "'deep', 'short'") + LEVEL
    with pytest.raises(InvalidField, match="no such effort: high"):
        prompt(other, reasoning_effort="high")


def test_fields_of_other_apis_are_named_where_the_template_has_no_such_effort() -> None:
    messages = [{"role": "user", "content": "x"}]
    tool = {"name": "f", "input_schema": {"type": "object", "not": {"type": "null"}}}
    claude = MessagesRequest.parse(
        {
            "max_tokens": 9,
            "messages": messages,
            "tools": [tool],
            "output_config": {"effort": "high"},
        }
    )
    ollama = ChatRequest.parse({"messages": messages, "think": "high"})
    for found, field in (
        (translated(claude, "m"), "output_config.effort"),
        (translated_chat(ollama, "m", 100), "think"),
    ):
        assert found.ignored_by(jinja(CHATML + LEVELS + LEVEL)) == [field]
        assert found.ignored_by(jinja(CHATML + LEVEL)) == []


def test_values_make_no_control_tokens() -> None:
    chat = Chat({"chat_template_kwargs": {"name": "<|im_end|>"}}, jinja(CHATML + "{{ name }}"))
    plain = Chat({"chat_template_kwargs": {"name": "x"}}, jinja(CHATML + "{{ name }}"))
    control = set(chat.tokenizer.special_tokens.values())

    def count(one: Chat) -> int:
        return sum(i in control for i in one.request.inputs[0].token_ids)  # type: ignore[attr-defined]

    assert chat.prompt.endswith("<|im_end|>") and count(chat) == count(plain)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (SWITCH, "enable_thinkin"),
        (SILENT, "enable_thinking"),
        (SILENT, "thinking"),
        (SILENT, "reasoning_effort"),
        ("{{ raise_exception }}", "raise_exception"),
        ("", "messages"),
        ("", "bos_token"),
        ("", "not a name"),
        ("", ""),
    ],
)
def test_a_name_that_the_template_does_not_read_is_refused(source: str, name: str) -> None:
    with pytest.raises(InvalidField) as caught:
        prompt(source, chat_template_kwargs={name: True})
    assert caught.value.field == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("value", [[1], {"a": 1}, float("nan"), "x" * 5000, 2**60])
def test_values_are_plain(value: Any) -> None:
    with pytest.raises(UserError, match="chat_template_kwargs"):
        prompt("{{ name }}", chat_template_kwargs={"name": value})


def test_an_effort_without_effect_is_said() -> None:
    request = ChatCompletionRequest.parse(
        {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "low"}
    )
    assert without_effect(request, jinja(CHATML)) == ["reasoning_effort"]
    assert without_effect(request, jinja(CHATML + SWITCH)) == []
    with pytest.raises(UserError, match="reasoning_effort"):
        prompt("", reasoning_effort="enormous")


def test_a_template_may_read_what_a_tool_need_not_have() -> None:
    """As those of gpt-oss and Hermes do."""
    source = (
        '<tool_call>{"arguments": {}}'
        "{% for t in tools %}{{ t.function.name + t.function.description }} "
        "{{ t.function.parameters.properties | length }}{% endfor %}{{ messages[0].content }}"
    )
    messages = [{"role": "user", "content": "hi"}]
    for more in ({}, {"description": None}, {"parameters": {"type": "object"}}):
        tools = [{"type": "function", "function": {"name": "get", **more}}]
        assert "get 0" in Chat({"messages": messages, "tools": tools}, jinja(source)).prompt
