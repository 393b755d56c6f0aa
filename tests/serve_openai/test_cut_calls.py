"""Calls that a stop string cuts, in every form: the finish reason says whether all are whole."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import CHATML, Chat, jinja
from test_tool_matrix import FAMILIES, template

from mlc_llm.protocol.openai_api_protocol import ChatCompletionResponseChoice
from mlc_llm.serve.openai.tools.harmony import HARMONY
from mlc_llm.serve.openai.tools.layout import CallLayout

HARMONY_MARKS = "{# tools tool_calls <|channel|> to=functions. #}"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "get", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
ARGUMENTS = '{"city": "Rome", "days": 2}'


def layout_of(form: Any) -> CallLayout:
    found: CallLayout = form.layout
    return found


SEVERAL = [name for name, (_, one) in FAMILIES.items() if layout_of(one).again]


def chat_of(family: str) -> tuple[Chat, Any]:
    if family != "harmony":
        return Chat({"tools": TOOLS}, template(family)), FAMILIES[family][1]
    return Chat({"tools": TOOLS}, jinja(HARMONY_MARKS + CHATML)), HARMONY


def cut(chat: Chat, text: str, reason: str = "stop") -> ChatCompletionResponseChoice:
    """What an answer is that a stop string ends here."""
    tokens = chat.tokenizer.encode(text, special=True)
    (choice,) = chat.whole(tokens, reason=reason, stop_str="x").choices
    return choice


def said(choice: ChatCompletionResponseChoice) -> list[str]:
    return [one.function.arguments for one in choice.message.tool_calls or ()]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("family", [*FAMILIES, "harmony"])
def test_a_stop_string_at_any_place(family: str) -> None:
    chat, form = chat_of(family)
    text = form.written([("get", ARGUMENTS)])
    mark = "" if form is HARMONY else layout_of(form).mark
    reasons = []
    for end in range(len(mark), len(text) + 1):
        found = cut(chat, text[:end])
        reasons.append(found.finish_reason)
        assert found.finish_reason == ("tool_calls" if said(found) == [ARGUMENTS] else "stop")
        assert not found.message.content
    assert reasons == sorted(reasons), "what is whole stays whole"
    assert (reasons[0], reasons[-1]) == ("stop", "tool_calls")


@pytest.mark.one_of(3)
@pytest.mark.parametrize("family", SEVERAL)
def test_a_stop_string_in_a_second_call(family: str) -> None:
    chat, form = chat_of(family)
    text = form.written([("get", ARGUMENTS), ("now", "{}")])
    for end in range(text.index("Rome"), text.index("now") + 4):
        found = cut(chat, text[:end])
        assert found.finish_reason == "stop" or said(found) == [ARGUMENTS]
    assert found.finish_reason == "stop"


def test_a_stop_string_that_ends_a_call() -> None:
    for family, stop in (("hermes", "</tool_call>"), ("qwen3-coder", "</tool_call>")):
        chat, form = chat_of(family)
        text, _, _ = form.written([("get", ARGUMENTS)]).partition(stop)
        found = cut(chat, text)
        assert (found.finish_reason, said(found)) == ("tool_calls", [ARGUMENTS])
