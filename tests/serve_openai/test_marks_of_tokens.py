"""Forms whose marks have control tokens, and tags around the text of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answer_tools import cut_at, read
from hypothesis import given
from hypothesis import strategies as st
from scripted import CHATML, Chat, jinja

from mlc_llm.serve.openai.tools.answer_reader import AnswerReader
from mlc_llm.serve.openai.tools.answer_tags import AnswerTags, TagRemover
from mlc_llm.serve.openai.tools.families import RULES
from mlc_llm.serve.openai.tools.json_families import COMMAND

CONTROL: dict[str, tuple[str, ...]] = {
    "kimi-k2": (
        "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
        "<|tool_call_end|>", "<|tool_calls_section_end|>",
    ),
    "deepseek-v3.2": ("｜DSML｜",),
    "deepseek-v4": ("｜DSML｜",),
    "command-r7b": (
        "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
    ),
    "apertus": ("<|tools_prefix|>", "<|tools_suffix|>"),
    "gigachat3.1": ("<|function_call|>",),
    "hy3": ("<tool_calls:opensource>", "</tool_calls:opensource>", "</arg_value:opensource>"),
}  # fmt: skip
"""Form -> its control tokens, in a tokenizer that has them."""
FORMS = {family.name: (marks, family) for marks, family in RULES if family.name in CONTROL}
PUT = {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
TOOLS = [
    {"type": "function", "function": {"name": "get"}},
    {
        "type": "function",
        "function": {"name": "put", "parameters": {"type": "object", "properties": PUT}},
    },
]
RESPONSE = "{# <|START_RESPONSE|> #}"
TAGS = AnswerTags("<|START_RESPONSE|>", "<|END_RESPONSE|>")


def chat(form: str, **body: Any) -> Chat:
    source = "{# tools tool_calls 'tool' " + " ".join(FORMS[form][0]) + " #}" + CHATML
    return Chat({"tools": TOOLS, **body}, jinja(source + RESPONSE), CONTROL[form])


@pytest.mark.parametrize("form", CONTROL)
def test_a_forced_call_has_the_tokens_and_parses(form: str) -> None:
    made = chat(form, tool_choice="required")
    for seed in range(3):
        tokens = made.draw(seed)
        assert tokens is not None
        assert made.tokenizer.special_tokens[CONTROL[form][0]] in tokens
        (choice,) = made.whole(tokens).choices
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        for call in choice.message.tool_calls or []:
            values = json.loads(call.function.arguments)
            assert values.keys() <= (PUT.keys() if call.function.name == "put" else set())


@pytest.mark.parametrize("form", CONTROL)
def test_text_stands_before_a_call_or_alone(form: str) -> None:
    made = chat(form)
    text = "If 1 < 2, <b> and </i>"
    assert made.said(text).choices[0].message.content == text
    call = FORMS[form][1].written([("get", "{}")])
    tokens = made.draw(0, text + "\n" + call)
    assert tokens is not None
    message = made.whole(tokens).choices[0].message
    assert message.content == text and message.tool_calls is not None
    assert message.tool_calls[0].function.name == "get"


@pytest.mark.parametrize("more", [{}, {"response_format": {"type": "regex", "regex": "[0-9]{3}"}}])
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_tags_around_the_text_are_no_part_of_it(more: Any, tools: Any) -> None:
    made = chat("command-r7b", **more, tools=tools)
    for said in ("<|START_RESPONSE|>123<|END_RESPONSE|>", "<|START_RESPONSE|>123", "123"):
        assert made.draw(0, said) is not None  # the grammar takes it
        assert made.said(said).choices[0].message.content == "123"


@given(cuts=st.lists(st.integers(0, 1000), max_size=8))
@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("\n<|START_RESPONSE|> a <|END_RESPONSE|>\n", " a "),
        ("<|START_RESP", "<|START_RESP"),
        ("a <|START_RESPONSE|> b", "a <|START_RESPONSE|> b"),
        ("a <|END_", "a <|END_"),
        ("", ""),
    ],
)
def test_tags_are_removed_however_the_text_is_cut(cuts: list[int], text: str, rest: str) -> None:
    reader = AnswerReader(None, COMMAND.reader(()), TagRemover(TAGS))
    assert read(reader, cut_at(text, cuts)).text == rest
