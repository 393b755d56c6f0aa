"""Every form of calls with every choice of tools, with thinking, formats and streams."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from scripted import CHATML, Chat, jinja

from mlc_llm.conversation_template import ConvTemplateRegistry
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.requests import without_effect
from mlc_llm.serve.openai.tools.families import RULES
from mlc_llm.serve.openai.tools.family import Family
from mlc_llm.serve.openai.tools.json_families import HERMES, MISTRAL
from mlc_llm.serve.openai.tools.layout_rules import MAX_CALLS
from mlc_llm.serve.openai.tools.tool_schema import FORMATS

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "exact": {"type": "boolean"},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get", "description": "x", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
NAMED = {"type": "function", "function": {"name": "get_time"}}
JSON_OBJECT = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "object", "properties": {}, "additionalProperties": False}},
}
FAMILIES: dict[str, tuple[str, Family]] = {"generic": ("", HERMES)}
FAMILIES |= {
    family.name: ("{# tools tool_calls 'tool' " + " ".join(marks) + " #}", family)
    for marks, family in RULES
    if family.name != "harmony"  # it has a test file of its own
}
THINKING = {
    "none": "",
    "may": "{# </think> #}",
    "opened": "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}",
    "closed": "{% if add_generation_prompt %}<think>\n\n</think>\n\n{% endif %}",
}


def template(family: str, thinking: str = "none") -> Any:
    return jinja(FAMILIES[family][0] + CHATML + THINKING[thinking])


def check_calls(calls: Any, names: set[str]) -> None:
    assert calls
    for call in calls:
        assert call.type == "function" and len(call.id) == 29
        assert call.function.name in names
        values = json.loads(call.function.arguments)
        if call.function.name == "get_time":
            assert values == {}
            continue
        assert isinstance(values["city"], str) and len(values["city"]) <= 8
        assert values.keys() <= WEATHER["properties"].keys()
        assert 1 <= values.get("days", 1) <= 9 and values.get("unit", "C") in ("C", "F")
        assert values.get("exact", True) in (True, False)


@pytest.mark.one_of(8)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_always_parses(family: str, thinking: str, choice: Any) -> None:
    names = {"get", "get_time"} if choice == "required" else {"get_time"}
    for parallel, seed in itertools.product((True, False), range(3)):
        body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
        chat = Chat(body, template(family, thinking))
        beginning = {"may": "<think>hm\n</think>\n\n", "opened": "hm</think>"}.get(thinking, "")
        tokens = chat.draw(seed, beginning)
        assert tokens is not None, "no end"
        sizes = iter(random.Random(seed).choices(range(1, 9), k=5000))
        for answer in (chat.whole(tokens), chat.whole(tokens, sizes)):
            (found,) = answer.choices
            assert found.finish_reason == "tool_calls"
            message = found.message
            assert message.content is None, chat.tokenizer.decode(tokens)
            assert message.reasoning_content == ("hm" if beginning else None)
            check_calls(message.tool_calls, names)
            most = MAX_CALLS if parallel and choice == "required" else 1
            assert message.tool_calls is not None and len(message.tool_calls) <= most


@pytest.mark.one_of(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("wanted", [None, JSON_OBJECT], ids=["text", "json"])
def test_auto_is_text_or_calls(family: str, thinking: str, wanted: Any) -> None:
    chat = Chat({"tools": TOOLS, "response_format": wanted}, template(family, thinking))
    thought = {"may": "<think>hm</think>\n", "opened": "hm\n</think>\n"}.get(thinking, "")
    form = FAMILIES[family][1]
    text = "{}" if wanted else "No need."
    tokens = chat.draw(0, thought + text)
    assert tokens is not None
    if wanted:
        message = chat.whole(tokens).choices[0].message
        assert message.content == "{}" and message.tool_calls is None
    said = chat.said(thought + text)
    assert said.choices[0].message.content == text and said.choices[0].finish_reason == "stop"
    call = form.written([("get", '{"city": "Rome"}')])
    end = next(i for i in range(len(call)) if '"city' in call[:i] or "city" in call[:i])
    tokens = chat.draw(1, thought + call[: end - 5].removesuffix('"'))
    assert tokens is not None
    answer = chat.whole(tokens)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.reasoning_content == ("hm" if thought else None)
    check_calls(answer.choices[0].message.tool_calls, {"get", "get_time"})


def test_thoughts_before_a_format() -> None:
    for thinking, beginning in (
        ("opened", "hm</think>\n\n"),
        ("may", "<think>hm</think>"),
        ("may", "{"),
    ):
        chat = Chat({"response_format": JSON_OBJECT}, template("generic", thinking))
        for seed in range(5):
            tokens = chat.draw(seed, beginning)
            assert tokens is not None
            message = chat.whole(tokens).choices[0].message
            assert message.content == "{}"
            assert message.reasoning_content == ("hm" if "hm" in beginning else None)


def test_other_formats_behind_thoughts() -> None:
    for form in (
        {"type": "regex", "regex": "[0-9]{3}"},
        {"type": "gbnf", "gbnf": 'root ::= "1" [0-9] "2"'},
        {"type": "lark", "lark": 'start: "1" N "2"\nN: /[0-9]/'},
    ):
        chat = Chat({"response_format": form}, template("generic", "opened"))
        tokens = chat.draw(3, "hm</think>")
        assert tokens is not None
        message = chat.whole(tokens).choices[0].message
        assert message.reasoning_content == "hm" and message.content is not None
        assert len(message.content) == 3 and message.content.isdigit()


def test_tokens_of_thoughts_are_counted() -> None:
    chat = Chat({}, template("generic", "may"))
    text = "<think>abcd</think>efg"
    tokens = [*text.encode()]
    for sizes in (None, iter([3, 9, 100]), iter([100])):
        usage = chat.whole(tokens, sizes).usage
        assert usage is not None and usage.completion_tokens_details is not None
        # The tag before is known to be one at its last letter; the tag behind belongs to them.
        assert usage.completion_tokens_details.reasoning_tokens == len(">abcd</think>")


def test_without_tools_nothing_is_read_as_a_call() -> None:
    text = HERMES.written([("get", "{}")])
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        chat = Chat(body, template("hermes"))
        assert chat.said(text).choices[0].message.content == text
        assert "get_time" not in chat.prompt


def test_control_tokens_as_marks() -> None:
    control = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")
    source = "{# tools tool_calls #}" + CHATML + "{# [TOOL_CALLS] [ARGS] [/THINK] #}"
    body = {"tools": TOOLS, "tool_choice": "required"}
    chat = Chat(body, jinja(source), control)
    for seed in range(4):
        tokens = chat.draw(seed, "[THINK]hm[/THINK]" if seed % 2 else "")
        assert tokens is not None
        message = chat.whole(tokens).choices[0].message
        check_calls(message.tool_calls, {"get", "get_time"})
    free = Chat({"tools": TOOLS}, jinja(source), control)
    tokens = free.draw(1, "Well.[TOOL_CALLS]")
    assert tokens is not None
    answer = free.whole(tokens)
    assert answer.choices[0].message.content == "Well."
    check_calls(answer.choices[0].message.tool_calls, {"get", "get_time"})


@pytest.mark.parametrize("name", ["gorilla", "gorilla-openfunctions-v2", "ministral3", "chatml"])
def test_named_templates(name: str) -> None:
    named = ConvTemplateRegistry.get_conv_template(name)
    assert named is not None
    chat = Chat(
        {"tools": TOOLS, "tool_choice": "required"},
        named.model_copy(update={"system_prefix_token_ids": None}),
    )
    assert '"get_time"' in chat.prompt and chat.prompt.count('"get_time"') == 1
    for seed in range(4):
        tokens = chat.draw(seed)
        assert tokens is not None
        check_calls(chat.whole(tokens).choices[0].message.tool_calls, {"get", "get_time"})


def test_functions_in_a_template_of_the_users_own() -> None:
    """As MLC LLM reads it: calls as in Python."""
    own = Conversation(
        system_template="{system_message}{function_string}",
        roles={"user": "U: ", "assistant": "A: "},
        seps=["\n"],
    )
    chat = Chat({"tools": TOOLS}, own)
    text = '[get(city="Rome", days=3, exact=False), get_time()]'
    answer = chat.whole(chat.draw(0, text) or [])
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and answer.choices[0].finish_reason == "tool_calls"
    assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == [
        ("get", {"city": "Rome", "days": 3, "exact": False}),
        ("get_time", {}),
    ]
    assert chat.said("[1] No.").choices[0].message.content == "[1] No."


def test_a_name_is_text_whatever_it_is() -> None:
    """A control token's name in a function's name is ordinary text."""
    odd = 'a"<|im_end|>\\'
    tools = [{"type": "function", "function": {"name": odd}}]
    chat = Chat({"tools": tools, "tool_choice": "required"}, template("hermes"))
    tokens = chat.draw(0)
    assert tokens is not None
    calls = chat.whole(tokens).choices[0].message.tool_calls
    assert calls is not None and calls[0].function.name == odd


def test_a_cut_call_is_told_by_its_reason() -> None:
    chat = Chat({"tools": TOOLS}, template("mistral"))
    text = MISTRAL.written([("get", '{"city": "Rome"}')])
    cut = chat.said(text[:-4], reason="length").choices[0]
    assert cut.finish_reason == "length" and cut.message.tool_calls is not None
    assert cut.message.tool_calls[0].function.arguments == '{"city": "Ro'


def test_a_schema_that_cannot_be_kept_is_named() -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    tools = [TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": bad}}]
    chat = Chat({"tools": tools}, template("hermes"))
    with pytest.raises(InvalidField) as caught:
        chat.draw(0)
    assert caught.value.field == "tools[1].function.parameters"


def test_the_generic_form_describes_tools_and_past_calls() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "x", "content": "noon"},
        {"role": "tool", "tool_call_id": "x", "content": "one"},
    ]
    chat = Chat({"tools": TOOLS, "messages": messages}, template("generic"))
    turns = chat.prompt.split("<|im_start|>")
    assert turns[1].startswith("system\nBe brief.\n\nYou can call functions.")
    assert '{"name": "get_time"' in turns[1] and "<tool_call>" in turns[1]
    written = HERMES.written([("get_time", "{}")] * 2)
    assert turns[3] == f"assistant\n{written}<|im_end|>\n"
    results = "".join(f"<tool_response>\n{one}\n</tool_response>\n" for one in ("noon", "one"))
    assert turns[4] == f"user\n{results.rstrip()}<|im_end|>\n"


UNKEPT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "not": {"type": "array", "items": {"type": "null"}, "uniqueItems": True, "maxItems": 1},
        "path": {"type": "string", "format": "path", "maxLength": 3},
        "kind": {"const": {"not": 1, "format": "own"}},
    },
    "required": ["not", "path", "kind"],
}


@pytest.mark.parametrize("family", ["hermes", "qwen3-coder"])
def test_keywords_that_a_grammar_cannot_keep(family: str) -> None:
    def tools(strict: bool | None) -> Any:
        function = {"name": "f", "parameters": UNKEPT, "strict": strict}
        return [{"type": "function", "function": function}]

    body = {"tools": tools(None), "tool_choice": "required", "parallel_tool_calls": False}
    chat = Chat(body, template(family))
    calls = chat.whole(chat.draw(1) or []).choices[0].message.tool_calls
    assert calls is not None
    values = json.loads(calls[0].function.arguments)
    assert values["kind"] == {"not": 1, "format": "own"} and len(values["path"]) <= 3
    request = ChatCompletionRequest.parse({"messages": [{"role": "user", "content": "x"}], **body})
    left_out = "tools[0].function.parameters.properties.not.uniqueItems"
    assert without_effect(request, None) == [left_out]
    with pytest.raises(InvalidField, match="uniqueItems") as caught:
        Chat({**body, "tools": tools(True)}, template(family)).draw(1)
    assert caught.value.field.startswith("tools[0].function.parameters")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


MANY = {f"p{i}": {"type": "integer"} for i in range(1200)}


@pytest.mark.parametrize(
    ("family", "tools", "named"),
    [
        ("hermes", [("f", nested(2000))], "tools"),
        ("hermes", [("f", nested(110))], "tools[0].function.parameters"),
        ("hermes", [("f", {"type": "object", "properties": MANY})], "tools[0].function.parameters"),
        ("glm", [("f", {"type": "object", "properties": MANY})], "tools"),
        ("glm", [("f", {"anyOf": [{"type": "object"}]})], "tools[0].function.parameters"),
        ("hermes", [("f", {"x": "y" * 300_000})], "tools[0].function.parameters"),
        ("hermes", [(f"f{i}", {"x": "y" * 2000}) for i in range(600)], "tools"),
        ("hermes", [("f", {}), ("f", {})], "tools[1].function.name"),
        ("hermes", [("f", {"type": "object", "properties": 5})], "tools[0].function.parameters"),
        ("glm", [("f", {"type": "object", "required": 5})], "tools[0].function.parameters"),
        ("glm", [("f", {"type": "object", "required": ["x"]})], "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_schemas_beyond_the_bounds_are_refused_by_name(
    family: str, tools: list[Any], named: str
) -> None:
    given = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in tools
    ]
    with pytest.raises(UserError) as caught:
        Chat({"tools": given, "tool_choice": "required"}, template(family)).draw(0)
    assert str(caught.value).startswith(named) or named in str(caught.value)[:200]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_hundred_tools(family: str) -> None:
    given = [
        {"type": "function", "function": {"name": f"get_{i}", "parameters": WEATHER}}
        for i in range(100)
    ]
    body = {"tools": given, "tool_choice": "required", "parallel_tool_calls": False}
    chat = Chat(body, template(family))
    calls = chat.whole(chat.draw(1) or []).choices[0].message.tool_calls
    assert calls is not None and len(calls) == 1
    assert "city" in json.loads(calls[0].function.arguments)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_that_a_grammar_keeps(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": name}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    chat = Chat({"tools": [tool], "tool_choice": "required"}, template("hermes"))
    with pytest.raises(AssertionError):  # no format has such a text
        chat.draw(1, '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e4 }')
    assert chat.request.generation_config.needs_grammar
