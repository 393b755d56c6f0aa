"""Messages, content parts, tools and tool calls of OpenAI's chat API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mlc_llm.errors import MissingKey, UnsupportedModel, UserError
from mlc_llm.protocol import checks
from mlc_llm.protocol.base import OpenModel
from mlc_llm.protocol.json_text import parse_json

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image_url", "input_image")
MAX_TEXT_CHARS = 2**26
MAX_PARTS = 4096
MAX_TOOL_CALLS = 1024
MAX_ARGUMENT_CHARS = 2**22
MAX_NAME_CHARS = 256


class ChatFunction(OpenModel):
    """A function the model may call; `parameters` is a JSON schema, {} when left out."""

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None


class ChatTool(OpenModel):
    """A tool of a request; functions are the only kind."""

    type: Literal["function"] = "function"
    function: ChatFunction


class ChatFunctionCall(OpenModel):
    """A call of a function. `arguments` is always JSON text; an object is turned into one."""

    name: str
    arguments: str = "{}"

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = json.dumps(value, ensure_ascii=False)
        return checks.string("arguments", value, MAX_ARGUMENT_CHARS) or "{}"

    def arguments_value(self) -> Any:
        """The arguments as a value; the text itself where it is not JSON (models make mistakes)."""
        try:
            return parse_json(self.arguments, "arguments")
        except UserError:
            return self.arguments


class ChatToolCall(OpenModel):
    """A tool call of an assistant's message."""

    id: str | None = None
    """As the caller gave it; whoever makes a call invents `call_` and 24 random characters."""
    type: Literal["function"] = "function"
    function: ChatFunctionCall


class ChatCompletionMessage(OpenModel):
    """One message of a conversation, or the answer of a choice.

    The key `content` must be there, null allowed; an assistant that calls tools may leave it out.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ChatToolCall] | None = Field(default=None, max_length=MAX_TOOL_CALLS)

    @model_validator(mode="before")
    @classmethod
    def _has_content(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "content" not in value and not value.get("tool_calls"):
            raise MissingKey("content", "content")
        return value

    @field_validator("role", mode="before")
    @classmethod
    def _known_role(cls, value: Any) -> str:
        if not isinstance(value, str):
            raise checks.wrong_type("role", value, f"should be one of {', '.join(ROLES)}")
        if value not in ROLES:
            known = ", ".join(ROLES)
            raise checks.refuse(
                "role", value, f"Role {value[:64]} is not supported; known: {known}"
            )
        return value

    @field_validator("content", mode="before")
    @classmethod
    def _text_or_parts(cls, value: Any) -> Any:
        if isinstance(value, str):
            return checks.string("content", value, MAX_TEXT_CHARS)
        if not isinstance(value, (list, tuple)):
            raise checks.wrong_type("content", value, "should be a string, null or a list of parts")
        parts = checks.listing("content", value, MAX_PARTS)
        for i, part in enumerate(parts):
            _check_part(f"content[{i}]", part)
        return parts

    @property
    def template_role(self) -> str:
        """The role as templates know it: a developer is the system."""
        return "system" if self.role == "developer" else self.role

    def text(self) -> str | None:
        """The content as one text; None where there is none.

        Raises `UnsupportedModel` for an image: this version has no model that sees.
        """
        if self.content is None or isinstance(self.content, str):
            return self.content
        return "".join(_part_text(part) for part in self.content)

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: text content, arguments as values."""
        plain: dict[str, Any] = {"role": self.template_role, "content": self.text()}
        if self.name is not None:
            plain["name"] = self.name
        if self.tool_call_id is not None:
            plain["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            plain["tool_calls"] = [_call_for_template(call) for call in self.tool_calls]
        return plain


def _call_for_template(call: ChatToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments_value()}
    return {"id": call.id, "type": call.type, "function": function}


def _check_part(field: str, part: object) -> None:
    if not isinstance(part, Mapping):
        raise checks.wrong_type(field, part, "should be an object with a type")
    kind = part.get("type")
    if kind in TEXT_PARTS:
        if "text" not in part:
            raise MissingKey(f"{field}.text", "text")
        checks.string(f"{field}.text", part["text"], MAX_TEXT_CHARS)
    elif kind in IMAGE_PARTS:
        _check_image(field, part)
    else:
        known = ", ".join(TEXT_PARTS + IMAGE_PARTS)
        raise checks.refuse(f"{field}.type", kind, f"unsupported content type; known: {known}")


def _check_image(field: str, part: Mapping[str, Any]) -> None:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(url, str):
        wanted = "should be an address or an object with a url"
        raise checks.wrong_type(f"{field}.image_url", image, wanted)


def _part_text(part: Mapping[str, Any]) -> str:
    if part["type"] in IMAGE_PARTS:
        raise UnsupportedModel("Vision config is required: this model reads text only, not images")
    return str(part["text"])
