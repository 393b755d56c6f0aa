"""Templates that begin a turn with a tag of its role, such as `<|user|>` (data only)."""

from __future__ import annotations

from mlc_llm.protocol.conversation_protocol import Conversation

_TAGS = {"user": "<|user|>", "assistant": "<|assistant|>"}
_DEEPSEEK_TAGS = {"user": "<｜User｜>", "assistant": "<｜Assistant｜>"}
_DEEPSEEK_END = "<｜end▁of▁sentence｜>"


def _llama(
    name: str,
    header: tuple[str, str],
    end: str,
    stop_token_ids: list[int],
    *,
    about: str = "",
    tool: str = "",
    prefix: int = 128000,
) -> Conversation:
    """header: the texts before and after the name of a role. about: a text before every system
    message, also an empty one. tool: the name of the role of tools."""
    before, behind = header
    roles = {"user": "user", "assistant": "assistant", **({"tool": tool} if tool else {})}
    return Conversation(
        name=name,
        system_template=f"{before}system{behind}{about}{{system_message}}{end}",
        render_empty_system_message=bool(about),
        roles={role: before + text for role, text in roles.items()},
        seps=[end],
        role_content_sep=behind,
        role_empty_sep=behind,
        stop_token_ids=stop_token_ids,
        system_prefix_token_ids=[prefix],
    )


