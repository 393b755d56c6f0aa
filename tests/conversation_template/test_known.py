"""Templates written out in Python: the same texts and the same errors as Jinja's."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence

import pytest

from mlc_llm.conversation_template import ChatTemplate, known, rendering
from mlc_llm.conversation_template.known import KNOWN
from mlc_llm.errors import ModelFileError

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = {"role": "user", "content": "Why is the sky blue?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": " <b>{{ 1 }}</b>\n\n"}
CONVERSATIONS: tuple[Sequence[Mapping[str, object]], ...] = (
    [],
    [USER],
    [SYSTEM],
    [SYSTEM, USER],
    [{**SYSTEM, "content": ""}, USER, ANSWER, USER],
    [USER, ANSWER, SYSTEM],
    [{"role": "tool", "content": "é\u2028", "name": "x"}],
)


def by_jinja(messages: Sequence[Mapping[str, object]], *, answer: bool) -> str:
    template = rendering.compile_template(SMOLLM2)
    done = rendering.render_here(
        template, {"messages": messages, "add_generation_prompt": answer, "tools": None}
    )
    return str(done.get("text"))


def test_the_template_is_known() -> None:
    assert hashlib.sha256(SMOLLM2.encode()).hexdigest() in KNOWN


@pytest.mark.parametrize("answer", [True, False])
def test_equal_to_jinja(answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [by_jinja(one, answer=answer) for one in CONVERSATIONS]
    template = ChatTemplate(SMOLLM2)
    monkeypatch.setitem(sys.modules, rendering.__name__, None)  # Jinja cannot be reached
    monkeypatch.delattr(sys.modules["mlc_llm.conversation_template"], "rendering")
    found = [template.render(one, add_generation_prompt=answer) for one in CONVERSATIONS]
    assert found == wanted


def test_what_is_no_text_is_left_to_jinja() -> None:
    template = ChatTemplate(SMOLLM2)
    for message in ({"role": "user"}, {"role": "user", "content": None}, {"content": "x"}):
        with pytest.raises(ModelFileError, match="chat template: "):
            template.render([message])
    assert template._worker is None


def test_long_texts_are_left_to_jinja(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = by_jinja([USER, ANSWER], answer=True)
    monkeypatch.setattr(known, "MAX_CHARS", 10)
    template = ChatTemplate(SMOLLM2)
    assert template._known is not None and template._known([USER, ANSWER], True) is None
    assert template.render([USER, ANSWER]) == wanted
