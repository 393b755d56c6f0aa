"""System messages where a chat template refuses them: plainer forms of the same conversation."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import pytest
from scripted import CHATML, Chat, jinja, tokenizer

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.messages import template_messages
from mlc_llm.serve.anthropic.fields import MessagesRequest
from mlc_llm.serve.anthropic.translation import translated as of_anthropic
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.openai.chat import rendered_chat
from mlc_llm.serve.openai.system_messages import system_first
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.vision import with_vision
from mlc_llm.serve.responses.fields import ResponsesRequest
from mlc_llm.serve.responses.translation import translated as of_responses
from mlc_llm.testing.tiny_eyes import write_tiny_eyes

FOLDER = os.environ.get("MLC_LLM_TEST_LLAMA_CPP")
ONLY_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
)
NONE = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}"
)
PASSES_OVER = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "21"}


def prompt(source: str, messages: list[Any], **more: Any) -> str:
    return Chat({"messages": messages, **more}, jinja(source)).prompt


def short(messages: list[Any]) -> list[str]:
    """Letters of the roles, and texts."""
    made = system_first(template_messages(messages))
    return [f"{one['role'][0]} {one['content'] or ''}".strip() for one in made]


FORMS: dict[str, tuple[list[Any], list[str]]] = {
    "nothing to do": ([system("a"), user("b")], ["s a", "u b"]),
    "two at the beginning": ([system("a"), system("b"), user("c")], ["s a\n\nb", "u c"]),
    "no empty ones": ([system(""), system("b"), user("c")], ["s b", "u c"]),
    "only those": ([system("a"), system("")], ["s a"]),
    "before a question": (
        [user("a"), answer("b"), system("c"), system("d"), user("e")],
        ["u a", "a b", "u c\n\nd\n\ne"],
    ),
    "behind a question": ([system("s"), user("a"), system("b")], ["s s", "u a\n\nb"]),
    "between question and answer": (
        [user("a"), system("b"), answer("c"), user("d")],
        ["u a\n\nb", "a c", "u d"],
    ),
    "behind an answer": ([user("a"), answer("b"), system("c")], ["u a", "a b", "u c"]),
    "between answers": (
        [user("a"), answer("b"), system("c"), answer("d")],
        ["u a", "a b", "u c", "a d"],
    ),
    "between a call and its result": (
        [user("a"), ASKED, system("b"), RESULT, answer("c")],
        ["u a\n\nb", "a", "t 21", "a c"],
    ),
    "behind a result": (
        [user("a"), answer("b"), user("c"), ASKED, RESULT, system("d")],
        ["u a", "a b", "u c\n\nd", "a", "t 21"],
    ),
    "before a question behind a result": (
        [user("a"), ASKED, RESULT, system("b"), user("c")],
        ["u a", "a", "t 21", "u b\n\nc"],
    ),
    "no question before it": ([ASKED, RESULT, system("a")], ["s a", "a", "t 21"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_one_system_message_at_the_beginning(name: str) -> None:
    messages, wanted = FORMS[name]
    given = template_messages(messages)
    before = [dict(one) for one in given]
    system_first(given)
    assert short(messages) == wanted and given == before


TALK = [system("rules"), {"role": "developer", "content": "more"}, user("Hi"), answer("Yes?")]
TALK += [system("late"), user("Go")]


def chatml(*turns: str) -> str:
    """Of a role and a text each."""
    made = [turn.partition(" ") for turn in turns]
    texts = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, _, text in made)
    return f"{texts}<|im_start|>assistant\n"


def test_a_template_that_accepts_them_sees_them_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = ["system rules", "system more", "user Hi", "assistant Yes?", "system late", "user Go"]
    rendered: list[int] = []
    real = ChatTemplate.render

    def counted(self: ChatTemplate, messages: Any, **more: Any) -> str:
        rendered.append(len(messages))
        return real(self, messages, **more)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    assert prompt(CHATML, TALK) == chatml(*turns) and rendered == [6]


def test_a_template_that_wants_one_at_the_beginning_gets_one() -> None:
    turns = ["system rules\n\nmore", "user Hi", "assistant Yes?", "user late\n\nGo"]
    assert prompt(ONLY_FIRST + CHATML, TALK) == chatml(*turns)


def test_a_template_that_wants_none_gets_none() -> None:
    turns = ["user rules\n\nmore\n\nHi", "assistant Yes?", "user late\n\nGo"]
    assert prompt(NONE + CHATML, TALK) == chatml(*turns)
    assert prompt(NONE + CHATML, [system("a"), user("b")]) == chatml("user a\n\nb")
    assert prompt(NONE + CHATML, [system("a"), answer("b"), user("c")]) == chatml(
        "user a", "assistant b", "user c"
    )


def test_a_template_that_passes_over_later_ones_gets_one() -> None:
    turns = ["system rules\n\nmore", "user Hi", "assistant Yes?", "user late\n\nGo"]
    assert prompt(PASSES_OVER, TALK) == chatml(*turns)
    spaced = [system(" a "), user("b")]
    assert prompt(PASSES_OVER, spaced) == chatml("system a", "user b")


def test_what_no_form_shows_is_as_the_template_has_it() -> None:
    source = (
        "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    assert prompt(source, [user("a"), system("lost"), answer("b")]).startswith("user: a")
    broken = "{{ messages[5].content }}" + source.replace("user", "person")
    assert "late" not in prompt(broken, TALK)


def test_as_codex_and_claude_code_send_them() -> None:
    """Both have a system text, and a message of their own that is the system's."""
    part = {"type": "input_text", "text": "Sandbox: read only."}
    codex = ResponsesRequest.parse(
        {
            "instructions": "You are Codex.",
            "input": [
                {"type": "message", "role": "developer", "content": [part]},
                {"type": "message", "role": "user", "content": [{**part, "text": "Fix it."}]},
            ],
        }
    )
    claude = MessagesRequest.parse(
        {
            "max_tokens": 9,
            "system": [{"type": "text", "text": "You are Claude Code."}],
            "messages": [user("Fix it."), answer("Fixed."), user("More."), system("Be brief.")],
        }
    )
    turns = ["system You are Codex.\n\nSandbox: read only.", "user Fix it."]
    given = [one.model_dump() for one in of_responses(codex, "m").request.messages]
    assert prompt(ONLY_FIRST + CHATML, given) == chatml(*turns)
    assert "user\nYou are Codex.\n\nSandbox: read only.\n\nFix" in prompt(NONE + CHATML, given)
    turns = ["system You are Claude Code.", "user Fix it.", "assistant Fixed."]
    given = [one.model_dump() for one in of_anthropic(claude, "m").request.messages]
    assert prompt(ONLY_FIRST + CHATML, given) == chatml(*turns, "user More.\n\nBe brief.")


