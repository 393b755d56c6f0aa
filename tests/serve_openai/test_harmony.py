"""The channels of gpt-oss."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from answer_tools import cut_at, read
from hypothesis import given
from hypothesis import strategies as st
from scripted import Chat, jinja, tokenizer

from mlc_llm.serve.openai.tools.answer_reader import AnswerReader
from mlc_llm.serve.openai.tools.harmony import HarmonyReader

CONTROL = (
    "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
)  # fmt: skip
TEMPLATE = (
    "{# to=functions. tool_calls tools 'tool' #}{% for message in messages %}"
    "<|start|>{{ message.role }}<|message|>{{ message.content }}"
    "{% for c in message.tool_calls or [] %}<|call|>{{ c.function.name }}{% endfor %}"
    "{% if message.thinking %}<|channel|>analysis<|message|>{{ message.thinking }}{% endif %}"
    "<|end|>{% endfor %}<|start|>assistant"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "parameters": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["n"],
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Four."
CALL = '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"n": 4}'
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def reader() -> AnswerReader:
    return AnswerReader(None, HarmonyReader(["get", "get_time"]))


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (FINAL, "", "Four.", []),
        (FINAL + "<|return|>", "", "Four.", []),
        (THOUGHT + FINAL, "Hm.", "Four.", []),
        (THOUGHT + THOUGHT + FINAL, "Hm.\n\nHm.", "Four.", []),
        (THOUGHT + PREAMBLE + FINAL, "Hm.", "Wait.\n\nFour.", []),
        (THOUGHT + CALL + "<|call|>", "Hm.", "", [("get", '{"n": 4}')]),
        (PREAMBLE + CALL, "", "Wait.", [("get", '{"n": 4}')]),
        (
            " to=functions.get_time<|channel|>commentary json<|message|>{}",
            "", "", [("get_time", "{}")],
        ),
        ("<|channel|>commentary to=functions.get_time<|message|>", "", "", [("get_time", "{}")]),
        ("<|channel|>commentary to=functions.other<|message|>x", "", "x", []),
        ("Plain <|channel|>text", "", "Plain <|channel|>text", []),
        ("<", "", "<", []),
        ("", "", "", []),
    ],
)  # fmt: skip
@given(cuts=CUTS)
def test_messages_are_apart(
    text: str, reasoning: str, content: str, calls: list[Any], cuts: list[int]
) -> None:
    found = read(reader(), cut_at(text, cuts))
    assert (found.reasoning, found.text, found.calls) == (reasoning, content, calls)


def test_a_cut_call_is_not_whole() -> None:
    one = reader()
    found = read(one, [CALL[:-3]], is_cut=True)
    assert found.calls == [("get", '{"n":')] and not one.has_called
    whole = reader()
    read(whole, [CALL])
    assert whole.has_called


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get"}}])
def test_a_forced_call_always_parses(choice: Any) -> None:
    chat = Chat({"tools": TOOLS, "tool_choice": choice}, jinja(TEMPLATE), CONTROL)
    for seed in range(6):
        tokens = chat.draw(seed, (THOUGHT, PREAMBLE, "")[seed % 3] + "<|channel|>commentary to=")
        assert tokens is not None
        sizes = iter(random.Random(seed).choices(range(1, 9), k=5000))
        answer = chat.whole(tokens, sizes)
        (found,) = answer.choices
        assert found.finish_reason == "tool_calls" and found.message.tool_calls is not None
        (call,) = found.message.tool_calls
        values = json.loads(call.function.arguments)
        assert values == {} if call.function.name == "get_time" else values["n"] in range(10)
        assert found.message.reasoning_content == (None if seed % 3 else "Hm.")


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_format_holds_for_the_final_message(tools: Any) -> None:
    form = {"type": "regex", "regex": "[0-9]{3}"}
    chat = Chat({"response_format": form, "tools": tools}, jinja(TEMPLATE), CONTROL)
    tokens = chat.draw(1, THOUGHT + "<|channel|>final")
    assert tokens is not None
    message = chat.whole(tokens).choices[0].message
    assert message.reasoning_content == "Hm." and message.content is not None
    assert message.content.isdigit() and len(message.content) == 3


def test_free_answers_and_tokens_of_thoughts() -> None:
    chat = Chat({}, jinja(TEMPLATE), CONTROL)
    assert not chat.request.generation_config.needs_grammar
    answer = chat.said(THOUGHT + FINAL)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.", "Four.")
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    # From <|message|> to <|end|>.
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("Hm.") + 2


def test_the_end_of_a_message_is_not_the_end_of_the_answer() -> None:
    ends = {tokenizer(*CONTROL).token_bytes(i) for i in tokenizer(*CONTROL).eos_token_ids}
    assert b"<|end|>" not in ends and {b"<|return|>", b"<|call|>"} <= ends
    assert tokenizer("<|end|>").eos_token_ids > tokenizer().eos_token_ids


def test_several_calls_of_a_message_become_several_messages() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}

    def result(name: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": name, "content": f"of {name}"}

    messages = [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [call("get"), call("get_time")],
        },
        result("get_time"),
        result("get"),
    ]
    turns = Chat({"messages": messages}, jinja(TEMPLATE), CONTROL).prompt.split("<|start|>")
    assert turns[2:6] == [
        "assistant<|message|><|call|>get<|channel|>analysis<|message|>hm<|end|>",
        "tool<|message|>of get<|end|>",
        "assistant<|message|><|call|>get_time<|channel|>analysis<|message|>hm<|end|>",
        "tool<|message|>of get_time<|end|>",
    ]
