"""The requests of OpenAI's API: chat and completion. `openai_responses.py` has the answers.

In every optional field, null means the default. Numbers are checked here with the ranges of
`GenerationConfig`, so a wrong number is refused before the request is queued. Unknown fields are
kept: `unknown_fields()` lists them. Use `parse` or `parse_text`: they raise our errors of one line,
while the constructor and `model_validate` raise pydantic's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    SkipValidation,
    ValidationInfo,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from mlc_llm.errors import MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.base import OpenModel
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.generation_rules import MAX_N, MAX_TOP_LOGPROBS, RULES
from mlc_llm.protocol.openai_messages import (
    ChatCompletionMessage,
    ChatFunction,
    ChatFunctionCall,
    ChatTool,
    ChatToolCall,
)
from mlc_llm.protocol.openai_responses import (
    ChatCompletionDelta,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionStreamResponse,
    ChatCompletionStreamResponseChoice,
    CompletionLogProbs,
    CompletionResponse,
    CompletionResponseChoice,
    CompletionTokensDetails,
    FinishReason,
    FunctionCallDelta,
    ListResponse,
    LogProbs,
    LogProbsContent,
    ModelResponse,
    PromptTokensDetails,
    ToolCallDelta,
    TopLogProbs,
    UsageInfo,
)
from mlc_llm.protocol.prompt_field import Prompt, Prompts, checked_prompts, prompts_of
from mlc_llm.protocol.response_format import RequestResponseFormat

__all__ = [
    "CHAT_COMPLETION_MAX_TOP_LOGPROBS",
    "COMPLETION_MAX_TOP_LOGPROBS",
    "ChatCompletionDelta",
    "ChatCompletionMessage",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "ChatCompletionResponseChoice",
    "ChatCompletionStreamResponse",
    "ChatCompletionStreamResponseChoice",
    "ChatFunction",
    "ChatFunctionCall",
    "ChatTool",
    "ChatToolCall",
    "CompletionLogProbs",
    "CompletionRequest",
    "CompletionResponse",
    "CompletionResponseChoice",
    "CompletionTokensDetails",
    "FinishReason",
    "FunctionCallDelta",
    "ListResponse",
    "LogProbs",
    "LogProbsContent",
    "ModelResponse",
    "PromptTokensDetails",
    "RequestResponseFormat",
    "StreamOptions",
    "ToolCallDelta",
    "TopLogProbs",
    "UsageInfo",
]

CHAT_COMPLETION_MAX_TOP_LOGPROBS = MAX_TOP_LOGPROBS
COMPLETION_MAX_TOP_LOGPROBS = 5

MAX_MESSAGES = 16384
MAX_PROMPTS = 1024
MAX_TOOLS = 1024
MAX_TEMPLATE_VALUES = 64
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _rule(name: str) -> BeforeValidator:
    """The check that `GenerationConfig` has for this field."""
    return BeforeValidator(lambda value: RULES[name](name, value))


def _bool(value: object, info: ValidationInfo) -> bool:
    return checks.boolean(str(info.field_name), value)


def _stop(value: object) -> list[str]:
    stops: list[str] = RULES["stop_strs"]("stop", [value] if isinstance(value, str) else value)
    return stops


def _count(low: int, high: int = MAX_INT32) -> BeforeValidator:
    """A number of things. -1 is refused: leave the field out for "no limit"."""
    return BeforeValidator(
        lambda value, info: checks.integer(str(info.field_name), value, low, high)
    )


Flag = Annotated[bool, BeforeValidator(_bool)]
Stop = Annotated[list[str], BeforeValidator(_stop)]


class StreamOptions(OpenModel):
    """`include_usage` asks for a last chunk with the usage."""

    include_usage: Flag = False


class _SamplingFields(OpenModel):
    """The fields about sampling that both kinds of request have. None: the model's default."""

    model: str | None = None
    n: Annotated[int, _rule("n")] = 1
    temperature: Annotated[float, _rule("temperature")] | None = None
    top_p: Annotated[float, _rule("top_p")] | None = None
    top_k: Annotated[int, _rule("top_k")] | None = None
    min_p: Annotated[float, _rule("min_p")] | None = None
    frequency_penalty: Annotated[float, _rule("frequency_penalty")] | None = None
    presence_penalty: Annotated[float, _rule("presence_penalty")] | None = None
    repetition_penalty: Annotated[float, _rule("repetition_penalty")] | None = None
    logit_bias: Annotated[dict[int, float], _rule("logit_bias")] | None = None
    seed: Annotated[int, _rule("seed")] | None = None
    stop: Stop | None = None
    """A string or a list of strings. The attribute is always a list."""
    stream: Flag = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Says who asks. It changes nothing and is never used as a request id."""
    response_format: RequestResponseFormat | None = None
    debug_config: DebugConfig | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            shown = self.stream_options.model_dump()
            raise checks.refuse("stream_options", shown, "allowed only when stream is true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _sampling(self) -> dict[str, object]:
        """The given fields that have the same name in `GenerationConfig`."""
        names = [name for name in _SAME_NAMES if getattr(self, name) is not None]
        return {name: getattr(self, name) for name in names if name in self.model_fields_set}


_SAME_NAMES = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "response_format",
    "debug_config",
)


class ChatCompletionRequest(_SamplingFields):
    """A request for the next message of a conversation."""

    messages: list[ChatCompletionMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    logprobs: Flag = False
    top_logprobs: Annotated[int, _rule("top_logprobs")] = 0
    max_tokens: Annotated[int, _count(1)] | None = None
    max_completion_tokens: Annotated[int, _count(1)] | None = None
    """The newer name. It has priority over `max_tokens`."""
    tools: list[ChatTool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, object] | None = None
    """`none`, `auto`, `required`, a tool's name, or OpenAI's object that names a function."""
    parallel_tool_calls: Flag | None = None
    reasoning_effort: str | None = None
    """How long the model thinks, where its chat template knows of it."""
    chat_template_kwargs: dict[str, object] | None = None
    """More values for the chat template, such as `enable_thinking`: plain values by name."""

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _tool_choice_form(cls, value: object) -> object:
        if isinstance(value, dict):
            _chosen_name(value)
        elif not isinstance(value, str):
            raise checks.wrong_type("tool_choice", value, "should be a string or an object")
        return value

    @field_validator("reasoning_effort", mode="before")
    @classmethod
    def _known_effort(cls, value: object) -> str:
        return checks.one_of("reasoning_effort", value, REASONING_EFFORTS)

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _plain_values(cls, value: object) -> dict[str, object]:
        field = "chat_template_kwargs"
        if not isinstance(value, Mapping):
            raise checks.wrong_type(field, value, "should be an object")
        if len(value) > MAX_TEMPLATE_VALUES:
            raise checks.refuse(field, f"<{len(value)} names>", f"at most {MAX_TEMPLATE_VALUES}")
        return {str(name): _plain(f"{field}.{name}"[:80], one) for name, one in value.items()}

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise checks.refuse("top_logprobs", self.top_logprobs, "it needs logprobs = true")
        names = [tool.function.name for tool in self.tools or []]
        twice = next((i for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise checks.refuse(f"tools[{twice}].function.name", names[twice], "it is given twice")
        chosen = self.chosen_tool
        if chosen is not None and chosen not in names:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "there are none"
            allowed = f"should be none, auto, required or one of the tools: {known}"
            allowed = f"Invalid tool_choice value; {allowed}"
            raise checks.refuse("tool_choice", self.tool_choice, allowed)
        if self.tool_choice == "required" and not names:
            allowed = "Invalid tool_choice value; there are no tools to choose from"
            raise checks.refuse("tool_choice", self.tool_choice, allowed)
        return self

    @property
    def chosen_tool(self) -> str | None:
        """The function that must be called, if `tool_choice` names one."""
        if isinstance(self.tool_choice, dict):
            return _chosen_name(self.tool_choice)
        named = self.tool_choice not in (None, "none", "auto", "required")
        return self.tool_choice if named else None

    @property
    def must_call(self) -> bool:
        """Whether the answer is a call: of any tool, or of the chosen one."""
        return self.tool_choice == "required" or self.chosen_tool is not None

    @property
    def usable_tools(self) -> list[ChatTool]:
        """The tools that the model gets: none, all, or the chosen one."""
        if self.tool_choice == "none":
            return []
        chosen = self.chosen_tool
        return [one for one in self.tools or [] if chosen in (None, one.function.name)]

    def generation_config(self) -> GenerationConfig:
        """The settings of this request. The engine fills the others with the model's defaults."""
        limit = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        own = {
            "logprobs": self.logprobs or None,
            "top_logprobs": self.top_logprobs or None,
            "max_tokens": limit,
            "stop_strs": self.stop,
        }
        return GenerationConfig.model_validate({**self._sampling(), **own})


