"""Whole answers with more log-probabilities than the server keeps are refused; streams are not."""

from __future__ import annotations

from typing import Any

import pytest
from server_harness import Running

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.openai.completions import completion_call
from mlc_llm.serve.server.calls.echoes import bounded_echoes
from mlc_llm.serve.server.limits.whole_size import bounded_chat, bounded_completion

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "logprobs": True}
MANY = {"n": 128, "max_tokens": 200}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {**CHAT, **MANY, "top_logprobs": 20}, "top_logprobs"),
        ("/v1/completions", {"prompt": ["a"] * 2, **MANY, "logprobs": 5}, "logprobs"),
        ("/v1/chat/completions", {**CHAT, "n": 128, "top_logprobs": 20}, "top_logprobs"),
    ],
)
def test_too_many_log_probabilities(
    server: Running, path: str, body: dict[str, Any], field: str
) -> None:
    refused = server.call("POST", path, body)
    assert refused.status == 400 and refused.error["param"] == field
    assert "262144" in refused.error["message"] and "stream" in refused.error["message"]


def test_fewer_are_answered(server: Running) -> None:
    few = {**CHAT, "n": 2, "max_tokens": 4, "top_logprobs": 20}
    assert server.call("POST", "/v1/chat/completions", few).status == 200


def chat_request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.parse({**CHAT, **fields})


def test_an_answer_without_a_stated_length_ends_where_its_log_probabilities_do() -> None:
    request = chat_request(top_logprobs=20)
    assert bounded_chat(request, 4096) is request
    assert bounded_chat(request, 131072).generation_config().max_tokens == (1 << 18) // 21
    assert bounded_chat(chat_request(top_logprobs=20, max_tokens=12000), 131072).max_tokens == 12000
    for fields in ({"n": 4}, {"max_tokens": 13000}):
        with pytest.raises(InvalidField, match="top_logprobs"):
            bounded_chat(chat_request(top_logprobs=20, **fields), 131072)


def test_what_is_kept_of_a_stream() -> None:
    stream = chat_request(top_logprobs=20, stream=True, n=100)
    assert bounded_chat(stream, 131072) is stream
    with pytest.raises(InvalidField, match="top_logprobs"):
        bounded_chat(stream, 131072, keeps_streamed=True)
    plain = ChatCompletionRequest.parse({**CHAT, "logprobs": False, "n": 100})
    assert bounded_chat(plain, 131072) is plain


def test_completions_are_bounded_too() -> None:
    request = CompletionRequest.parse({"prompt": ["a", "b"], "logprobs": 5})
    assert bounded_completion(request, 131072).max_tokens == (1 << 18) // 12


def test_prompts_leave_room_for_an_answer_without_a_stated_length() -> None:
    request = CompletionRequest.parse({"prompt": ["a", "b"], "logprobs": 5, "echo": True})
    assert bounded_completion(request, 131072).max_tokens == (1 << 18) // 24
    assert bounded_completion(request, 4096) is request


ECHO = {"echo": True, "logprobs": 5}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [[97] * 3000] * 16, "max_tokens": 1},
        {"prompt": ["a" * 3000] * 16, "max_tokens": 1},
        {"prompt": "a" * 3000, "n": 16, "max_tokens": 1},
    ],
    ids=["tokens", "texts", "choices"],
)
def test_those_of_prompts_count(server: Running, body: dict[str, Any], stream: bool) -> None:
    refused = server.call("POST", "/v1/completions", {**body, **ECHO, "stream": stream})
    assert refused.status == 400 and refused.error["param"] == "logprobs"
    assert "262144" in refused.error["message"] and "prompts" in refused.error["message"]
    server.wait_idle()
    for more in ({"logprobs": 5}, {"echo": True}):
        kept = {**body, "max_tokens": 0, **more, "stream": stream}
        assert server.call("POST", "/v1/completions", kept).status == 200


def made(server: Running, **fields: Any) -> int:
    """Makes all requests of a completion; how many there are."""
    model = server.client.model
    body = {"model": "a", "prompt": ["a" * 1000] * 16, **ECHO, **fields}
    request = bounded_completion(CompletionRequest.parse(body), model.context)
    call = bounded_echoes(completion_call(request, "id", model), request, model.context)
    return len([part.make() for part in call.parts])


def test_prompts_and_answers_share_the_limit(server: Running) -> None:
    assert made(server, max_tokens=1000) == 16
    with pytest.raises(InvalidField, match="prompts"):
        made(server, max_tokens=2000)
    assert made(server, max_tokens=2000, stream=True) == 16
    # What cannot be longer than the context is not counted as if it could.
    assert made(server, prompt=["a" * 3000] * 10) == 10
    with pytest.raises(InvalidField, match="prompts"):
        made(server, prompt=["a" * 3000] * 10, n=2, max_tokens=1)
