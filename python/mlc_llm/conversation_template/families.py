"""The named conversation templates (data only). Texts as the makers of the models state them."""

from __future__ import annotations

from mlc_llm.protocol.conversation_protocol import Conversation

_CHATML_ROLES = {
    "user": "<|im_start|>user",
    "assistant": "<|im_start|>assistant",
    "tool": "<|im_start|>tool",
}
_LLAMA3_ROLES = {
    "user": "<|start_header_id|>user",
    "assistant": "<|start_header_id|>assistant",
    "tool": "<|start_header_id|>ipython",
}
_GEMMA_ROLES = {"user": "<start_of_turn>user", "assistant": "<start_of_turn>model"}
_HELPFUL = "You are a helpful, respectful and honest assistant."


def _chatml(
    name: str,
    system_message: str,
    stop_token_ids: list[int],
    system_template: str = "<|im_start|>system\n{system_message}<|im_end|>\n",
) -> Conversation:
    """The format of ChatML, which several families share."""
    return Conversation(
        name=name,
        system_template=system_template,
        system_message=system_message,
        roles=_CHATML_ROLES,
        seps=["<|im_end|>\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["<|im_end|>"],
        stop_token_ids=stop_token_ids,
    )


FAMILIES = [
    Conversation(
        name="LM",  # no chat: the text is continued as it is
        system_template="{system_message}",
        roles={"user": "", "assistant": ""},
        seps=[""],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
    _chatml(
        "chatml",
        "A conversation between a user and an LLM-based AI assistant. The assistant gives helpful"
        " and honest answers.",
        [2],
    ),
    _chatml("chatml_nosystem", "", [2], system_template="{system_message}"),
    _chatml(
        "smollm2",
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        [2, 0],
    ),
    _chatml("qwen2", "You are a helpful assistant.", [151643, 151645]),
    Conversation(
        name="llama-2",
        system_template="[INST] <<SYS>>\n{system_message}\n<</SYS>>\n\n",
        system_message=_HELPFUL,
        roles={"user": "[INST]", "assistant": "[/INST]", "tool": "[INST]"},
        seps=[" ", " </s><s>"],
        role_content_sep=" ",
        role_empty_sep="",
        stop_str=["[INST]"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
        add_role_after_system_message=False,
    ),
    Conversation(
        name="llama-3",
        system_template="<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
        system_message=_HELPFUL,
        roles={role: _LLAMA3_ROLES[role] for role in ("user", "assistant")},
        seps=["<|eot_id|>"],
        role_content_sep="<|end_header_id|>\n\n",
        role_empty_sep="<|end_header_id|>\n\n",
        stop_token_ids=[128001, 128009],
        system_prefix_token_ids=[128000],
    ),
    Conversation(
        name="llama-3_1",
        system_template="<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
        system_message="You are a helpful assistant.",
        roles=_LLAMA3_ROLES,
        seps=["<|eot_id|>"],
        role_content_sep="<|end_header_id|>\n\n",
        role_empty_sep="<|end_header_id|>\n\n",
        stop_token_ids=[128001, 128008, 128009],
        system_prefix_token_ids=[128000],
    ),
    Conversation(
        name="gemma_instruction",
        system_template="{system_message}",
        roles=_GEMMA_ROLES,
        seps=["<end_of_turn>\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["<end_of_turn>"],
        stop_token_ids=[1, 107],
        system_prefix_token_ids=[2],
    ),
    Conversation(
        name="gemma3_instruction",
        system_template="{system_message}",
        roles=_GEMMA_ROLES,
        seps=["<end_of_turn>\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["<end_of_turn>"],
        stop_token_ids=[1, 106],
        system_prefix_token_ids=[2],
    ),
    Conversation(
        name="mistral_default",
        system_template="[INST] {system_message}\n\n",
        system_message=(
            "Always assist with care, respect, and truth. Respond with utmost utility yet securely."
            " Avoid harmful, unethical, prejudiced, or negative content. Ensure replies promote"
            " fairness and positivity."
        ),
        roles={"user": "[INST]", "assistant": "[/INST]", "tool": "[INST]"},
        seps=[" ", "</s>"],
        role_content_sep=" ",
        role_empty_sep="",
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
        add_role_after_system_message=False,
    ),
    Conversation(
        name="phi-3",
        system_template="<|system|>\n{system_message}<|end|>\n",
        system_message="You are a helpful digital assistant. Please provide safe, ethical and"
        " accurate information to the user.",
        roles={"user": "<|user|>", "assistant": "<|assistant|>"},
        seps=["<|end|>\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["<|endoftext|>"],
        stop_token_ids=[32000, 32001, 32007],
        system_prefix_token_ids=[1],
    ),
    Conversation(
        name="tinyllama_v1_0",
        system_template="<|system|>\n{system_message}</s>\n",
        system_message="You are a helpful chatbot.",
        roles={"user": "<|user|>", "assistant": "<|assistant|>"},
        seps=["</s>\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["</s>"],
        stop_token_ids=[2],
        system_prefix_token_ids=[1],
    ),
]
