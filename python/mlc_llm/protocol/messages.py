"""Chat messages: which ones are accepted, and the one form in which chat templates read them.

These are plain functions over plain values. `ChatCompletionMessage`, `Conversation` and every
engine use them, so all of them accept the same messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict, cast

from mlc_llm.errors import InvalidField, MissingKey, UnsupportedModel, UserError
from mlc_llm.protocol import checks
from mlc_llm.protocol.json_text import parse_json
from mlc_llm.protocol.json_value import JsonValue

ROLES = ("system", "developer", "user", "assistant", "tool")
TEMPLATE_ROLES = ("system", "user", "assistant", "tool")
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Type of a content part -> the key of its text."""
IMAGE_PARTS = ("image_url", "input_image")
MAX_TEXT_CHARS = 2**26
MAX_PARTS = 4096
MAX_IMAGES = 64
NO_IMAGES = "Vision config is required: this model reads text only, not images"
MAX_TOOL_CALLS = 1024
MAX_ARGUMENT_CHARS = 2**22

GivenMessage = Mapping[str, object]
"""A message as a caller gives it, in OpenAI's shape; nothing in it is checked yet."""
GivenTool = Mapping[str, object]
"""A tool as a caller gives it, in OpenAI's shape."""


class _NeededFields(TypedDict):
    role: str
    content: str | None


class TemplateMessage(_NeededFields, total=False):
    """A message as chat templates read it. It keeps the fields that this version does not know."""

    tool_calls: list[dict[str, object]]
    """At least one. The arguments of each are a value, not a text."""


class GivenImages:
    """The images of a request, in order, as far as messages were read."""

    def __init__(self, mark: str) -> None:
        """mark: stands for an image in a text, and in no text else."""
        self.mark = mark
        self.urls: list[tuple[str, str]] = []
        """The field of each address, and the address."""

    def add(self, field: str, url: str) -> str:
        """The mark. Raises InvalidField for more than `MAX_IMAGES`."""
        if len(self.urls) == MAX_IMAGES:
            words = f"a request has {MAX_IMAGES} images at most"
            raise checks.refuse(field, f"image {len(self.urls) + 1}", words)
        self.urls.append((field, url))
        return self.mark


def template_messages(
    messages: Sequence[GivenMessage],
    roles: Iterable[str] = TEMPLATE_ROLES,
    images: GivenImages | None = None,
) -> list[TemplateMessage]:
    """Copies of messages of OpenAI's shape, as chat templates read them.

    `content` is a text; it can be None only beside tool calls. A refusal becomes a normal text of
    the assistant. `tool_calls` exists only if there are calls, and the arguments of each are a
    value (see `arguments_value`). The role `developer` becomes `system`. Fields that are null are
    left out, unknown fields are kept. images: collects those of the messages, which are marks in
    the texts then; None: there may be none.

    Only `roles` are allowed, because templates make control tokens of them. Raises `InvalidField`
    that names the field, and `UnsupportedModel` for an image.
    """
    if not messages:
        raise InvalidField("messages", [], "give at least one message")
    known = tuple(roles)
    return [_for_template(f"messages[{i}]", one, known, images) for i, one in enumerate(messages)]


def image_part(url: str) -> dict[str, object]:
    """The image at an address, as a part of a content."""
    return {"type": "image_url", "image_url": {"url": url}}


def check_has_content(field: str, message: GivenMessage) -> None:
    """A message must have the key `content` (null is allowed), tool calls or a refusal. Raises
    `MissingKey`."""
    if "content" not in message and not message.get("tool_calls") and not message.get("refusal"):
        raise MissingKey(f"{field}.content" if field else "content", "content")


def check_role(field: str, role: object, known: Sequence[str] = ROLES) -> str:
    """The role itself if it is one of `known`. Raises `InvalidField`."""
    if not isinstance(role, str):
        raise checks.wrong_type(field, role, f"should be one of {', '.join(known)}")
    if role not in known:
        words = f"Role {checks.shown(role)} is not supported; known: {', '.join(known)}"
        raise checks.refuse(field, role, words)
    return role


def check_content(field: str, content: object) -> str | list[Mapping[str, object]] | None:
    """The content itself if it is null, a text or a list of parts. Raises `InvalidField`.

    An image is accepted here. `content_text` refuses it, because it needs a text.
    """
    if content is None:
        return None
    if isinstance(content, str):
        return checks.string(field, content, MAX_TEXT_CHARS)
    if not isinstance(content, (list, tuple)):
        raise checks.wrong_type(field, content, "should be a string, null or a list of parts")
    parts = checks.listing(field, content, MAX_PARTS)
    return [_checked_part(f"{field}[{i}]", part) for i, part in enumerate(parts)]


