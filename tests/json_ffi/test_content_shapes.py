"""Messages of every shape through the whole JSON path, and the prompt that the other face makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from json_ffi_harness import Answer, ask, engine_of, read

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import UserError
from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.serve.opening import chat_config
from mlc_llm.serve.sync_engine import SyncMLCEngine

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}|{% endfor %}"
    "{% for m in messages %}[{{ m.role }}{{ ' ' + m.name if m.name }}{{ ' ' + m.tool_call_id if"
    " m.tool_call_id }}] {{ 'none' if m.content is none else m.content }}"
    "{% for c in m.tool_calls or [] %} {{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}|{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Rain?"}


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "rain", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call], **more}


SHAPES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "text": ([USER], "[user] Rain?|"),
    "empty text": ([{"role": "user", "content": ""}], "[user] |"),
    "null": ([USER, {"role": "assistant", "content": None}], "[user] Rain?|[assistant] |"),
    "parts": (
        [{"role": "user", "content": [{"type": "text", "text": one} for one in ("Ra", "in?")]}],
        "[user] Rain?|",
    ),
    "no parts": ([{"role": "user", "content": []}], "[user] |"),
    "input_text": (
        [{"role": "user", "content": [{"type": "input_text", "text": "Rain?"}]}],
        "[user] Rain?|",
    ),
    "output_text": (
        [{"role": "assistant", "content": [{"type": "output_text", "text": "No."}]}, USER],
        "[assistant] No.|[user] Rain?|",
    ),
    "refusal part": (
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "I won't."}]}, USER],
        "[assistant] I won't.|[user] Rain?|",
    ),
    "refusal": (
        [{"role": "assistant", "content": None, "refusal": "I won't."}, USER],
        "[assistant] I won't.|[user] Rain?|",
    ),
    "developer": (
        [{"role": "developer", "content": "Be brief."}, {**USER, "name": "Ann"}],
        "[system] Be brief.|[user Ann] Rain?|",
    ),
    "a call without content": (
        [USER, called('{"in": "Oslo"}')],
        '[user] Rain?|[assistant]  rain{"in": "Oslo"}|',
    ),
    "a call beside null": (
        [USER, called({"in": "Oslo"}, content=None)],
        '[user] Rain?|[assistant]  rain{"in": "Oslo"}|',
    ),
    "a call beside text": (
        [USER, called("", content="Wait.")],
        "[user] Rain?|[assistant] Wait. rain{}|",
    ),
    "malformed arguments": (
        [USER, called('{"in": Oslo', content=None)],
        '[user] Rain?|[assistant]  rain"{\\"in\\": Oslo"|',
    ),
    "half a character in arguments": (
        [USER, called('{"in": "\\ud800"}', content=None)],
        '[user] Rain?|[assistant]  rain"{\\"in\\": \\"\\\\ud800\\"}"|',
    ),
    "a tool's result": (
        [
            USER,
            called("{}", content=None),
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "5"}]},
        ],
        "[user] Rain?|[assistant]  rain{}|[tool call_1] 5|",
    ),
    "no calls": (
        [{"role": "assistant", "content": "No.", "tool_calls": []}, USER],
        "[assistant] No.|[user] Rain?|",
    ),
}


@pytest.fixture(scope="module")
def template() -> Iterator[None]:
    """The echo engine's: it shows every field of a message."""
    made = ChatTemplate(TEMPLATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_config, "PLAIN_TEMPLATE", made)
        yield
    made.close()


@pytest.fixture(scope="module")
def engine(template: None) -> Iterator[JSONFFIEngine]:
    with engine_of("mock://echo") as made:
        yield made


@pytest.fixture(scope="module")
def sync(template: None) -> SyncMLCEngine:
    return SyncMLCEngine("mock://echo")


@pytest.fixture(autouse=True, scope="module")
def started(engine: JSONFFIEngine) -> None:
    """Its threads, and the template's, run from one test to the next."""
    ask(engine, "x")


def raw(engine: JSONFFIEngine, messages: Any, **more: Any) -> Answer:
    text = json.dumps({"messages": messages, **more})
    return read(engine._raw_chat_completion(text, True, "a"))


@pytest.mark.parametrize("shape", SHAPES)
def test_both_faces_make_the_same_prompt(
    shape: str, engine: JSONFFIEngine, sync: SyncMLCEngine
) -> None:
    messages, prompt = SHAPES[shape]
    answer = raw(engine, messages)
    assert (answer.text, answer.reason, len(answer.usages)) == (prompt, "stop", 1)
    assert read(engine.chat.completions.create(messages=messages)).text == prompt
    assert sync.tokenizer.decode(sync.chat_prompt(messages)) == prompt
    assert sync.chat(messages).text == prompt


@pytest.mark.one_of(2)
@pytest.mark.parametrize("choice", [None, "auto", "none", "rain"])
def test_both_faces_tell_of_the_same_tools(
    choice: Any, engine: JSONFFIEngine, sync: SyncMLCEngine
) -> None:
    other = {"type": "function", "function": {"name": "snow", "description": None}}
    answer = raw(engine, [USER], tools=[TOOL, other], tool_choice=choice)
    assert answer.text == sync.chat([USER], tools=[TOOL, other], tool_choice=choice).text
    assert ("rain" in answer.text, "snow" in answer.text) == {
        None: (True, True),
        "auto": (True, True),
        "none": (False, False),
        "rain": (True, False),
    }[choice]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "audio"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}],
        [{"role": "user", "content": [{"type": "output_text"}]}],
        [{"role": "user", "content": 5}],
        [{"role": "user"}],
        [called(5)],
        [{"role": "assistant", "tool_calls": ["rain"]}],
    ],
)
def test_both_faces_refuse_with_the_same_words(
    messages: Any, engine: JSONFFIEngine, sync: SyncMLCEngine
) -> None:
    answer = raw(engine, messages)
    with pytest.raises(UserError) as caught:
        sync.chat(messages)
    assert (answer.text, answer.reason, len(answer.usages)) == (str(caught.value), "error", 1)
