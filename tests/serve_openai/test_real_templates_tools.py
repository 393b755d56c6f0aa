"""Which form of calls and of thoughts the chat templates of real models mean.

They lie in the source distribution of llama-cpp-python, and are not ours to copy (see
tests/conversation_template/real_templates.py). With MLC_LLM_TEST_LLAMA_CPP set to its folder
vendor/llama.cpp, all of them are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from answer_tools import function, read, reader_of

from mlc_llm.conversation_template import ChatTemplate, sandbox
from mlc_llm.protocol.messages import TemplateMessage, template_messages
from mlc_llm.serve.openai.tools.families import (
    family_of,
    has_place_for_tools,
    shows_calls,
    think_tags_of,
)
from mlc_llm.serve.openai.tools.history import shown_messages

FOLDER = os.environ.get("MLC_LLM_TEST_LLAMA_CPP")
T, M, S, G = "<think>", "[THINK]", "<seed:think>", "<|channel>thought\n"
A, P = "<|START_THINKING|>", "<|inner_prefix|>"
EXPECTED: dict[str, tuple[str | None, str | None]] = {
    "Apertus-8B-Instruct": ("apertus", P),
    "Apriel-1.6-15b-Thinker-fixed": ("apriel", None),
    "Bielik-11B-v3.0-Instruct": ("hermes", T),
    "ByteDance-Seed-OSS": ("seed-oss", S),
    "Cohere2MoE": ("command-r7b", A),
    "CohereForAI-c4ai-command-r-plus-tool_use": ("command-r-plus", None),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command-r7b", A),
    "GLM-4.6": ("glm", T),
    "GLM-4.7-Flash": ("glm", T),
    "GigaChat3-10B-A1.8B": (None, None),
    "GigaChat3.1-10B-A1.8B": ("gigachat3.1", None),
    "HuggingFaceTB-SmolLM3-3B": (None, T),
    "Kimi-K2-Instruct": ("kimi-k2", None),
    "Kimi-K2-Thinking": ("kimi-k2", T),
    "Kimi-K3": (None, None),
    "LFM2-8B-A1B": ("lfm2", None),
    "LFM2.5-8B-A1B": ("lfm2", T),
    "LFM2.5-Instruct": ("lfm2", T),
    "MiMo-VL": ("hermes", None),
    "MiniMax-M1": ("minimax1", None),
    "MiniMax-M2": ("minimax2", T),
    "MiniMax-M3": (None, None),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3-coder", T),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron2", T),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-QwQ-32B": ("hermes", T),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", T),
    "Qwen3-Coder": ("qwen3-coder", None),
    "Qwen3.5-4B": ("qwen3-coder", T),
    "Reka-Edge": ("hermes", T),
    "Spark2.5": ("glm", T),
    "StepFun3.5-Flash": ("qwen3-coder", T),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek-r1", T),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek-r1", T),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek-v3.1", T),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek-v3.2", T),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("deepseek-v4", T),
    "deepseek-ai-DeepSeek-V4": ("deepseek-v4", T),
    "fireworks-ai-llama-3-firefunction-v2": ("llama3", None),
    "google-gemma-2-2b-it": (None, None),
    "google-gemma-4-31B-it-interleaved": ("gemma4", G),
    "google-gemma-4-31B-it": ("gemma4", G),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite3", T),
    "ibm-granite-granite-4.0": ("hermes", None),
    "ibm-granite-granite-4.1": ("hermes", None),
    "inclusionai-ling-3.0-flash": ("glm", T),
    "llama-cpp-deepseek-r1": ("deepseek-r1", T),
    "llama-cpp-rwkv-world": (None, T),
    "meetkai-functionary-medium-v3.1": ("functionary", None),
    "meetkai-functionary-medium-v3.2": (None, None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3", None),
    "microsoft-Phi-3.5-mini-instruct": (None, None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", M),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral-list", None),
    "moonshotai-Kimi-K2": ("kimi-k2", None),
    "muse-glimmer": (None, None),
    "openai-gpt-oss-120b": ("harmony", None),
    "openbmb-MiniCPM5-1B": ("minicpm5", T),
    "poolside-Laguna-S-2.1": ("glm", T),
    "poolside-Laguna-XS-2.1": ("glm", T),
    "poolside-Laguna-XS.2": ("glm", T),
    "tencent-Hy3": ("hy3", None),
    "unsloth-Apriel-1.5": ("apriel", None),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", None),
    "upstage-Solar-Open-100B": (None, None),
}
"""Name of a file -> the family of its calls, and what begins its thoughts. None: not known; then
the generic form is used."""

NEEDS_MORE = {
    # They read values that only their makers' programs give them.
    "fireworks-ai-llama-3-firefunction-v2",
    # They go through `tools` where there are none.
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    # It wants past arguments as text.
    "meetkai-functionary-medium-v3.2",
}
"""Templates that cannot show past calls where a request has no tools."""
NEVER = {"fireworks-ai-llama-3-firefunction-v2", "CohereForAI-c4ai-command-r-plus-tool_use"}
"""Templates that cannot show past calls at all."""
OWN_WAY = {
    "openbmb-MiniCPM5-1B",  # only texts of several lines stand in CDATA
    "Mistral-Small-3.2-24B-Instruct-2506",  # the ids of calls stand inside
    "mistralai-Mistral-Nemo-Instruct-2407",
    "unsloth-Apriel-1.5",
    "Apriel-1.6-15b-Thinker-fixed",
    "openai-gpt-oss-120b",  # the receiver stands in front of the channel
    "LFM2.5-8B-A1B",  # texts stand in single quotes
    "meetkai-functionary-medium-v3.1",
}
"""Templates that show past calls a little different from what a model is asked to write."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "x",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {
    "id": "call_abcdefghijklmnopqrstuvwx",
    "type": "function",
    "function": {"name": "get", "arguments": '{"city": "Rome"}'},
}

