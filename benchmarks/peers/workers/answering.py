"""What the workers of peers share: prompts, and answers to measurements given as lines of JSON.

Runs in the peers' environments, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Protocol, TypeVar

VOCABULARY = 30_000
"""Ids below it are in every model that is compared."""


Request = TypeVar("Request")


class Engine(Protocol[Request]):
    """A model held by a peer."""

    def add(self, depth: int, tokens: int) -> Request:
        """Add a request with a prompt of `depth` tokens. It ends after `tokens` new tokens."""

    def finish(self) -> float:
        """Run all requests to their end. Returns the seconds."""

    def decode(self, requests: Sequence[Request], tokens: int) -> float:
        """Run requests that were just added, of `tokens` + 1 tokens each. Returns the tokens a
        second after their prompts."""


def prompt(depth: int, request: int) -> list[int]:
    """Token ids that differ from all other requests, so that nothing can be reused."""
    return [(7919 * i + 1000 + 31 * request) % VOCABULARY for i in range(depth)]


def measure(engine: Engine[Request], depth: int, tokens: int, streams: int) -> float:
    """Tokens a second (see `base.Trial`)."""
    requests = [engine.add(depth, tokens + 1) for _ in range(streams)]
    return engine.decode(requests, tokens) if tokens else depth * streams / engine.finish()


def answer(engine: Engine[Request], line: str) -> dict[str, float | str]:
    """`{"value": ...}` or `{"error": text}`. The first run of a shape may compile, so it is not
    counted. A request that is no measurement asks whether the model is loaded."""
    request = json.loads(line)
    if request["do"] != "measure":
        return {"value": 0}
    depth, tokens, streams = (request[key] for key in ("depth", "tokens", "streams"))
    try:
        measure(engine, depth, min(tokens, 2), streams)
        return {"value": measure(engine, depth, tokens, streams)}
    except (RuntimeError, ValueError) as error:
        return {"error": str(error)[:300] or type(error).__name__}


def work(engine: Engine[Request], mode: str) -> None:
    """mode serve: answer every line of standard input. once: one token after a 16-token prompt."""
    if mode == "once":
        engine.add(16, 1)
        engine.finish()
        return
    for line in sys.stdin:
        print(json.dumps(answer(engine, line)), flush=True)
