"""How many log-probabilities a whole answer may have: it is kept in memory until it ends."""

from __future__ import annotations

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest

MOST = 1 << 18
"""Of all tokens and choices together; one takes about 850 bytes until the answer is written."""


def check_chat_size(request: ChatCompletionRequest, context: int) -> None:
    """Raises `InvalidField` for a whole answer that may have more. context: of the model."""
    if request.logprobs and not request.stream:
        _check(request, 1 + (request.top_logprobs or 0), context, "top_logprobs")


def check_completion_size(request: CompletionRequest, context: int) -> None:
    """The same for each prompt of a completion."""
    if request.logprobs is not None and not request.stream:
        each = len(request.prompts) * (1 + request.logprobs)
        _check(request, each, context, "logprobs")


def _check(
    request: ChatCompletionRequest | CompletionRequest, each: int, context: int, field: str
) -> None:
    config = request.generation_config()
    tokens = min(context if config.max_tokens is None else config.max_tokens, context)
    found = config.n * tokens * each
    if found > MOST:
        words = (
            f"a whole answer may have {MOST} log-probabilities, and with this n and max_tokens it "
            f"may have {found}: lower one of the three, or stream"
        )
        raise InvalidField(field, getattr(request, field), words)
