"""Messages of clients as chat templates read them, from dictionaries and from checked requests."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.errors import InvalidField, UnsupportedModel
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.messages import ROLES, arguments_value, template_messages
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest

USER = {"role": "user", "content": "Hi"}


def both(message: dict[str, Any]) -> dict[str, Any]:
    """The message for a template: the same whether a request was made of it before or not."""
    request = ChatCompletionRequest.parse({"messages": [USER, message]})
    checked = template_messages([one.model_dump() for one in request.messages])
    plain = template_messages([USER, message])
    assert checked == plain
    return plain[1]


PARTS = [
    {"type": "text", "text": "a"},
    {"type": "input_text", "text": "b"},
    {"type": "output_text", "text": "c", "annotations": []},
    {"type": "refusal", "refusal": "d"},
]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("content", "text"), [("x", "x"), ("", ""), (None, ""), (PARTS, "abcd"), ([], "")]
)
def test_content_is_a_text_in_every_role(role: str, content: Any, text: str) -> None:
    wanted = "system" if role == "developer" else role
    assert both({"role": role, "content": content}) == {"role": wanted, "content": text}


def test_a_refusal_is_what_the_assistant_said() -> None:
    said = {"role": "assistant", "content": "No, sorry."}
    assert both({"role": "assistant", "content": None, "refusal": "No, sorry."}) == said
    assert both({"role": "assistant", "refusal": "No, sorry."}) == said
    assert both({"role": "assistant", "content": "No, ", "refusal": "sorry."}) == said
    assert both({**said, "refusal": None}) == said


def call(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def test_content_is_none_beside_calls_only() -> None:
    with_value = [call(arguments={})]
    for message in ({"content": None}, {}):
        found = both({"role": "assistant", "tool_calls": [call()], **message})
        assert found == {"role": "assistant", "content": None, "tool_calls": with_value}
    found = both({"role": "assistant", "content": "Wait.", "tool_calls": [call()]})
    assert found == {"role": "assistant", "content": "Wait.", "tool_calls": with_value}
    # Templates may ask whether the key is there.
    assert both({"role": "assistant", "content": None, "tool_calls": []}) == {
        "role": "assistant",
        "content": "",
    }


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ({"a": "ä"}, {"a": "ä"}),
        ("[1]", [1]),
        ("", {}),
        (" \n", {}),
        (None, {}),
        ('{"a": ', '{"a": '),
        ("Paris", "Paris"),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ("[" * 100_000, "[" * 100_000),
        ("1" * 10_000, "1" * 10_000),
    ],
)
def test_arguments_are_values_and_wrong_ones_stay_texts(given: Any, value: Any) -> None:
    (found,) = both({"role": "assistant", "tool_calls": [call(arguments=given)]})["tool_calls"]
    assert found["function"] == {"name": "f", "arguments": value}
    assert not isinstance(value, str) or arguments_value(value) == value


def test_what_is_unknown_is_kept_and_what_is_null_left_out() -> None:
    message = {"role": "tool", "tool_call_id": "7", "content": "42", "name": None, "mood": "good"}
    found = both(message)
    assert found == {"role": "tool", "tool_call_id": "7", "content": "42", "mood": "good"}
    assert message["name"] is None, "the caller's message stays as it is"


@pytest.mark.parametrize("image", ["data:image/png;base64,", {"url": "data:"}])
def test_an_image_is_well_formed_but_cannot_be_read(image: Any) -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": image}]}
    ChatCompletionRequest.parse({"messages": [message]})
    with pytest.raises(UnsupportedModel, match="Vision config is required"):
        template_messages([message])


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user"}, "content"),
        ({"role": "poet", "content": "x"}, "role"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": "\ud800"}, "content"),
        ({"role": "user", "content": [{"type": "audio"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "output_text"}]}, "content[0].text"),
        ({"role": "assistant", "content": "", "tool_calls": ["f"]}, "tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [call(arguments=5)]},
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
            "tool_calls[0].function.name",
        ),
    ],
)
def test_both_ways_name_the_field_that_is_wrong(message: dict[str, Any], field: str) -> None:
    for read in (
        lambda: ChatCompletionRequest.parse({"messages": [USER, message]}),
        lambda: template_messages([USER, message]),
    ):
        with pytest.raises(InvalidField) as caught:
            read()
        assert caught.value.field == f"messages[1].{field}"


def test_named_templates_read_the_same_contents() -> None:
    named = Conversation(roles={"user": "U", "assistant": "A"}, seps=["|"])
    for content in ("x", "", PARTS, []):
        text = both({"role": "user", "content": content})["content"]
        assert named.with_messages([("user", content)]).as_prompt() == [f"U{text}|"]
