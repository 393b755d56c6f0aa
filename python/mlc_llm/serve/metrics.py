"""What is measured: of one request, of the engine, and both as text for Prometheus.

Times are seconds of a monotonic clock that the caller reads; nothing here looks at a clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from mlc_llm.serve.prometheus import prometheus_text

MAX_TRACKED_BATCH_SIZE = 64


@dataclass(slots=True)
class RequestMetrics:
    """One request from arrival to end. Filled by the engine core, read for its usage item."""

    prompt_tokens: int = 0
    """Of the prompt, with those from the prefix cache."""
    completion_tokens: int = 0
    """Generated, of all branches together."""
    prefill_tokens: int = 0
    """Prompt tokens computed: not those from the prefix cache, nor what is computed again after a
    preemption. Branches share the prompt, but each computes its last token."""
    prefill_s: float = 0.0
    """Seconds of the steps that computed some of them; time in the queue is not in it."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had."""
    decode_tokens: int = 0
    """Generated tokens computed, those that a grammar forced too; each once, whatever preemptions
    there were. What the last step added never is."""
    jump_forward_tokens: int = 0
    """Generated tokens that a grammar forced, so that the model was not asked for them."""
    added_at: float = 0.0
    first_token_at: float | None = None
    finished_at: float | None = None

    def saw_token(self, now: float) -> None:
        """Note the time of the first token; later calls change nothing."""
        if self.first_token_at is None:
            self.first_token_at = now

    def finish(self, now: float) -> None:
        """Note the end of the last branch."""
        self.finished_at = now

    @property
    def ttft_s(self) -> float:
        """Arrival to first token; to the end where there was none."""
        first = self.first_token_at
        return self.end_to_end_latency_s if first is None else first - self.added_at

    @property
    def end_to_end_latency_s(self) -> float:
        """Arrival to end; 0 while the request runs."""
        return 0.0 if self.finished_at is None else self.finished_at - self.added_at

    @property
    def inter_token_latency_s(self) -> float:
        """Mean time from one token to the next, after the first; 0 with fewer than two."""
        gaps = self.completion_tokens - 1
        return self._decode_s / gaps if gaps > 0 else 0.0

    @property
    def _decode_s(self) -> float:
        return max(self.end_to_end_latency_s - self.ttft_s, 0.0)

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """`prefill_tokens` by the seconds of the steps that computed them, which other requests may
        share; None where there was no such step."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s > 0 else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """`decode_tokens` by the seconds from the first token to the end; None where that is 0."""
        return self.decode_tokens / self._decode_s if self._decode_s > 0 else None

    def asdict(self) -> dict[str, int | float]:
        """The keys of `usage.extra`; what is None is left out."""
        values = {name: getattr(self, name) for name in REQUEST_METRICS}
        return {name: value for name, value in values.items() if value is not None}

    def usage_json(self) -> str:
        """The request's one usage item."""
        usage = _usage(self.prompt_tokens, self.completion_tokens)
        usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        usage["extra"] = self.asdict()
        return json.dumps(usage)


REQUEST_METRICS = (
    "prompt_tokens",
    "completion_tokens",
    "prefill_tokens",
    "decode_tokens",
    "jump_forward_tokens",
    "end_to_end_latency_s",
    "ttft_s",
    "inter_token_latency_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
)
"""What `usage.extra` says of a request."""


def zero_usage_json() -> str:
    """The usage of a request that computed nothing."""
    return json.dumps(_usage(0, 0))


def special_usage_json(engine_metrics: dict[str, Any]) -> str:
    """The usage that answers `query_engine_metrics`."""
    return json.dumps({**_usage(0, 0), "extra": engine_metrics})


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    total = prompt_tokens + completion_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": total,
    }


class EngineMetrics:
    """A thin wrapper of the engine's numbers: `metrics["prefill_tokens_sum"]`."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        self.metrics = metrics

    def __getitem__(self, key: str) -> Any:
        return self.metrics[key]

    def __repr__(self) -> str:
        return f"EngineMetrics({self.metrics!r})"

    def prometheus_text(self) -> str:
        """All numbers in Prometheus' text format 0.0.4, under the same names."""
        return prometheus_text(self.metrics)


