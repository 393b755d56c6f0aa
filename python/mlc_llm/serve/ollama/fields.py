"""The requests of Ollama's API. In every optional field, null means the default."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from mlc_llm.protocol import checks
from mlc_llm.protocol.base import OpenModel
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.generation_rules import RULES
from mlc_llm.protocol.messages import MAX_TEXT_CHARS
from mlc_llm.protocol.openai_api_protocol import MAX_MESSAGES, MAX_TOOLS, Flag, Stop
from mlc_llm.serve.ollama.durations import seconds_of


def _ruled(rule: str) -> BeforeValidator:
    """The check of a field of `GenerationConfig`, under the name that the field has here."""
    return BeforeValidator(lambda value, info: RULES[rule](str(info.field_name), value))


def _no_limit(value: object) -> int | None:
    """-1 and -2 mean no limit."""
    allowed = f"should be -1 or -2 (no limit) or an integer in range [1, {MAX_INT32}]"
    found = checks.integer("num_predict", value, -2, MAX_INT32, allowed)
    if found == 0:
        raise checks.refuse("num_predict", 0, allowed)
    return found if found > 0 else None


def _any_seed(value: object, info: ValidationInfo) -> int | None:
    """-1 means another one each time."""
    return None if value == -1 else RULES["seed"](str(info.field_name), value)


def _text(value: object, info: ValidationInfo) -> str:
    return checks.string(str(info.field_name), value, MAX_TEXT_CHARS)


Text = Annotated[str, BeforeValidator(_text)]
KeepAlive = Annotated[float | None, BeforeValidator(seconds_of)]
"""Seconds for which the model stays open after this request; infinite: for good. None: as the
server has it."""


class Options(OpenModel):
    """How the answer is sampled. Options that it does not have are kept, and have no effect."""

    num_predict: Annotated[int | None, BeforeValidator(_no_limit)] = None
    temperature: Annotated[float, _ruled("temperature")] | None = None
    top_k: Annotated[int, _ruled("top_k")] | None = None
    top_p: Annotated[float, _ruled("top_p")] | None = None
    min_p: Annotated[float, _ruled("min_p")] | None = None
    seed: Annotated[int | None, BeforeValidator(_any_seed)] = None
    stop: Stop | None = None
    repeat_penalty: Annotated[float, _ruled("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, _ruled("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _ruled("frequency_penalty")] | None = None
    num_ctx: Annotated[int, Field(ge=1)] | None = None
    """At most the context of the model, which is always as long as it can be."""


class _Generation(OpenModel):
    """What both kinds of request have."""

    model: str | None = None
    stream: Flag = True
    format: str | dict[str, object] | None = None
    """"json", or a JSON schema."""
    options: Options = Field(default_factory=Options)
    keep_alive: KeepAlive = None
    think: bool | str | None = None
    logprobs: Flag = False
    top_logprobs: Annotated[int, _ruled("top_logprobs")] | None = None

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: object) -> object:
        if isinstance(value, str) and value not in ("", "json"):
            raise checks.refuse("format", value, 'should be "json" or a JSON schema')
        return value

    @field_validator("think")
    @classmethod
    def _known_effort(cls, value: object) -> object:
        if isinstance(value, str):
            checks.one_of("think", value, ("low", "medium", "high"))
        return value


class ChatRequest(_Generation):
    """Asks for the next message of a conversation. Without messages, for nothing."""

    messages: list[dict[str, object]] = Field(default_factory=list, max_length=MAX_MESSAGES)
    tools: list[dict[str, object]] | None = Field(default=None, max_length=MAX_TOOLS)


class GenerateRequest(_Generation):
    """Asks for an answer to a text. Without a text, for nothing."""

    prompt: Text = ""
    system: Text = ""
    raw: Flag = False
    """The text is continued as it stands, without a chat template."""
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    """In base64. They stand before the prompt."""

    @field_validator("suffix", "template", "context")
    @classmethod
    def _not_here(cls, value: object, info: ValidationInfo) -> object:
        if value:
            name = str(info.field_name)
            raise checks.refuse(name, value, NOT_HERE[name])
        return value


NOT_HERE = {
    "suffix": "text cannot be inserted before a suffix",
    "template": "the template of the model is used; raw takes a prompt without one",
    "context": "send the conversation to /api/chat",
}
"""Why a field is refused."""


class ShowRequest(OpenModel):
    """Asks about a model."""

    model: str | None = None
    name: str | None = None
    """The older name of `model`."""
    verbose: Flag = False


class EmbedRequest(OpenModel):
    """Asks for the embeddings of a text, or of several."""

    model: str | None = None
    input: object
    """Checked as the input of OpenAI's embeddings."""
    dimensions: object = None
    truncate: Flag | None = None
    """Without effect: a text that is too long is refused."""
    options: dict[str, object] | None = None
    keep_alive: KeepAlive = None


class OldEmbedRequest(OpenModel):
    """Asks for the embedding of one text, as older clients do."""

    model: str | None = None
    prompt: Text = ""
    options: dict[str, object] | None = None
    keep_alive: KeepAlive = None