def _gemma(name: str, end_id: int) -> Conversation:
    """There is no system turn: the system text is at the beginning of the first question."""
    return Conversation(
        name=name,
        system_template="<start_of_turn>user\n{system_message}\n\n",
        render_empty_system_message=False,
        add_role_after_system_message=False,
        roles={"user": "<start_of_turn>user", "assistant": "<start_of_turn>model"},
        seps=["<end_of_turn>\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["<end_of_turn>"],
        stop_token_ids=[1, end_id],
        system_prefix_token_ids=[2],
    )


def _zephyr(
    name: str,
    end: str,
    stop_str: str,
    stop_token_ids: list[int],
    *,
    prefix: list[int] | None = None,
    system_message: str = "",
) -> Conversation:
    """`<|role|>`, a line break, the text, `end`: the same for system, user and assistant. prefix:
    token ids at the start."""
    return Conversation(
        name=name,
        system_template="<|system|>\n{system_message}" + end,
        render_empty_system_message=False,
        roles=_TAGS,
        seps=[end],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=[stop_str],
        stop_token_ids=stop_token_ids,
        system_prefix_token_ids=prefix,
        system_message=system_message,
    )


def _deepseek(
    name: str, begin_id: int, end_id: int, *, system_message: str = "", begins: str = ""
) -> Conversation:
    """begins: the text at the start of every answer."""
    return Conversation(
        name=name,
        system_message=system_message,
        roles=_DEEPSEEK_TAGS,
        seps=["", _DEEPSEEK_END],
        role_empty_sep=begins,
        stop_token_ids=[end_id],
        system_prefix_token_ids=[begin_id],
        strip_reasoning_in_history=bool(begins),
    )


_LLAMA_3 = ("<|start_header_id|>", "<|end_header_id|>\n\n")
_LLAMA_4 = ("<|header_start|>", "<|header_end|>\n\n")
_LLAMA_3_1_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
"""The template of the makers has this date too if the caller gives none."""

TAGGED = [
    _llama("llama-3", _LLAMA_3, "<|eot_id|>", [128001, 128009]),
    _llama(
        "llama-3_1",
        _LLAMA_3,
        "<|eot_id|>",
        [128001, 128008, 128009],
        about=_LLAMA_3_1_DATES,
        tool="ipython",
    ),
    _llama("llama-4", _LLAMA_4, "<|eot|>", [200001, 200007, 200008], tool="ipython", prefix=200000),
    _gemma("gemma_instruction", 107),
    _gemma("gemma3_instruction", 106),
    # 1 is <s>; the ends of phi-3 are <|endoftext|>, <|assistant|>, <|end|>.
    _zephyr(
        "phi-3",
        "<|end|>\n",
        "<|endoftext|>",
        [32000, 32001, 32007],
        prefix=[1],
    ),
    _zephyr(
        "phi-3-vision",
        "<|end|>\n",
        "<|endoftext|>",
        [2, 32000, 32001, 32007],
        prefix=[1],
    ),
    Conversation(
        name="phi-4",
        system_template="<|im_start|>system<|im_sep|>{system_message}<|im_end|>",
        render_empty_system_message=False,
        roles={"user": "<|im_start|>user", "assistant": "<|im_start|>assistant"},
        seps=["<|im_end|>"],
        role_content_sep="<|im_sep|>",
        role_empty_sep="<|im_sep|>",
        stop_str=["<|im_end|>"],
        stop_token_ids=[100257, 100265],  # <|endoftext|>, <|im_end|>
    ),
    _zephyr(
        "tinyllama_v1_0",
        "</s>\n",
        "</s>",
        [2],
        system_message="You are a helpful chatbot.",
        prefix=[1],
    ),
    _zephyr("stablelm-3b", "<|endoftext|>\n", "<|endoftext|>", [0]),
    _zephyr("stablelm-2", "<|endoftext|>\n", "<|endoftext|>", [100257]),
    Conversation(
        name="stablelm",
        system_template="<|SYSTEM|>{system_message}\n",
        system_message=(
            "# StableLM Tuned (Alpha version)\n"
            "- StableLM is a helpful and harmless open-source AI language model developed by"
            " StabilityAI.\n"
            "- StableLM is excited to be able to help the user, but will refuse to do anything that"
            " could be considered harmful to the user.\n"
            "- StableLM is more than just an information source, StableLM is also able to write"
            " poetry, short stories, and make jokes.\n"
            "- StableLM will refuse to participate in anything that could harm a human."
        ),
        render_empty_system_message=False,
        roles={"user": "<|USER|>", "assistant": "<|ASSISTANT|>"},
        seps=[""],
        stop_token_ids=[50278, 50279, 50277, 1, 0],
    ),
    Conversation(
        name="olmo",
        roles=_TAGS,
        seps=["\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_token_ids=[50279],
        system_prefix_token_ids=[50279],
    ),
    Conversation(
        name="olmo2",
        system_template="<|system|>\n{system_message}\n",
        roles=_TAGS,
        seps=["<|endoftext|>\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["<|endoftext|>"],
        stop_token_ids=[100257],
        system_prefix_token_ids=[100257],
    ),
    Conversation(
        name="oasst",
        roles={"user": "<|prompter|>", "assistant": "<|assistant|>"},
        seps=["<|endoftext|>"],
        stop_str=["<|endoftext|>"],
        stop_token_ids=[2],
    ),
    Conversation(
        name="aya-23",
        system_template=(
            "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{system_message}<|END_OF_TURN_TOKEN|>"
        ),
        render_empty_system_message=False,
        roles={
            "user": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
            "assistant": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        },
        seps=["<|END_OF_TURN_TOKEN|>"],
        stop_str=["<|END_OF_TURN_TOKEN|>"],
        stop_token_ids=[255001],
        system_prefix_token_ids=[5],
    ),
    Conversation(
        name="glm",
        system_template="<|system|>\n {system_message}",
        render_empty_system_message=False,
        roles={**_TAGS, "tool": "<|observation|>"},
        seps=[""],
        role_content_sep="\n ",
        stop_str=["</s>"],
        stop_token_ids=[2, 64795, 64797],  # </s>, <|user|>, <|observation|>
        system_prefix_token_ids=[64790, 64792],  # [gMASK], sop
    ),
    Conversation(
        name="nemotron",
        system_template="<extra_id_0>System\n{system_message}\n\n",
        roles={
            "user": "<extra_id_1>User",
            "assistant": "<extra_id_1>Assistant",
            "tool": "<extra_id_1>Tool",
        },
        seps=["\n"],
        role_content_sep="\n",
        role_empty_sep="\n",
        stop_str=["</s>"],
        stop_token_ids=[3],
        system_prefix_token_ids=[2],
    ),
    _deepseek(
        "deepseek_v3",
        0,
        1,
        system_message=(
            "You are Deepseek-V3, an AI assistant created exclusively by the Chinese Company"
            " DeepSeek. You'll provide helpful, harmless, and detailed responses to all user"
            " inquiries."
        ),
    ),
    _deepseek("deepseek_r1_qwen", 151646, 151643, begins="<think>\n"),
    _deepseek("deepseek_r1_llama", 128000, 128001, begins="<think>\n"),
]
