"""Messages, content parts, tools and tool calls of OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from mlc_llm.protocol import checks, messages
from mlc_llm.protocol.base import OpenModel

MAX_NAME_CHARS = 256
MAX_SCHEMA_LEVELS = 250
"""Arrays and objects inside each other, of the parameters of a function."""


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


class ChatFunction(OpenModel):
    """A function that the model may call. `parameters` is a JSON schema; the default is {}."""

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    description: str | None = None
    parameters: dict[str, object] = Field(default_factory=dict)
    strict: bool | None = None

    @field_validator("parameters", mode="after")
    @classmethod
    def _not_too_deep(cls, value: dict[str, object]) -> dict[str, object]:
        level: list[object] = [value]
        for _ in range(MAX_SCHEMA_LEVELS):
            level = [inner for one in level for inner in _inside(one)]
            if not level:
                return value
        words = f"nested more than {MAX_SCHEMA_LEVELS} levels; make the schema smaller"
        raise checks.refuse("parameters", "<schema>", words)


class ChatTool(OpenModel):
    """A tool of a request. Functions are the only kind of tool."""

    type: Literal["function"] = "function"
    function: ChatFunction


class ChatFunctionCall(OpenModel):
    """A call of a function. `arguments` is always a text; an object becomes JSON text."""

    name: str
    arguments: str = "{}"

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> str:
        return messages.arguments_text("arguments", value)


class ChatToolCall(OpenModel):
    """A tool call in a message of the assistant."""

    id: str | None = None
    """As the caller gave it. A new call gets `call_` and 24 random characters."""
    type: Literal["function"] = "function"
    function: ChatFunctionCall


class ChatCompletionMessage(OpenModel):
    """One message of a conversation, or the answer of a choice.

    The key `content` is required, but null is allowed. It may be left out where an assistant calls
    tools or refuses. `messages.template_messages` says what chat templates get of a message.
    """

    role: str
    content: str | list[dict[str, object]] | None = None
    refusal: str | None = None
    """What the assistant said instead of an answer."""
    reasoning_content: str | None = None
    """What the assistant thought before its answer."""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ChatToolCall] | None = Field(default=None, max_length=messages.MAX_TOOL_CALLS)

    @model_validator(mode="before")
    @classmethod
    def _has_content(cls, value: object) -> object:
        if isinstance(value, Mapping):
            messages.check_has_content("", value)
        return value

    @field_validator("role", mode="before")
    @classmethod
    def _known_role(cls, value: object) -> str:
        return messages.check_role("role", value)

    @field_validator("content", mode="before")
    @classmethod
    def _text_or_parts(cls, value: object) -> str | list[Mapping[str, object]] | None:
        return messages.check_content("content", value)

    @field_validator("refusal", mode="before")
    @classmethod
    def _text(cls, value: object) -> str:
        return checks.string("refusal", value, messages.MAX_TEXT_CHARS)
