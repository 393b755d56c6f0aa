"""Answers of OpenAI's API: chunks, whole answers, usage, log-probabilities, the model list."""

from __future__ import annotations

import math
import time
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from mlc_llm.protocol.base import AnswerModel
from mlc_llm.protocol.error_protocol import ErrorBody
from mlc_llm.protocol.openai_messages import ChatCompletionMessage

FinishReason = Literal[
    "stop", "length", "tool_calls", "content_filter", "abort", "error", "preempt"
]
"""The first four are OpenAI's. The other three cross the JSON FFI, but are never sent over HTTP."""

LEAST_LOGPROB = -9999.0


def finite_logprob(value: float) -> float:
    """JSON has no infinity, so minus infinity becomes -9999. NaN raises ValueError."""
    if math.isnan(value) or value > 1e-3:
        raise ValueError(f"{value} is not a log-probability")
    return max(value, LEAST_LOGPROB)


Logprob = Annotated[float, BeforeValidator(finite_logprob)]


def _now() -> int:
    return int(time.time())


class TopLogProbs(AnswerModel):
    """A likely token. `bytes` is exact where the token is not a whole number of characters."""

    token: str
    logprob: Logprob
    bytes: list[int] | None


class LogProbsContent(TopLogProbs):
    """A token of the answer, and the likeliest tokens at its place, most likely first."""

    top_logprobs: list[TopLogProbs] = Field(default_factory=list)


class PromptLogProb(AnswerModel):
    """A token of a prompt, and the likeliest tokens at its place. The first token of a prompt has
    null in place of both."""

    token: str
    logprob: Logprob | None
    bytes: list[int] | None
    top_logprobs: list[TopLogProbs] | None


class LogProbs(AnswerModel):
    """One item for each token of the text that it comes with."""

    content: list[LogProbsContent]


class CompletionLogProbs(AnswerModel):
    """The older form: parallel lists. The first token of an echoed prompt has no probability."""

    text_offset: list[int] = Field(default_factory=list)
    token_logprobs: list[Logprob | None] = Field(default_factory=list)
    tokens: list[str] = Field(default_factory=list)
    top_logprobs: list[dict[str, Logprob] | None] = Field(default_factory=list)


class PromptTokensDetails(AnswerModel):
    """How many tokens of the prompt came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(AnswerModel):
    """How many tokens of the answer were reasoning."""

    reasoning_tokens: int = 0


class UsageInfo(AnswerModel):
    """The tokens of a request. Each request has exactly one usage, and it comes last."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    extra: dict[str, object] | None = None
    """Our own measurements of the request."""


class FunctionCallDelta(AnswerModel):
    """The next part of a call. The name comes once, the arguments come in pieces."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(AnswerModel):
    """A piece of the tool call number `index` (from 0, without gaps). `id` and `type` come once."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta | None = None


class ChatCompletionDelta(AnswerModel):
    """What a chunk adds to a choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatCompletionStreamResponseChoice(AnswerModel):
    """One choice of a chunk."""

    finish_reason: FinishReason | None = None
    index: int = 0
    delta: ChatCompletionDelta
    logprobs: LogProbs | None = None


class ChatCompletionStreamResponse(AnswerModel):
    """A chunk of a streamed chat answer. The last chunk has `usage` and no choices.

    With `error`, the text of the choices is not an answer: it says what went wrong.
    """

    id: str
    choices: list[ChatCompletionStreamResponseChoice]
    created: int = Field(default_factory=_now)
    model: str = ""
    system_fingerprint: str = ""
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: UsageInfo | None = None
    error: ErrorBody | None = None


class ChatCompletionResponseChoice(AnswerModel):
    """One finished answer."""

    finish_reason: FinishReason | None = None
    index: int = 0
    message: ChatCompletionMessage
    logprobs: LogProbs | None = None


class ChatCompletionResponse(AnswerModel):
    """A whole chat answer."""

    id: str
    choices: list[ChatCompletionResponseChoice]
    created: int = Field(default_factory=_now)
    model: str = ""
    system_fingerprint: str = ""
    object: Literal["chat.completion"] = "chat.completion"
    usage: UsageInfo | None = None


class CompletionResponseChoice(AnswerModel):
    """One continuation, or a piece of it."""

    finish_reason: FinishReason | None = None
    index: int = 0
    text: str
    logprobs: CompletionLogProbs | None = None


class CompletionResponse(AnswerModel):
    """A whole answer of the older API, or a chunk of a streamed answer."""

    id: str
    choices: list[CompletionResponseChoice]
    created: int = Field(default_factory=_now)
    model: str = ""
    system_fingerprint: str = ""
    object: Literal["text_completion"] = "text_completion"
    usage: UsageInfo | None = None


class ModelResponse(AnswerModel):
    """A served model. Different clients read different names of its length: all four are equal."""

    id: str
    created: int = Field(default_factory=_now)
    object: Literal["model"] = "model"
    owned_by: str = "MLC-LLM"
    max_model_len: int | None = None
    context_length: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    root: str | None = None
    parent: str | None = None
    state: str | None = None
    """ready, closed (a request opens it), opening, draining, or failed."""
    error: str | None = None
    """Why it could not be opened."""
    input_modalities: list[Literal["text", "image"]] | None = None
    default_parameters: dict[str, float] | None = None
    """How tokens are chosen where a request does not say it, as far as the model's files do."""


class ListResponse(AnswerModel):
    """The list of models."""

    object: Literal["list"] = "list"
    data: list[ModelResponse]
