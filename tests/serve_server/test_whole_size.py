"""Whole answers with more log-probabilities than the server keeps are refused; streams are not."""

from __future__ import annotations

from typing import Any

import pytest
from server_harness import Running

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
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
