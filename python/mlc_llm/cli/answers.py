"""What a command got as an answer, from an engine or from a server."""

from __future__ import annotations

import json
from dataclasses import asdict

from mlc_llm.record import record


@record()
class Timings:
    """Seconds of the wall clock and tokens per second. None if nothing was measured."""

    load_s: float | None
    """The time to open the model, including its download, packing and compilation. None if a
    server has it open."""
    ttft_s: float | None
    """The time from the request to the first token."""
    total_s: float
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    """The rate of the tokens after the first one."""


@record()
class Answer:
    """The answer to one request. Counts of tokens are None if a server does not tell them."""

    model: str
    text: str
    finish_reason: str
    """`abort`: Ctrl-C stopped it, and `text` is the text until then."""
    prompt_tokens: int | None
    completion_tokens: int | None
    timings: Timings

    @property
    def total_tokens(self) -> int | None:
        """Prompt and answer together."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens

    def asjson(self) -> str:
        """One JSON object, only ASCII, so that no pipe can change it."""
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
        }
        return json.dumps(
            {
                "model": self.model,
                "text": self.text,
                "finish_reason": self.finish_reason,
                "usage": usage,
                "timings": {name: _rounded(value) for name, value in asdict(self.timings).items()},
            }
        )

    def stats(self) -> str:
        """One line for the user."""
        timings = self.timings
        parts = ["the server counts no tokens"]
        if self.total_tokens is not None:
            parts = [f"{self.prompt_tokens} prompt tokens"]
            parts.append(f"{self.completion_tokens} answer tokens")
        if timings.ttft_s is not None:
            parts.append(f"first token after {timings.ttft_s:.2f} s")
        if timings.decode_tokens_per_s is not None:
            parts.append(f"{timings.decode_tokens_per_s:.1f} tokens/s")
        if timings.load_s is not None:
            parts.append(f"model opened in {timings.load_s:.2f} s")
        return ", ".join(parts)


def rate(count: int, seconds: float | None) -> float | None:
    """Tokens per second. None if there is nothing to divide."""
    return count / seconds if seconds and count > 0 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
