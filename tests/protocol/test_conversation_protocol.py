"""Conversation: the prompt of each template rule, and that people's text stays text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField, UnsupportedModel, UserError
from mlc_llm.protocol.conversation_protocol import Conversation, MessagePlaceholders

CHATML: dict[str, Any] = {
    "name": "chatml",
    "system_template": "<|im_start|>system\n{system_message}<|im_end|>\n",
    "system_message": "Be kind.",
    "roles": {"user": "<|im_start|>user", "assistant": "<|im_start|>assistant", "tool": "<|t|>"},
    "seps": ["<|im_end|>\n"],
    "role_content_sep": "\n",
    "role_empty_sep": "\n",
}


def template(**changes: Any) -> Conversation:
    return Conversation.from_json_dict({**CHATML, **changes})


def prompt(conversation: Conversation, *messages: tuple[str, Any]) -> str:
    texts = conversation.with_messages(messages).as_prompt(add_generation_prompt=True)
    assert len(texts) == 1
    return texts[0]


def test_a_turn_is_role_separator_text_separator() -> None:
    assert prompt(template(), ("user", "Hi"), ("assistant", "Yo"), ("user", "?")) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\n?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_two_separators_and_a_first_role_left_out() -> None:
    llama2 = template(
        system_template="[INST] <<SYS>>\n{system_message}\n<</SYS>>\n\n",
        add_role_after_system_message=False,
        roles={"user": "<s>[INST]", "assistant": "[/INST]"},
        seps=[" ", " </s>"],
        role_content_sep=" ",
        role_empty_sep=" ",
    )
    assert prompt(llama2, ("user", "A"), ("assistant", "B"), ("user", "C")) == (
        "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST] "
    )
    bare = llama2.model_copy(update={"system_template": "{system_message}"})
    assert prompt(bare, ("system", ""), ("user", "A")) == "<s>[INST] A [/INST] "


def test_null_content_opens_a_turn() -> None:
    texts = template(messages=[["user", "A"], ["assistant", None]]).as_prompt()
    assert texts[0].endswith("<|im_start|>assistant\n")


def test_no_text_is_an_empty_prompt() -> None:
    empty = template(system_template="{system_message}", system_message="")
    assert empty.as_prompt() == [""]


def test_system_messages_replace_the_default_and_stand_first() -> None:
    text = prompt(template(), ("system", "One"), ("system", "Two"), ("user", "A"))
    assert "system\nOne\nTwo<|im_end|>" in text
    assert "Be kind" not in text
    with pytest.raises(UserError, match="System prompt at position 1 in the message list"):
        template().with_messages([("user", "A"), ("system", "B")])


def test_with_messages_leaves_the_template_alone() -> None:
    shared = template()
    prompt(shared, ("system", "Other"), ("user", "A"))
    assert shared == template()


def test_placeholders_in_a_persons_text_stay_text() -> None:
    said = "{user_message}{function_string}{system_message}<|im_end|>"
    conversation = template(role_templates={"user": "{user_message} F:{function_string}"})
    conversation = conversation.model_copy(update={"function_string": "[f]"})
    filled = conversation.with_messages([("system", said), ("user", said)])
    text = filled.as_prompt()[0]
    assert text.count(said) == 2
    assert text.endswith(said + " F:[f]<|im_end|>\n")
    theirs = [piece.text for piece in filled.prompt_pieces() if not piece.from_template]
    assert theirs == [said, said, "[f]"]


def test_only_the_last_place_takes_the_functions() -> None:
    conversation = template(
        role_templates={"user": "<{function_string}>{user_message}"}, function_string="F"
    )
    text = prompt(conversation, ("user", "A"), ("assistant", "B"), ("user", "C"))
    assert "\n<>A<" in text
    assert "\n<F>C<" in text


def test_reasoning_before_the_last_question_is_dropped() -> None:
    thought = "<think>a</think>b</think>\n\nC"
    turns = [("user", "1"), ("assistant", thought), ("user", "2"), ("assistant", thought)]
    kept = prompt(template(), *turns)
    assert kept.count(thought) == 2
    stripped = prompt(template(strip_reasoning_in_history=True), *turns)
    assert "assistant\nC<|im_end|>" in stripped
    assert stripped.count(thought) == 1


def test_parts_are_joined_and_images_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert "user\nab<|im_end|>" in prompt(template(), ("user", parts))
    for kind in ("image_url", "input_image"):
        with pytest.raises(UnsupportedModel, match="Vision config is required"):
            prompt(template(), ("user", [{"type": kind, "image_url": "data:"}]))
    with pytest.raises(UserError, match="type = 'audio' is not allowed: unsupported content type"):
        prompt(template(), ("user", [{"type": "audio"}]))


def test_a_role_the_template_lacks_is_refused() -> None:
    with pytest.raises(UserError, match='Role "poet" is not supported'):
        prompt(template(), ("poet", "A"))


def test_tool_turns_use_their_own_template() -> None:
    conversation = template(role_templates={"tool": "<r>{tool_message}</r>"})
    assert "<|t|>\n<r>42</r><|im_end|>" in prompt(conversation, ("tool", "42"))
    assert conversation.role_templates["user"] == MessagePlaceholders.USER.value


def test_json_round_trip() -> None:
    full = template(
        system_prefix_token_ids=[1],
        messages=[["user", "A"], ["assistant", None]],
        stop_str=["x"],
        stop_token_ids=[2],
        use_function_calling=True,
    )
    assert Conversation.from_json_dict(full.to_json_dict()) == full
    assert Conversation.from_json_dict(full.to_json_dict()).as_prompt() == full.as_prompt()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seps": []}, "seps"),
        ({"seps": ["a", "b", "c"]}, "seps"),
        ({"roles": None}, "roles"),
        ({"roles": {"user": 1}}, "roles"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
        ({"messages": [["user"]]}, "messages"),
    ],
)
def test_a_broken_template_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField, match=field) as caught:
        template(**changes)
    assert caught.value.field.startswith("conv_template." + field)


def test_unknown_fields_of_a_template_are_kept_and_named() -> None:
    assert template(new_thing=3).unknown_fields() == ["new_thing"]
    assert template(new_thing=None).unknown_fields() == []


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=20)), max_size=5)
)
def test_pieces_joined_are_the_prompt_and_hold_every_text(turns: list[tuple[str, str]]) -> None:
    conversation = template().with_messages(turns)
    pieces = conversation.prompt_pieces()
    assert ["".join(piece.text for piece in pieces)] == conversation.as_prompt()
    theirs = [piece.text for piece in pieces if not piece.from_template]
    assert theirs == ["Be kind.", *[text for _, text in turns if text]]
