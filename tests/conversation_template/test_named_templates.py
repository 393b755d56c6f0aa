"""Named conversation templates: they survive JSON, and agree with the makers' Jinja templates."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.conversation_template import ChatTemplate, ConvTemplateRegistry
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.conversation_protocol import Conversation

BOS = {"llama-2": "<s>", "mistral_default": "<s>", "phi-3": "<s>", "tinyllama_v1_0": "<s>"}
BOS |= {"llama-3": "<|begin_of_text|>", "llama-3_1": "<|begin_of_text|>", "LM": "<s>"}
BOS |= {"gemma_instruction": "<bos>", "gemma3_instruction": "<bos>"}

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n'"
    " + m.content | trim + '<|eot_id|>' %}{{ (bos_token if loop.first else '') + text }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_LLAMA2 = (
    "{% set system = messages[0].content %}{% for m in messages[1:] %}{% if m.role == 'user' %}"
    "{% set text = ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' if loop.first else '') + m.content %}"
    "{{ bos_token + '[INST] ' + text | trim + ' [/INST]' }}{% else %}"
    "{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_MISTRAL = (
    "{% set system = messages[0].content %}{{ bos_token }}{% for m in messages[1:] %}"
    "{% if m.role == 'user' %}"
    "{{ '[INST] ' + (system + '\n\n' if loop.first else '') + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_PHI3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_ZEPHYR = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
JINJA = {
    "chatml": _CHATML,
    "chatml_nosystem": _CHATML,
    "smollm2": _CHATML,
    "qwen2": _CHATML,
    "llama-3": _LLAMA3,
    "llama-3_1": _LLAMA3,
    "llama-2": _LLAMA2,
    "mistral_default": _MISTRAL,
    "gemma_instruction": _GEMMA,
    "gemma3_instruction": _GEMMA,
    "phi-3": _PHI3,
    "tinyllama_v1_0": _ZEPHYR,
}
WITHOUT_SYSTEM = {"chatml_nosystem", "gemma_instruction", "gemma3_instruction"}

TURNS = [("user", "Hi there"), ("assistant", "Hello!\nYes?"), ("user", "What is {user_message}?")]


def template(name: str) -> Conversation:
    found = ConvTemplateRegistry.get(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", JINJA)
@pytest.mark.parametrize("turns", [1, 3])
def test_the_same_text_as_the_jinja_template(name: str, turns: int) -> None:
    system = [] if name in WITHOUT_SYSTEM else [("system", "Be good.")]
    pairs: list[Any] = [*system, *TURNS[:turns]]
    named = template(name).with_messages(pairs).as_prompt(add_generation_prompt=True)
    jinja = ChatTemplate(JINJA[name], bos=BOS.get(name, ""), eos="</s>")
    text = jinja.render([{"role": role, "content": content} for role, content in pairs])
    jinja.close()
    assert BOS.get(name, "") + "".join(named) == text


@pytest.mark.model
def test_the_default_models_two_templates_agree(default_model: object) -> None:
    from mlc_llm.loader.gguf import GGUFFile

    source = GGUFFile.open(str(default_model)).get_str("tokenizer.chat_template")
    jinja = ChatTemplate(source)
    conversations: list[list[Any]] = [
        TURNS[:1],
        TURNS,
        [("system", "Be brief."), *TURNS],
        [("system", ""), *TURNS[:1]],
    ]
    for pairs in conversations:
        text = jinja.render([{"role": role, "content": content} for role, content in pairs])
        named = template("smollm2").with_messages(pairs)
        assert named.as_prompt(add_generation_prompt=True) == [text]
    assert jinja._worker is None  # it is a known template, rendered in this process


@pytest.mark.parametrize("name", ConvTemplateRegistry.names())
def test_templates_survive_json(name: str) -> None:
    one = template(name)
    assert one.name == name
    assert Conversation.from_json_dict(one.to_json_dict()) == one
    assert (BOS.get(name) is None) == (one.system_prefix_token_ids is None)


def test_the_registry() -> None:
    assert ConvTemplateRegistry.get("no such template") is None
    copy = template("chatml")
    copy.system_message = "changed"
    assert template("chatml").system_message != "changed"
    with pytest.raises(InvalidField, match="registered"):
        ConvTemplateRegistry.register(copy)
    with pytest.raises(InvalidField, match="needs a name"):
        ConvTemplateRegistry.register(copy.model_copy(update={"name": None}))
    original = template("chatml")
    ConvTemplateRegistry.register(copy, override=True)
    try:
        assert template("chatml").system_message == "changed"
    finally:
        ConvTemplateRegistry.register(original, override=True)
