"""The arguments of `chat.completions.create`, the same for every engine that has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from mlc_llm.protocol.messages import GivenMessage, GivenTool


class _NeededParameters(TypedDict):
    messages: Sequence[GivenMessage]
    """The conversation: dicts of OpenAI's shape."""


class ChatParameters(_NeededParameters, total=False):
    """Named as in OpenAI's API. A parameter that is left out, or None, has its default."""

    model: str | None
    """The name that the chunks of the answer repeat. It chooses nothing."""
    frequency_penalty: float | None
    """See `GenerationConfig`."""
    presence_penalty: float | None
    """See `GenerationConfig`."""
    logprobs: bool
    """Report the log-probability of each token."""
    top_logprobs: int
    """Report this many of the likeliest tokens too, 0 to 20. It needs `logprobs`."""
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
    stream: bool
    """Whether the answer comes in chunks. The default is True."""
    stream_options: Mapping[str, object] | None
    """`{"include_usage": True}` asks for a last chunk with the usage."""
    temperature: float | None
    """See `GenerationConfig`."""
    top_p: float | None
    """See `GenerationConfig`."""
    tools: Sequence[GivenTool] | None
    """The functions that the model may call: dicts of OpenAI's shape."""
    tool_choice: str | Mapping[str, object] | None
    """`"none"`, `"auto"`, or OpenAI's object that names a function."""
    user: str | None
    """Says who asks. It changes nothing."""
    response_format: Mapping[str, object] | None
    """See `GenerationConfig`."""
    request_id: str | None
    """The id of the request and of its chunks. None makes a new one."""
    extra_body: Mapping[str, object] | None
    """More fields of the request, which OpenAI's API does not have, such as `debug_config`."""


CLASSES = (_NeededParameters, ChatParameters)
"""The parameters in order: first those without a default."""

_NEEDED = ChatParameters.__required_keys__
_KNOWN = _NEEDED | ChatParameters.__optional_keys__


def check_names(given: Iterable[str]) -> None:
    """Raise TypeError for an unknown or a missing parameter, as Python does for any function."""
    names = set(given)
    for name in sorted(names - _KNOWN):
        raise TypeError(f"create() got an unexpected keyword argument {name!r}")
    for name in sorted(_NEEDED - names):
        raise TypeError(f"create() missing a required keyword-only argument: {name!r}")