class CompletionRequest(_SamplingFields):
    """A request to continue a text (the older API)."""

    prompt: SkipValidation[Prompts]
    """One or many texts, or one or many lists of token ids."""
    best_of: Annotated[int, _count(1, MAX_N)] | None = None
    echo: Flag = False
    logprobs: int | None = None
    """How many likely tokens to report at each place, 0 to 5. None reports nothing."""
    max_tokens: Annotated[int, _count(0)] | None = None
    suffix: str | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt_form(cls, value: object) -> object:
        return checked_prompts("prompt", value, MAX_PROMPTS)

    @field_validator("logprobs", mode="before")
    @classmethod
    def _logprobs_range(cls, value: object) -> int:
        return checks.integer("logprobs", value, 0, COMPLETION_MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _no_best_of(self) -> Self:
        if self.best_of not in (None, self.n):
            allowed = f"best_of is not supported: leave it out, or give {self.n}, the value of n"
            raise checks.refuse("best_of", self.best_of, allowed)
        return self

    @property
    def prompt_logprobs(self) -> int | None:
        """How many likely tokens to report at each place of the prompt; None reports nothing."""
        return self.logprobs if self.echo else None

    @property
    def prompts(self) -> list[Prompt]:
        """Each prompt of the request, in order."""
        return prompts_of(self.prompt)

    def generation_config(self) -> GenerationConfig:
        """The settings of this request. The engine fills the others with the model's defaults."""
        own = {
            "logprobs": None if self.logprobs is None else True,
            "top_logprobs": self.logprobs or None,
            "max_tokens": self.max_tokens,
            "stop_strs": self.stop,
        }
        return GenerationConfig.model_validate({**self._sampling(), **own})


def _plain(field: str, value: object) -> object:
    """A value that is no object and no list."""
    if isinstance(value, str):
        return checks.string(field, value, 4096)
    if isinstance(value, int) and not isinstance(value, bool):
        return checks.integer(field, value, -(2**53), 2**53)
    if isinstance(value, float):
        return checks.number(field, value, -1e300, 1e300)
    if value is None or isinstance(value, bool):
        return value
    raise checks.wrong_type(field, value, "should be a text, a number, true, false or null")


def _chosen_name(choice: dict[str, object]) -> str:
    """The name in {"type": "function", "function": {"name": ...}}."""
    if choice.get("type") != "function":
        raise checks.refuse("tool_choice.type", choice.get("type"), "should be function")
    function = choice.get("function")
    if not isinstance(function, dict) or "name" not in function:
        raise MissingKey("tool_choice.function.name", "name")
    return checks.string("tool_choice.function.name", function["name"], 256, min_chars=1)
