"""The request of OpenAI's Responses API. `items.py` checks what is inside the input.

Nothing is stored: what refers to something stored is refused. In every optional field, null means
the default. Unknown fields are kept: `unknown_fields()` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from mlc_llm.protocol import checks
from mlc_llm.protocol.base import OpenModel
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.generation_rules import RULES
from mlc_llm.protocol.messages import MAX_TEXT_CHARS
from mlc_llm.protocol.openai_api_protocol import MAX_MESSAGES, MAX_TOOLS, Flag

NOT_STORED = "this server stores nothing; send the whole conversation as input"
NOT_HERE = {
    "previous_response_id": NOT_STORED,
    "conversation": NOT_STORED,
    "prompt": NOT_STORED,
    "background": "answers are given at once; leave it out",
}
"""Why a field is refused."""
LOGPROBS = "message.output_text.logprobs"
"""What `include` names to get log-probabilities."""


def _ruled(rule: str) -> BeforeValidator:
    """The check of a field of `GenerationConfig`, under the name that the field has here."""
    return BeforeValidator(lambda value, info: RULES[rule](str(info.field_name), value))


def _count(value: object, info: ValidationInfo) -> int:
    return checks.integer(str(info.field_name), value, 1, MAX_INT32)


def _text(value: object, info: ValidationInfo) -> str:
    return checks.string(str(info.field_name), value, MAX_TEXT_CHARS)


class Text(OpenModel):
    """The form of the answer."""

    format: dict[str, object] | None = None
    """`{"type": "text"}`, `json_object`, or `json_schema` with a `schema`."""


class Reasoning(OpenModel):
    """How the model thinks."""

    effort: str | None = None


class ResponsesRequest(OpenModel):
    """Asks for the next items of a conversation."""

    model: str | None = None
    input: str | list[dict[str, object]]
    instructions: Annotated[str, BeforeValidator(_text)] | None = None
    max_output_tokens: Annotated[int, BeforeValidator(_count)] | None = None
    temperature: Annotated[float, _ruled("temperature")] | None = None
    top_p: Annotated[float, _ruled("top_p")] | None = None
    top_logprobs: Annotated[int, _ruled("top_logprobs")] | None = None
    stream: Flag = False
    text: Text = Field(default_factory=Text)
    reasoning: Reasoning | None = None
    tools: list[dict[str, object]] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: Flag | None = None
    include: list[str] = Field(default_factory=list)
    store: Flag | None = None
    truncation: str | None = None
    previous_response_id: object = None
    conversation: object = None
    prompt: object = None
    background: object = None
    metadata: Mapping[str, object] | None = None
    """Comes back in the answer."""
    user: str | None = None
    """Says who asks. It changes nothing, like the next one."""
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """Changes nothing: beginnings that are alike are always kept."""

    @field_validator("input")
    @classmethod
    def _some_input(cls, value: str | list[object]) -> object:
        if not value:
            raise checks.refuse("input", value, "should not be empty")
        if isinstance(value, str):
            return checks.string("input", value, MAX_TEXT_CHARS)
        return checks.listing("input", value, MAX_MESSAGES)

    @field_validator("previous_response_id", "conversation", "prompt", "background")
    @classmethod
    def _not_here(cls, value: object, info: ValidationInfo) -> object:
        if value:
            name = str(info.field_name)
            raise checks.refuse(name, value, NOT_HERE[name])
        return value

    @field_validator("truncation")
    @classmethod
    def _not_cut(cls, value: object) -> object:
        if value != "disabled":
            words = "only disabled: an input that is too long is refused, never cut"
            raise checks.refuse("truncation", value, words)
        return value
