"""Past calls, their results and the thoughts beside them, as chat templates get them."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import Chat, jinja

CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = [
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "x", "content": "noon"},
]
BODY: dict[str, Any] = {
    "messages": MESSAGES,
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
AS_THEY_ARE = "{% for message in messages %}{{ '<' + ROLE + '>' + message.content }}{% endfor %}"
FORM = "{# tools tool_calls <seed:tool_call> #}"


@pytest.mark.parametrize("role", ["message.role", "message['role']", 'message["role"] '])
def test_a_template_that_writes_any_role_writes_that_of_results(role: str) -> None:
    template = jinja(FORM + AS_THEY_ARE.replace("ROLE", role))
    assert Chat(BODY, template).prompt.endswith("<tool>noon")


def test_results_are_of_the_user_where_the_form_of_calls_is_not_known() -> None:
    template = jinja(AS_THEY_ARE.replace("ROLE", "message.role"))
    for tools in (BODY["tools"], None):
        prompt = Chat({"messages": MESSAGES, "tools": tools}, template).prompt
        assert prompt.endswith("<user><tool_response>\nnoon\n</tool_response>")


THINKING = FORM + (
    "{% for message in messages %}"
    "{% if message.thinking %}<think>{{ message.thinking }}</think>REFUSAL{% endif %}"
    "{{ message.content }}{% endfor %}"
)
REFUSAL = (
    "{% if message.content %}"
    "{{ raise_exception('Cannot pass both content and thinking in a message') }}{% endif %}"
)


@pytest.mark.parametrize(
    ("refusal", "text", "shown"),
    [
        ("", "I look.", "<think>Hm.</think>I look."),
        ("", None, "<think>Hm.</think>"),
        (REFUSAL, "I look.", "I look."),
        (REFUSAL, None, "<think>Hm.</think>"),
    ],
)
def test_thoughts_beside_a_text_are_shown_if_the_template_takes_both(
    refusal: str, text: str | None, shown: str
) -> None:
    messages = [{**MESSAGES[1], "content": text, "reasoning_content": "Hm."}, MESSAGES[2]]
    template = jinja(THINKING.replace("REFUSAL", refusal))
    prompt = Chat({**BODY, "messages": [MESSAGES[0], *messages]}, template).prompt
    assert prompt.startswith("When?" + shown) and "noon" in prompt
