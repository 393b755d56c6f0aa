"""Named conversation templates: they survive JSON, and agree with the makers' Jinja templates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from real_templates import CONVERSATIONS, REAL, RENDERED, render_all

from mlc_llm.conversation_template import ChatTemplate, ConvTemplateRegistry
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.conversation_protocol import Conversation

_LLAMA2 = (
    "{% set system = messages[0].content %}{% for m in messages[1:] %}{% if m.role == 'user' %}"
    "{% set text = ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' if loop.first else '') + m.content %}"
    "{{ bos_token + '[INST] ' + text | trim + ' [/INST]' }}{% else %}"
    "{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_GEMMA3 = (
    "{{ bos_token }}{% set system = messages[0].content %}{% for m in messages[1:] %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + (system + '\n\n' if loop.first else '') }}"
    "{{ m.content | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_ZEPHYR = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
JINJA = {
    "llama-2": (_LLAMA2, "<s>", "</s>"),
    "codellama_instruct": (_LLAMA2, "<s>", "</s>"),
    "gemma_instruction": (_GEMMA3, "<bos>", "<eos>"),
    "gemma3_instruction": (_GEMMA3, "<bos>", "<eos>"),
    "tinyllama_v1_0": (_ZEPHYR, "<s>", "</s>"),
    "stablelm-2": (_ZEPHYR, "", "<|endoftext|>"),
    "stablelm-3b": (_ZEPHYR, "", "<|endoftext|>"),
}
"""Where no template of the makers is at hand, one written after their description: (template,
bos, eos)."""

PUBLIC_NAMES = [
    *("LM", "aya-23", "chatml", "chatml_nosystem", "codellama_completion"),
    *("codellama_instruct", "deepseek", "deepseek_r1_llama", "deepseek_r1_qwen"),
    *("deepseek_v2", "deepseek_v3", "dolly", "gemma3_instruction", "gemma_instruction", "glm"),
    *("gorilla", "gorilla-openfunctions-v2", "gpt2", "gpt_bigcode", "hermes2_pro_llama3"),
    *("hermes3_llama-3_1", "llama-2", "llama-3", "llama-3_1", "llama-4", "llava", "llm-jp"),
    *("ministral3", "ministral3_reasoning", "mistral_default", "nemotron"),
    *("neural_hermes_mistral", "oasst", "olmo", "olmo2", "open_hermes_mistral", "orion"),
    *("phi-2", "phi-3", "phi-3-vision", "phi-4", "qwen2", "qwen3", "qwen3_5"),
    *("qwen3_5_nothink", "redpajama_chat", "rwkv_world", "stablelm", "stablelm-2"),
    *("stablelm-3b", "tinyllama_v1_0", "wizard_coder_or_math", "wizardlm_7b"),
]
NOTHING_TO_COMPARE_WITH = {
    *("LM", "codellama_completion", "deepseek_v3", "dolly", "gorilla", "gorilla-openfunctions-v2"),
    *("gpt2", "gpt_bigcode", "llama-4", "llava", "llm-jp", "nemotron", "oasst", "olmo", "olmo2"),
    *("phi-2", "redpajama_chat", "stablelm", "wizard_coder_or_math", "wizardlm_7b"),
}
"""No real template is at hand, or the model has none."""
LLAMA_CPP = os.environ.get("MLC_LLM_TEST_LLAMA_CPP")
"""A folder with the source of llama.cpp; `real_templates.py` says where from."""

TURNS = [("user", "Hi there"), ("assistant", "Hello!\nYes?"), ("user", "What is {user_message}?")]


def template(name: str) -> Conversation:
    found = ConvTemplateRegistry.get_conv_template(name)
    assert found is not None
    return found


def recorded() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(RENDERED.read_text(encoding="utf-8"))
    return read


def test_the_public_names_are_there() -> None:
    assert len(PUBLIC_NAMES) == 53
    assert set(ConvTemplateRegistry.names()) == {*PUBLIC_NAMES, "smollm2"}


def test_each_name_is_compared_or_listed() -> None:
    compared = {*REAL, *JINJA}
    assert compared | NOTHING_TO_COMPARE_WITH == set(PUBLIC_NAMES)
    assert not compared & NOTHING_TO_COMPARE_WITH


@pytest.mark.parametrize("name", REAL)
def test_the_same_text_as_the_models_own_template(name: str) -> None:
    texts = recorded()[name]["texts"]
    assert set(texts) == set(REAL[name].conversations)
    for conversation, text in texts.items():
        one = template(name)
        if not REAL[name].has_default:
            one.system_message = ""
        filled = one.with_messages(CONVERSATIONS[conversation])
        assert filled.as_prompt(add_generation_prompt=True) == [text], conversation


@pytest.mark.skipif(LLAMA_CPP is None, reason="set MLC_LLM_TEST_LLAMA_CPP to llama.cpp's source")
def test_the_models_own_templates_give_what_is_recorded() -> None:
    assert LLAMA_CPP is not None
    assert render_all(Path(LLAMA_CPP)) == recorded()


@pytest.mark.parametrize("name", JINJA)
@pytest.mark.parametrize("turns", [1, 3])
def test_the_same_text_as_a_template_after_the_makers_description(name: str, turns: int) -> None:
    pairs: list[Any] = [("system", "Be good."), *TURNS[:turns]]
    named = template(name).with_messages(pairs).as_prompt(add_generation_prompt=True)
    source, bos, eos = JINJA[name]
    jinja = ChatTemplate(source, bos=bos, eos=eos)
    text = jinja.render([{"role": role, "content": content} for role, content in pairs])
    jinja.close()
    assert bos + "".join(named) == text


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


def test_a_system_part_is_left_out_where_the_template_says_so() -> None:
    shared = template("phi-3").with_messages(TURNS[:1])
    assert shared.as_prompt() == ["<|user|>\nHi there<|end|>\n"]
    shared.render_empty_system_message = True
    assert shared.as_prompt()[0].startswith("<|system|>\n<|end|>\n<|user|>")


def test_the_registry() -> None:
    assert ConvTemplateRegistry.get_conv_template("no such template") is None
    copy = template("chatml")
    copy.system_message = "changed"
    assert template("chatml").system_message != "changed"
    with pytest.raises(InvalidField, match="registered"):
        ConvTemplateRegistry.register_conv_template(copy)
    with pytest.raises(InvalidField, match="needs a name"):
        ConvTemplateRegistry.register_conv_template(copy.model_copy(update={"name": None}))
    original = template("chatml")
    ConvTemplateRegistry.register_conv_template(copy, override=True)
    try:
        assert template("chatml").system_message == "changed"
    finally:
        ConvTemplateRegistry.register_conv_template(original, override=True)
