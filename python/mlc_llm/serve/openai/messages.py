"""Chat messages as clients send them, made into what templates expect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlc_llm.errors import InvalidField, UnsupportedModel

ROLES = ("system", "user", "assistant", "tool")


def plain_messages(
    messages: Sequence[Mapping[str, Any]], roles: Iterable[str] = ROLES
) -> list[dict[str, Any]]:
    """Copies in which content is a text (None stays only beside tool calls), and arguments of
    tool calls are objects and not JSON text, as templates expect them. `developer`, the newer name
    of `system`, is turned into that.

    Templates build control tokens out of roles, so only `roles` are let through.
    Raises `InvalidField` naming the field, `UnsupportedModel` for an image.
    """
    if not messages:
        raise InvalidField("messages", [], "give at least one message")
    known = tuple(roles)
    return [_plain(message, f"messages[{i}]", known) for i, message in enumerate(messages)]


def function_string(tools: Sequence[Mapping[str, Any]]) -> str:
    """The functions of tools as a JSON list, for named templates."""
    return json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)


def _plain(message: Mapping[str, Any], field: str, roles: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidField(field, message, "a message should be an object")
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in roles:
        raise InvalidField(f"{field}.role", role, f"should be one of {', '.join(roles)}")
    plain = {name: value for name, value in message.items() if value is not None}
    plain["role"] = role
    calls = plain.get("tool_calls")
    if calls:
        plain["tool_calls"] = [
            _call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    content = _text(message.get("content"), f"{field}.content")
    plain["content"] = content if content is not None or calls else ""
    return plain


def _text(content: Any, field: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidField(field, content, "should be text or a list of parts")
    return "".join(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: Any, field: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("image_url", "input_image"):
        raise UnsupportedModel("Vision config is required: this model reads text only, not images")
    if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
        raise InvalidField(field, part, 'should be {"type": "text", "text": ...}')
    return str(part["text"])


def _call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidField(field, call, 'should be {"type": "function", "function": {...}}')
    return {**call, "function": {**function, "arguments": _arguments(function, field)}}


def _arguments(function: Mapping[str, Any], field: str) -> Any:
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        field = f"{field}.function.arguments"
        raise InvalidField(field, arguments, "should be a JSON object as text") from None
