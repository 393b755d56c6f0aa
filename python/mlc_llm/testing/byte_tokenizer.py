"""A tokenizer of 300 tokens as GGUF metadata: text becomes bytes, and a few pairs are merged.

Token ids 0 to 255 are the bytes. After them come the merges, then the control tokens.
"""

from __future__ import annotations

from mlc_llm.loader.gguf_metadata import Value

_MERGES = (
    "t h", "Ġ t", "h e", "i n", "e r", "a n", "r e", "o n", "Ġ a", "Ġt h", "Ġth e", "a t", "e n",
    "o r", "e s", "Ġ s", "Ġ w", "n d", "i t", "o u", "i s", "Ġ o", "e d", "a r", "n g", "a l",
    "Ġ c", "Ġ b", "l l", "Ġ f", "Ġ p", "Ġ m", "Ġ i", "an d", "Ġ d", "c h", "s t", "Ġ h", "i c",
)  # fmt: skip
"""In order of rank. A space is written as Ġ, as in GPT-2."""

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim|>", "<|tool|>")
_FIRST_CONTROL = 256 + len(_MERGES)
END_OF_TEXT, IM_START, IM_END = range(_FIRST_CONTROL, _FIRST_CONTROL + 3)
"""Token ids. Each chat message, and so each answer, ends with IM_END."""
VOCABULARY_SIZE = _FIRST_CONTROL + len(CONTROL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML."""

_NORMAL, _CONTROL = 1, 3


def byte_tokenizer_metadata() -> dict[str, Value]:
    """The `tokenizer.*` keys of a GGUF file, for `Tokenizer.from_gguf_metadata` and model files."""
    tokens = [*byte_letters(), *(m.replace(" ", "") for m in _MERGES), *CONTROL_TOKENS]
    kinds = [_NORMAL] * _FIRST_CONTROL + [_CONTROL] * len(CONTROL_TOKENS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.bos_token_id": IM_START,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.unknown_token_id": END_OF_TEXT,
        "tokenizer.ggml.padding_token_id": END_OF_TEXT,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def byte_letters() -> list[str]:
    """The printable character of GPT-2's table for each byte 0 to 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
