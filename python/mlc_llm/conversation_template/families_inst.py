"""Templates that put a question between `[INST]` and `[/INST]` (data only)."""

from __future__ import annotations

from mlc_llm.conversation_template.system_texts import (
    HELPFUL,
    MINISTRAL_3,
    MINISTRAL_3_REASONING,
    MISTRAL,
)
from mlc_llm.protocol.conversation_protocol import Conversation


def _llama_2(name: str, system_message: str, roles: dict[str, str], stop: str) -> Conversation:
    """Llama 2 begins every question with <s>. Here it is at the end of the answer before."""
    return Conversation(
        name=name,
        system_template="[INST] <<SYS>>\n{system_message}\n<</SYS>>\n\n",
        system_message=system_message,
        render_empty_system_message=False,
        roles=roles,
        seps=[" ", " </s><s>"],
        role_content_sep=" ",
        stop_str=[stop],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
        add_role_after_system_message=False,
    )


def _ministral_3(name: str, system_message: str) -> Conversation:
    return Conversation(
        name=name,
        system_template="[SYSTEM_PROMPT]{system_message}[/SYSTEM_PROMPT]{function_string}",
        system_message=system_message,
        roles={"user": "", "assistant": "", "tool": ""},
        role_templates={
            "user": "[INST]{user_message}[/INST]",
            "assistant": "{assistant_message}</s>",
            "tool": "[TOOL_RESULTS]{tool_message}[/TOOL_RESULTS]",
        },
        seps=[""],
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    )


_ROLES = {"user": "[INST]", "assistant": "[/INST]"}

INST = [
    _llama_2("llama-2", HELPFUL, {**_ROLES, "tool": "[INST]"}, "[INST]"),
    _llama_2("codellama_instruct", "", _ROLES, "</s>"),
    Conversation(
        name="mistral_default",
        system_template=" [INST] {system_message}\n\n",
        system_message=MISTRAL,
        render_empty_system_message=False,
        roles={"user": " [INST]", "assistant": "[/INST]", "tool": " [INST]"},
        seps=[" ", "</s>"],
        role_content_sep=" ",
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
        add_role_after_system_message=False,
    ),
    _ministral_3("ministral3", MINISTRAL_3),
    _ministral_3("ministral3_reasoning", MINISTRAL_3_REASONING),
]
