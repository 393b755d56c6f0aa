"""The requests of Anthropic's Messages API. `translation.py` checks what is inside the messages.

In every optional field, null means the default. Unknown fields are kept: `unknown_fields()` lists
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from mlc_llm.protocol import checks
from mlc_llm.protocol.base import OpenModel
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.generation_rules import RULES
from mlc_llm.protocol.openai_api_protocol import MAX_MESSAGES, MAX_TOOLS, Flag
from mlc_llm.protocol.openai_messages import MAX_NAME_CHARS


def _ruled(rule: str) -> BeforeValidator:
    """The check of a field of `GenerationConfig`, under the name that the field has here."""
    return BeforeValidator(lambda value, info: RULES[rule](str(info.field_name), value))


def _max_tokens(value: object, info: ValidationInfo) -> int:
    return checks.integer(str(info.field_name), value, 1, MAX_INT32)


class Tool(OpenModel):
    """A tool that the caller has."""

    type: str = "custom"
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    description: str | None = None
    input_schema: dict[str, object]
    strict: Flag | None = None
    cache_control: dict[str, object] | None = None
    """Changes nothing: beginnings that are alike are always kept."""

    @field_validator("type", mode="before")
    @classmethod
    def _own(cls, value: object) -> object:
        if value != "custom":
            raise checks.refuse("type", value, "only custom tools; this server runs none itself")
        return value


class ToolChoice(OpenModel):
    """Whether a tool is called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Flag | None = None


class Thinking(OpenModel):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    """Without effect: the model thinks for as long as it does."""
    display: str | None = None


class OutputConfig(OpenModel):
    """The form of the answer."""

    format: dict[str, object] | None = None
    """`{"type": "json_schema", "schema": {...}}`."""
    effort: str | None = None


class _Conversation(OpenModel):
    """What makes the prompt."""

    model: str | None = None
    messages: list[dict[str, object]] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: str | list[dict[str, object]] | None = None
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, object] | None = None
    mcp_servers: object = None
    container: object = None

    @field_validator("mcp_servers", "container")
    @classmethod
    def _not_here(cls, value: object, info: ValidationInfo) -> object:
        if value:
            name = str(info.field_name)
            raise checks.refuse(name, value, "this server runs no tools itself; leave it out")
        return value


class CountTokensRequest(_Conversation):
    """Asks how many tokens a conversation has."""


class MessagesRequest(_Conversation):
    """Asks for the next message of a conversation."""

    max_tokens: Annotated[int, BeforeValidator(_max_tokens)]
    stop_sequences: Annotated[list[str], _ruled("stop_strs")] | None = None
    stream: Flag = False
    temperature: Annotated[float, _ruled("temperature")] | None = None
    top_k: Annotated[int, _ruled("top_k")] | None = None
    top_p: Annotated[float, _ruled("top_p")] | None = None
    metadata: Mapping[str, object] | None = None
    """Says who asks. It changes nothing."""