@dataclass
class _TimeByBatchSize:
    """Mean step time for each batch size. The first sample of a size is warm-up and dropped."""

    seconds: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def record(self, batch_size: int, seconds: float) -> None:
        count = self.counts.get(batch_size)
        if count is not None:
            self.counts[batch_size] = count + 1
            self.seconds[batch_size] += seconds
        elif 0 < batch_size <= MAX_TRACKED_BATCH_SIZE:
            self.counts[batch_size], self.seconds[batch_size] = 0, 0.0

    def asdict(self) -> dict[str, int | float]:
        sizes = sorted(size for size, count in self.counts.items() if count)
        means = {f"mean{{batch_size={b}}}": self.seconds[b] / self.counts[b] for b in sizes}
        return {**means, **{f"count{{batch_size={b}}}": self.counts[b] for b in sizes}}


@dataclass
class _SpecDecode:
    """How many drafted tokens there were at each place of a draft, and how many were accepted."""

    draft_count: list[int] = field(default_factory=list)
    accept_count: list[int] = field(default_factory=list)
    _reached: list[int] = field(default_factory=list)
    """Drafts that went this far with all before accepted."""

    def record(self, drafted: int, accepted: int) -> None:
        assert 0 <= accepted <= drafted
        missing = drafted - len(self.draft_count)
        self.draft_count += [0] * missing
        self.accept_count += [0] * missing
        self._reached += [0] * missing
        for step in range(drafted):
            self.draft_count[step] += 1
            self._reached[step] += step <= accepted
            self.accept_count[step] += step < accepted

    def asdict(self) -> dict[str, Any]:
        """Step i is the place behind i drafted tokens.

        draft_count: drafts that had a token there. accept_count: tokens accepted there.
        accept_prob: the second by the first. accept_rate: `accept_count` by the drafts that had a
        token there and all before it accepted. accept_len: tokens accepted a draft up to and with
        this place, whatever the drafts' lengths; the last is the mean of all drafts.
        """
        steps = range(len(self.draft_count))
        prob = [_ratio(self.accept_count[i], self.draft_count[i]) for i in steps]
        rate = [_ratio(self.accept_count[i], self._reached[i]) for i in steps[1:]]
        drafts = self.draft_count[0] if self.draft_count else 0
        lengths = [_ratio(total, drafts) for total in accumulate(self.accept_count)]
        return {
            "draft_count": list(self.draft_count),
            "accept_count": list(self.accept_count),
            "accept_prob": _by_step("accept_prob", prob, 0),
            "accept_rate": _by_step("accept_rate", rate, 1),
            "accept_len": _by_step("accept_len", lengths, 0),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _by_step(name: str, values: Sequence[float], first: int) -> dict[str, float]:
    return {f"{name}{{step={i}}}": value for i, value in enumerate(values, first)}


@dataclass
class _PrefixCache:
    """What requests found in the prefix cache before their first token was computed."""

    lookups_sum: int = 0
    """Prompts that were looked up before any of their tokens was computed."""
    hits_sum: int = 0
    """Those of which the cache had at least one token."""
    cached_tokens_sum: int = 0
    """Tokens that the cache had."""
    divergences_sum: int = 0
    """Prompts that began like a cached sequence and then had another token."""
    last_divergence: dict[str, int] = field(default_factory=dict)
    """Of the last such prompt: `position`, `seq_id` (the cached sequence), and the token that each
    has there, `cached_token` and `prompt_token`."""


@dataclass
class EngineMetricsRecorder:
    """Adds up an engine's work. Filled by the engine core after each step and each request."""

    engine_prefill_time_sum: float = 0.0
    """Of the seconds of all steps, the share of `prefill_tokens_sum`, by number of tokens."""
    engine_decode_time_sum: float = 0.0
    """The share of `decode_tokens_sum`. That of tokens computed again is in neither."""
    engine_jump_forward_time_sum: float = 0.0
    """Seconds of adding text that a grammar forced."""
    prompt_tokens_sum: int = 0
    """Tokens of the prompts of requests that have ended."""
    completion_tokens_sum: int = 0
    """Tokens generated by requests that have ended."""
    prefill_tokens_sum: int = 0
    """As `RequestMetrics.prefill_tokens`, of all requests, those that still run too."""
    decode_tokens_sum: int = 0
    """As `RequestMetrics.decode_tokens`, of all requests, those that still run too."""
    jump_forward_tokens_sum: int = 0
    """As `RequestMetrics.jump_forward_tokens`, of all requests, those that still run too."""
    last_finished_request: RequestMetrics | None = None
    _prefix: _PrefixCache = field(default_factory=_PrefixCache)
    _spec: _SpecDecode = field(default_factory=_SpecDecode)
    _decode_time: _TimeByBatchSize = field(default_factory=_TimeByBatchSize)
    _draft_time: _TimeByBatchSize = field(default_factory=_TimeByBatchSize)
    _verify_time: _TimeByBatchSize = field(default_factory=_TimeByBatchSize)

    def record_step(
        self,
        seconds: float,
        *,
        tokens: int,
        prefill_tokens: int,
        decode_tokens: int,
        batch_size: int = 0,
    ) -> None:
        """One run of the model over `tokens` tokens, by whose number its time is shared.

        Those that are neither prefill nor decode were computed before. batch_size: rows, if each
        has decoded one token; else 0.
        """
        if tokens == 0:
            return
        self.engine_prefill_time_sum += seconds * prefill_tokens / tokens
        self.engine_decode_time_sum += seconds * decode_tokens / tokens
        self.prefill_tokens_sum += prefill_tokens
        self.decode_tokens_sum += decode_tokens
        self._decode_time.record(batch_size, seconds)

    def record_jump_forward(self, seconds: float, tokens: int) -> None:
        """Text that a grammar forced, appended without running the model."""
        self.engine_jump_forward_time_sum += seconds
        self.jump_forward_tokens_sum += tokens

    def record_lookup(self, cached_tokens: int, divergence: Mapping[str, int] | None) -> None:
        """What a request found in the prefix cache, and where it left what it began like."""
        self._prefix.lookups_sum += 1
        self._prefix.hits_sum += cached_tokens > 0
        self._prefix.cached_tokens_sum += cached_tokens
        if divergence is not None:
            self._prefix.divergences_sum += 1
            self._prefix.last_divergence = dict(divergence)

    def record_draft(self, seconds: float, batch_size: int) -> None:
        """One run of a draft model."""
        self._draft_time.record(batch_size, seconds)

    def record_verify(self, seconds: float, batch_size: int) -> None:
        """One run of the model over drafted tokens."""
        self._verify_time.record(batch_size, seconds)

    def record_acceptance(self, drafted: int, accepted: int) -> None:
        """Of `drafted` tokens of one branch, the first `accepted` were kept."""
        self._spec.record(drafted, accepted)

    def record_finished(self, request: RequestMetrics) -> None:
        """A request came to its end."""
        self.prompt_tokens_sum += request.prompt_tokens
        self.completion_tokens_sum += request.completion_tokens
        self.last_finished_request = request

    def reset(self) -> None:
        """Start again from zero."""
        self.__init__()  # type: ignore[misc]

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """`prefill_tokens_sum` by `engine_prefill_time_sum`; None where that is 0."""
        seconds = self.engine_prefill_time_sum
        return self.prefill_tokens_sum / seconds if seconds > 0 else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """`decode_tokens_sum` by `engine_decode_time_sum`; None where that is 0."""
        seconds = self.engine_decode_time_sum
        return self.decode_tokens_sum / seconds if seconds > 0 else None

    def asdict(self) -> dict[str, Any]:
        """Every key of the engine's metrics; rates and parts without a sample are left out."""
        numbers = {name: getattr(self, name) for name in ENGINE_METRICS}
        found: dict[str, Any] = {name: n for name, n in numbers.items() if n is not None}
        last = self.last_finished_request
        found["last_finished_request"] = last.asdict() if last else {}
        if self._prefix.lookups_sum:
            found["prefix_cache"] = asdict(self._prefix)
        if self._spec.draft_count:
            found["spec_decode"] = self._spec.asdict()
        found["decode_time_by_batch_size"] = self._decode_time.asdict()
        found["draft_time_by_batch_size"] = self._draft_time.asdict()
        found["verify_time_by_batch_size"] = self._verify_time.asdict()
        return found

    def metrics(self) -> EngineMetrics:
        """The numbers as they stand now."""
        return EngineMetrics(self.asdict())


ENGINE_METRICS = (
    "engine_prefill_time_sum",
    "engine_decode_time_sum",
    "engine_jump_forward_time_sum",
    "prompt_tokens_sum",
    "completion_tokens_sum",
    "prefill_tokens_sum",
    "decode_tokens_sum",
    "jump_forward_tokens_sum",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
)
"""What an engine's metrics say in one number each."""
