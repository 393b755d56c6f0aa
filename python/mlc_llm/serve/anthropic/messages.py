"""Messages of Anthropic's API as messages of OpenAI's.

A turn is a list of blocks. Results of tools become messages of their own, in their place; thoughts
and calls become fields of the assistant's message. Texts of one turn are joined by an empty line;
beside images they are parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.messages import MAX_PARTS, MAX_TEXT_CHARS, image_part
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
Image = dict[str, object]
"""A part of OpenAI's content."""


class Translation:
    """The messages of one request, and the blocks that are left out of them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.dropped: list[str] = []
        """Paths of blocks that the model cannot read."""
        self._names: dict[str, str] = {}
        """The tool of each call."""
        self._last: list[str | Image] = []
        """Of the user's last message."""

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
        parts: list[str | Image] = []
        for path, block in blocks:
            if block.get("type") in ("text", "image"):
                parts.append(_part(path, block))
                continue
            _check_kind(path, block, ("text", "image", "tool_result"))
            self._say(role, parts)
            parts = []
            self.messages.append(self._result(path, block))
        self._say(role, parts)

    def _say(self, role: str, parts: Sequence[str | Image]) -> None:
        """Some templates refuse two turns of a user, one after the other."""
        if not parts:
            return
        last = self.messages[-1] if self.messages else None
        if role == "user" and last is not None and last["role"] == "user":
            parts = [*self._last, *parts]
            self.messages.pop()
        self._last = list(parts) if role == "user" else []
        self.messages.append({"role": role, "content": joined_content(parts)})

    def _result(self, path: str, block: Given) -> Message:
        call_id = _text(path, block, "tool_use_id")
        inner = block.get("content")
        failed = checks.boolean(f"{path}.is_error", block.get("is_error") or False)
        parts: list[str | Image] = []
        for where, part in _blocks(f"{path}.content", "" if inner is None else inner):
            _check_kind(where, part, ("text", "image"))
            parts.append(_part(where, part))
        if failed and parts and isinstance(parts[0], str):
            parts[0] = FAILED + parts[0]
        elif failed:
            parts.insert(0, FAILED)
        said: Message = {"role": "tool", "tool_call_id": call_id}
        if call_id in self._names:
            said["name"] = self._names[call_id]
        return {**said, "content": joined_content(parts)}

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
    if kind == "document" or (kind == "image" and kind not in known):
        words = "documents are not read" if kind == "document" else "there is no place for images"
        raise InvalidField(f"{path}.type", kind, words)
    checks.one_of(f"{path}.type", kind, known)


def _part(path: str, block: Given) -> str | Image:
    """Of a block of text or an image."""
    return _text(path, block, "text") if block.get("type") == "text" else _image(path, block)


def _image(path: str, block: Given) -> Image:
    """A part of OpenAI's content."""
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise checks.wrong_type(f"{path}.source", source, "should be an object with a type")
    kind = checks.one_of(f"{path}.source.type", source.get("type"), ("base64", "url"))
    if kind == "url":
        return image_part(_text(f"{path}.source", source, "url"))
    media, data = (_text(f"{path}.source", source, key) for key in ("media_type", "data"))
    return image_part(f"data:{media};base64,{data}")


def joined_content(parts: Sequence[str | Image]) -> str | list[dict[str, object]]:
    """A text, or OpenAI's parts where there are images."""
    if all(isinstance(one, str) for one in parts):
        return JOINT.join(map(str, parts))
    found: list[dict[str, object]] = []
    for one, next_one in zip(parts, [*parts[1:], None], strict=True):
        if not isinstance(one, str):
            found.append(one)
            continue
        end = JOINT if isinstance(next_one, str) else ""
        found.append({"type": "text", "text": one + end})
    return found


def _text(path: str, block: Given, key: str) -> str:
    if key not in block:
        raise MissingKey(f"{path}.{key}", key)
    return checks.string(f"{path}.{key}", block[key], MAX_TEXT_CHARS)
