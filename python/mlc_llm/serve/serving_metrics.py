"""How requests went: how long they waited, when their tokens came, how they ended.

The numbers are those of vLLM's metrics (docs.vllm.ai, "Metrics"), so that dashboards made for it
work; `serving_page.py` has their names. The engine core fills them. A step costs a few calls,
however many sequences it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial

from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.histogram import SECONDS, SHORT_SECONDS, TOKENS, Histogram
from mlc_llm.serve.metrics import RequestMetrics

_seconds = partial(Histogram, SECONDS)
_short = partial(Histogram, SHORT_SECONDS)
_tokens = partial(Histogram, TOKENS)
REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")


@dataclass
class ServingMetrics:
    """Sums and histograms since the start, or the last reset. All times are in seconds of the
    engine's clock; a request arrives when its prompt is token ids, and may wait before the engine
    takes it."""

    time_to_first_token: Histogram = field(default_factory=_seconds)
    """From the arrival of a request."""
    inter_token_latency: Histogram = field(default_factory=_short)
    """Between two steps that gave a sequence tokens. A step may give several."""
    time_per_output_token: Histogram = field(default_factory=_short)
    """`RequestMetrics.inter_token_latency_s` of each request with two tokens or more."""
    end_to_end: Histogram = field(default_factory=_seconds)
    queue_time: Histogram = field(default_factory=_seconds)
    """From the arrival to the first step."""
    prefill_time: Histogram = field(default_factory=_seconds)
    """From the first step to the first token."""
    decode_time: Histogram = field(default_factory=_seconds)
    """From the first token to the end."""
    inference_time: Histogram = field(default_factory=_seconds)
    """From the first step to the end."""
    request_prompt_tokens: Histogram = field(default_factory=_tokens)
    request_generation_tokens: Histogram = field(default_factory=_tokens)
    request_max_tokens: Histogram = field(default_factory=_tokens)
    """`max_tokens` of the requests that have one."""
    request_n: Histogram = field(default_factory=_tokens)
    iteration_tokens: Histogram = field(default_factory=_tokens)
    """Tokens that a step computed."""
    prompt_tokens: int = 0
    """Of requests that have their first token; those from the prefix cache count too."""
    generation_tokens: int = 0
    """Of all requests, as soon as they are chosen."""
    prefix_queries: int = 0
    """Tokens of prompts that were looked up in the prefix cache."""
    prefix_hits: int = 0
    """Those of them that it had."""
    corrupted: int = 0
    """Requests that ended because the model failed or its numbers were not finite."""
    ended: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    """Requests by the worst end of their sequences."""

    def started(self, request: RequestMetrics, now: float) -> None:
        """A request takes part in a step. Later calls change nothing."""
        if request.started_at is None:
            request.started_at = now
            self.queue_time.add(now - request.added_at)

    def first_token(self, request: RequestMetrics, now: float) -> None:
        """A request got its first token."""
        request.saw_token(now)
        self.time_to_first_token.add(now - request.added_at)
        self.prompt_tokens += request.prompt_tokens
        if request.started_at is not None:
            self.prefill_time.add(now - request.started_at)

    def step(self, *, computed: int, generated: int, gaps: Sequence[float]) -> None:
        """A step computed some tokens and chose some. gaps: for each sequence, the time since the
        last step that gave it tokens. Most are equal."""
        if computed:
            self.iteration_tokens.add(computed)
        self.generation_tokens += generated
        for gap, times in Counter(gaps).items():
            self.inter_token_latency.add(gap, times)

    def lookup(self, tokens: int, cached: int) -> None:
        """A prompt was looked up in the prefix cache."""
        self.prefix_queries += tokens
        self.prefix_hits += cached

    def end(self, request: RequestMetrics, reason: FinishReason, *, n: int, limit: int) -> None:
        """A request is over. limit: its `max_tokens`, negative without one."""
        self.ended[reason] += 1
        self.end_to_end.add(request.end_to_end_latency_s)
        self.request_prompt_tokens.add(request.prompt_tokens)
        self.request_generation_tokens.add(request.completion_tokens)
        self.request_n.add(n)
        if limit >= 0:
            self.request_max_tokens.add(limit)
        if request.completion_tokens > 1:
            self.time_per_output_token.add(request.inter_token_latency_s)
        if request.finished_at is None:
            return
        if request.first_token_at is not None:
            self.decode_time.add(request.finished_at - request.first_token_at)
        if request.started_at is not None:
            self.inference_time.add(request.finished_at - request.started_at)

    def asdict(self) -> dict[str, object]:
        """All numbers by the names of the fields."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value.asdict() if isinstance(value, Histogram) else value
            for name, value in values.items()
        }