pytestmark = pytest.mark.skipif(FOLDER is None, reason="MLC_LLM_TEST_LLAMA_CPP is not set")


def files() -> dict[str, Path]:
    return {path.stem: path for path in (Path(FOLDER or "") / "models/templates").glob("*.jinja")}


def shown(template: ChatTemplate, tools: Sequence[Any]) -> str:
    messages = template_messages(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": CALL["id"], "content": "21 degrees"},
        ]
    )
    return rendered(template, messages, tools)


def rendered(
    template: ChatTemplate, messages: Sequence[TemplateMessage], tools: Sequence[Any]
) -> str:
    found, itself = shown_messages(messages, tools, template)
    values = {
        "messages": found,
        "tools": tools if itself else None,
        "add_generation_prompt": True,
        "bos_token": "",
        "eos_token": "",
    }
    return sandbox.render(sandbox.compile_template(template.source), values)


def test_all_are_known() -> None:
    assert files().keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_family_is_found(name: str) -> None:
    template = ChatTemplate(files()[name].read_text(encoding="utf-8"))
    family, tags = family_of(template), think_tags_of(template)
    found = (None if family is None else family.name, None if tags is None else tags.begin)
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - NEVER))
def test_second_turns_show_everything(name: str) -> None:
    template = ChatTemplate(files()[name].read_text(encoding="utf-8"))
    for tools in (TOOLS, []):
        if tools or name not in NEEDS_MORE:
            text = shown(template, tools)
            assert all(word in text for word in ("get", "Rome", "21 degrees"))


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - NEVER - OWN_WAY))
def test_past_calls_look_as_the_model_is_asked_to_write_them(name: str) -> None:
    template = ChatTemplate(files()[name].read_text(encoding="utf-8"))
    family = family_of(template)
    if family is None or not (has_place_for_tools(template) and shows_calls(template)):
        return
    wanted = family.written([("get", '{"city": "Rome"}')])
    assert "".join(wanted.split()) in "".join(shown(template, TOOLS).split())


VALUES: list[tuple[str, dict[str, Any]]] = [
    ("get", {"city": 'Köln [a] <b> "c"\nd', "n": 3}),
    ("put", {"on": True, "deep": {"a": [1, "x"]}, "none": None}),
]
FUNCTIONS = [
    function("get", {"city": {"type": "string"}, "n": {"type": "integer"}}),
    function("put", {"on": {"type": "boolean"}, "deep": {"type": "object"}, "none": {}}),
]
NOT_AS_JSON = {
    "google-gemma-4-31B-it",  # texts inside values have marks of their own
    "google-gemma-4-31B-it-interleaved",
    "Qwen3-Coder",  # True and None
    "Qwen3.5-4B",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "ByteDance-Seed-OSS",
    "StepFun3.5-Flash",
}
"""Templates that write values differently from JSON, which is what models are held to."""


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - NEVER - OWN_WAY - NOT_AS_JSON))
def test_past_calls_are_read_again(name: str) -> None:
    template = ChatTemplate(files()[name].read_text(encoding="utf-8"))
    family = family_of(template)
    if family is None or not (has_place_for_tools(template) and shows_calls(template)):
        return
    given = VALUES[: 1 if family.history.one_call else None]
    calls = [
        {**CALL, "id": f"call_{i}", "function": {"name": one, "arguments": json.dumps(more)}}
        for i, (one, more) in enumerate(given)
    ]
    messages = template_messages(
        [
            {"role": "user", "content": "the question"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_0", "content": "x"},
        ]
    )
    _, _, behind = rendered(template, messages, TOOLS).partition("the question")
    text = behind[behind.index(family.layout.mark) :]  # type: ignore[attr-defined]
    assert read(reader_of(family, FUNCTIONS), [text]).values == given


@pytest.mark.parametrize("arguments", ['{"city": "Ro', "[1]", "null", ""])
@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - NEVER))
def test_arguments_that_are_no_object_are_shown(name: str, arguments: str) -> None:
    """As those of a call that was cut."""
    template = ChatTemplate(files()[name].read_text(encoding="utf-8"))
    cut = {**CALL, "function": {"name": "get", "arguments": arguments}}
    messages = template_messages(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [cut]},
            {"role": "tool", "tool_call_id": CALL["id"], "content": "21 degrees"},
        ]
    )
    for tools in (TOOLS, []):
        if tools or name not in NEEDS_MORE:
            text = rendered(template, messages, tools)
            assert "get" in text and "21 degrees" in text
