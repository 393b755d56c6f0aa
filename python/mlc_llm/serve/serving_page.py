"""The names of metrics for Prometheus.

Numbers of `EngineMetricsRecorder` keep the names that MLC LLM gives them. Numbers of
`ServingMetrics` have the names and labels of vLLM, because dashboards and alerts made for it are
common. What neither of them has begins with `mlc_llm:`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mlc_llm.serve.prometheus import Kind, Labels, Page

SERVING = "serving"
"""The key of `ServingMetrics` among the metrics of an engine."""


class Name(NamedTuple):
    """How a number is called, and what it is."""

    name: str
    kind: Kind
    help: str


NAMES: dict[str, Name] = {
    "num_requests_running": Name(
        "vllm:num_requests_running", "gauge", "Requests of which a sequence is in the batch."
    ),
    "num_requests_waiting": Name(
        "vllm:num_requests_waiting", "gauge", "Requests that wait for the batch."
    ),
    "kv_cache_usage": Name(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "The part of the KV pages that running requests need; 1 is all.",
    ),
    "num_preemptions": Name(
        "vllm:num_preemptions_total", "counter", "Sequences that gave their pages back too early."
    ),
    "prompt_tokens": Name(
        "vllm:prompt_tokens_total", "counter", "Tokens of prompts, cached ones included."
    ),
    "generation_tokens": Name("vllm:generation_tokens_total", "counter", "Generated tokens."),
    "prefix_queries": Name(
        "vllm:prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache."
    ),
    "prefix_hits": Name(
        "vllm:prefix_cache_hits_total", "counter", "Tokens that the prefix cache had."
    ),
    "corrupted": Name(
        "vllm:corrupted_requests_total",
        "counter",
        "Requests that ended because the model failed or its numbers were not finite.",
    ),
    "time_to_first_token": Name(
        "vllm:time_to_first_token_seconds", "histogram", "From the arrival to the first token."
    ),
    "inter_token_latency": Name(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "Between two steps that gave a sequence tokens.",
    ),
    "time_per_output_token": Name(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "The mean time between the tokens of a request.",
    ),
    "end_to_end": Name(
        "vllm:e2e_request_latency_seconds", "histogram", "From the arrival to the end."
    ),
    "queue_time": Name(
        "vllm:request_queue_time_seconds", "histogram", "From the arrival to the first step."
    ),
    "prefill_time": Name(
        "vllm:request_prefill_time_seconds", "histogram", "From the first step to the first token."
    ),
    "decode_time": Name(
        "vllm:request_decode_time_seconds", "histogram", "From the first token to the end."
    ),
    "inference_time": Name(
        "vllm:request_inference_time_seconds", "histogram", "From the first step to the end."
    ),
    "request_prompt_tokens": Name(
        "vllm:request_prompt_tokens", "histogram", "Tokens of the prompt of a request."
    ),
    "request_generation_tokens": Name(
        "vllm:request_generation_tokens", "histogram", "Tokens generated for a request."
    ),
    "request_max_tokens": Name(
        "vllm:request_params_max_tokens", "histogram", "max_tokens of requests that have it."
    ),
    "request_n": Name("vllm:request_params_n", "histogram", "n of a request."),
    "iteration_tokens": Name(
        "vllm:iteration_tokens_total", "histogram", "Tokens that a step computed."
    ),
    "kv_pages": Name("mlc_llm:kv_pages", "gauge", "All KV pages."),
    "kv_pages_used": Name(
        "mlc_llm:kv_pages_used", "gauge", "KV pages in use; the prefix cache's are among them."
    ),
    "prefix_cache_sequences": Name(
        "mlc_llm:prefix_cache_sequences", "gauge", "Ended sequences that the prefix cache keeps."
    ),
}
"""By the names that `ServingMetrics` and the core's gauges have."""
ENDED = Name("vllm:request_success_total", "counter", "Requests that have ended, by reason.")


def add_engine(
    page: Page,
    metrics: Mapping[str, object],
    model_name: str | None = None,
    *,
    with_own: bool = True,
) -> None:
    """All metrics of one engine. model_name: a label of those with vLLM's names. with_own: those
    with our names too, which have no label: a page has them of one engine only."""
    if with_own:
        page.add_all({key: value for key, value in metrics.items() if key != SERVING})
    serving = metrics.get(SERVING)
    if isinstance(serving, Mapping):
        labels = {} if model_name is None else {"engine": "0", "model_name": model_name}
        _add_serving(page, serving, labels)


def _add_serving(page: Page, serving: Mapping[str, object], labels: Labels) -> None:
    for key, (name, kind, words) in NAMES.items():
        value = serving.get(key)
        if isinstance(value, Mapping):
            page.add_histogram(name, value, labels, words)
        elif isinstance(value, (int, float)):
            page.add(name, value, labels, kind=kind, help=words)
    ended = serving.get("ended")
    for reason, count in ended.items() if isinstance(ended, Mapping) else ():
        with_reason = {**labels, "finished_reason": reason}
        page.add(ENDED.name, count, with_reason, kind=ENDED.kind, help=ENDED.help)
