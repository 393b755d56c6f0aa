"""Messages, content parts, tools and tool calls of OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mlc_llm.protocol import checks, messages
from mlc_llm.protocol.base import OpenModel

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
    def _as_text(cls, value: object) -> str:
        return messages.arguments_text("arguments", value)


class ChatToolCall(OpenModel):
    """A tool call of an assistant's message."""

    id: str | None = None
    """As the caller gave it; whoever makes a call invents `call_` and 24 random characters."""
    type: Literal["function"] = "function"
    function: ChatFunctionCall


class ChatCompletionMessage(OpenModel):
    """One message of a conversation, or the answer of a choice.

    The key `content` must be there, null allowed; an assistant that calls tools or refuses may
    leave it out. `messages.template_messages` says what a model is told of it.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    """What an assistant said instead of an answer."""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ChatToolCall] | None = Field(default=None, max_length=messages.MAX_TOOL_CALLS)

    @model_validator(mode="before")
    @classmethod
    def _has_content(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            messages.check_has_content("", value)
        return value

    @field_validator("role", mode="before")
    @classmethod
    def _known_role(cls, value: object) -> str:
        return messages.check_role("role", value)

    @field_validator("content", mode="before")
    @classmethod
    def _text_or_parts(cls, value: object) -> str | list[Any] | None:
        return messages.check_content("content", value)

    @field_validator("refusal", mode="before")
    @classmethod
    def _text(cls, value: object) -> str:
        return checks.string("refusal", value, messages.MAX_TEXT_CHARS)
