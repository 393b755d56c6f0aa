"""`/v1/embeddings`, and the log-probabilities of prompts, over HTTP."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from server_harness import Running, running

from mlc_llm.serve.server.limits.settings import Limits, ServerSettings


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_embeddings(server: Running, path: str) -> None:
    body = {"model": "default", "input": ["abc", "d"], "encoding_format": None, "dimensions": None}
    found = server.call("POST", path, body).json
    assert found["object"] == "list" and found["model"] == server.context.models.default.names[0]
    assert found["pooling"] == "last_token"
    assert found["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert [(one["object"], one["index"]) for one in found["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    packed = server.call("POST", path, {**body, "encoding_format": "base64", "dimensions": 2}).json
    for one, whole in zip(packed["data"], found["data"], strict=True):
        numbers = struct.unpack("<2f", base64.b64decode(one["embedding"]))
        length = sum(number**2 for number in whole["embedding"][:2]) ** 0.5 or 1.0
        expected = [number / length for number in whole["embedding"][:2]]
        assert numbers == pytest.approx(expected, abs=1e-6)
    server.wait_idle()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 10**30}, "dimensions"),
        ({"input": "a", "encoding_format": "float16"}, "encoding_format"),
    ],
)
def test_wrong_inputs_name_the_field(server: Running, body: dict[str, Any], word: str) -> None:
    reply = server.call("POST", "/v1/embeddings", body)
    assert reply.status == 400 and reply.error["param"] == word
    server.wait_idle()


def test_a_long_input_has_openais_code(server: Running) -> None:
    reply = server.call("POST", "/v1/embeddings", {"input": ["a", "b" * 5000]})
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
    server.wait_idle()


def test_an_unknown_field_is_named_in_a_header(server: Running) -> None:
    reply = server.call("POST", "/v1/embeddings", {"input": "a", "pooling": "mean"})
    assert reply.status == 200 and reply.headers["x-ignored-params"] == "pooling"


def test_a_list_counts_in_admission() -> None:
    """Eight inputs count as one answer."""
    with running(ServerSettings(port=0, limits=Limits(queue=0)), sequences=2) as server:
        assert server.call("POST", "/v1/embeddings", {"input": ["a"] * 16}).status == 200
        refused = server.call("POST", "/v1/embeddings", {"input": ["a"] * 17})
        assert refused.status == 400 and refused.error["param"] == "input"
        assert "3 answers" in refused.error["message"]
        several = server.call("POST", "/v1/completions", {"prompt": ["a", "b", "c"]})
        assert several.status == 400 and several.error["param"] == "prompt"
        server.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_echoed_prompts_have_log_probabilities(server: Running, stream: bool) -> None:
    """As lm-eval asks for them: a list of lists of ids, one generated token."""
    body = {
        "model": "default", "prompt": [[97, 98, 99], [100]], "temperature": 0, "max_tokens": 1,
        "logprobs": 1, "seed": 1234, "echo": True, "stream": stream,
    }  # fmt: skip
    reply = server.call("POST", "/v1/completions", body)
    answers = reply.events if stream else [reply.json]
    found: dict[int, dict[str, list[Any]]] = {}
    for choice in (one for answer in answers for one in answer["choices"]):
        lists = found.setdefault(choice["index"], {})
        for name, values in (choice["logprobs"] or {}).items():
            lists[name] = lists.get(name, []) + values
    assert found[0]["tokens"] == ["a", "b", "c", "a"]
    assert found[0]["token_logprobs"] == [None, 0.0, 0.0, 0.0]
    assert found[0]["top_logprobs"] == [None, {"b": 0.0}, {"c": 0.0}, {"a": 0.0}]
    assert found[0]["text_offset"] == [0, 1, 2, 3]
    assert found[1]["token_logprobs"] == [None, 0.0] and found[1]["text_offset"] == [0, 1]


def test_nothing_generated(server: Running) -> None:
    body = {"prompt": "abc", "max_tokens": 0, "logprobs": 0, "echo": True}
    found = server.call("POST", "/v1/completions", body).json
    (choice,) = found["choices"]
    assert choice["text"] == "abc" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [None, 0.0, 0.0]
    assert choice["logprobs"]["top_logprobs"] == [None, {"b": 0.0}, {"c": 0.0}]
    assert found["usage"]["completion_tokens"] == 0
