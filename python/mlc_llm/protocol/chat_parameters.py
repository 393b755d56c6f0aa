"""The arguments of `create`, the same for every engine that has it: of chats and of completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from mlc_llm.protocol.messages import GivenMessage, GivenTool


class SamplingParameters(TypedDict, total=False):
    """Named as in OpenAI's API. A parameter that is left out, or None, has its default."""

    model: str | None
    """The name that the answer repeats. It chooses nothing."""
    frequency_penalty: float | None
    """See `GenerationConfig`."""
    presence_penalty: float | None
    """See `GenerationConfig`."""
    logit_bias: Mapping[int, float] | None
    """See `GenerationConfig`."""
    max_tokens: int | None
    """The most tokens of an answer. None: no limit but the context window."""
    n: int
    """Answers, 1 to 128. The default is 1."""
    seed: int | None
    """See `GenerationConfig`."""
    stop: str | Sequence[str] | None
    """The answer ends before this text, or before any of these texts."""
    stream_options: Mapping[str, object] | None
    """`{"include_usage": True}` asks for a last chunk with the usage."""
    temperature: float | None
    """See `GenerationConfig`."""
    top_p: float | None
    """See `GenerationConfig`."""
    user: str | None
    """Says who asks. It changes nothing."""
    response_format: Mapping[str, object] | None
    """See `GenerationConfig`."""
    request_id: str | None
    """The id of the request and of its chunks. None makes a new one."""
    extra_body: Mapping[str, object] | None
    """More fields of the request, which OpenAI's API does not have, such as `debug_config`."""


class StreamParameter(TypedDict, total=False):
    """Apart from the others, because the type of an answer depends on it."""

    stream: bool
    """Whether the answer comes in chunks. The default is False; `JSONFFIEngine` only streams."""


class _NeededForChat(TypedDict):
    messages: Sequence[GivenMessage]
    """The conversation: dicts of OpenAI's shape."""


class ChatArguments(_NeededForChat, SamplingParameters, total=False):
    """The arguments of `chat.completions.create` but for `stream`."""

    max_completion_tokens: int | None
    """OpenAI's newer name of `max_tokens`. It goes before the other one."""
    logprobs: bool
    """Report the log-probability of each token."""
    top_logprobs: int
    """Report this many of the likeliest tokens too, 0 to 20. It needs `logprobs`."""
    tools: Sequence[GivenTool] | None
    """The functions that the model may call: dicts of OpenAI's shape."""
    tool_choice: str | Mapping[str, object] | None
    """`"none"`, `"auto"`, `"required"`, or OpenAI's object that names a function."""
    parallel_tool_calls: bool | None
    """Whether an answer may have several calls. The default is True."""
    reasoning_effort: str | None
    """How long the model thinks, where its chat template knows of it: `"none"` to `"max"`."""


class ChatParameters(ChatArguments, StreamParameter, total=False):
    """The arguments of `chat.completions.create`."""


class _NeededForCompletion(TypedDict):
    prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
    """One text or several, or the token ids of one or of several."""


class CompletionArguments(_NeededForCompletion, SamplingParameters, total=False):
    """The arguments of `completions.create` but for `stream`."""

    best_of: int | None
    """Only the value of `n`: answers are not compared."""
    echo: bool
    """The text of each answer begins with its prompt, and so do its log-probabilities."""
    logprobs: int | None
    """Report the log-probability of each token, and of this many of the likeliest, 0 to 5."""
    suffix: str | None
    """Text behind the answer; it is refused, unless it is empty."""


class CompletionParameters(CompletionArguments, StreamParameter, total=False):
    """The arguments of `completions.create`."""


class _NeededForEmbedding(TypedDict):
    input: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
    """One text or several, or the token ids of one or of several; at most 2048."""


class EmbeddingParameters(_NeededForEmbedding, total=False):
    """The arguments of `embeddings.create`. One that is left out, or None, has its default."""

    model: str | None
    """The name that the answer repeats. It chooses nothing."""
    encoding_format: str | None
    """`"float"`, the default, or `"base64"`: the bytes of float32 numbers, the lowest first."""
    dimensions: int | None
    """Keep so many of the first numbers, and make the length 1 again. None keeps all."""
    user: str | None
    """Says who asks. It changes nothing."""
    request_id: str | None
    """The id of the request. None makes a new one."""
    extra_body: Mapping[str, object] | None
    """More fields of the request."""


AnyParameters = ChatParameters | CompletionParameters | EmbeddingParameters

CHAT_CLASSES = (_NeededForChat, SamplingParameters, StreamParameter, ChatArguments)
COMPLETION_CLASSES = (
    _NeededForCompletion,
    SamplingParameters,
    StreamParameter,
    CompletionArguments,
)
EMBEDDING_CLASSES = (_NeededForEmbedding, EmbeddingParameters)
"""The parameters in order: first those without a default."""


def check_names(given: Iterable[str], of: type = ChatParameters) -> None:
    """Raise TypeError for an unknown or a missing parameter, as Python does for any function.

    of: the class with the parameters.
    """
    names, needed = set(given), of.__required_keys__  # type: ignore[attr-defined]
    known = needed | of.__optional_keys__  # type: ignore[attr-defined]
    for name in sorted(names - known):
        words = f"create() got an unexpected keyword argument {name!r}"
        raise TypeError(f"{words}; more fields go into extra_body")
    for name in sorted(needed - names):
        raise TypeError(f"create() missing a required keyword-only argument: {name!r}")
