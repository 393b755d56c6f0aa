"""The chat templates of real models, and what they make of a few conversations.

The source distribution of llama-cpp-python holds them: files in vendor/llama.cpp/models/templates,
and short ones inside tests/test-chat-template.cpp. They are not ours to copy, so what they render
is kept (`RENDERED`) with the SHA-256 of each. To make that file anew:

    pip download --no-deps --no-binary :all: llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    python tests/conversation_template/real_templates.py llama_cpp_python-*/vendor/llama.cpp

With MLC_LLM_TEST_LLAMA_CPP set to that folder, a test renders all of them again and compares.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlc_llm.conversation_template import sandbox

RENDERED = Path(__file__).with_name("real_templates.json")
FILES = "models/templates"
CASES = "tests/test-chat-template.cpp"

SYSTEM = ("system", "You answer in rhymes.\nNo more than two lines.")
TURNS = [
    ("user", "Hi there"),
    ("assistant", "Hello!\n\nYes?"),
    ("user", "Was heißt {user_message} 'ü'?\nSay <b>why</b>."),
]
THOUGHTS = [TURNS[0], ("assistant", "Greet.\n</think>\n\nHello!"), TURNS[2]]
CONVERSATIONS: dict[str, list[tuple[str, str]]] = {
    "question": TURNS[:1],
    "turns": TURNS,
    "system": [SYSTEM, *TURNS[:1]],
    "system, turns": [SYSTEM, *TURNS],
    "thoughts": [SYSTEM, *THOUGHTS],
    "tool": [SYSTEM, *TURNS[:2], ("user", "1 + 1?"), ("tool", "2")],
}


@dataclass(frozen=True)
class Real:
    """The template of a model, and how far a named template can be compared with it."""

    source: str
    """A file of FILES (*.jinja), or the name of a case in CASES."""
    eos: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    """What the template is told besides the messages."""
    behind: str = ""
    """What comes up to the end of this is not compared."""
    conversations: tuple[str, ...] = ("question", "turns", "system", "system, turns")
    has_default: bool = True
    """False: the named template's default system message is none of the real one's."""


_TURNS = ("question", "turns")
_SYSTEMS = ("system", "system, turns")
_QWEN = ("question", "turns", "system", "system, turns", "thoughts", "tool")
_DEEPSEEK_END = "<｜end▁of▁sentence｜>"
_HERMES_TOOLS = "</tool_call><|im_end|>\n"

REAL = {
    # Its card names the format of Command R+.
    "aya-23": Real("CohereForAI/c4ai-command-r-plus"),
    "chatml": Real("teknium/OpenHermes-2.5-Mistral-7B", conversations=_SYSTEMS),
    "chatml_nosystem": Real("teknium/OpenHermes-2.5-Mistral-7B", conversations=_TURNS),
    "deepseek": Real("DeepSeek-V2", eos=_DEEPSEEK_END),
    "deepseek_v2": Real("DeepSeek-V2", eos=_DEEPSEEK_END),
    "deepseek_r1_llama": Real("deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja"),
    "deepseek_r1_qwen": Real(
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", values={"enable_thinking": True}
    ),
    # It refuses system messages.
    "gemma_instruction": Real("google-gemma-2-2b-it.jinja", conversations=_TURNS),
    "glm": Real("ChatGLM3", behind="[gMASK]sop"),
    # Their templates for tools: a system text about tools comes first, even if there is none.
    "hermes2_pro_llama3": Real(
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja",
        values={"tools": []},
        behind=_HERMES_TOOLS,
        conversations=_SYSTEMS,
    ),
    "hermes3_llama-3_1": Real(
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
        values={"tools": []},
        behind=_HERMES_TOOLS,
        conversations=_SYSTEMS,
    ),
    "llama-3": Real("Llama-3"),
    "llama-3_1": Real("meta-llama-Llama-3.1-8B-Instruct.jinja"),
    "ministral3": Real(
        "mistralai-Ministral-3-14B-Reasoning-2512.jinja", eos="</s>", conversations=_SYSTEMS
    ),
    "ministral3_reasoning": Real("mistralai-Ministral-3-14B-Reasoning-2512.jinja", eos="</s>"),
    "mistral_default": Real(
        "mistralai/Mistral-7B-Instruct-v0.2 (mistralai 'v1' template with a system prompt)",
        eos="</s>",
        has_default=False,
    ),
    "neural_hermes_mistral": Real("teknium/OpenHermes-2.5-Mistral-7B", conversations=_SYSTEMS),
    "open_hermes_mistral": Real("teknium/OpenHermes-2.5-Mistral-7B", conversations=_SYSTEMS),
    # It leaves system messages out.
    "orion": Real("OrionStarAI/Orion-14B-Chat", eos="</s>", conversations=_TURNS),
    "phi-3": Real("microsoft-Phi-3.5-mini-instruct.jinja"),
    "phi-3-vision": Real("Phi-3-vision"),
    "phi-4": Real("phi-4"),
    # Of Qwen 2.5, which has a default system message of its own.
    "qwen2": Real("Qwen-Qwen2.5-7B-Instruct.jinja", conversations=(*_SYSTEMS, "tool")),
    "qwen3": Real("Qwen-Qwen3-0.6B.jinja", conversations=_QWEN),
    "qwen3_5": Real("Qwen3.5-4B.jinja", conversations=_QWEN),
    "qwen3_5_nothink": Real(
        "Qwen3.5-4B.jinja", values={"enable_thinking": False}, conversations=_QWEN
    ),
    # Of llama.cpp, not of the makers, whose system text is an exchange.
    "rwkv_world": Real("llama-cpp-rwkv-world.jinja", conversations=_TURNS, has_default=False),
}


def source_of(real: Real, folder: Path) -> str:
    """The template's text; `folder` holds llama.cpp."""
    if real.source.endswith(".jinja"):
        return (folder / FILES / real.source).read_text(encoding="utf-8")
    cases = (folder / CASES).read_text(encoding="utf-8")
    name = re.escape(json.dumps(real.source))
    found = re.search(
        rf'\.name= \*/ {name},(?:\s*//.*)*\s*/\* \.template_str= \*/ (".*"),\n', cases
    )
    assert found is not None, real.source
    text: str = ast.literal_eval(found[1])
    return text


def render(real: Real, source: str) -> dict[str, str]:
    """Conversation to text, without what begins every text (bos_token is empty)."""
    template = sandbox.compile_template(source)
    texts = {}
    for name in real.conversations:
        messages = [{"role": role, "content": text} for role, text in CONVERSATIONS[name]]
        values = {"messages": messages, "bos_token": "", "eos_token": real.eos}
        values |= {"add_generation_prompt": True, **real.values}
        text = sandbox.render(template, values)
        texts[name] = text[text.index(real.behind) + len(real.behind) :]
    return texts


def render_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Name to {"source", "sha256", "texts"}, as `RENDERED` has it."""
    made = {}
    for name, real in REAL.items():
        source = source_of(real, folder)
        digest = hashlib.sha256(source.encode()).hexdigest()
        made[name] = {"source": real.source, "sha256": digest, "texts": render(real, source)}
    return made


if __name__ == "__main__":
    text = json.dumps(render_all(Path(sys.argv[1])), ensure_ascii=False, indent=1)
    RENDERED.write_text(text + "\n", encoding="utf-8")
