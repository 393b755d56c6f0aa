"""How many log-probabilities an answer may have that is kept in memory until it ends."""

from __future__ import annotations

from typing import TypeVar

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest

MOST = 1 << 18
"""Of all tokens and choices together; one takes about 850 bytes until the answer is written."""
LEAST_TOKENS = 4096
"""Of an answer whose length nobody states. It ends at what MOST allows, if that is no less."""

RequestT = TypeVar("RequestT", ChatCompletionRequest, CompletionRequest)


def bounded_chat(
    request: ChatCompletionRequest, context: int, *, keeps_streamed: bool = False
) -> ChatCompletionRequest:
    """The request, of which no more has to be kept. context: of the model. keeps_streamed: what is
    streamed is kept as well.

    Raises `InvalidField` for an answer that may have more.
    """
    if not request.logprobs or (request.stream and not keeps_streamed):
        return request
    return _bounded(request, 1 + (request.top_logprobs or 0), context, "top_logprobs")


def bounded_completion(request: CompletionRequest, context: int) -> CompletionRequest:
    """The same for each prompt of a completion. The prompts are counted when they are tokens: see
    `calls/echoes.py`."""
    if request.logprobs is None or request.stream:
        return request
    each = len(request.prompts) * (1 + request.logprobs)
    return _bounded(request, each, context, "logprobs", has_prompt=request.echo)


def _bounded(
    request: RequestT, each: int, context: int, field: str, *, has_prompt: bool = False
) -> RequestT:
    """each: log-probabilities of a token. has_prompt: half of an answer without a stated length is
    left to the prompt."""
    config = request.generation_config()
    most, is_stated = MOST // (config.n * each), config.max_tokens >= 0
    tokens = min(config.max_tokens, context) if is_stated else context
    if tokens <= most:
        return request
    longest = most // 2 if has_prompt else most
    if is_stated or longest < LEAST_TOKENS:
        words = (
            f"a whole answer may have {MOST} log-probabilities, and with this n and max_tokens it "
            f"may have {config.n * tokens * each}: lower one of the three, or stream"
        )
        raise InvalidField(field, getattr(request, field), words)
    return request.model_copy(update={"max_tokens": longest})
