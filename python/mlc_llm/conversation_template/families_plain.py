"""Templates that name a role in plain words, such as `User:`, or not at all (data only)."""

from __future__ import annotations

from mlc_llm.conversation_template.system_texts import (
    GORILLA,
    GORILLA_2,
    LLM_JP,
    RWKV,
    TASK,
)
from mlc_llm.protocol.conversation_protocol import Conversation


def _continued(
    name: str, stop_token_id: int, stop_str: list[str], prefix: list[int] | None = None
) -> Conversation:
    """No chat template: the model continues the text as it is."""
    return Conversation(
        name=name,
        roles={"user": "", "assistant": ""},
        seps=[""],
        stop_str=stop_str,
        stop_token_ids=[stop_token_id],
        system_prefix_token_ids=prefix,
    )


def _deepseek(name: str) -> Conversation:
    return Conversation(
        name=name,
        system_template="{system_message}\n\n",
        render_empty_system_message=False,
        roles={"user": "User", "assistant": "Assistant"},
        seps=["\n\n", "<｜end▁of▁sentence｜>"],
        role_content_sep=": ",
        role_empty_sep=":",
        stop_str=["<｜end▁of▁sentence｜>"],
        stop_token_ids=[100001],
        system_prefix_token_ids=[100000],
    )


PLAIN = [
    _continued("LM", 2, [], [1]),
    _continued("gpt2", 50256, ["</s>"]),
    _continued("gpt_bigcode", 0, ["<|endoftext|>"]),
    _continued("codellama_completion", 2, ["</s>"], [1]),
    _deepseek("deepseek"),
    _deepseek("deepseek_v2"),
    Conversation(
        name="dolly",
        system_template="{system_message}\n\n",
        system_message=TASK,
        render_empty_system_message=False,
        roles={"user": "### Instruction", "assistant": "### Response"},
        seps=["\n\n", "### End\n"],
        role_content_sep=":\n",
        role_empty_sep=":\n",
        stop_str=["### End"],
        stop_token_ids=[50256],
    ),
    Conversation(
        name="gorilla",
        system_template="{system_message}\n",
        system_message=GORILLA,
        render_empty_system_message=False,
        role_templates={"user": "<<question>> {user_message} <<function>> {function_string}"},
        roles={"user": "USER", "assistant": "ASSISTANT", "tool": "USER"},
        seps=["\n", "</s>"],
        role_content_sep=": ",
        role_empty_sep=":",
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
    Conversation(
        name="gorilla-openfunctions-v2",
        system_template="{system_message}\n",
        system_message=GORILLA_2,
        render_empty_system_message=False,
        role_templates={"user": "<<function>>{function_string}\n<<question>>{user_message}"},
        roles={"user": "### Instruction", "assistant": "### Response", "tool": "### Instruction"},
        seps=["\n", "<|EOT|>"],
        role_content_sep=": ",
        role_empty_sep=": ",
        stop_str=["<|EOT|>"],
        stop_token_ids=[100015],
        system_prefix_token_ids=[100000],
    ),
    Conversation(
        name="llava",
        system_template="{system_message} ",
        render_empty_system_message=False,
        roles={"user": "USER", "assistant": "ASSISTANT"},
        seps=[" "],
        role_content_sep=": ",
        role_empty_sep=":",
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
    Conversation(
        name="llm-jp",
        system_message=LLM_JP,
        roles={"user": "\n\n### 指示:", "assistant": "\n\n### 応答:"},
        seps=["", "</s>"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
    Conversation(
        # The makers' template has no system text: here it is at the beginning of the question.
        name="orion",
        system_template="Human: {system_message}\n\n",
        render_empty_system_message=False,
        add_role_after_system_message=False,
        roles={"user": "Human: ", "assistant": "Assistant: </s>"},
        seps=["\n\n", "</s>"],
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
    Conversation(
        name="phi-2",
        roles={"user": "Instruct", "assistant": "Output"},
        seps=["\n"],
        role_content_sep=": ",
        role_empty_sep=":",
        stop_str=["<|endoftext|>"],
        stop_token_ids=[50256],
    ),
    Conversation(
        name="redpajama_chat",
        roles={"user": "<human>", "assistant": "<bot>"},
        seps=["\n"],
        role_content_sep=": ",
        role_empty_sep=":",
        stop_str=["<human>"],
        stop_token_ids=[0],
    ),
    Conversation(
        name="rwkv_world",
        system_template="User: hi\n\nAssistant: {system_message}\n\n",
        system_message=RWKV,
        render_empty_system_message=False,
        roles={"user": "User", "assistant": "Assistant"},
        seps=["\n\n"],
        role_content_sep=": ",
        role_empty_sep=":",
        stop_str=["\n\n"],
        stop_token_ids=[0],
    ),
    Conversation(
        name="wizardlm_7b",
        roles={"user": "User", "assistant": "Response"},
        seps=["###"],
        role_content_sep=": ",
        role_empty_sep=":",
        stop_str=["###"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
    Conversation(
        name="wizard_coder_or_math",
        system_template="{system_message}\n\n### ",
        system_message=TASK,
        roles={"user": "Instruction", "assistant": "Response"},
        seps=["\n\n### "],
        role_content_sep=":\n",
        role_empty_sep=":",
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
]
