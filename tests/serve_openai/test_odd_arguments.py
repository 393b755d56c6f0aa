"""Past calls whose arguments are no object, as clients send them back behind an answer that was
cut: every form of calls shows them."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import CHATML, Chat, jinja
from test_tool_matrix import FAMILIES, TOOLS

from mlc_llm.conversation_template import ConvTemplateRegistry
from mlc_llm.serve.openai.tools.families import RULES
from mlc_llm.serve.openai.tools.field_families import FieldFamily

MARKS = {family.name: marks for marks, family in RULES}
FIELD_FAMILIES = [name for name, (_, one) in FAMILIES.items() if isinstance(one, FieldFamily)]
ODD = ['{"city": "Ro', "null", "[1, 2]", "5", "true", '"Ro"', "NaN", '{"n": NaN}', "{}{}"]
WALKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% for key, value in c.function.arguments | items %}"
    "{{ key }} is {{ value }}{% endfor %}{% endfor %}<|im_end|>\n{% endfor %}"
)
"""A template that goes through the arguments."""


def history(arguments: str, calls: int = 1) -> list[dict[str, Any]]:
    function = {"name": "get", "arguments": arguments}
    made = [{"id": f"call_{i}", "type": "function", "function": function} for i in range(calls)]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": made},
        *({"role": "tool", "tool_call_id": one["id"], "content": "it failed"} for one in made),
        {"role": "user", "content": "Again."},
    ]


def prompt(source: str, arguments: str, tools: Any = TOOLS) -> str:
    return Chat({"messages": history(arguments), "tools": tools}, jinja(source)).prompt


@pytest.mark.one_of(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arguments", ODD)
def test_a_template_that_shows_no_calls(family: str, arguments: str) -> None:
    source = "{# tools " + " ".join(MARKS.get(family, ())) + " #}" + CHATML
    if "tool_calls" in source:
        return
    for tools in (TOOLS, None):
        text = prompt(source, arguments, tools)
        assert arguments.strip('"') in text and "it failed" in text


@pytest.mark.parametrize("family", FIELD_FAMILIES)
@pytest.mark.parametrize("arguments", ODD)
def test_a_template_that_goes_through_the_arguments(family: str, arguments: str) -> None:
    source = FAMILIES[family][0] + WALKS
    assert arguments.strip('"') in prompt(source, arguments)
    assert "city is Rome" in prompt(source, '{"city": "Rome"}')


def test_a_template_of_an_unknown_form() -> None:
    assert '{"city": "Ro' in prompt("{# tool_calls #}" + WALKS, '{"city": "Ro', tools=None)


@pytest.mark.parametrize("name", ["gorilla", "gorilla-openfunctions-v2", "ministral3", "chatml"])
@pytest.mark.parametrize("arguments", ODD)
def test_named_templates(name: str, arguments: str) -> None:
    named = ConvTemplateRegistry.get_conv_template(name)
    assert named is not None
    named = named.model_copy(update={"system_prefix_token_ids": None})
    chat = Chat({"messages": history(arguments), "tools": TOOLS}, named)
    assert arguments.strip('"') in chat.prompt


@pytest.mark.parametrize("arguments", ["[" * 5000, '{"city": "\\ud800"}', '{"a": "\n"}'])
def test_json_that_cannot_be_read(arguments: str) -> None:
    for family in FIELD_FAMILIES:
        assert arguments in FAMILIES[family][1].written([("get", arguments)])


def test_results_of_such_calls_stand_together() -> None:
    source = FAMILIES["qwen3-coder"][0] + WALKS
    chat = Chat({"messages": history("[1]", calls=2), "tools": TOOLS}, jinja(source))
    result = "<tool_response>\nit failed\n</tool_response>"
    assert f"<|im_start|>user\n{result}\n{result}<|im_end|>" in chat.prompt
