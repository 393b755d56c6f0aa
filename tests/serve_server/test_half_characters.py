"""Half a character (a lone surrogate, which UTF-8 cannot write) anywhere in a request: 400."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server_harness import JSON, Running

from mlc_llm.serve.server.app import ANSWERS, OTHER_ROUTES, V1_ROUTES

ROUTES = (*V1_ROUTES, *OTHER_ROUTES)
PATHS = [*(path for _, path, endpoint in ROUTES if endpoint in ANSWERS), "/tokenize", "/detokenize"]
HALF = "\ud800"
MESSAGE = {"role": "user", "content": "a"}
ASKED: dict[str, Any] = {"messages": [MESSAGE], "prompt": "a", "input": "a", "max_tokens": 1}
PLACES: list[tuple[str, dict[str, Any]]] = [
    ("the name of a field", {HALF: 1}),
    ("metadata", {"metadata": {HALF: "a"}}),
    ("metadata", {"metadata": {"a": HALF}}),
    ("user", {"user": HALF}),
    ("messages", {"messages": [{"role": HALF, "content": "a"}]}),
    ("messages", {"messages": [{**MESSAGE, HALF: 1}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f", "description": HALF}}]}),
    ("response_format", {"response_format": {"type": HALF}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {HALF: 1}}),
]


@pytest.mark.parametrize("path", PATHS)
def test_half_a_character_is_refused_everywhere(server: Running, path: str) -> None:
    for words, more in PLACES:
        reply = server.call("POST", path, json.dumps({**ASKED, **more}).encode(), JSON)
        assert reply.status == 400, (more, reply.data)
        assert "lone surrogate" in reply.data.decode() and words in reply.data.decode()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_whole_characters_that_are_written_as_two_halves_are_text(
    server: Running, path: str
) -> None:
    body = {"messages": [{"role": "user", "content": "🌙"}], "input": "🌙", "max_tokens": 9}
    taken = ("input",) if path.endswith("responses") else ("messages", "max_tokens")
    data = json.dumps({name: body[name] for name in taken}).encode()
    assert b"\\ud83c" in data
    reply = server.call("POST", path, data, JSON)
    assert reply.status == 200 and "🌙" in reply.data.decode()


def test_bytes_of_half_a_character_are_no_utf8(server: Running) -> None:
    reply = server.call("POST", "/v1/completions", b'{"prompt": "\xed\xa0\x80"}', JSON)
    assert reply.status == 400 and "Failed to parse JSON" in reply.error["message"]