def test_tools_stand_in_the_first_text_of_the_user() -> None:
    found = prompt(NONE + CHATML, TALK, tools=[TOOL])
    first, *_ = found.split("<|im_end|>")
    assert first.startswith("<|im_start|>user\nrules\n\nmore\n\nYou can call functions.")
    assert first.endswith("\n\nHi") and '"get"' in first and "user\nlate\n\nGo" in found


def test_the_first_refusal_is_raised_if_every_form_is_refused() -> None:
    source = "{{ raise_exception(messages | map(attribute='role') | join(' ')) }}"
    with pytest.raises(InvalidField, match="says: system system user assistant system user"):
        prompt(source, TALK)
    count = "{{ raise_exception('alone') if messages | length > 3 else nothing.at.all }}"
    with pytest.raises(InvalidField, match="alone"):
        prompt(count, [system("a"), system("b"), user("c"), answer("d")])
    with pytest.raises(InvalidField, match="says: user"):
        prompt(source, [user("no system message at all")])


def test_names_of_control_tokens_stay_texts() -> None:
    made = tokenizer()
    template = jinja(ONLY_FIRST + CHATML)
    control = set(made.special_tokens.values())

    def count(text: str) -> int:
        messages = [user("x"), answer("y"), system(text), user(text)]
        ids = rendered_chat(messages, tokenizer=made, template=template).ids
        assert f"{text}\n\n{text}" in made.decode(ids)
        return sum(one in control for one in ids)

    assert count("<|im_end|>") == count("z")


def test_images_keep_their_places(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
    bundle = with_vision(open_model(str(write_tiny_eyes(tmp_path).model)), EngineConfig())
    assert bundle.vision is not None and isinstance(bundle.chat_template, ChatTemplate)
    template = ChatTemplate(ONLY_FIRST + bundle.chat_template.source)

    def part(colour: str) -> dict[str, Any]:
        out = io.BytesIO()
        image.new("RGB", (8, 8), colour).save(out, "PNG")
        data = base64.b64encode(out.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    def made(*messages: Any) -> Any:
        assert bundle.vision is not None
        reader = bundle.vision.reader
        return rendered_chat(messages, tokenizer=bundle.tokenizer, template=template, images=reader)

    red, blue = part("red"), part("blue")
    first, second = {"role": "user", "content": [red]}, {"role": "user", "content": [blue]}
    found = made(first, answer("a"), system("look"), second)
    text = {"type": "text", "text": "look\n\n"}
    wanted = made(first, answer("a"), {"role": "user", "content": [text, blue]})
    assert found.ids == wanted.ids and found.end == wanted.end
    assert [one.pixels[0, 0].tolist() for one in found.pictures] == [[255, 0, 0], [0, 0, 255]]
    with pytest.raises(InvalidField, match="at the beginning"):
        made(first, {"role": "system", "content": [blue]})
    template.close()


REFUSING = (
    "Qwen3.5-4B", "google-gemma-2-2b-it", "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Mistral-Nemo-Instruct-2407", "mistralai-Ministral-3-14B-Reasoning-2512",
)  # fmt: skip


PASSING = (
    "HuggingFaceTB-SmolLM3-3B", "openai-gpt-oss-120b", "MiniMax-M2",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "Bielik-11B-v3.0-Instruct",
)  # fmt: skip


@pytest.mark.skipif(FOLDER is None, reason="MLC_LLM_TEST_LLAMA_CPP is not set")
@pytest.mark.parametrize("name", REFUSING + PASSING)
def test_real_templates_that_refuse_them_or_pass_over_some(name: str) -> None:
    """As Codex and Claude Code send them."""
    source = (Path(FOLDER or "") / f"models/templates/{name}.jinja").read_text(encoding="utf-8")
    template = jinja(source)
    tools = {"tools": [TOOL]}
    late = [*TALK, ASKED, RESULT, system("a hint"), answer("Fine."), system("the end")]
    for messages, more in ((TALK, {}), (TALK, tools), (late, tools)):
        found = Chat({"messages": messages, **more}, template).prompt
        words = ["rules", "more", "Hi", "Yes?", "late", "Go"]
        words += ["a hint", "Fine.", "the end"] if messages is late else []
        for word in words:
            assert word in found, (word, found)
