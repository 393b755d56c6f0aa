"""How many log-probabilities an answer may have that begins with those of its prompts."""

from __future__ import annotations

from dataclasses import replace

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import CompletionRequest
from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.openai.completions import CompletionCall
from mlc_llm.serve.openai.prompt_size import telling_size
from mlc_llm.serve.server.limits.whole_size import MOST


def bounded_echoes(
    call: CompletionCall, request: CompletionRequest, context: int
) -> CompletionCall:
    """The call, which is refused with `InvalidField` once its prompts are tokens and its answer may
    have more than `MOST`. context: of the model. A stream shows those of a prompt at once, so they
    count there too."""
    if request.prompt_logprobs is None:
        return call
    bound = _Bound(request, request.prompt_logprobs, context)
    return replace(call, parts=[bound.counting(part) for part in call.parts])


class _Bound:
    """Counts the log-probabilities of one answer."""

    def __init__(self, request: CompletionRequest, top: int, context: int) -> None:
        """top: likely tokens at each place."""
        stated = request.generation_config().max_tokens
        whole = context if stated < 0 else stated
        self._behind = 0 if request.stream else whole
        """Tokens behind a prompt, at most, that are kept with it."""
        self._top, self._context, self._count = top, context, 0

    def counting(self, part: Part) -> Part:
        """The same part, counted when its request is made."""
        return telling_size(part, lambda tokens: self._add(part.n, tokens))

    def _add(self, n: int, prompt_tokens: int) -> None:
        """n: choices of the prompt. Raises `InvalidField`."""
        tokens = min(prompt_tokens + self._behind, self._context)
        self._count += n * tokens * (1 + self._top)
        if self._count > MOST:
            words = (
                f"an answer may have {MOST} log-probabilities, and with those of the prompts it "
                f"may have {self._count} or more: send fewer or shorter prompts at a time, or "
                "lower n or max_tokens"
            )
            raise InvalidField("logprobs", self._top, words)
