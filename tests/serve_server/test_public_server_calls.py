"""The calls and expectations of MLC LLM's own tests of its server, with the default model.

They are those of `tests/python/serve/server/test_server.py` there, with shorter answers. Where this
server does otherwise on purpose, the last tests of the file say how.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from threaded_harness import COMPILING_SECONDS, watched

from mlc_llm.protocol.openai_api_protocol import (
    CHAT_COMPLETION_MAX_TOP_LOGPROBS,
    COMPLETION_MAX_TOP_LOGPROBS,
)
from mlc_llm.serve import EngineConfig, PopenServer

pytestmark = [pytest.mark.model, pytest.mark.slow]
NO_EOS = {"debug_config": {"ignore_eos": True}}
LIFE = "What is the meaning of life?"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TALKS = [
    [{"role": "user", "content": "Hello! Our project is MLC LLM."}],
    [
        {"role": "user", "content": "Hello! Our project is MLC LLM."},
        {"role": "assistant", "content": "Hello! It's great to hear about your project, MLC LLM."},
        {"role": "user", "content": "What is the name of our project?"},
    ],
    [
        {"role": "system", "content": "You are a helpful, respectful and honest assistant."},
        {"role": "user", "content": "Hello! Our project is MLC LLM."},
    ],
]
SCHEMA = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "is_accepted": {"type": "boolean"},
        "num": {"type": "number"},
    },
    "required": ["size", "is_accepted", "num"],
}


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    with watched(request.config, 3 * COMPILING_SECONDS):
        yield


@pytest.fixture(scope="module")
def server(default_model: object) -> Iterator[PopenServer]:
    config = EngineConfig(max_total_sequence_length=8192, max_num_sequence=16)
    with PopenServer(model=None, mode="server", engine_config=config, port=0) as made:
        yield made


def call(server: PopenServer, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=180)
    try:
        headers = {"content-type": "application/json"}
        connection.request(method, path, body and json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def texts_of(
    server: PopenServer, path: str, body: dict[str, Any], reasons: set[str], n: int = 1
) -> list[str]:
    """The texts of the choices; see `answers_of`."""
    return [text for text, _ in answers_of(server, path, body, reasons, n)]


def answers_of(
    server: PopenServer, path: str, body: dict[str, Any], reasons: set[str], n: int = 1
) -> list[tuple[str, str]]:
    """Text and finish reason of the choices, after checks that are made there of every answer."""
    body = {"model": "default", "n": n, **body}
    status, data = call(server, "POST", path, body)
    assert status == 200, data
    streams = bool(body.get("stream"))
    lines = [line[6:] for line in data.split(b"\n\n") if line.startswith(b"data: {")]
    responses = [json.loads(line) for line in (lines if streams else [data])]
    texts, ends = [""] * n, [""] * n
    kind = "text_completion" if path == TEXT else "chat.completion" + ".chunk" * streams
    for response in responses:
        assert response["object"] == kind and response["model"]
        for choice in response["choices"]:
            index = choice["index"]
            part = choice if path == TEXT else choice["delta" if streams else "message"]
            texts[index] += part.get("text" if path == TEXT else "content", "")
            ends[index] = choice["finish_reason"] or ends[index]
    assert set(ends) <= reasons, ends
    if not streams:
        usage = responses[0]["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        if body.get("debug_config") and path == TEXT:
            assert usage["completion_tokens"] == body["max_tokens"]
    return list(zip(texts, ends, strict=True))


def test_models(server: PopenServer) -> None:
    found = json.loads(call(server, "GET", "/v1/models")[1])
    assert found["object"] == "list"
    (card,) = found["data"]
    assert card["object"] == "model" and card["owned_by"] == "MLC-LLM"
    assert texts_of(server, TEXT, {"prompt": "a", "max_tokens": 1, "model": card["id"]}, {"length"})


FIELDS: list[dict[str, Any]] = [
    {},
    {"echo": True},
    {"temperature": 0.0},
    {"logit_bias": {338: -100}},
    {"frequency_penalty": 2.0, "presence_penalty": 2.0},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_completions(server: PopenServer, fields: dict[str, Any], stream: bool) -> None:
    body = {"prompt": LIFE, "max_tokens": 32, "stream": stream, **NO_EOS, **fields}
    (text,) = texts_of(server, TEXT, body, {"length"})
    assert text and text.startswith(LIFE) == bool(fields.get("echo"))


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(server: PopenServer, stream: bool) -> None:
    body = {"prompt": LIFE, "max_tokens": 128, "stop": ["in"], "stream": stream}
    (text,) = texts_of(server, TEXT, body, {"stop", "length"})
    assert "in" not in text


def test_seeds(server: PopenServer) -> None:
    body = {"prompt": LIFE, "max_tokens": 48, "seed": 233, **NO_EOS}
    assert texts_of(server, TEXT, body, {"length"}) == texts_of(server, TEXT, body, {"length"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["json", "schema"])
def test_json(server: PopenServer, path: str, schema: Any, stream: bool) -> None:
    question = "Make a json with an integer size, a boolean is_accepted and a float num:"
    shape: dict[str, Any] = {"type": "json_object"}
    if schema is not None:
        shape["schema"] = json.dumps(schema)
    asked: dict[str, Any] = {"prompt": question}
    if path == CHAT:
        asked = {"messages": [{"role": "user", "content": question}]}
    body = {**asked, "max_tokens": 128, "stream": stream, "response_format": shape}
    ((text, end),) = answers_of(server, path, body, {"stop", "length"})
    if end == "stop":
        found = json.loads(text)
        assert schema is None or set(found) == set(schema["required"])
    else:
        assert text.lstrip().startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("talk", TALKS, ids=["one", "turns", "system"])
@pytest.mark.parametrize("n", [1, 3])
def test_chats(server: PopenServer, talk: Any, n: int, stream: bool) -> None:
    body = {"messages": talk, "stream": stream, "max_tokens": 64}
    assert all(texts_of(server, CHAT, body, {"stop", "length"}, n))


@pytest.mark.parametrize("stream", [False, True])
def test_the_longest_answer(server: PopenServer, stream: bool) -> None:
    talk = [{"role": "user", "content": "Write a novel with at least 500 words."}]
    for more in ({}, NO_EOS):
        body = {"messages": talk, "max_tokens": 16, "stream": stream, **more}
        assert all(texts_of(server, CHAT, body, {"length"}))


def test_a_client_that_goes(server: PopenServer) -> None:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=0.05)
    body = json.dumps({"prompt": LIFE, "max_tokens": 2048, **NO_EOS})
    with pytest.raises(TimeoutError):
        connection.request("POST", TEXT, body, {"content-type": "application/json"})
        connection.getresponse()
    connection.close()
    assert call(server, "GET", "/v1/models")[0] == 200


def test_metrics(server: PopenServer) -> None:
    texts_of(server, TEXT, {"prompt": "a", "max_tokens": 1}, {"length"})
    assert b"engine_prefill_time_sum" in call(server, "GET", "/metrics")[1]


# Where this server does otherwise on purpose.

OTHERWISE: list[tuple[str, dict[str, Any], str]] = [
    # There 422 with `detail`; here 400 and OpenAI's error object, whose field clients read.
    (TEXT, {"prompt": LIFE, "logprobs": COMPLETION_MAX_TOP_LOGPROBS + 1}, "logprobs"),
    (
        CHAT,
        {
            "messages": TALKS[0],
            "logprobs": True,
            "top_logprobs": CHAT_COMPLETION_MAX_TOP_LOGPROBS + 1,
        },
        "top_logprobs",
    ),
    (CHAT, {"messages": TALKS[0], "top_logprobs": 2}, "logprobs"),
    # There the error is at the top level of the body; here it is in `error`, as in OpenAI's API.
    (TEXT, {"prompt": [128] * 1_000_000, "max_tokens": 256}, "1000000 tokens in total"),
    (TEXT, {"prompt": LIFE, "best_of": 2}, "best_of"),
    # There the suffix is added to the text, which no model has read; here it is refused.
    (TEXT, {"prompt": LIFE, "suffix": "Hello, world!"}, "suffix"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "words"), OTHERWISE)
def test_errors_are_openais(
    server: PopenServer, path: str, body: dict[str, Any], words: str, stream: bool
) -> None:
    status, data = call(server, "POST", path, {**body, "stream": stream})
    assert status == 400, data
    error = json.loads(data)["error"]
    assert words in error["message"], error


def test_a_role_comes_once(server: PopenServer) -> None:
    """There every delta has the role; clients that add deltas up would repeat it."""
    status, data = call(
        server, "POST", CHAT, {"messages": TALKS[0], "stream": True, "max_tokens": 8}
    )
    assert status == 200 and data.count(b'"role"') == 1
