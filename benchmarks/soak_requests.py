"""The requests of `soak.py`: ordinary ones to every API, and those that no client should send."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from common import HERE

Manner = Literal["reads", "leaves", "is slow", "is silent", "is wrong"]
"""How the client behaves. "leaves": it goes before the end. "is silent": it reads nothing for more
than the server's patience. "is wrong": it sends what must be refused."""
MOST_WORDS, MOST_TOKENS = 400, 96
WORDS = (HERE / "public_domain.txt").read_text(encoding="utf-8").split()
SHARED = " ".join(WORDS[:150])
"""Some prompts begin with it, so that they meet in the prefix cache."""
JSON = ("Content-Type: application/json",)


@dataclass(frozen=True)
class Wanted:
    """A request, and what the client does with it."""

    name: str
    manner: Manner
    data: bytes
    """All that is sent."""
    streams: bool = False


def request_of(path: str, body: object, *headers: str, method: str = "POST") -> bytes:
    """A request with a JSON body; bytes are sent as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    head += [*(headers or JSON), f"Content-Length: {len(data)}"]
    return "\r\n".join([*head, "", ""]).encode() + data


def next_request(chance: random.Random) -> Wanted:
    """A request by chance."""
    manners: tuple[Manner, ...] = ("reads", "leaves", "is slow", "is silent", "is wrong")
    manner = chance.choices(manners, (60, 22, 6, 1, 11))[0]
    if manner == "is wrong":
        name = chance.choice(list(WRONG))
        return Wanted(name, manner, WRONG[name](chance))
    if manner == "is silent":
        return Wanted("silent", manner, _much(chance), streams=True)
    make = chance.choices(ORDINARY, [weight for _, weight in _ORDINARY])[0]
    streams = manner == "is slow" or chance.random() < 0.7
    path, body = make(chance)
    can_stream = path not in WHOLE_ONLY
    if can_stream:
        body["stream"] = streams
    if can_stream and streams and path in ("/v1/chat/completions", "/v1/completions"):
        body["stream_options"] = {"include_usage": True}
    return Wanted(path, manner, request_of(path, body), streams=can_stream and streams)


WHOLE_ONLY = ("/v1/embeddings", "/tokenize", "/v1/messages/count_tokens", "/api/embed")
Made = tuple[str, dict[str, Any]]


def _text(chance: random.Random) -> str:
    at, count = chance.randrange(len(WORDS)), chance.randrange(3, MOST_WORDS)
    text = " ".join(WORDS[at : at + count])
    return f"{SHARED} {text}" if chance.random() < 0.3 else text


def _messages(chance: random.Random) -> list[dict[str, str]]:
    return [{"role": "user", "content": _text(chance)}]


def _tokens(chance: random.Random) -> int:
    return chance.randrange(1, MOST_TOKENS)


def _chat(chance: random.Random) -> Made:
    body = {"messages": _messages(chance), "max_tokens": _tokens(chance)}
    more: list[dict[str, Any]] = [
        {}, {}, {"temperature": 0}, {"n": chance.choice([2, 3])}, {"seed": chance.randrange(99)},
        {"logprobs": True, "top_logprobs": 5}, {"stop": ["the ", "and"]},
    ]  # fmt: skip
    return "/v1/chat/completions", {**body, **chance.choice(more)}


def _schema(chance: random.Random) -> Made:
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}},
        "required": ["word", "count"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    more = {"max_tokens": _tokens(chance), "response_format": form}
    return "/v1/chat/completions", {"messages": _messages(chance), **more}


def _tools(chance: random.Random) -> Made:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    more = {"max_tokens": _tokens(chance), "tools": [tool]}
    more["tool_choice"] = chance.choice(["auto", "required"])
    return "/v1/chat/completions", {"messages": _messages(chance), **more}


def _completion(chance: random.Random) -> Made:
    prompts = [_text(chance) for _ in range(chance.choice([1, 1, 3]))]
    body: dict[str, Any] = {"prompt": prompts, "max_tokens": _tokens(chance)}
    if chance.random() < 0.3:
        body.update(echo=True, logprobs=2, max_tokens=1)
    return "/v1/completions", body


def _responses(chance: random.Random) -> Made:
    return "/v1/responses", {"input": _text(chance), "max_output_tokens": 16 + _tokens(chance)}


def _anthropic(chance: random.Random) -> Made:
    return "/v1/messages", {"messages": _messages(chance), "max_tokens": _tokens(chance)}


def _count(chance: random.Random) -> Made:
    return "/v1/messages/count_tokens", {"messages": _messages(chance)}


def _ollama(chance: random.Random) -> Made:
    options = {"num_predict": _tokens(chance)}
    if chance.random() < 0.5:
        return "/api/chat", {"messages": _messages(chance), "options": options}
    return "/api/generate", {"prompt": _text(chance), "options": options}


def _embedding(chance: random.Random) -> Made:
    return "/v1/embeddings", {"input": [_text(chance) for _ in range(chance.randrange(1, 4))]}


def _tokenize(chance: random.Random) -> Made:
    return "/tokenize", {"prompt": _text(chance)}


_ORDINARY: tuple[tuple[Callable[[random.Random], Made], int], ...] = (
    (_chat, 50), (_schema, 6), (_tools, 6), (_completion, 10), (_responses, 6), (_anthropic, 6),
    (_count, 2), (_ollama, 6), (_embedding, 4), (_tokenize, 4),
)  # fmt: skip
ORDINARY = [make for make, _ in _ORDINARY]


def _much(chance: random.Random) -> bytes:
    """A large answer: about a megabyte."""
    body = {
        "messages": _messages(chance), "stream": True, "n": 4, "max_tokens": 100,
        "logprobs": True, "top_logprobs": 20, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return request_of("/v1/chat/completions", body)


CHAT = "/v1/chat/completions"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]


def _field(name: str, *values: object) -> Callable[[random.Random], bytes]:
    """A chat with a field that is wrong."""

    def made(chance: random.Random) -> bytes:
        return request_of(CHAT, {"messages": HELLO, "max_tokens": 4, name: chance.choice(values)})

    return made


def _cut(chance: random.Random) -> bytes:
    data = json.dumps({"messages": _messages(chance)}).encode()
    return request_of(CHAT, data[: chance.randrange(len(data))])


def _flipped(chance: random.Random) -> bytes:
    data = bytearray(json.dumps({"messages": HELLO, "max_tokens": 4}).encode())
    for _ in range(3):
        data[chance.randrange(1, len(data))] = chance.randrange(0xF8, 256)  # never UTF-8
    return request_of(CHAT, bytes(data))


def _garbage(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(4, 2000)) + b"\r\n\r\n"


WRONG: dict[str, Callable[[random.Random], bytes]] = {
    "cut JSON": _cut,
    "broken UTF-8": _flipped,
    "no HTTP": _garbage,
    "deep JSON": lambda _: request_of(CHAT, b"[" * 100_000),
    "not finite": lambda _: request_of(CHAT, b'{"messages": [], "temperature": NaN}'),
    "temperature": _field("temperature", -1, 1e9, "warm", [], {}),
    "max_tokens": _field("max_tokens", -1, 0, 1 << 63, "many", 1.5),
    "n": _field("n", -1, 0, 129, 1 << 40, "two"),
    "messages": _field("messages", [], "text", [1], [{"role": "king", "content": "a"}]),
    "tools": _field("tools", "a", [{}], [{"type": "function", "function": {}}]),
    "response_format": _field("response_format", {"type": "json_schema"}, {"type": "king"}),
    "logit_bias": _field("logit_bias", {"-1": 1}, {"99999999": 1}, {"a": 1}),
    "model": _field("model", "there-is-none", 7),
    "too long": _field("messages", [{"role": "user", "content": "word " * 30_000}]),
    "token ids": lambda _: request_of("/v1/completions", {"prompt": [1, -5, 1 << 40]}),
    "no route": lambda _: request_of("/v1/nothing", {}),
    "no method": lambda _: request_of(CHAT, b"", method="DELETE"),
    "form": lambda _: request_of(CHAT, b"a=b", "Content-Type: application/x-www-form-urlencoded"),
    "gzip": lambda _: request_of(CHAT, b"\x1f\x8b", *JSON, "Content-Encoding: gzip"),
    "large head": lambda _: request_of(CHAT, {}, *JSON, "X-Large: " + "a" * 200_000),
}
"""Each of them has to be refused with a status between 400 and 499, or cut."""
