"""Input items of the Responses API as chat messages.

Thoughts, text and calls of the assistant are items of their own there; what follows each other is
one message here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.messages import MAX_PARTS, MAX_TEXT_CHARS, TEXT_PARTS, image_part
from mlc_llm.protocol.openai_messages import MAX_NAME_CHARS
from mlc_llm.serve.responses.tools import full_name

ROLES = ("user", "assistant", "system", "developer")
IMAGE = "input_image"
TYPES = ("message", "reasoning", "function_call", "function_call_output")

Given = Mapping[str, object]
Message = dict[str, object]
Content = str | list[dict[str, object]]


class Conversation:
    """The messages of one request, and the items that are left out of them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.dropped: list[str] = []
        """Paths of items that the model cannot read."""
        self._said: Message | None = None
        """The assistant's message, which more items may belong to."""
        self._names: dict[str, str] = {}
        """The tool of each call."""

    def say(self, role: str, content: Content) -> None:
        """Add a message with nothing but its content."""
        self._said = None
        self.messages.append({"role": role, "content": content})

    def put(self, path: str, item: Given) -> None:
        """Add an item. Raises `InvalidField` that names what is wrong in it."""
        kind = item.get("type", "message")
        if kind == "item_reference":
            raise InvalidField(f"{path}.type", kind, "this server stores nothing; send the item")
        checks.one_of(f"{path}.type", kind, TYPES)
        if kind == "message":
            self._message(path, item)
        elif kind == "reasoning":
            self._thought(path, item)
        elif kind == "function_call":
            self._call(path, item)
        else:
            self._result(path, item)

    def _message(self, path: str, item: Given) -> None:
        role = checks.one_of(f"{path}.role", item.get("role"), ROLES)
        text = _content(f"{path}.content", item.get("content"), images=role != "assistant")
        if role != "assistant":
            self.say(role, text)
            return
        said = self._said
        if said is None or said["content"] is not None or "tool_calls" in said:
            said = self._begun()
        said["content"] = text

    def _thought(self, path: str, item: Given) -> None:
        texts = [
            _string(f"{path}.{key}[{i}].text", part.get("text"))
            for key in ("content", "summary")
            for i, part in enumerate(_parts(f"{path}.{key}", item.get(key) or ()))
        ]
        if not texts:
            self.dropped.append(path)  # encrypted: only the server that wrote it could read it
            return
        said = self._begun()
        said["reasoning_content"] = "\n\n".join(texts)

    def _call(self, path: str, item: Given) -> None:
        call_id = _string(f"{path}.call_id", item.get("call_id"))
        name = checks.string(f"{path}.name", item.get("name"), MAX_NAME_CHARS, min_chars=1)
        arguments = _string(f"{path}.arguments", item.get("arguments"))
        name = full_name(item.get("namespace"), name)
        self._names[call_id] = name
        said = self._said or self._begun()
        calls = said.setdefault("tool_calls", [])
        assert isinstance(calls, list)
        function = {"name": name, "arguments": arguments}
        calls.append({"id": call_id, "type": "function", "function": function})

    def _result(self, path: str, item: Given) -> None:
        call_id = _string(f"{path}.call_id", item.get("call_id"))
        text = _content(f"{path}.output", item.get("output"), images=True)
        self._said = None
        message: Message = {"role": "tool", "tool_call_id": call_id, "content": text}
        if call_id in self._names:
            message["name"] = self._names[call_id]
        self.messages.append(message)

    def _begun(self) -> Message:
        self._said = {"role": "assistant", "content": None}
        self.messages.append(self._said)
        return self._said


def _content(field: str, content: object, *, images: bool) -> Content:
    """A text, or text parts joined; or the parts where there are images. images: they may be."""
    if content is None:
        raise MissingKey(field, field.rpartition(".")[2])
    if isinstance(content, str):
        return checks.string(field, content, MAX_TEXT_CHARS)
    parts = [(f"{field}[{i}]", part) for i, part in enumerate(_parts(field, content))]
    if not images or all(part.get("type") != IMAGE for _, part in parts):
        return "".join(_part_text(*one) for one in parts)
    return [
        _image(path, part)
        if part.get("type") == IMAGE
        else {"type": "text", "text": _part_text(path, part)}
        for path, part in parts
    ]


def _image(path: str, part: Given) -> dict[str, object]:
    """A part of chat messages."""
    if part.get("file_id") is not None:
        words = "this server stores nothing; send the image as image_url"
        raise InvalidField(f"{path}.file_id", part["file_id"], words)
    return image_part(_string(f"{path}.image_url", part.get("image_url")))


def _part_text(path: str, part: Given) -> str:
    kind = part.get("type")
    if kind in (IMAGE, "input_file", "input_audio"):
        raise InvalidField(f"{path}.type", kind, "there is no place for it; send text")
    known = checks.one_of(f"{path}.type", kind, tuple(TEXT_PARTS))
    key = TEXT_PARTS[known]
    return _string(f"{path}.{key}", part.get(key))


def _parts(field: str, value: object) -> Sequence[Given]:
    parts = []
    for i, part in enumerate(checks.listing(field, value, MAX_PARTS)):
        if not isinstance(part, Mapping):
            raise checks.wrong_type(f"{field}[{i}]", part, "should be an object")
        parts.append(part)
    return parts


def _string(field: str, value: object) -> str:
    if value is None:
        raise MissingKey(field, field.rpartition(".")[2])
    return checks.string(field, value, MAX_TEXT_CHARS)