def content_text(field: str, content: object, images: GivenImages | None = None) -> str | None:
    """The text of a content, with its parts joined; None if the content is null.

    images: see `template_messages`. Raises `InvalidField`, and `UnsupportedModel` for an image that
    nobody collects.
    """
    checked = check_content(field, content)
    if not isinstance(checked, list):
        return checked
    return "".join(_part_text(f"{field}[{i}]", part, images) for i, part in enumerate(checked))


def arguments_text(field: str, arguments: object) -> str:
    """The arguments of a tool call as text. An object becomes JSON; null and blank text are `{}`.

    The text may be no JSON, because models make mistakes. Raises `InvalidField`.
    """
    if arguments is None:
        return "{}"
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    text = checks.string(field, arguments, MAX_ARGUMENT_CHARS)
    return text if text.strip() else "{}"


def arguments_value(text: str) -> JsonValue:
    """The arguments of a tool call as a value. The value is the text itself if the text is not
    JSON, or if UTF-8 cannot write what it stands for."""
    try:
        value = parse_json(text, "arguments")
        json.dumps(value, ensure_ascii=False).encode()
    except (UserError, UnicodeEncodeError, RecursionError):
        return text
    return value


def _for_template(
    field: str, message: object, roles: tuple[str, ...], images: GivenImages | None
) -> TemplateMessage:
    if not isinstance(message, Mapping):
        raise checks.wrong_type(field, message, "a message should be an object")
    check_has_content(field, message)
    plain = {name: value for name, value in message.items() if value is not None}
    if plain.get("role") == "developer":
        plain["role"] = "system"
    check_role(f"{field}.role", plain.get("role"), roles)
    refusal = plain.pop("refusal", None)
    calls = _calls(f"{field}.tool_calls", plain.pop("tool_calls", None))
    text = content_text(f"{field}.content", message.get("content"), images)
    if refusal is not None:
        text = (text or "") + checks.string(f"{field}.refusal", refusal, MAX_TEXT_CHARS)
    plain["content"] = "" if text is None and not calls else text
    # The fields that the type names are checked above; other fields are kept as they are.
    return cast(TemplateMessage, {**plain, "tool_calls": calls} if calls else plain)


def _calls(field: str, calls: object) -> list[dict[str, object]]:
    found = checks.listing(field, calls, MAX_TOOL_CALLS) if calls is not None else []
    return [_call(f"{field}[{i}]", call) for i, call in enumerate(found)]


def _call(field: str, call: object) -> dict[str, object]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        wanted = 'should be {"type": "function", "function": {...}}'
        raise checks.wrong_type(field, call, wanted)
    if "name" not in function:
        raise MissingKey(f"{field}.function.name", "name")
    text = arguments_text(f"{field}.function.arguments", function.get("arguments"))
    known = {name: value for name, value in call.items() if value is not None}
    return {**known, "function": {**function, "arguments": arguments_value(text)}}


def _checked_part(field: str, part: object) -> Mapping[str, object]:
    """The part itself if its type is known and it has what belongs to the type."""
    if not isinstance(part, Mapping):
        raise checks.wrong_type(field, part, "should be an object with a type")
    kind = part.get("type")
    if isinstance(kind, str) and kind in TEXT_PARTS:
        key = TEXT_PARTS[kind]
        if key not in part:
            raise MissingKey(f"{field}.{key}", key)
        checks.string(f"{field}.{key}", part[key], MAX_TEXT_CHARS)
    elif kind in IMAGE_PARTS:
        _check_image(field, part)
    else:
        known = ", ".join((*TEXT_PARTS, *IMAGE_PARTS))
        raise checks.refuse(f"{field}.type", kind, f"unsupported content type; known: {known}")
    return part


def _check_image(field: str, part: Mapping[str, object]) -> None:
    if not isinstance(_url_of(part), str):
        wanted = "should be an address or an object with a url"
        raise checks.wrong_type(f"{field}.image_url", part.get("image_url"), wanted)


def _url_of(part: Mapping[str, object]) -> object:
    image = part.get("image_url")
    return image.get("url") if isinstance(image, Mapping) else image


def _part_text(field: str, part: Mapping[str, object], images: GivenImages | None) -> str:
    """The text of a part that `_checked_part` has accepted."""
    kind = str(part["type"])
    if kind in IMAGE_PARTS:
        if images is None:
            raise UnsupportedModel(NO_IMAGES)
        return images.add(f"{field}.image_url.url", str(_url_of(part)))
    return str(part[TEXT_PARTS[kind]])
