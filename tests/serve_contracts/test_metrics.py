"""Metrics: the sums, the keys, and Prometheus text read back by a strict parser."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.protocol.openai_api_protocol import UsageInfo
from mlc_llm.serve.metrics import (
    EngineMetrics,
    EngineMetricsRecorder,
    RequestMetrics,
    special_usage_json,
    zero_usage_json,
)

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
TYPE_LINE = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")
SAMPLE_LINE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN")


def parsed(text: str) -> dict[str, dict[str, float]]:
    """name -> label text -> value; fails on anything the format does not allow."""
    assert text == "" or text.endswith("\n")
    found: dict[str, dict[str, float]] = {}
    current = ""
    for line in text.split("\n")[:-1]:
        kind = TYPE_LINE.fullmatch(line)
        if kind:
            current = kind[1]
            assert current not in found, "a name has one TYPE line and its samples stand together"
            found[current] = {}
            continue
        sample = SAMPLE_LINE.fullmatch(line)
        assert sample, f"neither a TYPE line nor a sample: {line!r}"
        name, labels, value = sample[1], sample[2] or "", sample[3]
        assert name == current
        assert NUMBER.fullmatch(value)
        assert labels not in found[name], "a sample stands once"
        found[name][labels] = float(value)
    assert all(found.values()), "a TYPE line without a sample"
    return found


def test_the_parser_refuses_what_the_format_refuses() -> None:
    for bad in (
        "a\t1\n",
        "a 1\n",
        "# TYPE a gauge\n",
        "# TYPE a gauge\na 1",
        "# TYPE a gauge\na{b=1} 1\n",
        '# TYPE a gauge\na{b="1"} one\n',
        "# TYPE a gauge\na 1\na 1\n",
    ):
        with pytest.raises((AssertionError, KeyError)):
            parsed(bad)


def finished_request() -> RequestMetrics:
    request = RequestMetrics(prompt_tokens=10, prefill_tokens=6, cached_tokens=4, added_at=100.0)
    request.prefill_s = 0.5
    request.saw_token(102.0)
    request.saw_token(103.0)
    request.completion_tokens = 5
    request.decode_tokens = 4
    request.finish(104.0)
    return request


def test_one_request() -> None:
    assert finished_request().asdict() == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prefill_tokens": 6,
        "decode_tokens": 4,
        "jump_forward_tokens": 0,
        "prefill_tokens_per_s": 12.0,
        "decode_tokens_per_s": 2.0,
        "end_to_end_latency_s": 4.0,
        "ttft_s": 2.0,
        "inter_token_latency_s": 0.5,
    }


def test_a_request_without_a_token_has_no_rates() -> None:
    request = RequestMetrics(prompt_tokens=3, added_at=1.0)
    request.finish(1.5)
    found = request.asdict()
    assert "prefill_tokens_per_s" not in found
    assert "decode_tokens_per_s" not in found
    assert (found["ttft_s"], found["inter_token_latency_s"]) == (0.5, 0.0)


def test_usage_items_fit_the_protocol() -> None:
    usage = UsageInfo.parse_text(finished_request().usage_json())
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 5, 15)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert usage.extra == {**finished_request().asdict(), "precision": "exact"}
    assert UsageInfo.parse_text(zero_usage_json()) == UsageInfo.parse(
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    )
    assert json.loads(special_usage_json({"a": 1}))["extra"] == {"a": 1}


def busy_recorder() -> EngineMetricsRecorder:
    recorder = EngineMetricsRecorder()
    recorder.record_step(2.0, tokens=40, prefill_tokens=30, decode_tokens=10)
    for seconds in (9.0, 1.0, 3.0):
        recorder.record_step(seconds, tokens=4, prefill_tokens=0, decode_tokens=4, batch_size=4)
    recorder.record_step(4.0, tokens=8, prefill_tokens=0, decode_tokens=0)  # all computed again
    recorder.record_jump_forward(0.25, 3)
    recorder.record_draft(1.0, 2)
    recorder.record_draft(0.5, 2)
    recorder.record_verify(1.0, 65)
    recorder.record_verify(1.0, 65)
    recorder.record_acceptance(3, 2)
    recorder.record_acceptance(4, 4)
    recorder.record_finished(finished_request())
    return recorder


def test_the_engine_adds_up() -> None:
    found = busy_recorder().asdict()
    assert found["engine_prefill_time_sum"] == 1.5
    assert found["engine_decode_time_sum"] == 13.5
    assert found["engine_jump_forward_time_sum"] == 0.25
    assert (found["prefill_tokens_sum"], found["decode_tokens_sum"]) == (30, 22)
    assert (found["prompt_tokens_sum"], found["completion_tokens_sum"]) == (10, 5)
    assert found["jump_forward_tokens_sum"] == 3
    assert found["prefill_tokens_per_s"] == 20.0
    assert found["last_finished_request"] == finished_request().asdict()
    by_size = {"mean{batch_size=4}": 2.0, "count{batch_size=4}": 2}
    assert found["decode_time_by_batch_size"] == by_size
    assert found["draft_time_by_batch_size"] == {
        "mean{batch_size=2}": 0.5,
        "count{batch_size=2}": 1,
    }
    assert found["verify_time_by_batch_size"] == {}


def test_what_the_prefix_cache_had() -> None:
    recorder = EngineMetricsRecorder()
    assert "prefix_cache" not in recorder.asdict()
    where = {"position": 7, "seq_id": 3, "cached_token": 11, "prompt_token": 12}
    recorder.record_lookup(0, None)
    recorder.record_lookup(7, where)
    recorder.record_lookup(20, None)
    assert recorder.asdict()["prefix_cache"] == {
        "lookups_sum": 3,
        "hits_sum": 2,
        "cached_tokens_sum": 27,
        "divergences_sum": 1,
        "last_divergence": where,
    }
    text = recorder.metrics().prometheus_text()
    assert "# TYPE prefix_cache_hits_sum counter\nprefix_cache_hits_sum 2\n" in text
    assert "# TYPE prefix_cache_last_divergence_position gauge\n" in text
    assert "prefix_cache_last_divergence_prompt_token 12\n" in text


def test_speculation_counts_by_place() -> None:
    spec = busy_recorder().asdict()["spec_decode"]
    assert spec["draft_count"] == [2, 2, 2, 1]
    assert spec["accept_count"] == [2, 2, 1, 1]
    assert spec["accept_prob"]["accept_prob{step=2}"] == 0.5
    assert spec["accept_rate"] == {
        "accept_rate{step=1}": 1.0,
        "accept_rate{step=2}": 0.5,
        "accept_rate{step=3}": 1.0,
    }
    assert spec["accept_len"] == {
        "accept_len{step=0}": 1.0,
        "accept_len{step=1}": 2.0,
        "accept_len{step=2}": 2.5,
        "accept_len{step=3}": 3.0,  # 6 accepted tokens in 2 drafts
    }
    assert "spec_decode" not in EngineMetricsRecorder().asdict()


def test_an_empty_step_counts_nothing_and_reset_starts_again() -> None:
    recorder = EngineMetricsRecorder()
    recorder.record_step(1.0, tokens=0, prefill_tokens=0, decode_tokens=0)
    fresh = EngineMetricsRecorder().asdict()
    assert recorder.asdict() == fresh
    busy = busy_recorder()
    busy.reset()
    assert busy.asdict() == fresh


def test_the_wrapper_and_its_text() -> None:
    metrics = busy_recorder().metrics()
    assert metrics["prefill_tokens_sum"] == metrics.metrics["prefill_tokens_sum"] == 30
    found = parsed(metrics.prometheus_text())
    assert found["engine_prefill_time_sum"] == {"": 1.5}
    assert found["last_finished_request_ttft_s"] == {"": 2.0}
    assert found["decode_time_by_batch_size_mean"] == {'batch_size="4"': 2.0}
    assert found["spec_decode_draft_count"]['step="3"'] == 1
    assert json.loads(json.dumps(metrics.metrics)) == metrics.metrics


def test_types_and_odd_numbers() -> None:
    text = EngineMetrics({
        "a_sum": 1, "b": math.inf, "c": -math.inf, "d": math.nan, "e": 1e-9, "f": True, "g": None,
        "h": "text", "i-j": 1, "9": 1, "k{x=a\"b\\c\nd}": 1, "l": {}, "m": [], "n": {"o": [1, 2]},
    }).prometheus_text()  # fmt: skip
    found = parsed(text)
    assert "# TYPE a_sum counter" in text
    assert "# TYPE b gauge" in text
    assert found["b"][""] == math.inf
    assert math.isnan(found["d"][""])
    assert found["i_j"] == found["_9"] == {"": 1}
    assert found["k"] == {r'x="a\"b\\c\nd"': 1}
    assert found["n_o"] == {'step="0"': 1, 'step="1"': 2}
    assert not {"f", "g", "h", "l", "m"} & set(found)


values = st.recursive(
    st.floats() | st.integers() | st.text(max_size=3) | st.none() | st.booleans(),
    lambda inner: st.dictionaries(
        st.text('ab_{}=,"\\\n1é', min_size=1, max_size=8), inner, max_size=3
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b-c", "1d"]), values, max_size=3))
def test_any_numbers_give_lines_of_the_format(metrics: dict[str, Any]) -> None:
    parsed(EngineMetrics(metrics).prometheus_text())
