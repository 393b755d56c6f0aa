"""Chat templates that were read by us, written out in Python.

They spare a command the import of Jinja, which takes longer than to open the model. A template is
known by the hash of its text. What a function here does not write (it returns None), Jinja writes:
messages with other fields than texts, and very long ones, for which Jinja's side has the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

MAX_CHARS = 2**20
"""Characters of the messages together. Longer texts are left to Jinja."""

Messages = Sequence[Mapping[str, object]]
Writer = Callable[[Messages, bool], str | None]
"""Messages, and whether the answer's beginning is written too. Returns the prompt, or None."""


def _smollm2(messages: Messages, answer: bool) -> str | None:
    """SmolLM2 Instruct: one loop over the messages, strings joined, no filter, no call."""
    pairs = _pairs(messages)
    if pairs is None:
        return None
    if pairs and pairs[0][0] != "system":
        pairs.insert(0, ("system", _SMOLLM2))
    turns = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in pairs]
    return "".join(turns) + ("<|im_start|>assistant\n" if answer else "")


_SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

KNOWN: dict[str, Writer] = {
    "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788": _smollm2,
}
"""SHA-256 of a template -> what writes the same text. The time and memory of these templates grow
only with the length of the messages, so Jinja too may render them in this process."""


def _pairs(messages: Messages) -> list[tuple[str, str]] | None:
    """Role and content of each message; None if one is no text, or all are very long."""
    found, chars = [], 0
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        chars += len(role) + len(content) + 1
        found.append((role, content))
    return found if chars <= MAX_CHARS else None
