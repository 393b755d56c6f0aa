"""`/metrics`: read by Prometheus's own parser, under load, and by the dashboard that we ship."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from server_harness import Running, running
from threaded_harness import PATIENCE_SECONDS, eventually, frozen

from mlc_llm.errors import EngineDead
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings
from mlc_llm.serve.server.routes import info

parser = pytest.importorskip("prometheus_client.parser")

DASHBOARD = Path(__file__).parents[2] / "docs" / "monitoring" / "grafana.json"
OF_BOARDS_FOR_VLLM = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_inference_time_seconds_bucket",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_params_max_tokens_bucket",
    "vllm:request_params_n_bucket",
    "vllm:iteration_tokens_total_bucket",
    "vllm:corrupted_requests_total",
    "http_requests_total",
    "http_request_duration_seconds_bucket",
)
"""What public dashboards for vLLM 0.11 and later ask for, of what an engine like ours has."""
OF_MLC_LLM = ("engine_prefill_time_sum", "decode_tokens_sum", "last_finished_request_ttft_s")
LABELS = {"model_name": "mock://echo", "engine": "0"}

Samples = dict[str, list[tuple[dict[str, str], float]]]


def samples_of(server: Running) -> Samples:
    """By name, with their labels."""
    reply = server.call("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text, found = reply.data.decode(), Samples()
    written = set(re.findall(r"^[^#{ ]+", text, re.MULTILINE))
    for family in parser.text_string_to_metric_families(text):
        for one in family.samples:  # the parser adds "_total" to counters without it
            name = one.name if one.name in written else one.name.removesuffix("_total")
            found.setdefault(name, []).append((one.labels, one.value))
    assert set(found) == written
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    fitting = [v for have, v in samples[name] if labels.items() <= have.items()]
    assert len(fitting) == 1, (name, labels, samples[name])
    return fitting[0]


def test_a_board_for_vllm_finds_what_it_asks_for(server: Running) -> None:
    server.chat("hello", n=2, max_tokens=3)
    server.wait_idle()
    samples = samples_of(server)
    samples = samples_of(server)  # the first page counts in the second one
    assert [name for name in (*OF_BOARDS_FOR_VLLM, *OF_MLC_LLM) if name not in samples] == []
    for name in OF_BOARDS_FOR_VLLM:
        if name.startswith("vllm:"):
            assert all(labels.items() >= LABELS.items() for labels, _ in samples[name]), name
    handlers = {labels["handler"] for labels, _ in samples["http_requests_total"]}
    assert {"/v1/chat/completions", "/metrics"} <= handlers


def test_histograms_are_sound_and_count_requests() -> None:
    with running() as server:
        for _ in range(3):
            server.chat("hello", max_tokens=2)
        server.wait_idle()
        samples = samples_of(server)
        for name in [name for name in samples if name.endswith("_bucket")]:
            by_labels: dict[str, list[tuple[float, float]]] = {}
            for labels, count in samples[name]:
                rest = json.dumps({k: v for k, v in labels.items() if k != "le"}, sort_keys=True)
                by_labels.setdefault(rest, []).append((float(labels["le"]), count))
            for rest, pairs in by_labels.items():
                assert pairs == sorted(pairs) and pairs[-1][0] == float("inf"), name
                assert [n for _, n in pairs] == sorted(n for _, n in pairs), name
                total = value(samples, name.replace("_bucket", "_count"), **json.loads(rest))
                assert total == pairs[-1][1]
        assert value(samples, "vllm:time_to_first_token_seconds_count") == 3
        assert value(samples, "vllm:request_success_total", finished_reason="length") == 3
        assert value(samples, "vllm:generation_tokens_total") == 6
        assert value(samples, "vllm:prompt_tokens_total") == 3 * 5
        first = value(samples, "vllm:time_to_first_token_seconds_sum")
        assert 0 < first <= value(samples, "vllm:e2e_request_latency_seconds_sum")


def test_refusals_are_counted_by_reason() -> None:
    with running(ServerSettings(port=0, limits=Limits(queued_prompt_bytes=1))) as server:
        with frozen():
            thread = threading.Thread(target=server.chat, args=("a",))
            thread.start()
            eventually(lambda: server.context.admission.answers == 1, "it is not inside")
            assert server.chat("b").status == 503
        samples = samples_of(server)
        thread.join(PATIENCE_SECONDS)
        assert value(samples, "vllm:admission_rejections_total", reason="overloaded") == 1
        labels = {"handler": "/v1/chat/completions", "status": "5xx", "method": "POST"}
        assert value(samples, "http_requests_total", **labels) == 1


def test_refusals_behind_signs_of_life_are_counted() -> None:
    """The answer has begun with 200 when its turn does not come."""
    limits = Limits(ping_s=0.05, wait_s=0.3)
    with running(ServerSettings(port=0, limits=limits), sequences=1) as server:
        with frozen() as step_wanted:
            thread = threading.Thread(target=server.chat, args=("a",))
            thread.start()
            assert step_wanted.wait(PATIENCE_SECONDS)
            reply = server.chat("b", stream=True)
            assert reply.status == 200 and b'"overloaded"' in reply.data
        thread.join(PATIENCE_SECONDS)
        samples = samples_of(server)
        assert value(samples, "vllm:admission_rejections_total", reason="overloaded") == 1


def test_a_request_waits_from_the_moment_that_its_prompt_is_known() -> None:
    """Also before the engine, where almost all requests of a full server are."""
    with running(sequences=1) as server:
        threads = [threading.Thread(target=server.chat, args=(one,)) for one in "ab"]
        with frozen():
            for thread in threads:
                thread.start()
            eventually(lambda: server.context.models.default.turns.num_waiting == 1, "none waits")
            time.sleep(0.3)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        samples = samples_of(server)
        assert value(samples, "vllm:request_queue_time_seconds_sum") >= 0.3
        assert value(samples, "vllm:time_to_first_token_seconds_sum") >= 2 * 0.3
        assert value(samples, "vllm:e2e_request_latency_seconds_sum") >= 2 * 0.3


@pytest.mark.slow
def test_pages_come_during_load(server: Running) -> None:
    """Each of them adds up, while answers are computed."""
    server.wait_idle()
    before = value(samples_of(server), "vllm:request_success_total", finished_reason="stop")
    threads = [threading.Thread(target=server.chat, args=("abc " * 100,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    pages = []
    while any(thread.is_alive() for thread in threads):
        pages.append(samples_of(server))
    for thread in threads:
        thread.join()
    assert max(value(one, "vllm:num_requests_running") for one in pages) >= 1
    tokens = [value(one, "vllm:generation_tokens_total") for one in pages]
    assert tokens == sorted(tokens)
    server.wait_idle()
    after = value(samples_of(server), "vllm:request_success_total", finished_reason="stop")
    assert after == before + 8


def test_an_engine_that_does_not_answer_costs_its_numbers_only() -> None:
    with running(ServerSettings(port=0, limits=Limits(metrics_s=0.3))) as server:
        assert value(samples_of(server), "mlc_llm:engine_responds") == 1
        started, free = threading.Event(), threading.Event()
        core = server.client._engine.loaded.core
        step = core.step

        def frozen() -> Any:
            started.set()
            free.wait(60)
            return step()

        core.step = frozen  # type: ignore[method-assign]
        thread = threading.Thread(target=server.chat, args=("hello",))
        thread.start()
        try:
            assert started.wait(PATIENCE_SECONDS)
            samples = samples_of(server)
        finally:
            free.set()
            thread.join(PATIENCE_SECONDS)
        assert value(samples, "mlc_llm:engine_responds") == 0
        assert value(samples, "server_answers") == 1 and "vllm:num_requests_running" not in samples


def test_an_engine_that_answers_with_an_error_costs_its_numbers_only(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Any:
        raise EngineDead("the engine has ended")

    monkeypatch.setattr(info, "metrics_in", fail)
    samples = samples_of(server)
    assert value(samples, "mlc_llm:engine_responds") == 0 and "server_answers" in samples
    assert "mock://echo gives no metrics: the engine has ended" in caplog.text


def names_in(query: str) -> set[str]:
    """The metrics that a query reads."""
    query = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\bby \([^)]*\)', "", query)
    words = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", query))
    return words - {"sum", "rate", "increase", "max", "min", "by", "histogram_quantile"}


def test_names_in_a_query() -> None:
    query = 'histogram_quantile(0.5, sum by (le) (rate(a:b_bucket{x=~"$y"}[$z]))) / max(c)'
    assert names_in(query) == {"a:b_bucket", "c"}


def test_the_dashboard_asks_for_nothing_that_is_not_there(server: Running) -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) >= 12
    server.chat("hello", max_tokens=3)
    server.wait_idle()
    samples_of(server)
    samples = samples_of(server)
    variables = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval"}
    for panel in board["panels"]:
        assert panel["targets"] and panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            names = names_in(target["expr"])
            assert names and names <= set(samples), (panel["title"], names - set(samples))
            asked = set(re.findall(r"(\w+)=~", target["expr"])) - {"instance"}  # Prometheus's own
            for name in names:
                assert all(asked <= set(labels) for labels, _ in samples[name]), (name, asked)
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
    for one in board["templating"]["list"][1:]:
        name, label = re.findall(r"label_values\((\S+), (\w+)\)", one["query"]["query"])[0]
        assert name in samples and (label == "instance" or label in samples[name][0][0])
