"""Whole answers with more log-probabilities than the server keeps are refused; streams are not."""

from __future__ import annotations

from typing import Any

import pytest
from server_harness import Running

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "logprobs": True}
MANY = {"n": 128, "max_tokens": 200}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {**CHAT, **MANY, "top_logprobs": 20}, "top_logprobs"),
        ("/v1/completions", {"prompt": ["a"] * 2, **MANY, "logprobs": 5}, "logprobs"),
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
