"""Chunks of the engine as Ollama's lines, and as one answer."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from mlc_llm.errors import RequestError
from mlc_llm.protocol.error_protocol import ErrorBody
from mlc_llm.serve.ollama.lines import Clock, Kind, Lines
from mlc_llm.serve.ollama.model_facts import ModelFacts, shortened
from mlc_llm.serve.openai.chunks import CallPiece, ChoicePiece, Chunk

EXTRA = {
    "prefill_tokens": 10,
    "prefill_tokens_per_s": 100.0,
    "end_to_end_latency_s": 1.5,
    "ttft_s": 0.5,
}
USAGE = Chunk((), None, json.dumps({"prompt_tokens": 10, "completion_tokens": 7, "extra": EXTRA}))
LOGPROB = '{"token": "Y", "logprob": -0.5, "bytes": [89], "top_logprobs": []}'
PIECES = [
    ChoicePiece(0, "", None, None, reasoning="hm"),
    ChoicePiece(0, 'Yes "ü"', None, [LOGPROB]),
    ChoicePiece(0, "", None, None, calls=[CallPiece(0, "call_1", "add", '{"a"')]),
    ChoicePiece(0, "", None, None, calls=[CallPiece(0, None, None, ": 1}")]),
    ChoicePiece(0, "", "tool_calls", None),
]
CALL = {"id": "call_1", "function": {"index": 0, "name": "add", "arguments": {"a": 1}}}


def lines_of(kind: Kind, *pieces: ChoicePiece) -> list[dict[str, Any]]:
    lines = Lines(kind, "r", "m", Clock())
    chunks = [*(Chunk([one]) for one in pieces), USAGE]
    return [json.loads(line) for chunk in chunks for line in lines.of(0, chunk)]


def whole_of(kind: Kind, *pieces: ChoicePiece) -> dict[str, Any]:
    lines = Lines(kind, "r", "m", Clock())
    for chunk in [*(Chunk([one]) for one in pieces), USAGE]:
        lines.put(0, chunk)
    return lines.response().model_dump()


def test_the_lines_of_a_chat() -> None:
    *found, last = lines_of("chat", *PIECES)
    assert [one["message"] for one in found] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": 'Yes "ü"'},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ]
    assert found[1]["logprobs"] == [json.loads(LOGPROB)]
    assert all(one["model"] == "m" and one["done"] is False for one in found)
    assert datetime.fromisoformat(found[0]["created_at"].replace("Z", "+00:00")).tzinfo
    assert last["done"] and last["message"] == {"role": "assistant", "content": ""}


def test_log_probabilities_that_were_shown_are_not_kept() -> None:
    lines = Lines("chat", "r", "m", Clock())
    for text in ("a", "b"):
        (line,) = lines.of(0, Chunk([ChoicePiece(0, text, None, [LOGPROB])]))
        assert json.loads(line)["logprobs"] == [json.loads(LOGPROB)]
    assert [block.logprobs for block in lines._blocks.all] == [[]]


def test_tokens_of_calls_have_log_probabilities() -> None:
    tokens = [json.dumps({"token": one}) for one in "abcdef"]
    pieces = [
        ChoicePiece(0, "", None, tokens[:2], calls=[CallPiece(0, "call_1", "add", "")]),
        ChoicePiece(0, "", None, tokens[2:3], calls=[CallPiece(0, None, None, '{"a": 1}')]),
        ChoicePiece(0, "", None, tokens[3:5], calls=[CallPiece(1, "call_2", "add", "{}")]),
        ChoicePiece(0, "", "tool_calls", tokens[5:]),
    ]
    shown = [
        [one["token"] for one in line.get("logprobs", ())] for line in lines_of("chat", *pieces)
    ]
    assert shown == [["a", "b", "c"], ["d", "e", "f"], []]
    assert [one["token"] for one in whole_of("chat", *pieces)["logprobs"]] == list("abcdef")


def test_the_lines_of_a_prompt() -> None:
    *found, last = lines_of("generate", *PIECES[:2])
    assert [(one["response"], one.get("thinking")) for one in found] == [
        ("", "hm"),
        ('Yes "ü"', None),
    ]
    assert last["response"] == "" and "message" not in last


def test_whole_answers() -> None:
    chat = whole_of("chat", *PIECES)
    message = {"role": "assistant", "content": 'Yes "ü"', "thinking": "hm", "tool_calls": [CALL]}
    assert chat["message"] == message and chat["done"] and chat["done_reason"] == "stop"
    assert chat["logprobs"] == [json.loads(LOGPROB)]
    generated = whole_of("generate", *PIECES[:2])
    assert (generated["response"], generated["thinking"]) == ('Yes "ü"', "hm")


def test_counts_and_times() -> None:
    clock = Clock()
    clock.loaded()
    lines = Lines("chat", "r", "m", clock)
    (line,) = lines.of(0, USAGE)
    found = json.loads(line)
    assert (found["prompt_eval_count"], found["eval_count"]) == (10, 7)
    assert (found["prompt_eval_duration"], found["eval_duration"]) == (10**8, 10**9)
    assert 0 <= found["load_duration"] <= found["total_duration"] < 10**11
    bare = Chunk((), None, '{"prompt_tokens": 1}')
    (line,) = Lines("chat", "r", "m", clock).of(0, bare)
    assert json.loads(line)["eval_duration"] == 0


def test_why_it_ends() -> None:
    assert whole_of("chat", ChoicePiece(0, "a", "length", None))["done_reason"] == "length"
    assert whole_of("chat", ChoicePiece(0, "a", "stop", None))["done_reason"] == "stop"


def test_a_failure() -> None:
    with pytest.raises(RequestError, match="broke"):
        Lines("chat", "r", "m", Clock()).put(0, Chunk((), ErrorBody(message="broke")))


def test_what_is_said_of_a_model() -> None:
    assert [shortened(n) for n in (7, 1500, 134515008, 7 * 10**9)] == [
        "7", "1.5K", "134.5M", "7B",
    ]  # fmt: skip
    facts = ModelFacts("gguf", "llama", 134515008, "Q8_0", 100, "d" * 64, "t", 2048)
    shown = facts.shown("m")
    assert shown["model_info"]["llama.context_length"] == 2048  # type: ignore[index]
    assert facts.listed("m")["details"]["parameter_size"] == "134.5M"  # type: ignore[index]
    assert facts.loaded("m", None)["context_length"] == 2048
