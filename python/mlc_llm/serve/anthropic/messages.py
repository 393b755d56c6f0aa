"""Messages of Anthropic's API as messages of OpenAI's.

A turn is a list of blocks. Results of tools become messages of their own, in their place; thoughts
and calls become fields of the assistant's message. Texts of one turn are joined by an empty line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.messages import MAX_PARTS, MAX_TEXT_CHARS
from mlc_llm.protocol.openai_messages import MAX_NAME_CHARS

ROLES = ("user", "assistant", "system")
BILLING = "x-anthropic-billing-header"
"""Claude Code begins the system text with a block of this name, which has another number each
time. It says nothing to a model, and with it no prompt would begin like the one before."""
FAILED = "Error: "
"""Stands before the result of a call that failed."""
JOINT = "\n\n"

Given = Mapping[str, object]
Message = dict[str, object]


class Translation:
    """The messages of one request, and the blocks that are left out of them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.dropped: list[str] = []
        """Paths of blocks that the model cannot read."""
        self._names: dict[str, str] = {}
        """The tool of each call."""

    def system(self, value: str | Sequence[Given] | None) -> None:
        """Add the system text. Raises `InvalidField`."""
        text = value if isinstance(value, str) else JOINT.join(_system_texts(value or ()))
        if text:
            self.messages.append({"role": "system", "content": text})

    def turn(self, field: str, message: Given) -> None:
        """Add a message. Raises `InvalidField` that names what is wrong in it."""
        role = checks.one_of(f"{field}.role", message.get("role"), ROLES)
        if message.get("content") is None:
            raise MissingKey(f"{field}.content", "content")
        blocks = _blocks(f"{field}.content", message["content"])
        if not blocks:
            raise checks.refuse(f"{field}.content", [], "should have at least one block")
        if role == "assistant":
            self._assistant(blocks)
        else:
            self._said(role, blocks)

    def _said(self, role: str, blocks: Sequence[tuple[str, Given]]) -> None:
        texts: list[str] = []
        for path, block in blocks:
            if block.get("type") == "text":
                texts.append(_text(path, block, "text"))
                continue
            _check_kind(path, block, ("text", "tool_result"))
            self._say(role, texts)
            texts = []
            self.messages.append(self._result(path, block))
        self._say(role, texts)

    def _say(self, role: str, texts: Sequence[str]) -> None:
        """Some templates refuse two turns of a user, one after the other."""
        if not texts:
            return
        last = self.messages[-1] if self.messages else None
        if role == "user" and last is not None and last["role"] == "user":
            texts = [str(last["content"]), *texts]
            self.messages.pop()
        self.messages.append({"role": role, "content": JOINT.join(texts)})

    def _result(self, path: str, block: Given) -> Message:
        call_id = _text(path, block, "tool_use_id")
        inner = block.get("content")
        texts = []
        for where, part in _blocks(f"{path}.content", "" if inner is None else inner):
            _check_kind(where, part, ("text",))
            texts.append(_text(where, part, "text"))
        failed = checks.boolean(f"{path}.is_error", block.get("is_error") or False)
        said: Message = {"role": "tool", "tool_call_id": call_id}
        if call_id in self._names:
            said["name"] = self._names[call_id]
        return {**said, "content": (FAILED if failed else "") + JOINT.join(texts)}

    def _assistant(self, blocks: Sequence[tuple[str, Given]]) -> None:
        texts, thoughts, calls = [], [], []
        for path, block in blocks:
            kind = block.get("type")
            if kind == "text":
                texts.append(_text(path, block, "text"))
            elif kind == "thinking":
                thoughts.append(_text(path, block, "thinking"))
            elif kind == "redacted_thinking":
                self.dropped.append(path)  # only the server that wrote it could read it
            else:
                _check_kind(path, block, ("text", "thinking", "tool_use"))
                calls.append(self._call(path, block))
        said: Message = {"role": "assistant", "content": JOINT.join(texts) if texts else None}
        if thoughts:
            said["reasoning_content"] = JOINT.join(thoughts)
        if calls:
            said["tool_calls"] = calls
        self.messages.append(said)

    def _call(self, path: str, block: Given) -> Message:
        call_id, given = _text(path, block, "id"), block.get("input")
        name = checks.string(f"{path}.name", block.get("name"), MAX_NAME_CHARS, min_chars=1)
        if not isinstance(given, Mapping):
            raise checks.wrong_type(f"{path}.input", given, "should be an object")
        self._names[call_id] = name
        function = {"name": name, "arguments": dict(given)}
        return {"id": call_id, "type": "function", "function": function}


def _system_texts(blocks: Sequence[Given]) -> list[str]:
    found = []
    for i, block in enumerate(blocks):
        _check_kind(f"system[{i}]", block, ("text",))
        found.append(_text(f"system[{i}]", block, "text"))
    return [text for text in found if not text.startswith(BILLING)]


def _blocks(field: str, content: object) -> list[tuple[str, Given]]:
    """Each block with its path. A text is one block."""
    if isinstance(content, str):
        return [(field, {"type": "text", "text": content})]
    found = []
    for i, block in enumerate(checks.listing(field, content, MAX_PARTS)):
        if not isinstance(block, Mapping):
            raise checks.wrong_type(f"{field}[{i}]", block, "should be an object with a type")
        found.append((f"{field}[{i}]", block))
    return found


def _check_kind(path: str, block: Given, known: Sequence[str]) -> None:
    kind = block.get("type")
    if kind in ("image", "document"):
        raise InvalidField(f"{path}.type", kind, "this model reads text only")
    checks.one_of(f"{path}.type", kind, known)


def _text(path: str, block: Given, key: str) -> str:
    if key not in block:
        raise MissingKey(f"{path}.{key}", key)
    return checks.string(f"{path}.{key}", block[key], MAX_TEXT_CHARS)
